"""Perturbed contexts of answered questions (llm/perturbation): condition P_c of the correctness regressors.

Notes:

* A context is perturbed as a whole: K of the tokens of all its chunks. The text between chunks and the number of chunks
  stay the same, so prompt layouts need no special case for a perturbed interaction.
* The perturbation model uses the same cache and shards as the base model. A context that many questions share is
  perturbed once, by workers if there are any.
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
from abstain.llm.engine.tokenization import ContextLimit, encode_prompt
from abstain.llm.features.feature_store import ConcatRequests, FeatureStore, OnProgress
from abstain.llm.features.shard_job import JobStats, ShardRunner, row_key
from abstain.llm.perturbation.engines import SURROUNDING_TOKENS
from abstain.llm.perturbation.text import DiffPart, PerturbationStep, TokenTexts, apply_steps, make_diff, to_steps

JOIN = Segment("join", "\n\n", literal=True)


@dataclass(frozen=True)
class ContextPerturber:
    """A perturbation model, and how it perturbs the contexts of interactions.

    Attributes:
        params: Which tokens are replaced, in which order, how many, and in how many copies.
        model: The perturbation model, named as in `llm.model`.
        settings: Settings of this machine.
        max_perturbed_tokens: The largest number of tokens that any configuration perturbs in the same texts. In
            iterative replacement by entropy, fewer replacements are the first steps of more, so one request serves
            both.
    """

    params: PerturbationParams
    model: str
    settings: Settings
    max_perturbed_tokens: int = 0

    @cached_property
    def operations(self) -> tuple[Perturb, ...]:
        """One operation per copy, each with its own seed."""
        params = self.params
        is_nested = (params.selection, params.schedule) == ("entropy", "iterative")
        tokens = max(params.tokens, self.max_perturbed_tokens) if is_nested else params.tokens
        seeds = range(params.seed, params.seed + params.n_copies)
        return tuple(Perturb(params.selection, params.schedule, tokens, seed) for seed in seeds)

    def compute_missing(
        self,
        rows: Sequence[Interaction],
        on_progress: OnProgress = lambda done, total: None,
        runner: ShardRunner | None = None,
    ) -> JobStats:
        """Compute the perturbations that are not in the cache.

        Args:
            rows: Interactions whose contexts are perturbed.
            on_progress: Called with (computed rows, missing rows).
            runner: Where shards are computed; None computes them in this process.

        Returns:
            The cost, as from `FeatureStore.compute_missing`.
        """
        return self._store.compute_missing(self._all_requests(rows), on_progress, runner)

    def compute_uncached(self, rows: Sequence[Interaction]) -> None:
        """Perturb the contexts of `rows` without using the cache, as `FeatureStore.compute_uncached` does."""
        self._store.compute_uncached(self._all_requests(rows))

    def count_missing(self, rows: Sequence[Interaction]) -> tuple[int, int]:
        """Count the contexts to perturb and those that are not cached.

        Args:
            rows: Interactions whose contexts are perturbed.

        Returns:
            The number of contexts to perturb, where each copy counts, and the number of distinct ones that are not
            cached.
        """
        requests = self._all_requests(rows)
        return sum(requests[index] is not None for index in range(len(requests))), self._store.count_missing(requests)

    def collect_keys(self, rows: Sequence[Interaction]) -> dict[str, set[str]]:
        """Return the cache keys of `rows` by the digest of their namespace."""
        return {
            self._store.get_namespace(operation).digest: {
                row_key(request) for request in self._requests(rows, operation) if request
            }
            for operation in self.operations
        }

    def perturb(self, rows: Sequence[Interaction]) -> list[list[Interaction]]:
        """Return every copy of `rows` with perturbed contexts.

        Args:
            rows: Interactions to perturb.

        Returns:
            One list per copy, in the order of `rows`. A row stays unchanged if it has no chunks, or if the perturbation
            model cannot read its context at once.
        """
        return [
            [self._replace_contexts(row, steps) for row, steps in zip(rows, self._steps(rows, operation), strict=True)]
            for operation in self.operations
        ]

    def estimate_forward_tokens(self, rows: Sequence[Interaction]) -> float:
        """Estimate the most tokens that the perturbation model reads for the contexts of one answer.

        Iterative replacement by entropy reads a context once for each replacement, everything else reads it once.

        Args:
            rows: Interactions to perturb.

        Returns:
            The mean number of tokens, of all copies together.
        """
        is_reread = (self.params.selection, self.params.schedule) == ("entropy", "iterative")
        passes = self.params.n_copies * (self.params.tokens if is_reread else 1)
        if not passes:
            return 0.0
        tokenizer = load_tokenizer(find_model(self.model, self.settings))
        lengths = [len(encode_prompt(tokenizer, prompt).ids) for row in rows if (prompt := _build_prompt(row))]
        return passes * sum(lengths) / max(len(rows), 1)

    def diff_contexts(self, row: Interaction) -> list[list[DiffPart]]:
        """Return the differences between each chunk of `row` and its first copy."""
        (steps,) = self._steps([row], self.operations[0])
        return [
            make_diff(context.text, 2 * index, steps, self._token_texts) for index, context in enumerate(row.contexts)
        ]

    def list_replacements(self, row: Interaction) -> list[tuple[str, str, PerturbationStep]]:
        """Return old text, new text and step of each replacement in the first copy of `row`, in replacement order."""
        (steps,) = self._steps([row], self.operations[0])
        old_texts = [row.contexts[step.segment // 2].text[step.start : step.end] for step in steps]
        return [
            (old_text, self._token_texts.make_replacement(old_text, step.new, step.start == 0), step)
            for old_text, step in zip(old_texts, steps, strict=True)
        ]

    def count_remarks(self, rows: Sequence[Interaction]) -> dict[str, int]:
        """Count the rows with each remark, by the first copy.

        Args:
            rows: Interactions to perturb.

        Returns:
            Remark -> number of rows. `empty`: nothing was retrieved, so P_c is B_c. `too_long`: the perturbation model
            cannot read the context at once, so P_c is N_c. `fewer`: the context had fewer than K replaceable tokens,
            and all of them were replaced. `not_reproduced`: the tokenizer does not write back the text that it read;
            still, only the replaced places differ.
        """
        counts = dict.fromkeys(("empty", "too_long", "fewer", "not_reproduced"), 0)
        for row, steps in zip(rows, self._steps(rows, self.operations[0]), strict=True):
            if not row.contexts:
                counts["empty"] += 1
            elif self._describe_overflow(_build_prompt(row)):
                counts["too_long"] += 1
            else:
                counts["fewer"] += len(steps) < self.params.tokens
                counts["not_reproduced"] += not all(
                    self._token_texts.can_reproduce(context.text) for context in row.contexts
                )
        return counts

    @cached_property
    def _store(self) -> FeatureStore:
        return FeatureStore(self.model, self.settings)

    @cached_property
    def _token_texts(self) -> TokenTexts:
        return TokenTexts.from_tokenizer(load_tokenizer(find_model(self.model, self.settings)))

    @cached_property
    def _context_window(self) -> ContextLimit:
        return ContextLimit(find_model(self.model, self.settings))

    def _describe_overflow(self, prompt: PromptSegments) -> str:
        return self._context_window.describe_overflow(prompt, SURROUNDING_TOKENS)

    def _all_requests(self, rows: Sequence[Interaction]) -> ConcatRequests:
        return ConcatRequests([self._requests(rows, operation) for operation in self.operations])

    def _requests(self, rows: Sequence[Interaction], operation: Perturb) -> list[Request | None]:
        prompts = [(_build_prompt(row), row.interaction_id) for row in rows]
        return [
            Request(prompt, operation, f"interaction {interaction_id}")
            if prompt and not self._describe_overflow(prompt)
            else None
            for prompt, interaction_id in prompts
        ]

    def _steps(self, rows: Sequence[Interaction], operation: Perturb) -> list[list[PerturbationStep]]:
        steps_by_row: list[list[PerturbationStep]] = [[] for _ in rows]
        for index, result in self._store.read(self._requests(rows, operation)):
            steps_by_row[index] = to_steps(result)[: self.params.tokens]
        return steps_by_row

    def _replace_contexts(self, row: Interaction, steps: Sequence[PerturbationStep]) -> Interaction:
        contexts = tuple(
            context.model_copy(update={"text": apply_steps(context.text, 2 * index, steps, self._token_texts)})
            for index, context in enumerate(row.contexts)
        )
        return row.model_copy(update={"contexts": contexts})


def _build_prompt(row: Interaction) -> PromptSegments:
    """Return the chunks of `row`, which are the even segments, with the text between them."""
    chunks = [Segment("chunk", context.text) for context in row.contexts]
    return tuple(segment for chunk in chunks for segment in (JOIN, chunk))[1:]
