"""The base class of all probes: a module from the answer's hidden states to two logits, with its fitting path.

Notes:

* Rows are padded at the end, and the padding values do not matter. A single answer has no padding and skips masking:
  `mean`, `masked_last` and `masked_softmax` below handle both cases, so training and serving use one forward pass.
* States are standardised inside the module by the training tokens' mean and deviation: a few dimensions of a residual
  stream are orders of magnitude larger than the rest, and a served model must not need a side file.
* A fit is a *path* of probes of growing capacity, epoch by epoch or penalty by penalty. `cross_validation` chooses the
  step, by one rule for all probes.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from abstain.config.params import ProbeParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.estimators.training_rows import TrainingRows, iter_batches, pad

EVALUATION_BATCH = 128


class TrainingStep(NamedTuple):
    """A point of the path along which a probe is fitted; `probe` is in this state only until the next step is taken.

    `value` is the number of epochs, from 1 on, or the inverse strength of the penalty.
    """

    value: float
    train_loss: float
    probe: Probe


class Probe(nn.Module, ABC):
    """A confidence from S_in, the hidden states of the answer's tokens and EOS (paper, section 3.1).

    Args:
        d: width of the base model's states.
        hyperparameters: the constructor's other arguments; together with `d` they make an equal module.

    Attributes:
        architecture: its name in the zoo, set when it is fitted or loaded.
        is_served: whether it is the equivalent reduced copy for serving (`to_serving`).
    """

    mean: Tensor
    scale: Tensor
    architecture: str
    is_served = False

    def __init__(self, d: int, **hyperparameters: float) -> None:
        super().__init__()
        self.hyperparameters: dict[str, float] = {"d": d, **hyperparameters}
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("scale", torch.ones(d))

    @property
    def width(self) -> int:
        """d, the width of the states that it reads."""
        return len(self.mean)

    @classmethod
    @abstractmethod
    def from_params(cls, d: int, params: ProbeParams) -> Self:
        """An untrained probe of states of width `d`."""

    @classmethod
    @abstractmethod
    def description(cls, params: ProbeParams) -> str:
        """What it is, with what of `params` makes it so, for the model card."""

    @classmethod
    @abstractmethod
    def count_steps(cls, params: ProbeParams) -> int:
        """The length of `fit_path`."""

    @classmethod
    @abstractmethod
    def fit_path(cls, train: TrainingRows, params: ProbeParams) -> Iterator[TrainingStep]:
        """Fit on `train`, whose weights are all positive, with more capacity at every step.

        Deterministic for the same rows and parameters on one kind of hardware, also if other random numbers are drawn
        in between.
        """

    @abstractmethod
    def forward(self, states: Tensor, lengths: Tensor | None) -> Tensor:
        """Logits z, float32 (B, 2), of `states`, float32 (B, T, d), of which `lengths`, int64 (B,), are valid.

        Where `lengths` is None, `states` are those of one answer, (T, d), and its logits are (1, 2). Of an exported one
        it is their difference z_1 - z_0, (B, 1) or (1, 1), whose sigmoid is the confidence.
        """

    def standardised(self, states: Tensor) -> Tensor:
        centred = states - self.mean
        return centred if self.is_served else centred / self.scale

    def to_serving(self) -> Self:
        """An equivalent probe with less arithmetic, whose only output is the difference of the logits.

        The first layer's weights are divided by `scale` instead of the states. Means are still subtracted from states:
        folded into the weights, they would leave a small difference of large numbers.
        """
        probe = copy.deepcopy(self).eval()
        with torch.no_grad():
            probe.divide_weights()
            probe.subtract_outputs()
        probe.is_served = True
        return probe

    @abstractmethod
    def divide_weights(self) -> None:
        """Divide the first layer's weights by `scale`."""

    @abstractmethod
    def subtract_outputs(self) -> None:
        """Put weights of z_1 - z_0 for those of z_0 and z_1."""

    def fit_preprocessing(self, train: TrainingRows) -> None:
        """Fit what needs no labels on the training tokens: here mean and deviation."""
        self.fit_standardization(train.states)

    def fit_standardization(self, rows: Iterable[Tensor]) -> None:
        """Take mean and deviation over all tokens of `rows`, each (L + 1, d). One pass; one row in memory.

        Means and squared deviations of rows are merged in float64 (Chan, Golub and LeVeque 1979): a sum of squares
        would lose a deviation that is small against its mean. Raises `AbstainError` where a state is not finite.
        """
        tokens, mean, squares = 0, torch.zeros(()), torch.zeros(())
        for row in rows:
            states = row.to(torch.float64, copy=True)
            of_row = states.mean(0)
            states -= of_row
            apart, total = of_row - mean, tokens + len(row)
            mean = mean + apart * (len(row) / total)
            squares = squares + states.square_().sum(0) + apart.square() * (tokens * len(row) / total)
            tokens = total
        if not squares.isfinite().all():
            raise AbstainError(
                Code.NOT_FINITE,
                "some of the base model's states are not finite numbers: set ABSTAIN_DTYPE=float32, and run "
                "`abstain retrain` again",
            )
        deviation = (squares / max(tokens - 1, 1)).sqrt()
        self.mean.copy_(mean)
        # A dimension that is constant in training carries no information and must not dominate when it does change.
        self.scale.copy_(torch.where(deviation < 1e-6, 1.0, deviation))


def logits_to_confidence(logits: Tensor) -> Tensor:
    """c = softmax(z)_1, the probability of a correct answer, (B,) (eq. 6)."""
    return logits.softmax(-1)[:, 1]


def masked_mean(values: Tensor, lengths: Tensor | None) -> Tensor:
    """The mean over time of the valid of `values` (B, T, n), as (B, n); of one answer's, (T, n), as (1, n)."""
    if lengths is None:
        return values.mean(0, keepdim=True)
    share = _valid(values, lengths) / lengths.unsqueeze(1)
    return (share.unsqueeze(1) @ values).squeeze(1)


def masked_last(values: Tensor, lengths: Tensor | None) -> Tensor:
    """The last valid of `values` (B, T, n), as (B, n); of one answer's, (T, n), as (1, n)."""
    if lengths is None:
        return values[-1:]
    index = (lengths - 1).reshape(-1, 1, 1).expand(-1, 1, values.shape[2])
    return values.gather(1, index).squeeze(1)


def masked_softmax(scores: Tensor, lengths: Tensor | None) -> Tensor:
    """Shares over time, 0 where padded, of `scores` (B, T, n), or of one answer's, (T, n); of the same shape."""
    if lengths is not None:
        scores = scores.masked_fill(~_valid(scores, lengths).unsqueeze(2), float("-inf"))
    return scores.softmax(-2)


def _valid(values: Tensor, lengths: Tensor) -> Tensor:
    """The mask of valid, unpadded `values` (B, T, n), bool (B, T)."""
    return torch.arange(values.shape[1]) < lengths.unsqueeze(1)


def predict(probe: Probe, rows: Iterable[Tensor]) -> Tensor:
    """Logits (rows, 2) of ragged `rows`, in evaluation mode; one batch in memory."""
    probe.eval()
    with torch.inference_mode():
        logits = [probe(*pad(batch)) for batch in iter_batches(rows, EVALUATION_BATCH)]
    return torch.cat(logits) if logits else torch.empty(0, 2)


def predict_confidence(probe: Probe, rows: Iterable[Tensor]) -> Tensor:
    """Confidences (rows,) of ragged `rows`."""
    return logits_to_confidence(predict(probe, rows))
