"""Inputs of the correctness regressors: every answer under B_c, N_c and P_c (Zhang et al., section 3).

Under all three conditions, the scored output is the answer that was given with the original context. The perturbation
model runs first, because its output is part of the prompts of P_c; then the features of the base model are computed
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from abstain.config.params import LLMParams, PerturbationParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.llm.engine.prompts import load_layout
from abstain.llm.engine.requests import NLL
from abstain.llm.features.context_perturbation import ContextPerturber
from abstain.llm.features.extraction import FeatureSource, PreparedRequest, UnreadableInteraction
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.feature_store import FeatureStore, OnProgress
from abstain.llm.features.nll import SEGMENTS, TokenStatsBySegment, compute_nll_features
from abstain.llm.features.shard_job import JobStats, ShardRunner
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.compute_features import (
    COST_SAMPLE_SIZE,
    FeatureWork,
    compute_missing,
    estimate_forward_tokens,
    expand_requests,
    read_features,
)


def make_normal_requests(layout: str) -> dict[str, FeatureRequest]:
    """Return the feature requests of N_c by segment; P_c uses the same on perturbed contexts."""
    names = [segment.name for segment in load_layout(layout).render("", [], "")]
    answer = names.index("answer")
    layout_segments = {"prompt": tuple(names[:answer]), "output": tuple(names[answer:])}
    return {name: FeatureRequest(NLL(layout_segments.get(name, (name,)))) for name in SEGMENTS}


def make_baseline_requests(layout: str) -> dict[str, FeatureRequest]:
    """Return the feature requests of B_c, which has no context, by segment."""
    return {
        name: FeatureRequest(request.operation, chunks=0)
        for name, request in make_normal_requests(layout).items()
        if name != "context"
    }


def make_condition_requests(layout: str) -> tuple[FeatureRequest, ...]:
    """Return the feature requests of N_c and B_c."""
    return (*make_normal_requests(layout).values(), *make_baseline_requests(layout).values())


@dataclass(frozen=True)
class ContextConditions:
    """A base model that reads answers under the three conditions.

    Attributes:
        llm: Base model and prompt layout.
        perturbation: How contexts are perturbed.
        settings: Settings of this machine.
        max_perturbed_tokens: As in `ContextPerturber`.
    """

    llm: LLMParams
    perturbation: PerturbationParams
    settings: Settings
    max_perturbed_tokens: int = 0

    @cached_property
    def perturber(self) -> ContextPerturber:
        return ContextPerturber(
            self.perturbation, self.perturbation.model or self.llm.model, self.settings, self.max_perturbed_tokens
        )

    def compute_missing(
        self,
        rows: Sequence[Interaction],
        on_progress: OnProgress = lambda done, total: None,
        runner: ShardRunner | None = None,
    ) -> tuple[JobStats, JobStats]:
        """Compute the rows that are not in the cache.

        Args:
            rows: Answered questions.
            on_progress: Called with (computed rows, missing rows), first for the perturbation model, then for the base
                model.
            runner: Where shards are computed; None computes them in this process.

        Returns:
            The cost of the perturbation model, and of the base model.
        """
        perturbing = self.perturber.compute_missing(rows, on_progress, runner)
        work = self.get_work(rows, self.perturber.perturb(rows))
        return perturbing, compute_missing(self.llm, self.settings, work, on_progress, runner)

    def count_missing(self, rows: Sequence[Interaction]) -> tuple[int, int]:
        """Count the requests to both models.

        Args:
            rows: Answered questions.

        Returns:
            The number of requests, and how many of them are not cached. If contexts are still to be perturbed, all
            requests about perturbed contexts count as not cached.
        """
        n_contexts, n_uncached_contexts = self.perturber.count_missing(rows)
        requests = expand_requests(self.llm, self.settings, self.get_known_work(rows))
        n_later = len(rows) * len(self._normal) * len(self.perturber.operations) if n_uncached_contexts else 0
        n_uncached = FeatureStore(self.llm.model, self.settings).count_missing(requests)
        return n_contexts + len(requests) + n_later, n_uncached_contexts + n_uncached + n_later

    def count_missing_tokens(self, rows: Sequence[Interaction]) -> int:
        """Estimate the tokens that the base model would read of perturbed contexts.

        A context that is still to be perturbed counts with its current length. Tokens of the perturbation model are not
        included.

        Args:
            rows: Answered questions.

        Returns:
            The number of tokens.
        """
        normal, copies = tuple(self._normal.values()), len(self.perturber.operations)
        if self.perturber.count_missing(rows)[1]:
            return round(copies * len(rows) * estimate_forward_tokens(self.llm, self.settings, rows, normal))
        work = [(copy, normal) for copy in self.perturber.perturb(rows)]
        return FeatureStore(self.llm.model, self.settings).count_missing_tokens(
            expand_requests(self.llm, self.settings, work)
        )

    def get_known_work(self, rows: Sequence[Interaction]) -> list[FeatureWork]:
        """Return the known requests to the base model: none about contexts that are still to be perturbed."""
        return self.get_work(rows, [] if self.perturber.count_missing(rows)[1] else self.perturber.perturb(rows))

    def get_work(self, rows: Sequence[Interaction], perturbed: Sequence[Sequence[Interaction]]) -> list[FeatureWork]:
        """Return the requests to the base model.

        Args:
            rows: Answered questions.
            perturbed: The perturbed copies of all rows.

        Returns:
            The feature work about rows and copies.
        """
        normal, baseline = tuple(self._normal.values()), tuple(self._baseline.values())
        return [(rows, (*normal, *baseline)), *((copy, normal) for copy in perturbed)]

    def build_table(self, rows: Sequence[Interaction]) -> pd.DataFrame:
        """Build the table of features; missing rows are computed, with less work if `compute_missing` ran before.

        Args:
            rows: Answered questions.

        Returns:
            One row per answer, as of `compute_table`.
        """
        return self.compute_table(
            read_features(self.llm, self.settings, rows, make_condition_requests(self.llm.layout))
        )

    def compute_table(self, batch: FeatureBatch) -> pd.DataFrame:
        """Compute the features (features/nll.py) of answers; those with perturbed contexts are read or computed.

        Args:
            batch: Answers with the features of N_c and B_c; the table is kept in `derived`.

        Returns:
            One row per answer, float64; nan if there is nothing to measure.
        """
        if "nll_features" not in batch.derived:
            row_stats = zip(
                _group_by_segment(batch, self._normal),
                _group_by_segment(batch, self._baseline),
                self._read_perturbed(batch.interactions),
                strict=True,
            )
            rows = [compute_nll_features(*stats) for stats in row_stats]
            # In one block: for a single answer, building each column by itself would take longer than the values.
            values = np.array([list(row.values()) for row in rows])
            batch.derived["nll_features"] = pd.DataFrame(values, columns=list(rows[0]) if rows else None)
        table: pd.DataFrame = batch.derived["nll_features"]
        return table

    def _read_perturbed(self, rows: Sequence[Interaction]) -> list[tuple[TokenStatsBySegment, ...]]:
        """Return the statistics of each answer's tokens with every perturbed copy of its context."""
        copies = [
            _group_by_segment(read_features(self.llm, self.settings, copy, tuple(self._normal.values())), self._normal)
            for copy in self.perturber.perturb(rows)
        ]
        return list(zip(*copies, strict=True)) if copies else [()] * len(rows)

    def count_remarks(self, rows: Sequence[Interaction]) -> dict[str, int]:
        """Count the rows with each remark.

        Args:
            rows: Answered questions.

        Returns:
            The counts of `ContextPerturber.count_remarks`, and `other_chunks`: the perturbed context needs more or less
            of the context length of the base model, so P_c has fewer or more chunks than N_c, or none. Empty if nothing
            is perturbed.
        """
        if not self.perturber.operations:
            return {}
        source = FeatureSource(self.llm, self.settings)
        (copy, *_) = self.perturber.perturb(rows)
        dropped = [[_count_dropped_chunks(source.prepare(row)) for row in variant] for variant in (rows, copy)]
        n_changed = sum(normal != perturbed for normal, perturbed in zip(*dropped, strict=True))
        return {**self.perturber.count_remarks(rows), "other_chunks": n_changed}

    def estimate_forward_tokens(self, rows: Sequence[Interaction]) -> float:
        """Estimate the tokens that both models run for one answer of `rows`."""
        requests = (*self._normal.values(), *self._baseline.values())
        return estimate_forward_tokens(
            self.llm, self.settings, rows, requests
        ) + self.estimate_perturbed_forward_tokens(rows)

    def estimate_perturbed_forward_tokens(self, rows: Sequence[Interaction]) -> float:
        """Estimate the part of `estimate_forward_tokens` for perturbed contexts: to perturb them, and to read them."""
        sample, normal = rows[:COST_SAMPLE_SIZE], tuple(self._normal.values())
        read = sum(
            estimate_forward_tokens(self.llm, self.settings, copy, normal) for copy in self.perturber.perturb(sample)
        )
        return read + self.perturber.estimate_forward_tokens(sample)

    @cached_property
    def _normal(self) -> dict[str, FeatureRequest]:
        return make_normal_requests(self.llm.layout)

    @cached_property
    def _baseline(self) -> dict[str, FeatureRequest]:
        return make_baseline_requests(self.llm.layout)


def _group_by_segment(batch: FeatureBatch, requests_by_segment: dict[str, FeatureRequest]) -> list[TokenStatsBySegment]:
    return [
        dict(zip(requests_by_segment, features, strict=True))
        for _, features in batch.get_rows(tuple(requests_by_segment.values()))
    ]


def _count_dropped_chunks(prepared: PreparedRequest | UnreadableInteraction) -> int | None:
    """Return the number of chunks that did not fit; None if the answer cannot be read at all."""
    return prepared.dropped_chunks if isinstance(prepared, PreparedRequest) else None
