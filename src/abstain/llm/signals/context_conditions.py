"""Inputs of the correctness regressors: every answer under B_c, N_c and P_c (Zhang et al., section 3).

The scored output is, under all three, the answer that was given with the original context. The perturbation model runs
first, because its output is part of the prompts of P_c; then the base model's features are computed together.
"""

from __future__ import annotations

import itertools
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
    """The feature requests of N_c, and of P_c where contexts are perturbed, by segment."""
    names = [segment.name for segment in load_layout(layout).render("", [], "")]
    answer = names.index("answer")
    of = {"prompt": tuple(names[:answer]), "output": tuple(names[answer:])}
    return {name: FeatureRequest(NLL(of.get(name, (name,)))) for name in SEGMENTS}


def make_baseline_requests(layout: str) -> dict[str, FeatureRequest]:
    """The feature requests of B_c, which has no context."""
    return {
        name: FeatureRequest(one.operation, chunks=0)
        for name, one in make_normal_requests(layout).items()
        if name != "context"
    }


@dataclass(frozen=True)
class ContextConditions:
    """The base model of `llm` under the three conditions, contexts perturbed as `perturbation` says.

    `longest`: see `ContextPerturber`.
    """

    llm: LLMParams
    perturbation: PerturbationParams
    settings: Settings
    longest: int = 0

    @cached_property
    def perturber(self) -> ContextPerturber:
        return ContextPerturber(
            self.perturbation, self.perturbation.model or self.llm.model, self.settings, self.longest
        )

    def compute_missing(
        self,
        rows: Sequence[Interaction],
        progress: OnProgress = lambda done, total: None,
        runner: ShardRunner | None = None,
    ) -> tuple[JobStats, JobStats]:
        """Compute the missing rows; the result is the cost of the perturbation model and of the base model."""
        perturbing = self.perturber.compute_missing(rows, progress, runner)
        asked = self.get_work(rows, self.perturber.perturb(rows))
        return perturbing, compute_missing(self.llm, self.settings, asked, progress, runner)

    def missing(self, rows: Sequence[Interaction]) -> tuple[int, int]:
        """The number of requests to both models, and how many of them are not cached: where contexts are still to be
        perturbed, all requests about the perturbed ones."""
        contexts, unknown = self.perturber.missing(rows)
        requests = expand_requests(self.llm, self.settings, self.get_known_work(rows))
        later = len(rows) * len(self._normal) * len(self.perturber.operations) if unknown else 0
        uncached = FeatureStore(self.llm.model, self.settings).missing(requests)
        return contexts + len(requests) + later, unknown + uncached + later

    def missing_tokens(self, rows: Sequence[Interaction]) -> int:
        """The tokens that the base model would read of perturbed contexts; one that is still to be perturbed counts as
        long as it is. Those of the perturbation model are not among them."""
        normal, copies = tuple(self._normal.values()), len(self.perturber.operations)
        if self.perturber.missing(rows)[1]:
            return round(copies * len(rows) * estimate_forward_tokens(self.llm, self.settings, rows, normal))
        asked = [(copy, normal) for copy in self.perturber.perturb(rows)]
        return FeatureStore(self.llm.model, self.settings).missing_tokens(
            expand_requests(self.llm, self.settings, asked)
        )

    def get_known_work(self, rows: Sequence[Interaction]) -> list[FeatureWork]:
        """The known requests to the base model: none about contexts that are still to be perturbed."""
        return self.get_work(rows, [] if self.perturber.missing(rows)[1] else self.perturber.perturb(rows))

    def get_work(self, rows: Sequence[Interaction], perturbed: Sequence[Sequence[Interaction]]) -> list[FeatureWork]:
        """The requests to the base model about `rows` and `perturbed`, the perturbed copies of all rows."""
        normal, baseline = tuple(self._normal.values()), tuple(self._baseline.values())
        return [(rows, (*normal, *baseline)), *((copy, normal) for copy in perturbed)]

    def build_table(self, rows: Sequence[Interaction]) -> pd.DataFrame:
        """The features (features/nll.py) of `rows`, float64, nan where there is nothing to measure.

        Missing rows are computed, with less work if `compute_missing` ran before.
        """
        normal, baseline = self._found(rows, self._normal), self._found(rows, self._baseline)
        perturbed = [self._found(copy, self._normal) for copy in self.perturber.perturb(rows)]
        copies = zip(*perturbed, strict=True) if perturbed else itertools.repeat((), len(rows))
        of_rows = zip(normal, baseline, copies, strict=True)
        return pd.DataFrame([compute_nll_features(*of_row) for of_row in of_rows])

    def count_remarks(self, rows: Sequence[Interaction]) -> dict[str, int]:
        """Rows by what is special about them: the counts of `ContextPerturber.count`, and `other_chunks`: the perturbed
        context needs other room in the base model's window, so that P_c has fewer or more chunks than N_c, or none.
        Empty where nothing is perturbed."""
        if not self.perturber.operations:
            return {}
        source = FeatureSource(self.llm, self.settings)
        (copy, *_) = self.perturber.perturb(rows)
        dropped = [[_dropped(source.prepare(row)) for row in of] for of in (rows, copy)]
        others = sum(one != other for one, other in zip(*dropped, strict=True))
        return {**self.perturber.count_remarks(rows), "other_chunks": others}

    def forward_tokens(self, rows: Sequence[Interaction]) -> float:
        """Tokens that the base model runs for one answer by itself; the perturbation model's are not among them."""
        own = (*self._normal.values(), *self._baseline.values())
        return estimate_forward_tokens(self.llm, self.settings, rows, own) + self.perturbed_forward_tokens(rows)

    def perturbed_forward_tokens(self, rows: Sequence[Interaction]) -> float:
        """Those of `forward_tokens` that are of perturbed contexts, which no other scorer reads."""
        copies, normal = self.perturber.perturb(rows[:COST_SAMPLE_SIZE]), tuple(self._normal.values())
        return sum(estimate_forward_tokens(self.llm, self.settings, copy, normal) for copy in copies)

    @cached_property
    def _normal(self) -> dict[str, FeatureRequest]:
        return make_normal_requests(self.llm.layout)

    @cached_property
    def _baseline(self) -> dict[str, FeatureRequest]:
        return make_baseline_requests(self.llm.layout)

    def _found(self, rows: Sequence[Interaction], readings: dict[str, FeatureRequest]) -> list[TokenStatsBySegment]:
        return _by_segment(read_features(self.llm, self.settings, rows, tuple(readings.values())), readings)


