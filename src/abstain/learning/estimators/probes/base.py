"""The base class of all probes: a module from the answer's hidden states to two logits, with its fitting path.

Notes:

* Rows are padded at the end, and the padding values do not matter. An exported probe reads one answer, without padding
  and masks: `to_graph` describes it, and each export is compared with `forward`.
* States are standardized inside the module by the training tokens' mean and standard deviation: a few dimensions of a
  residual stream are orders of magnitude larger than the rest, and a served model must not need a side file.
* A fit is a *path* of probes of growing capacity, epoch by epoch or penalty by penalty. `cross_validation` selects the
  step, by one rule for all probes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from abstain.config.params import ProbeParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.estimators.training_rows import TrainingRows, iter_batches, pad

EVALUATION_BATCH_SIZE = 128


class TrainingStep(NamedTuple):
    """A point of the path along which a probe is fitted.

    Attributes:
        value: Number of epochs, from 1, or the inverse strength of the penalty.
        train_loss: Loss on the training rows.
        probe: The probe, the same object in every step: copy it before the next one.
    """

    value: float
    train_loss: float
    probe: Probe


class ServingGraph(NamedTuple):
    """What an exported probe computes from one answer's states.

    Attributes:
        nodes: Lines in the text syntax of ONNX, from `states` (tokens, d) to `logit` (1, 1), the difference z_1 - z_0.
        constants: Weights and axes that they name. What depends only on weights is computed at export.
    """

    nodes: str
    constants: dict[str, Tensor]


class Probe(nn.Module, ABC):
    """A classifier of answers: two logits from S_in, the hidden states of the answer's tokens and EOS.

    S_in is that of eq. 5 of Huang et al., section 3.1.

    Args:
        d: Width of the base model's states.
        **hyperparameters: The other arguments of the constructor; with `d` they are enough to make an equal module.

    Attributes:
        mean: (d,) mean of the training tokens' states.
        scale: (d,) their standard deviation.
        architecture: Key in `PROBES`, set when the probe is fitted or loaded.
    """

    mean: Tensor
    scale: Tensor
    architecture: str

    def __init__(self, d: int, **hyperparameters: float) -> None:
        super().__init__()
        self.hyperparameters: dict[str, float] = {"d": d, **hyperparameters}
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("scale", torch.ones(d))

    @property
    def width(self) -> int:
        """d, the width of the states that the probe reads."""
        return len(self.mean)

    @classmethod
    @abstractmethod
    def from_params(cls, d: int, params: ProbeParams) -> Self:
        """Create an untrained probe for states of width `d`."""

    @classmethod
    @abstractmethod
    def describe(cls, params: ProbeParams) -> str:
        """Describe the probe in one line, with the relevant hyperparameters, for the model card."""

    @classmethod
    @abstractmethod
    def count_steps(cls, params: ProbeParams) -> int:
        """Return the number of steps of `fit_path`."""

    @classmethod
    @abstractmethod
    def fit_path(cls, train: TrainingRows, params: ProbeParams) -> Iterator[TrainingStep]:
        """Fit on training rows with more capacity at every step.

        Deterministic for the same rows and parameters on one kind of hardware, also if other random numbers are drawn
        in between.

        Args:
            train: Rows whose weights are all positive.
            params: Hyperparameters.

        Yields:
            The steps of the path.

        Raises:
            AbstainError: A state is not finite.
        """

    @abstractmethod
    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Compute the logits z.

        Args:
            states: float32 (B, T, d), padded at the end.
            lengths: int64 (B,) valid tokens of each row.

        Returns:
            float32 (B, 2).
        """

    def standardize(self, states: Tensor) -> Tensor:
        """Standardize states: (states - mean) / scale.

        Args:
            states: (..., d).

        Returns:
            (..., d).
        """
        return (states - self.mean) / self.scale

    @abstractmethod
    def to_graph(self) -> ServingGraph:
        """Make the graph of an exported probe: the forward pass of one answer, with less arithmetic.

        The first layer's weights are divided by `scale` instead of the states, and weights of z_0 and z_1 are replaced
        by those of z_1 - z_0. Means are still subtracted from states: folded into the weights, they would leave a small
        difference of large numbers.
        """

    def fit_preprocessing(self, train: TrainingRows) -> None:
        """Fit everything that needs no labels on the training tokens: here mean and standard deviation.

        Args:
            train: The training rows.
        """
        self.fit_standardization(train.states)

    def fit_standardization(self, rows: Iterable[Tensor]) -> None:
        """Fit mean and standard deviation over all tokens, in one pass with one row in memory.

        Means and squared deviations of rows are merged in float64 (Chan, Golub and LeVeque 1979): a sum of squares
        would lose a deviation that is small in comparison with its mean.

        Args:
            rows: States, each (L + 1, d).

        Raises:
            AbstainError: A state is not finite.
        """
        n_tokens, mean, squared_deviations = 0, torch.zeros(()), torch.zeros(())
        for row in rows:
            states = row.to(torch.float64, copy=True)
            row_mean = states.mean(0)
            states -= row_mean
            delta, total = row_mean - mean, n_tokens + len(row)
            mean = mean + delta * (len(row) / total)
            between_rows = delta.square() * (n_tokens * len(row) / total)
            squared_deviations = squared_deviations + states.square_().sum(0) + between_rows
            n_tokens = total
        if not squared_deviations.isfinite().all():
            raise AbstainError(
                Code.NOT_FINITE,
                "some of the base model's states are not finite numbers: set ABSTAIN_DTYPE=float32, and run "
                "`abstain retrain` again",
            )
        deviation = (squared_deviations / max(n_tokens - 1, 1)).sqrt()
        self.mean.copy_(mean)
        # A dimension that is constant in training carries no information and must not dominate when it does change.
        self.scale.copy_(torch.where(deviation < 1e-6, 1.0, deviation))


