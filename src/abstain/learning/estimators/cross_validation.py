"""Grouped cross-validation of a probe on the training answers, with out-of-fold confidences.

Notes:

* The validation split is not used here: it is reserved for calibration and thresholds.
* The probes of all folds follow their paths in step; the step with the least loss over all held-out answers is kept,
  and the exported probe is fitted up to that step on all training answers. Epochs and penalties share this rule.
* Folds consist of whole groups, because errors of answers about one document are correlated. Correct and incorrect
  answers are spread over the folds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from abstain.config.params import Architecture, ProbeParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.labels import Labels
from abstain.learning.estimators.probe_registry import PROBES
from abstain.learning.estimators.probes.base import Probe, TrainingStep, logits_to_confidence, predict
from abstain.learning.estimators.probes.descent import probe_loss
from abstain.learning.estimators.training_rows import TrainingRows


@dataclass(frozen=True)
class FitHistory:
    """A path, step by step, as tuples of equal length; `selected_step` is the number of the step that was kept, from 0 on.

    `step_values` is the number of epochs, or of a linear probe C. Losses are the probe's own, weighted: `train_loss`
    the mean over the folds, `held_out_loss` over all training answers, each by the probe that had not seen its group.
    """

    step_values: tuple[float, ...]
    train_loss: tuple[float, ...]
    held_out_loss: tuple[float, ...]
    selected_step: int


@dataclass(frozen=True)
class FittedProbe:
    """A probe, trained on all rows; `out_of_fold`, float32 (rows,), their confidences by probes of the same step that
    were not trained on their group; and the fitting path."""

    probe: Probe
    out_of_fold: np.ndarray
    history: FitHistory


def fit_probe(
    architecture: Architecture,
    train: TrainingRows,
    groups: np.ndarray,
    params: ProbeParams,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> FittedProbe:
    """Fit `architecture` on `train`, whose rows are of `groups` (rows,).

    Rows of weight 0 are not trained on, but get an out-of-fold confidence. Deterministic under `params.seed` on one
    kind of hardware. Memory is bounded by a batch and by `rows.MEMORY_VALUES`.

    Raises `AbstainError` where correct, or incorrect, answers are of fewer than two groups, where states are not
    finite, and where training diverges at once.
    """
    # The order of a sum, and so its last bits, depends on the number of threads: torch's, and of what numpy calls. So
    # the folds share the cores, each in one thread.
    torch.set_num_threads(1)
    with threadpool_limits(1), ThreadPoolExecutor(os.cpu_count(), initializer=_flush_denormals) as threads:
        return _fit(architecture, train, groups, params, on_progress, threads)


def _flush_denormals() -> None:
    """Of this thread: gradients that vanish over a long answer become denormal, and arithmetic ten times as slow."""
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)


def _fit(
    architecture: Architecture,
    train: TrainingRows,
    groups: np.ndarray,
    params: ProbeParams,
    on_progress: Callable[[int, int], None],
    threads: ThreadPoolExecutor,
) -> FittedProbe:
    entry = PROBES[architecture]
    params = entry.params(params)
    labels = Labels(train.correct.numpy(), train.weight.numpy(), groups)
    fold = torch.from_numpy(labels.assign_folds(params.folds, params.seed))
    train = train.load_into_memory()
    counts, numbers = train.weight > 0, range(int(fold.max()) + 1)
    held_out = [_sort_by_length(train, _mask_to_index(fold == number)) for number in numbers]
    paths = [entry.kind.fit_path(train.subset(_mask_to_index(counts & (fold != number))), params) for number in numbers]
    total = entry.kind.count_steps(params) * (len(paths) + 1)

    curve: list[tuple[float, float, float]] = []
    kept, best, out_of_fold = 0, math.inf, torch.empty(0)

    def advance(number: int) -> tuple[TrainingStep, Tensor] | None:
        step = next(paths[number], None)
        return step and (step, predict(step.probe, train.subset(held_out[number]).states))

    while all(advanced := list(threads.map(advance, numbers))):
        steps, found = zip(*filter(None, advanced), strict=True)
        logits = torch.empty(len(train), 2)
        for rows, of_rows in zip(held_out, found, strict=True):
            logits[rows] = of_rows
        loss = float(probe_loss(logits[counts], train.correct[counts], train.weight[counts], params.huber_lambda))
        curve.append((steps[0].value, fmean(step.train_loss for step in steps), loss))
        on_progress(len(curve) * len(paths), total)
        if loss < best:
            kept, best, out_of_fold = len(curve) - 1, loss, logits_to_confidence(logits)
        elif len(curve) - 1 - kept >= params.patience:
            break
    if best == math.inf:
        raise AbstainError(Code.NOT_TRAINABLE, f"training of {architecture} diverged: lower probe.learning_rate")
    path = entry.kind.fit_path(train.subset(_mask_to_index(counts)), params)
    probe = threads.submit(lambda: next(islice(path, kept, None))).result().probe.eval()
    probe.architecture = architecture
    on_progress(total, total)
    value, train_loss, held_out_loss = zip(*curve, strict=True)
    return FittedProbe(probe, out_of_fold.numpy(), FitHistory(value, train_loss, held_out_loss, kept))


def _mask_to_index(chosen: Tensor) -> Tensor:
    return chosen.nonzero().flatten()


def _sort_by_length(train: TrainingRows, index: Tensor) -> Tensor:
    """`index` with rows of similar length side by side, which leaves little padding."""
    return index[train.lengths[index].argsort(stable=True)]
