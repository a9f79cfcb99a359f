"""Grouped cross-validation of a probe on the training answers, with out-of-fold confidences.

Notes:

* The validation split is not used here: it is reserved for calibration and thresholds.
* The probes of all folds follow their paths in step. The step with the smallest loss over all held-out answers is
  selected, and the exported probe is fitted up to that step on all training answers. Epochs and penalties share this
  rule.
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
from abstain.learning.estimators.probes.base import Probe, TrainingStep, logits_to_confidence, predict_logits
from abstain.learning.estimators.probes.descent import probe_loss
from abstain.learning.estimators.training_rows import TrainingRows


@dataclass(frozen=True)
class FitHistory:
    """The losses along a fitting path.

    Losses are the probe's own loss, weighted. The three tuples have an item for each step.

    Attributes:
        step_values: Number of epochs, or C of a linear probe.
        train_loss: Mean training loss over the folds.
        held_out_loss: Loss over all training answers, each predicted by the probe that was not fitted on its group.
        selected_step: Index of the selected step, from 0.
    """

    step_values: tuple[float, ...]
    train_loss: tuple[float, ...]
    held_out_loss: tuple[float, ...]
    selected_step: int


@dataclass(frozen=True)
class FittedProbe:
    """A probe with its out-of-fold confidences.

    Attributes:
        probe: Fitted on all rows.
        out_of_fold: float32 (rows,) confidences by probes of the same step that were not fitted on the row's group.
        history: The fitting path.
    """

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
    """Fit a probe on all training rows, and compute out-of-fold confidences by grouped cross-validation.

    Memory is bounded by a batch and by `training_rows.MEMORY_VALUES`.

    Args:
        architecture: Key of `PROBES`.
        train: Ragged states, each float32 (L + 1, d), with labels and weights. Rows of weight 0 are not fitted but get
            an out-of-fold confidence.
        groups: (rows,) group ids; a group is never split between folds.
        params: Hyperparameters, number of folds and seed. Results are deterministic on one kind of hardware.
        on_progress: Called with (done, total).

    Returns:
        The probe, its out-of-fold confidences, and the fitting history.

    Raises:
        AbstainError: One class has fewer than two groups, states are not finite, or training diverges in the first
            step.
    """
    # The order of a sum, and so its last bits, depends on the number of threads, of torch and of the libraries under
    # numpy. So the folds share the cores, each in one thread.
    torch.set_num_threads(1)
    with threadpool_limits(1), ThreadPoolExecutor(os.cpu_count(), initializer=_flush_denormals) as executor:
        return _fit(architecture, train, groups, params, on_progress, executor)


def _flush_denormals() -> None:
    """Flush denormals in this thread: vanishing gradients become denormal, with arithmetic ten times as slow."""
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)


def _fit(
    architecture: Architecture,
    train: TrainingRows,
    groups: np.ndarray,
    params: ProbeParams,
    on_progress: Callable[[int, int], None],
    executor: ThreadPoolExecutor,
) -> FittedProbe:
    spec = PROBES[architecture]
    params = spec.apply_fixed_params(params)
    labels = Labels(train.correct.numpy(), train.weight.numpy(), groups)
    fold = torch.from_numpy(labels.assign_folds(params.folds, params.seed))
    train = train.load_into_memory()
    is_fitted, fold_numbers = train.weight > 0, range(int(fold.max()) + 1)
    held_out = [_sort_by_length(train, _mask_to_index(fold == fold_number)) for fold_number in fold_numbers]
    paths = [
        spec.probe_class.fit_path(train.subset(_mask_to_index(is_fitted & (fold != fold_number))), params)
        for fold_number in fold_numbers
    ]
    total = spec.probe_class.count_steps(params) * (len(paths) + 1)

    curve: list[tuple[float, float, float]] = []
    selected, best_loss, out_of_fold = 0, math.inf, torch.empty(0)

    def advance(fold_number: int) -> tuple[TrainingStep, Tensor] | None:
        step = next(paths[fold_number], None)
        return step and (step, predict_logits(step.probe, train.subset(held_out[fold_number]).states))

    while all(advanced := list(executor.map(advance, fold_numbers))):
        steps, fold_logits = zip(*filter(None, advanced), strict=True)
        logits = torch.empty(len(train), 2)
        for rows, row_logits in zip(held_out, fold_logits, strict=True):
            logits[rows] = row_logits
        fitted = logits[is_fitted], train.correct[is_fitted], train.weight[is_fitted]
        loss = float(probe_loss(*fitted, params.huber_lambda, params.huber_delta))
        curve.append((steps[0].value, fmean(step.train_loss for step in steps), loss))
        on_progress(len(curve) * len(paths), total)
        if loss < best_loss:
            selected, best_loss, out_of_fold = len(curve) - 1, loss, logits_to_confidence(logits)
        elif len(curve) - 1 - selected >= params.patience:
            break
    if best_loss == math.inf:
        raise AbstainError(Code.NOT_TRAINABLE, f"training of {architecture} diverged: lower probe.learning_rate")
    path = spec.probe_class.fit_path(train.subset(_mask_to_index(is_fitted)), params)
    probe = executor.submit(lambda: next(islice(path, selected, None))).result().probe.eval()
    probe.architecture = architecture
    on_progress(total, total)
    step_values, train_loss, held_out_loss = zip(*curve, strict=True)
    return FittedProbe(probe, out_of_fold.numpy(), FitHistory(step_values, train_loss, held_out_loss, selected))


def _mask_to_index(mask: Tensor) -> Tensor:
    return mask.nonzero().flatten()


def _sort_by_length(train: TrainingRows, index: Tensor) -> Tensor:
    """Order `index` by row length: rows of similar length in a batch need little padding."""
    return index[train.lengths[index].argsort(stable=True)]
