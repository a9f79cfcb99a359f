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
from benchmarks.scorers import DRAWS, FILE, ROOT, SEED, read_judged


class Measured(NamedTuple):
    answers: int
    unscored: float
    auroc: Estimate


def measure(file: Path) -> dict[str, Measured]:
    """By part of the answers of `file`."""
    params, judged = load_params(ROOT / "params.yaml"), read_judged(file)
    asked_at = pd.Series([one.asked_at for one in judged.interactions])
    every_round = params.split.model_copy(update={"holdout_frozen_at": None})
    split = assign_splits(pd.Series(judged.topic), asked_at, every_round).to_numpy()
    refusal = np.array([is_refusal(one.answer, params.labels.refusals) for one in judged.interactions])

    def answers(rows: np.ndarray) -> FeatureBatch:
        return FeatureBatch(judged.take(rows), {})

    train, holdout = np.flatnonzero(split == "train"), np.flatnonzero(split == "holdout")
    labels = Labels(judged.correct[train], np.ones(len(train)), judged.topic[train])
    folds = labels.assign_folds(params.probe.folds, params.probe.seed)
    fitted = fit_scorer(WriterScores(params.labels.refusals), answers(train), labels, folds)
    scores = np.full(len(split), np.nan)
    scores[train], scores[holdout] = fitted.out_of_fold, fitted.scorer.score(answers(holdout))
    parts = {
        "training, out of fold": train,
        "hold-out": holdout,
        "hold-out, answers": holdout[~refusal[holdout]],
        "hold-out, refusals": holdout[refusal[holdout]],
    }
    return {name: _measured(judged.correct[at], scores[at], judged.topic[at]) for name, at in parts.items()}


def _measured(correct: np.ndarray, scores: np.ndarray, topics: np.ndarray) -> Measured:
    found = bootstrap({"": partial(auroc, correct, scores)}, topics, DRAWS, SEED)[""]
    return Measured(len(correct), float(np.isnan(scores).mean()), found)


def main() -> None:
    for name, found in measure(FILE).items():
        low, high = found.auroc.interval
        print(
            f"{name}: {found.answers} answers, {found.unscored:.1%} without a score, "
            f"AUROC {found.auroc.value:.3f} ({low:.3f} to {high:.3f})"
        )


if __name__ == "__main__":
    main()
