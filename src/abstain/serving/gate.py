"""The gate in process: `Gate.open(bundle).decide(question, contexts, answer)` for a RAG service in Python.

The server (serving/api) decides by the same class. Whatever keeps the gate from a decision makes it `unavailable`,
never `show`: no contexts where they are needed, a version without a guarantee, features that the scorer lacks. What is
done with such an answer, `on_unavailable` says: it is withheld by default.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from abstain.config.settings import Settings, load_settings
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.contracts import Context, Interaction, unnamed_context
from abstain.serving.predictor import Decision, Predictor

OnUnavailable = Literal["abstain", "show"]
UNKNOWN_WRITER = "unknown"
"""The writer of an answer where the caller does not name it."""


@dataclass(frozen=True)
class Gate:
    """A released version, ready to decide."""

    predictor: Predictor
    on_unavailable: OnUnavailable = "abstain"

    @classmethod
    def open(cls, bundle: Path, settings: Settings | None = None, on_unavailable: OnUnavailable = "abstain") -> Gate:
        """The gate of a release's folder. Raises `AbstainError` as `Predictor.open` does."""
        file = bundle / paths.RELEASED_ONNX.name
        return cls(Predictor.open(file, settings or load_settings()), on_unavailable)

    @property
    def version(self) -> str:
        return self.predictor.scorer.metadata["version"]

    def decide(
        self,
        question: str,
        contexts: Sequence[str | Context],
        answer: str,
        *,
        interaction_id: str | None = None,
        no_context: bool = False,
    ) -> Decision:
        """The decision about one answer.

        `contexts`: what was retrieved, best first; with `no_context`, an answer without any is decided on, too.
        Raises pydantic's `ValidationError` for an empty text.
        """
        row = interaction(question, contexts, answer, interaction_id)
        (decision,) = self.decide_all([row], [no_context])
        return decision

    def decide_all(self, rows: Sequence[Interaction], no_context: Sequence[bool]) -> list[Decision]:
        """The decisions about several answers, in order, in as few passes of the base model as they take."""
        lacking = [not meant and self.predictor.lacks_context(row) for row, meant in zip(rows, no_context, strict=True)]
        scored = iter(self.predictor.score([row for row, lacks in zip(rows, lacking, strict=True) if not lacks]))
        return [
            self.checked(self.predictor.unavailable(row) if lacks else next(scored))
            for row, lacks in zip(rows, lacking, strict=True)
        ]

    def checked(self, decision: Decision) -> Decision:
        """`decision`, `unavailable` where this version guarantees nothing, with what is done with such answers."""
        if decision.decision != "unavailable" and not self.predictor.guaranteed:
            reason = f"{Code.NO_THRESHOLD}: version {self.version} has no guarantee: {self.predictor.guarantee}"
            decision = replace(decision, decision="unavailable", reason=decision.reason or reason, show=False)
        return replace(decision, show=self.on_unavailable == "show") if decision.decision == "unavailable" else decision

    def warm(self) -> None:
        """Load the base model and run every part once, so that the first request is not the slowest."""
        self.decide("Is this read?", ["Yes."], "Yes.", interaction_id="warm-up")


def interaction(
    question: str, contexts: Sequence[str | Context], answer: str, interaction_id: str | None = None
) -> Interaction:
    """An answered question from its texts. Raises pydantic's `ValidationError` for an empty one."""
    return Interaction(
        interaction_id=interaction_id or new_id(),
        asked_at=datetime.now(UTC),
        question=question,
        answer=answer,
        contexts=as_contexts(contexts),
        model=UNKNOWN_WRITER,
    )


def as_contexts(given: Sequence[str | Context]) -> tuple[Context, ...]:
    """Contexts; those without an id are named after their text."""
    return tuple(one if isinstance(one, Context) else unnamed_context(one) for one in given)


def new_id() -> str:
    """An id for an interaction that has none."""
    return f"gate-{secrets.token_hex(12)}"


def no_version(interaction_id: str, on_unavailable: OnUnavailable, reason: str) -> Decision:
    """The decision while nothing is live, or nothing could be asked in time."""
    return Decision(
        interaction_id, "unavailable", None, None, "", "nothing is live", reason=reason, show=on_unavailable == "show"
    )
