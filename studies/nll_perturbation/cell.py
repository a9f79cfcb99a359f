"""Run one cell of an experiment: answers of its models, the regressor that learns from them, and its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from abstain.config.params import LLMParams, PerturbationParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction, Question
from abstain.learning.estimators.correctness_targets import DECIMALS, compute_correctness
from abstain.learning.estimators.regressors.fitting import fit_regressor
from abstain.learning.metrics.bootstrap import BootstrapConfig
from abstain.learning.metrics.correctness_metrics import evaluate_estimates, tune_t
from abstain.llm.engine.loading import find_model
from abstain.llm.features.feature_store import OnProgress
from abstain.llm.features.shard_job import JobStats, ShardRunner
from abstain.llm.signals.context_conditions import ContextConditions
from studies.answers import NO_ANSWER, generate_answers
from studies.model_inputs import make_llm_params
from studies.nll_perturbation.baselines import Baselines
from studies.nll_perturbation.declared import LABEL, LABEL_THRESHOLD, Experiment, ExperimentCell, Size
from studies.nll_perturbation.project import ReviewedAnswers
from studies.rows import QuestionSet, read_parts


@dataclass(frozen=True)
class CellAnswers:
    """Answers of a cell, the first `n_train` for training, their true scores, and the cost of generating them."""

    rows: list[Interaction]
    n_train: int
    groups: np.ndarray
    true: np.ndarray
    cost: JobStats | None = None


@dataclass(frozen=True)
class ExperimentRunner:
    """An experiment, the folder of its files, and the runner of its models; `project` takes the place of the files."""

    experiment: Experiment
    data: Path
    settings: Settings
    runner: ShardRunner | None = None
    project: ReviewedAnswers | None = None
    progress: OnProgress = lambda done, total: None

    def run(self, cell: ExperimentCell) -> dict[str, Any]:
        """Return all results of `cell`: metrics at every threshold, the tuned t, baselines, and counts.

        `computed` is the cost of what the cache lacked: less than the whole if another cell had needed the same, or if
        a run was cut off in the middle of this one.
        """
        answers = self._read_answers(cell)
        rows, n_train, true = answers.rows, answers.n_train, answers.true
        train_groups, groups = answers.groups[:n_train], answers.groups[n_train:]
        conditions = self._make_conditions(cell)
        perturbing, reading = conditions.compute_missing(rows, self.progress, self.runner)
        computed = {"answering": answers.cost, "perturbing": perturbing, "reading": reading}
        features = _table(conditions, tuple(rows))
        if cell.outputs == "own":
            features, computed["own outputs"] = self._score_own_outputs(conditions, rows, features)
        fitted = fit_regressor(
            cell.regressor,
            cell.metric,
            features.iloc[:n_train],
            true[:n_train],
            np.ones(n_train),
            train_groups,
            self.experiment.regressors,
        )
        predicted = fitted.regressor.predict(features.iloc[n_train:])
        tuned = self._tune_t(cell, true[:n_train], fitted.out_of_fold)
        resamples = BootstrapConfig(self.experiment.draws, self.experiment.seed)
        comparisons = []
        if self.experiment.wants_baselines(cell):
            baselines = Baselines(self.make_llm_params(cell), self.settings, rows, n_train, true, tuned)
            computed["baselines"] = baselines.compute_missing(self.progress, self.runner)
            comparisons = baselines.compare(predicted, groups, resamples)
        return {
            "cell": cell.model_dump(mode="json"),
            "models": {
                "base": str(find_model(conditions.llm.model, self.settings)),
                "perturbation": self.get_perturbation_model(cell),
            },
            "tuned": tuned,
            "by_threshold": [
                evaluate_estimates(
                    true[n_train:],
                    predicted,
                    threshold,
                    groups,
                    None,
                    resamples,
                    self.experiment.buffer,
                    constant=float(np.nanmean(true[:n_train])),
                )
                for threshold in sorted({tuned, *self.experiment.get_thresholds(cell)})
            ],
            "correctness": {"mean": float(np.nanmean(true[n_train:])), "std": float(np.nanstd(true[n_train:]))},
            "baselines": comparisons,
            "dropped_columns": dict(fitted.dropped),
            "folds": fitted.regressor.metadata["folds"],
            "columns": features.shape[1] - len(fitted.dropped),
            "no_answer": sum(row.answer == NO_ANSWER for row in rows),
            "perturbed": conditions.count_remarks(rows),
            "computed": {name: asdict(stats) for name, stats in computed.items() if stats},
        }

    def read_parts(self, size: Size) -> tuple[QuestionSet, QuestionSet]:
        """Read the questions to train on and those to evaluate, as many as `size` says.

        Raises:
            AbstainError: a line is invalid, or there are too few questions.
        """
        files = self.experiment.files
        return read_parts(
            self.data / files.train, self.data / files.evaluation, (size.train, size.evaluation), self.experiment.seed
        )

    def make_llm_params(self, cell: ExperimentCell) -> LLMParams:
        """Return the base model of `cell` and how it is prompted."""
        if self.project:
            return self.project.llm
        base = self.experiment.models[cell.base]
        assert base.layout is not None
        return make_llm_params(base.model, base.layout)

    def get_perturbation_model(self, cell: ExperimentCell) -> str:
        """Return the perturbation model of `cell` with its revision.

        Raises:
            AbstainError: the model is not found.
        """
        return str(find_model(self.experiment.models[cell.perturbation].model, self.settings))

    def _read_answers(self, cell: ExperimentCell) -> CellAnswers:
        if self.project:
            rows = [*self.project.train[: cell.size.train], *self.project.evaluation[: cell.size.evaluation]]
            groups = np.array([self.project.groups[row.interaction_id] for row in rows])
            return CellAnswers(rows, cell.size.train, groups, self.project.get_target(cell.metric, rows))
        train, evaluation = self.read_parts(cell.size)
        both = train + evaluation
        rows, cost = self._answer(self.make_llm_params(cell), both.questions)
        true = compute_correctness([cell.metric], [row.answer for row in rows], both.references)[cell.metric].to_numpy()
        return CellAnswers(rows, len(train), np.array(both.groups), true, cost)

    def _answer(self, llm: LLMParams, questions: Sequence[Question]) -> tuple[list[Interaction], JobStats]:
        tokens = self.experiment.answer_tokens
        return generate_answers(llm, self.settings, questions, tokens, self.progress, self.runner)

    def _score_own_outputs(
        self, conditions: ContextConditions, rows: Sequence[Interaction], features: pd.DataFrame
    ) -> tuple[pd.DataFrame, JobStats]:
        """Return `features` with outputs of B_c and P_c in place of the answer under N_c (section 3.4), and the cost.

        Outputs of two conditions have other tokens, so their token-wise differences are dropped.
        """
        plain = replace(conditions, perturbation=conditions.perturbation.model_copy(update={"n_copies": 0}))
        (perturbed,) = conditions.perturber.perturb(rows)
        own_features, cost = features.loc[:, ~features.columns.str.contains(r"-.\.output\.")].copy(), JobStats(0, 0, 0)
        for condition, contexts in (("B", [()] * len(rows)), ("P", [row.contexts for row in perturbed])):
            questions = [
                Question(interaction_id=row.interaction_id, question=row.question, contexts=row_contexts)
                for row, row_contexts in zip(rows, contexts, strict=True)
            ]
            outputs, answering = self._answer(conditions.llm, questions)
            _, reading = plain.compute_missing(outputs, self.progress, self.runner)
            cost += answering + reading
            scored = plain.build_table(outputs).filter(regex=r"^N\.output\.")
            own_features[scored.columns.str.replace("N.", f"{condition}.", n=1, regex=False)] = scored.to_numpy()
        return own_features, cost

    def _tune_t(self, cell: ExperimentCell, true: np.ndarray, out_of_fold: np.ndarray) -> float:
        if cell.metric == LABEL:
            return LABEL_THRESHOLD
        candidates = np.nanquantile(true, self.experiment.quantiles).round(DECIMALS)
        return tune_t(true, out_of_fold, np.unique(candidates).tolist())

    def _make_conditions(self, cell: ExperimentCell) -> ContextConditions:
        perturbation = PerturbationParams(
            model=self.experiment.models[cell.perturbation].model,
            selection=cell.where,
            schedule=cell.when,
            tokens=cell.tokens,
            n_copies=1,
            seed=self.experiment.seed,
        )
        shared_settings = {"perturbation": cell.perturbation, "where": cell.where, "when": cell.when, "size": cell.size}
        similar_cells = (
            similar_cell
            for similar_cell in self.experiment.list_cells()
            if all(getattr(similar_cell, name) == value for name, value in shared_settings.items())
        )
        return ContextConditions(
            self.make_llm_params(cell),
            perturbation,
            self.settings,
            max(similar_cell.tokens for similar_cell in similar_cells),
        )


@lru_cache(maxsize=2)
def _table(conditions: ContextConditions, rows: tuple[Interaction, ...]) -> pd.DataFrame:
    return conditions.build_table(rows)  # cells that differ in what is estimated alone have it in common
