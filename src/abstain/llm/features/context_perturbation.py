"""Perturbed contexts of answered questions (llm/perturbation): condition P_c of the correctness regressors.

Notes:

* A context is perturbed as a whole: K of the tokens of all its chunks. The text between chunks and the number of chunks
  stay, so that prompt layouts need no special case for a perturbed interaction.
* The perturbation model uses the same cache and shards as the base model: a context that many questions share is
  perturbed once, by workers where there are any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from abstain.config.params import PerturbationParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.engine.prompts import PromptSegments, Segment
from abstain.llm.engine.requests import Perturb, Request
from abstain.llm.engine.tokenization import ContextWindow
from abstain.llm.features.feature_store import ConcatRequests, FeatureStore, OnProgress
from abstain.llm.features.shard_job import JobStats, ShardRunner, row_key
from abstain.llm.perturbation.engines import AROUND
from abstain.llm.perturbation.text import DiffPart, PerturbationStep, TokenTexts, apply_steps, diff, to_steps

JOIN = Segment("join", "\n\n", literal=True)


@dataclass(frozen=True)
class ContextPerturber:
    """The perturbation model `model`, as `llm.model` names one, and how it perturbs.

    `max_perturbed_tokens`: the most tokens that any set-up perturbs of the same texts. Iteratively by entropy, fewer
    replacements are the first steps of more, so one request serves both.
    """

    params: PerturbationParams
    model: str
    settings: Settings
    max_perturbed_tokens: int = 0

    @cached_property
    def operations(self) -> tuple[Perturb, ...]:
        """One a copy, each under a seed of its own."""
        how = self.params
        begins = (how.where, how.when) == ("entropy", "iterative")
        tokens = max(how.tokens, self.max_perturbed_tokens) if begins else how.tokens
        return tuple(Perturb(how.where, how.when, tokens, how.seed + copy) for copy in range(how.copies))

    def compute_missing(
        self,
        rows: Sequence[Interaction],
        progress: OnProgress = lambda done, total: None,
        runner: ShardRunner | None = None,
    ) -> JobStats:
        """Compute the missing rows; the result is what that cost, as of `FeatureStore.compute_missing`."""
        return self._rows.compute_missing(
            ConcatRequests([self._requests(rows, ask) for ask in self.operations]), progress, runner
        )

    def run(self, rows: Sequence[Interaction]) -> None:
        """Perturb without reading or writing the cache, as `FeatureStore.run`."""
        self._rows.compute_uncached(ConcatRequests([self._requests(rows, ask) for ask in self.operations]))

    def missing(self, rows: Sequence[Interaction]) -> tuple[int, int]:
        """The number of contexts to be perturbed, copies counted, and the number of distinct ones not cached."""
        requests = ConcatRequests([self._requests(rows, ask) for ask in self.operations])
        return sum(requests[at] is not None for at in range(len(requests))), self._rows.missing(requests)

    def keys(self, rows: Sequence[Interaction]) -> dict[str, set[str]]:
        """Digest of a cache space -> the keys of `rows` in it."""
        return {
            self._rows.get_namespace(ask).digest: {row_key(request) for request in self._requests(rows, ask) if request}
            for ask in self.operations
        }

    def perturb(self, rows: Sequence[Interaction]) -> list[list[Interaction]]:
        """Every copy of `rows` with perturbed contexts. A row without chunks, or whose context the perturbation model
        cannot read at once, is as it was."""
        return [
            [self._changed(row, steps) for row, steps in zip(rows, self._steps(rows, ask), strict=True)]
            for ask in self.operations
        ]

    def diffs(self, row: Interaction) -> list[list[DiffPart]]:
        """The first copy of every chunk of `row`, beside what it was."""
        (steps,) = self._steps([row], self.operations[0])
        return [diff(one.text, 2 * at, steps, self._pieces) for at, one in enumerate(row.contexts)]

    def list_replacements(self, row: Interaction) -> list[tuple[str, str, PerturbationStep]]:
        """Old text, new text and step of each replacement in the first copy of `row`, in the order of replacement."""
        (steps,) = self._steps([row], self.operations[0])
        olds = [row.contexts[step.segment // 2].text[step.start : step.end] for step in steps]
        return [
            (old, self._pieces.replacement(old, step.new, step.start == 0), step)
            for old, step in zip(olds, steps, strict=True)
        ]

    def count_remarks(self, rows: Sequence[Interaction]) -> dict[str, int]:
        """The number of `rows` with each remark, by the first copy.

        `empty`: nothing was retrieved, so P_c is B_c. `too_long`: more than the perturbation model reads at once, so
        P_c is N_c. `fewer`: the context had fewer than K tokens that could be replaced, and all of these were.
        `not_reproduced`: the tokenizer does not write back what it read; only the places that were replaced differ
        all the same.
        """
        found = dict.fromkeys(("empty", "too_long", "fewer", "not_reproduced"), 0)
        for row, steps in zip(rows, self._steps(rows, self.operations[0]), strict=True):
            if not row.contexts:
                found["empty"] += 1
            elif self._excess(_pass(row)):
                found["too_long"] += 1
            else:
                found["fewer"] += len(steps) < self.params.tokens
                found["not_reproduced"] += not all(self._pieces.reproduces(one.text) for one in row.contexts)
        return found

    @cached_property
    def _rows(self) -> FeatureStore:
        return FeatureStore(self.model, self.settings)

    @cached_property
    def _pieces(self) -> TokenTexts:
        return TokenTexts.from_tokenizer(load_tokenizer(find_model(self.model, self.settings)))

    @cached_property
    def _window(self) -> ContextWindow:
        return ContextWindow(find_model(self.model, self.settings))

    def _excess(self, pass_: PromptSegments) -> str:
        return self._window.describe_overflow(pass_, AROUND)

    def _requests(self, rows: Sequence[Interaction], ask: Perturb) -> list[Request | None]:
        passes = [(_pass(row), row.interaction_id) for row in rows]
        return [
            Request(pass_, ask, f"interaction {name}") if pass_ and not self._excess(pass_) else None
            for pass_, name in passes
        ]

    def _steps(self, rows: Sequence[Interaction], ask: Perturb) -> list[list[PerturbationStep]]:
        found: list[list[PerturbationStep]] = [[] for _ in rows]
        for at, result in self._rows.read(self._requests(rows, ask)):
            found[at] = to_steps(result)[: self.params.tokens]
        return found

    def _changed(self, row: Interaction, steps: Sequence[PerturbationStep]) -> Interaction:
        contexts = tuple(
            one.model_copy(update={"text": apply_steps(one.text, 2 * at, steps, self._pieces)})
            for at, one in enumerate(row.contexts)
        )
        return row.model_copy(update={"contexts": contexts})


def _pass(row: Interaction) -> PromptSegments:
    """The chunks of `row`, which are the even segments, and what stands between them."""
    chunks = [Segment("chunk", one.text) for one in row.contexts]
    return tuple(part for chunk in chunks for part in (JOIN, chunk))[1:]
