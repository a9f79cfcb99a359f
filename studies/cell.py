"""One cell of a study: what its models say of its questions, the regressor that learns from it, how well it does."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from abstain.config.params import LLMParams, PerturbationParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.learning.estimators.correctness_targets import compute_correctness
from abstain.learning.estimators.regressors.fitting import fit_regressor
from abstain.learning.metrics.bootstrap import BootstrapConfig
from abstain.learning.metrics.correctness_metrics import evaluate_estimates, tune_t
from abstain.llm.engine.loading import find_model
from abstain.llm.features.feature_store import OnProgress
from abstain.llm.features.shard_job import ShardRunner
from abstain.llm.signals.context_conditions import ContextConditions
from studies.answers import NO_ANSWER, answered
from studies.baselines import Baselines
from studies.declared import Experiment, ExperimentCell
from studies.rows import Asked, read_parts


@dataclass(frozen=True)
class ExperimentRunner:
    """A study, the folder of its files, and where its models are run."""

    study: Experiment
    data: Path
    settings: Settings
    runner: ShardRunner | None = None
    progress: OnProgress = lambda done, total: None

    def run(self, cell: ExperimentCell) -> dict[str, Any]:
        """Everything about `cell`: figures at every threshold, the tuned t, baselines, what was counted.

        `computed` is what it cost to bring into the cache what was not there yet: less than the whole where another
        cell had needed the same, or where a run was cut off in the middle of this one.
        """
        train, held = self._parts(cell)
        last, groups = len(train), np.array(held.groups)
        both = train + held
        rows, answering = answered(
            self.llm(cell), self.settings, both.questions, self.study.answer_tokens, self.progress, self.runner
        )
        conditions = self._conditions(cell)
        perturbing, reading = conditions.compute_missing(rows, self.progress, self.runner)
        features = _table(conditions, tuple(rows))
        true = compute_correctness([cell.metric], [row.answer for row in rows], both.references)[cell.metric].to_numpy()
        fitted = fit_regressor(
            cell.regressor,
            cell.metric,
            features.iloc[:last],
            true[:last],
            np.ones(last),
            np.array(train.groups),
            self.study.regressors,
        )
        predicted = fitted.regressor.predict(features.iloc[last:])
        tuned = tune_t(true[:last], fitted.out_of_fold, self.study.candidates_of(cell))
        resamples = BootstrapConfig(self.study.draws, self.study.seed)
        computed = {"answering": answering, "perturbing": perturbing, "reading": reading}
        beside = []
        if self.study.wants_baselines(cell):
            baselines = Baselines(self.llm(cell), self.settings, rows, last, true, tuned)
            computed["baselines"] = baselines.compute_missing(self.progress, self.runner)
            beside = baselines.compare(predicted, groups, resamples)
        return {
            "cell": cell.model_dump(mode="json"),
            "models": {"base": str(find_model(conditions.llm.model, self.settings)), "perturbation": self.pm(cell)},
            "tuned": tuned,
            "by_threshold": [
                evaluate_estimates(true[last:], predicted, at, groups, None, resamples, self.study.buffer)
                for at in self.study.thresholds_of(cell)
            ],
            "correctness": {"mean": float(np.nanmean(true[last:])), "std": float(np.nanstd(true[last:]))},
            "baselines": beside,
            "dropped_columns": dict(fitted.dropped),
            "folds": fitted.regressor.described["folds"],
            "columns": features.shape[1] - len(fitted.dropped),
            "no_answer": sum(row.answer == NO_ANSWER for row in rows),
            "perturbed": conditions.count_remarks(rows),
            "computed": {name: asdict(done) for name, done in computed.items()},
        }

    def llm(self, cell: ExperimentCell) -> LLMParams:
        """The base model of `cell` and how it is asked."""
        base = self.study.models[cell.base]
        assert base.layout is not None
        return LLMParams(
            model=base.model, layout=base.layout, layer=1, site="residual", too_long="refuse", includes_eos=True
        )

    def pm(self, cell: ExperimentCell) -> str:
        """The perturbation model of `cell`, with its revision. Raises `AbstainError` where it is not to be found."""
        return str(find_model(self.study.models[cell.perturbation].model, self.settings))

    def _parts(self, cell: ExperimentCell) -> tuple[Asked, Asked]:
        files, size = self.study.files, (cell.size.train, cell.size.evaluation)
        return read_parts(self.data / files.train, self.data / files.evaluation, size, self.study.seed)

    def _conditions(self, cell: ExperimentCell) -> ContextConditions:
        perturbation = PerturbationParams(
            model=self.study.models[cell.perturbation].model,
            where=cell.where,
            when=cell.when,
            tokens=cell.tokens,
            copies=1,
            seed=self.study.seed,
        )
        alike = {"perturbation": cell.perturbation, "where": cell.where, "when": cell.when, "size": cell.size}
        others = (one for one in self.study.cells() if all(getattr(one, name) == is_ for name, is_ in alike.items()))
        return ContextConditions(self.llm(cell), perturbation, self.settings, max(one.tokens for one in others))


@lru_cache(maxsize=2)
def _table(conditions: ContextConditions, rows: tuple[Interaction, ...]) -> pd.DataFrame:
    return conditions.build_table(rows)  # cells that differ in what is estimated alone have it in common
