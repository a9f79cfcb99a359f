"""Training by gradient descent: cross-entropy plus the Huber confidence-accuracy gap (paper, section 3.2, eqs. 7-9).

Notes:

* States are read when a batch needs them, once an epoch: memory is bounded by the batch, not by the data.
* The rows of a batch are of similar length: with rows in random order, padding would be half of the work.
* Every path draws from its own generator, so that several may advance at once, in threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, huber_loss

from abstain.config.params import ProbeParams
from abstain.learning.estimators.probes.base import Probe, TrainingStep
from abstain.learning.estimators.training_rows import TrainingRows, pad

POOL = 8
"""Number of batches whose rows are drawn together and sorted by length; with more, a batch is less of a random sample.
"""


class DescentProbe(Probe):
    """A probe whose path is its epochs."""

    @classmethod
    def describe_training(cls, params: ProbeParams) -> str:
        """Describe how the probe is trained, the end of its description.

        Args:
            params: Hyperparameters.

        Returns:
            The description.
        """
        huber = (
            f" + {params.huber_lambda:g} x Huber (delta {params.huber_delta:g})" if params.huber_lambda else " alone"
        )
        return f"cross-entropy{huber}; dropout {params.dropout:g}, seed {params.seed}"

    @classmethod
    def count_steps(cls, params: ProbeParams) -> int:
        return params.max_epochs

    @classmethod
    def fit_path(cls, train: TrainingRows, params: ProbeParams) -> Iterator[TrainingStep]:
        generator = torch.Generator().manual_seed(params.seed)
        with _use_generator(generator):
            probe = cls.from_params(train.states[0].shape[1], params)
        for module in probe.modules():
            if isinstance(module, Dropout):
                module.generator = generator
        probe.fit_preprocessing(train)
        optimizer = torch.optim.AdamW(
            probe.parameters(), lr=params.learning_rate, weight_decay=params.weight_decay, fused=True
        )
        for epoch in range(params.max_epochs):
            yield TrainingStep(epoch + 1, _train_epoch(probe, train, optimizer, params, generator), probe)


class Dropout(nn.Module):
    """Inverted dropout in training, with random numbers of `generator`.

    Args:
        drop_probability: Probability of dropping a value, in [0, 1).

    Attributes:
        generator: Source of random numbers; None is torch's global generator.
        keep_probability: 1 - `drop_probability`.
    """

    generator: torch.Generator | None = None

    def __init__(self, drop_probability: float) -> None:
        super().__init__()
        self.keep_probability = 1 - drop_probability

    def forward(self, values: Tensor) -> Tensor:
        """Drop values in training; return them unchanged otherwise.

        Args:
            values: Any shape.

        Returns:
            A tensor of the same shape.
        """
        if not self.training:
            return values
        return values * self.make_mask(values).bernoulli_(self.keep_probability, generator=self.generator).div_(
            self.keep_probability
        )

    def make_mask(self, values: Tensor) -> Tensor:
        """Make an empty tensor of the mask's shape.

        Args:
            values: The values to mask.

        Returns:
            A tensor that broadcasts to `values`.
        """
        return torch.empty_like(values)


class DimensionDropout(Dropout):
    """Dropout of whole dimensions of a row: the same ones for all of its tokens (Gal and Ghahramani 2016)."""

    def make_mask(self, values: Tensor) -> Tensor:
        return torch.empty_like(values[..., :1, :])


def probe_loss(logits: Tensor, correct: Tensor, weight: Tensor, huber_lambda: float, huber_delta: float) -> Tensor:
    """Compute L = CE + lambda * H_delta(mean_B(max softmax) - mean_B(prediction is correct)) (eqs. 7-9).

    Means are weighted by `weight`; with equal weights they are the paper's. The accuracy has no gradient; the term
    pulls the batch's confidence towards it.

    Args:
        logits: (B, 2) z.
        correct: int64 (B,) labels, 0 or 1.
        weight: (B,) training weights >= 0.
        huber_lambda: lambda >= 0; 0 is the "no calib." row of Huang et al.
        huber_delta: delta > 0, the gap at which the term changes from quadratic to linear.

    Returns:
        The loss, a scalar.
    """
    share = weight / weight.sum()
    loss = (cross_entropy(logits, correct, reduction="none") * share).sum()
    if huber_lambda == 0:
        return loss
    highest, predicted = logits.softmax(-1).max(-1)
    gap = (highest * share).sum() - ((predicted == correct).float() * share).sum()
    return loss + huber_lambda * huber_loss(gap, torch.zeros_like(gap), delta=huber_delta)


def _train_epoch(
    probe: Probe, train: TrainingRows, optimizer: torch.optim.Optimizer, params: ProbeParams, generator: torch.Generator
) -> float:
    """Train for one epoch, and return the mean of the batches' losses."""
    probe.train()
    losses = []
    for index in _make_length_batches(train.lengths, params.batch_size, generator):
        states, lengths = pad([train.states[i] for i in index.tolist()])
        loss = probe_loss(
            probe(states, lengths), train.correct[index], train.weight[index], params.huber_lambda, params.huber_delta
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(probe.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def _make_length_batches(lengths: Tensor, size: int, generator: torch.Generator) -> list[Tensor]:
    """Split all rows into random batches of `size`: the rows of `POOL` batches are drawn, sorted by length and cut."""
    permutation = torch.randperm(len(lengths), generator=generator)
    pools = (pool[lengths[pool].argsort(stable=True)] for pool in permutation.split(POOL * size))
    batches = [batch for pool in pools for batch in pool.split(size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


_GLOBAL_GENERATOR_LOCK = Lock()


@contextmanager
def _use_generator(generator: torch.Generator) -> Iterator[None]:
    """Use `generator` for code that can only use torch's global random numbers, and restore those afterwards."""
    with _GLOBAL_GENERATOR_LOCK, torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator.get_state())
        yield
        generator.set_state(torch.get_rng_state())
