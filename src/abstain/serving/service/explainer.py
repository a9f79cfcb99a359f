"""Explanations of decisions that are neither logged nor counted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from abstain.core.contracts import Interaction
from abstain.serving.explanation import Explanation
from abstain.serving.gate import Gate
from abstain.serving.service.batching import Batcher
from abstain.serving.service.callers import get_current_caller
from abstain.serving.service.decision_inputs import InputGatherer, count_characters
from abstain.serving.service.version_follower import VersionFollower
from abstain.serving.service.waiting import run_with_timeout


class Explainer:
    """Explains decisions of the live version.

    Args:
        follower: Follows the production version.
        batcher: Runs the base model.
        gatherer: Checks lengths of texts.
        timeout_s: Time limit in seconds.
    """

    def __init__(self, follower: VersionFollower, batcher: Batcher, gatherer: InputGatherer, timeout_s: float) -> None:
        self._follower, self._batcher, self._gatherer, self._timeout_s = follower, batcher, gatherer, timeout_s

    async def explain(self, interaction: Interaction, allow_no_context: bool = False) -> Explanation:
        """Decide about an answer that somebody tries, and explain the decision.

        Args:
            interaction: Texts of the answer.
            allow_no_context: Decide even if nothing was retrieved.

        Returns:
            The decision with its explanation.

        Raises:
            AbstainError: The texts are too long, no version is live, or there is no decision in time.
        """
        self._gatherer.check_text_length(
            count_characters(interaction.question, interaction.answer, interaction.contexts)
        )
        version = self._follower.require_current()
        run = partial(_explain_all, version.gate)
        job = self._batcher.run(("explain", version), run, (interaction, allow_no_context), caller=get_current_caller())
        return await run_with_timeout(self._timeout_s, job)


def _explain_all(gate: Gate, jobs: Sequence[tuple[Interaction, bool]]) -> list[Explanation]:
    return [gate.explain(row, allow_no_context) for row, allow_no_context in jobs]
