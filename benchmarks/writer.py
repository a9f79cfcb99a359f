"""What the writer's own scores are worth on people's verdicts: `python -m benchmarks.writer`.

Data: all of *qa_from_hf*, with its refusals, split by topic as params.yaml says. Printed: AUROC with 95 % intervals
(bootstrap by topic) of the scorer `writer`, out of fold on the training answers and on the hold-out, and the share of
answers without a score, which count as the least confident ones. Takes seconds: no base model reads anything.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from abstain.config.params import load_params
from abstain.core.labels import Labels
from abstain.core.text import is_refusal
from abstain.data.store.splits import assign_splits
from abstain.learning.metrics.bootstrap import Estimate, bootstrap
from abstain.learning.metrics.weighted_metrics import auroc
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.out_of_fold import fit_scorer
from abstain.llm.signals.writer import WriterScores
from benchmarks.scorers import FILE, N_RESAMPLES, ROOT, SEED, read_labelled_answers


class WriterResult(NamedTuple):
    """Result on one part of the answers."""

    answers: int
    unscored: float
    auroc: Estimate


def measure(file: Path) -> dict[str, WriterResult]:
    """Return the result by part of the answers of `file`."""
    params, dataset = load_params(ROOT / "params.yaml"), read_labelled_answers(file)
    asked_at = pd.Series([interaction.asked_at for interaction in dataset.interactions])
    every_round = params.split.model_copy(update={"holdout_frozen_at": None})
    split = assign_splits(pd.Series(dataset.topic), asked_at, every_round).to_numpy()
    is_refusal_answer = np.array(
        [is_refusal(interaction.answer, params.labels.refusals) for interaction in dataset.interactions]
    )

    def answers(rows: np.ndarray) -> FeatureBatch:
        return FeatureBatch(dataset.take(rows), {})

    train, holdout = np.flatnonzero(split == "train"), np.flatnonzero(split == "holdout")
    labels = Labels(dataset.correct[train], np.ones(len(train)), dataset.topic[train])
    folds = labels.assign_folds(params.probe.folds, params.probe.seed)
    fitted = fit_scorer(WriterScores(params.labels.refusals), answers(train), labels, folds)
    scores = np.full(len(split), np.nan)
    scores[train], scores[holdout] = fitted.out_of_fold, fitted.scorer.score(answers(holdout))
    parts = {
        "training, out of fold": train,
        "hold-out": holdout,
        "hold-out, answers": holdout[~is_refusal_answer[holdout]],
        "hold-out, refusals": holdout[is_refusal_answer[holdout]],
    }
    return {
        name: _measure_part(dataset.correct[rows], scores[rows], dataset.topic[rows]) for name, rows in parts.items()
    }


def _measure_part(correct: np.ndarray, scores: np.ndarray, topics: np.ndarray) -> WriterResult:
    estimate = bootstrap({"": partial(auroc, correct, scores)}, topics, n_resamples=N_RESAMPLES, seed=SEED)[""]
    return WriterResult(len(correct), float(np.isnan(scores).mean()), estimate)


def main() -> None:
    for name, result in measure(FILE).items():
        low, high = result.auroc.interval
        print(
            f"{name}: {result.answers} answers, {result.unscored:.1%} without a score, "
            f"AUROC {result.auroc.value:.3f} ({low:.3f} to {high:.3f})"
        )


if __name__ == "__main__":
    main()
