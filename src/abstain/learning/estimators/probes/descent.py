"""Training by gradient descent: cross-entropy plus the Huber confidence-accuracy gap (paper, section 3.2, eqs. 7-9).

Notes:

* States are read when a batch needs them, once an epoch: memory is bounded by the batch, not by the data.
* A batch's rows are of similar length: of answers as they come, padding would be half of the work.
* Every path draws from a generator of its own, so that several may advance at once, in threads.
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

HUBER_DELTA = 0.1
"""delta of eq. 9: where the Huber term turns from quadratic to linear."""
POOL = 8
"""Batches whose rows are drawn together and sorted by length: more, and a batch is less of a sample."""


class DescentProbe(Probe):
    """A probe whose path is its epochs."""

    @classmethod
    def describe_training(cls, params: ProbeParams) -> str:
        """The end of its description: how it is trained."""
        huber = f" + {params.huber_lambda:g} x Huber (delta {HUBER_DELTA:g})" if params.huber_lambda else " alone"
        return f"cross-entropy{huber}; dropout {params.dropout:g}, seed {params.seed}"

    @classmethod
    def steps(cls, params: ProbeParams) -> int:
        return params.max_epochs

    @classmethod
    def path(cls, train: TrainingRows, params: ProbeParams) -> Iterator[TrainingStep]:
        draws = torch.Generator().manual_seed(params.seed)
        with _use_generator(draws):
            probe = cls.from_params(train.states[0].shape[1], params)
        for module in probe.modules():
            if isinstance(module, Dropout):
                module.generator = draws
        probe.fit_preprocessing(train)
        optimizer = torch.optim.AdamW(
            probe.parameters(), lr=params.learning_rate, weight_decay=params.weight_decay, fused=True
        )
        for epoch in range(params.max_epochs):
            yield TrainingStep(epoch + 1, _one_epoch(probe, train, optimizer, params, draws), probe)


class Dropout(nn.Module):
    """Inverted dropout in training, drawn from `draws` (None: torch's global generator)."""

    generator: torch.Generator | None = None

    def __init__(self, share: float) -> None:
        super().__init__()
        self.kept = 1 - share

    def forward(self, values: Tensor) -> Tensor:
        if not self.training:
            return values
        return values * self.mask(values).bernoulli_(self.kept, generator=self.generator).div_(self.kept)

    def mask(self, values: Tensor) -> Tensor:
        """An empty tensor of the mask's shape."""
        return torch.empty_like(values)


class DimensionDropout(Dropout):
    """Dropout of whole dimensions of a row: the same ones for all of its tokens (Gal and Ghahramani 2016)."""

    def mask(self, values: Tensor) -> Tensor:
        return torch.empty_like(values[..., :1, :])


def probe_loss(logits: Tensor, correct: Tensor, weight: Tensor, huber_lambda: float) -> Tensor:
    """L = CE + lambda * H_delta(mean_B(max softmax) - mean_B(prediction is correct)) (eqs. 7-9).

    Both terms are means weighted by `weight`, so that with equal weights they are the paper's own. The
    accuracy has no gradient; the term pulls the batch's confidence towards it.
    """
    share = weight / weight.sum()
    loss = (cross_entropy(logits, correct, reduction="none") * share).sum()
    if huber_lambda == 0:
        return loss
    highest, predicted = logits.softmax(-1).max(-1)
    gap = (highest * share).sum() - ((predicted == correct).float() * share).sum()
    return loss + huber_lambda * huber_loss(gap, torch.zeros_like(gap), delta=HUBER_DELTA)


def _one_epoch(
    probe: Probe, train: TrainingRows, optimizer: torch.optim.Optimizer, params: ProbeParams, draws: torch.Generator
) -> float:
    """One pass over `train`; the mean of the batches' losses."""
    probe.train()
    losses = []
    for index in _batches_of_similar_length(train.lengths, params.batch_size, draws):
        states, lengths = pad([train.states[i] for i in index.tolist()])
        loss = probe_loss(probe(states, lengths), train.correct[index], train.weight[index], params.huber_lambda)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(probe.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def _batches_of_similar_length(lengths: Tensor, size: int, draws: torch.Generator) -> list[Tensor]:
    """All rows in random batches of `size`: `POOL` batches' rows are drawn, sorted by length and cut."""
    drawn = torch.randperm(len(lengths), generator=draws)
    pools = (pool[lengths[pool].argsort(stable=True)] for pool in drawn.split(POOL * size))
    made = [batch for pool in pools for batch in pool.split(size)]
    return [made[i] for i in torch.randperm(len(made), generator=draws).tolist()]


_GLOBAL_DRAWS = Lock()


@contextmanager
def _use_generator(draws: torch.Generator) -> Iterator[None]:
    """Random numbers of `draws` for what can only use torch's global ones, which go on as if nothing had been drawn."""
    with _GLOBAL_DRAWS, torch.random.fork_rng(devices=[]):
        torch.set_rng_state(draws.get_state())
        yield
        draws.set_state(torch.get_rng_state())