def logits_to_confidence(logits: Tensor) -> Tensor:
    """Compute the confidence c = softmax(z)_1, the probability of a correct answer (eq. 6).

    Args:
        logits: (B, 2).

    Returns:
        (B,) in [0, 1].
    """
    return logits.softmax(-1)[:, 1]


def masked_mean(values: Tensor, lengths: Tensor) -> Tensor:
    """Compute the mean over the valid tokens.

    Args:
        values: (B, T, n).
        lengths: int64 (B,) valid tokens of each row.

    Returns:
        (B, n).
    """
    share = _make_valid_mask(values, lengths) / lengths.unsqueeze(1)
    return (share.unsqueeze(1) @ values).squeeze(1)


def masked_last(values: Tensor, lengths: Tensor) -> Tensor:
    """Select the last valid token.

    Args:
        values: (B, T, n).
        lengths: int64 (B,) valid tokens of each row.

    Returns:
        (B, n).
    """
    index = (lengths - 1).reshape(-1, 1, 1).expand(-1, 1, values.shape[2])
    return values.gather(1, index).squeeze(1)


def masked_softmax(scores: Tensor, lengths: Tensor) -> Tensor:
    """Compute the softmax over the valid tokens; padding gets 0.

    Args:
        scores: (B, T, n).
        lengths: int64 (B,) valid tokens of each row.

    Returns:
        A tensor of the same shape that sums to 1 over T.
    """
    return scores.masked_fill(~_make_valid_mask(scores, lengths).unsqueeze(2), float("-inf")).softmax(-2)


def _make_valid_mask(values: Tensor, lengths: Tensor) -> Tensor:
    """Return the mask of valid, unpadded `values` (B, T, n), bool (B, T)."""
    return torch.arange(values.shape[1]) < lengths.unsqueeze(1)


def predict_logits(probe: Probe, rows: Iterable[Tensor]) -> Tensor:
    """Compute the logits of ragged rows in evaluation mode, with one batch in memory.

    Args:
        probe: The probe; it is set to evaluation mode.
        rows: States, each (L + 1, d).

    Returns:
        float32 (rows, 2).
    """
    probe.eval()
    with torch.inference_mode():
        logits = [probe(*pad(batch)) for batch in iter_batches(rows, EVALUATION_BATCH_SIZE)]
    return torch.cat(logits) if logits else torch.empty(0, 2)


def predict_confidence(probe: Probe, rows: Iterable[Tensor]) -> Tensor:
    """Compute the confidences of ragged rows in evaluation mode, with one batch in memory.

    Args:
        probe: The probe; it is set to evaluation mode.
        rows: States, each (L + 1, d).

    Returns:
        float32 (rows,) in [0, 1].
    """
    return logits_to_confidence(predict_logits(probe, rows))