def compute_nll_table(answers: FeatureBatch, layout: str) -> pd.DataFrame:
    """The features (features/nll.py) of `answers` under N_c and B_c alone, float64, by the results that they hold."""
    if "nll_features" not in answers.derived:
        of_rows = zip(
            _by_segment(answers, make_normal_requests(layout)),
            _by_segment(answers, make_baseline_requests(layout)),
            strict=True,
        )
        rows = [compute_nll_features(of_normal, of_baseline, ()) for of_normal, of_baseline in of_rows]
        # As one block: of an answer alone, a column each would take longer than all that is computed.
        values = np.array([list(row.values()) for row in rows])
        answers.derived["nll_features"] = pd.DataFrame(values, columns=list(rows[0]) if rows else None)
    found: pd.DataFrame = answers.derived["nll_features"]
    return found


def _by_segment(answers: FeatureBatch, readings: dict[str, FeatureRequest]) -> list[TokenStatsBySegment]:
    return [dict(zip(readings, found, strict=True)) for _, found in answers.iter_rows(tuple(readings.values()))]


def _dropped(found: PreparedRequest | UnreadableInteraction) -> int | None:
    """The number of chunks that did not fit; None where the answer cannot be read at all."""
    return found.dropped_chunks if isinstance(found, PreparedRequest) else None
