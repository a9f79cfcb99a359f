"""Training the probe: cross-entropy plus the Huber confidence-accuracy gap (paper, section 3.2, eqs. 7-9).

States are read when a batch needs them, once an epoch and once for the standardisation: memory is bounded by the
batch, not by the data.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, huber_loss

from abstain.errors import AbstainError
from abstain.models.probe import Probe, batches, confidence, pad
from abstain.params import ProbeParams

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Rows:
    """A labelled split: states, each (L + 1, d), in memory or read when asked for; `correct` 0/1 and `weight` >= 0,
    both (rows,)."""

    states: Sequence[Tensor]
    correct: Tensor
    weight: Tensor

    def take(self, index: Tensor) -> Rows:
        """The rows of `index` as a batch: their states are read."""
        chosen = index.tolist()
        return Rows([self.states[i] for i in chosen], self.correct[index], self.weight[index])


@dataclass
class History:
    """One entry an epoch, and the epoch (counted from 0) whose weights were kept."""

    train_loss: list[float] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    best_epoch: int = 0


def probe_loss(logits: Tensor, correct: Tensor, weight: Tensor, huber_lambda: float, huber_delta: float) -> Tensor:
    """L = CE + lambda * H_delta(mean_B(max softmax) - mean_B(prediction is right)) (eqs. 7-9).

    Both terms are means weighted by `weight`, so that with equal weights they are the paper's own. The
    accuracy has no gradient; the term pulls the batch's confidence towards it.
    """
    share = weight / weight.sum()
    loss = (cross_entropy(logits, correct, reduction="none") * share).sum()
    if huber_lambda == 0:
        return loss
    highest, predicted = logits.softmax(-1).max(-1)
    gap = (highest * share).sum() - ((predicted == correct).float() * share).sum()
    return loss + huber_lambda * huber_loss(gap, torch.zeros_like(gap), delta=huber_delta)


def train_probe(
    train: Rows, validation: Rows, params: ProbeParams, on_epoch: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Probe, History]:
    """Train on `train`, stop early on `validation`; the weights of the best epoch are returned.

    Rows of weight 0 are left out. Deterministic under `params.seed` on one kind of hardware. Raises `AbstainError`
    when a split has one class.
    """
    learnt, judged = (rows.weight.nonzero().flatten() for rows in (train, validation))
    for name, correct in (("train", train.correct[learnt]), ("validation", validation.correct[judged])):
        if correct.unique().numel() < 2:
            raise AbstainError(
                f"the {name} split has answers of one class only: bring feedback of both kinds, or change split.seed"
            )
    torch.manual_seed(params.seed)
    torch.set_num_threads(1)  # the order of a sum, and so its last bits, depends on the number of threads
    probe = Probe(train.states[int(learnt[0])].shape[1], params.hidden, params.dropout)
    probe.standardise_by(train.states[i] for i in learnt.tolist())
    optimizer = torch.optim.AdamW(probe.parameters(), lr=params.learning_rate, weight_decay=params.weight_decay)
    history = History()
    best = copy.deepcopy(probe.state_dict())
    for epoch in range(params.max_epochs):
        history.train_loss.append(_one_epoch(probe, train, learnt, optimizer, params))
        logits = predict(probe, (validation.states[i] for i in judged.tolist()))
        correct, weight = validation.correct[judged], validation.weight[judged]
        loss = probe_loss(logits, correct, weight, params.huber_lambda, params.huber_delta)
        history.validation_loss.append(float(loss))
        on_epoch(epoch + 1, params.max_epochs)
        if history.validation_loss[-1] == min(history.validation_loss):
            history.best_epoch = epoch
            best = copy.deepcopy(probe.state_dict())
        elif epoch - history.best_epoch >= params.patience:
            break
    probe.load_state_dict(best)
    return probe.eval(), history


def predict(probe: Probe, rows: Iterable[Tensor]) -> Tensor:
    """Logits (rows, 2) of ragged `rows`, in evaluation mode; one batch in memory."""
    probe.eval()
    with torch.inference_mode():
        return torch.cat([probe(*pad(batch)) for batch in batches(rows, EVALUATION_BATCH)])


def predict_confidence(probe: Probe, rows: Iterable[Tensor]) -> Tensor:
    """Confidences (rows,) of ragged `rows`."""
    return confidence(predict(probe, rows))


def _one_epoch(
    probe: Probe, train: Rows, learnt: Tensor, optimizer: torch.optim.Optimizer, params: ProbeParams
) -> float:
    """One pass over the rows `learnt` of `train`; the mean of the batches' losses."""
    probe.train()
    losses = []
    for index in learnt[torch.randperm(len(learnt))].split(params.batch_size):
        batch = train.take(index)
        loss = probe_loss(
            probe(*pad(batch.states)), batch.correct, batch.weight, params.huber_lambda, params.huber_delta
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(probe.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)
