from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from abstain.errors import AbstainError
from abstain.evaluate.metrics import auroc
from abstain.models.probe import Probe, confidence
from abstain.models.training import Rows, predict, predict_confidence, probe_loss, train_probe
from abstain.params import ProbeParams

D = 16
PARAMS = ProbeParams(
    seed=7,
    hidden=16,
    dropout=0.2,
    learning_rate=0.005,
    weight_decay=0.01,
    batch_size=32,
    max_epochs=12,
    patience=4,
    huber_lambda=1.0,
    huber_delta=0.1,
)


def planted(rows: int, seed: int, strength: float = 1.5) -> Rows:
    """Ragged noise; in the right answers one direction is raised at one token somewhere, in others lowered."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.zeros(D)
    direction[3] = 4 * strength
    correct = torch.randint(0, 2, (rows,), generator=generator)
    states = []
    for right in correct.tolist():
        length = int(torch.randint(1, 12, (1,), generator=generator))
        row = 10 + torch.randn(length, D, generator=generator)
        row[int(torch.randint(0, length, (1,), generator=generator))] += direction * (1 if right else -1)
        states.append(row)
    return Rows(states, correct, torch.ones(rows))


def by_hand(
    logits: np.ndarray, correct: np.ndarray, weight: np.ndarray, huber_lambda: float, huber_delta: float
) -> float:
    """Equations 7 to 9 of the paper, row by row, in float64."""
    share = weight / weight.sum()
    total, confident, accurate = 0.0, 0.0, 0.0
    for z, y, s in zip(logits.astype(float), correct, share, strict=True):
        p = np.exp(z) / np.exp(z).sum()
        total += s * -np.log(p[y])
        confident += s * p.max()
        accurate += s * (p.argmax() == y)
    x = abs(confident - accurate)
    huber = x**2 / 2 if x <= huber_delta else huber_delta * (x - huber_delta / 2)
    return total + huber_lambda * huber


@pytest.mark.parametrize("huber_lambda", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("huber_delta", [0.01, 1.0])  # beyond the knee, and within it
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_equations_7_to_9(huber_lambda: float, huber_delta: float, weighted: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(9, 2, generator=generator)
    correct = torch.tensor([0, 1, 1, 0, 1, 1, 0, 1, 0])
    weight = torch.rand(9, generator=generator) + 0.1 if weighted else torch.ones(9)
    loss = probe_loss(logits, correct, weight, huber_lambda, huber_delta)
    expected = by_hand(logits.numpy(), correct.numpy(), weight.numpy(), huber_lambda, huber_delta)
    assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_with_lambda_zero_the_loss_is_the_plain_cross_entropy() -> None:
    logits, correct = torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 1, 1])
    plain = torch.nn.functional.cross_entropy(logits, correct)
    assert float(probe_loss(logits, correct, torch.full((6,), 0.4), 0.0, 0.1)) == pytest.approx(float(plain), abs=1e-6)
    assert float(probe_loss(logits, correct, torch.ones(6), 1.0, 0.1)) > float(plain)


def test_a_row_of_weight_zero_does_not_count() -> None:
    logits, correct = torch.randn(4, 2), torch.tensor([0, 1, 0, 1])
    weight = torch.tensor([1.0, 2.0, 0.0, 1.0])
    kept = weight > 0
    assert float(probe_loss(logits, correct, weight, 1.0, 0.1)) == pytest.approx(
        float(probe_loss(logits[kept], correct[kept], weight[kept], 1.0, 0.1)), abs=1e-6
    )


def test_the_calibration_term_pulls_confidence_towards_accuracy() -> None:
    """Overconfident by construction: half right at a confidence near one."""
    logits = torch.tensor([[0.0, 4.0]] * 4, requires_grad=True)
    correct, weight = torch.tensor([1, 1, 0, 0]), torch.ones(4)
    (with_term,) = torch.autograd.grad(probe_loss(logits, correct, weight, 1.0, 1.0), logits)
    (without,) = torch.autograd.grad(probe_loss(logits, correct, weight, 0.0, 1.0), logits)
    assert (with_term[:, 1] > without[:, 1]).all()  # a step downhill lowers the winning logit further


def weights(probe: Probe) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in probe.state_dict().values()])


def test_a_planted_signal_is_learnt_and_held_out_rows_are_ranked() -> None:
    probe, history = train_probe(planted(300, 1), planted(100, 2), PARAMS)
    test = planted(300, 3)
    scores = predict_confidence(probe, test.states).numpy()
    assert auroc(test.correct.numpy(), scores) > 0.9
    assert history.validation_loss[history.best_epoch] < history.validation_loss[0]
    assert not probe.training


def test_without_a_signal_held_out_rows_are_not_ranked() -> None:
    probe, _ = train_probe(planted(300, 1, strength=0), planted(100, 2, strength=0), PARAMS)
    test = planted(400, 3, strength=0)
    assert auroc(test.correct.numpy(), predict_confidence(probe, test.states).numpy()) == pytest.approx(0.5, abs=0.1)


def test_training_is_deterministic_under_a_seed_and_differs_under_another() -> None:
    train, validation, params = planted(80, 1), planted(40, 2), PARAMS.model_copy(update={"max_epochs": 3})
    one, history = train_probe(train, validation, params)
    torch.rand(17)  # whatever was drawn in between
    again, same_history = train_probe(train, validation, params)
    other, _ = train_probe(train, validation, params.model_copy(update={"seed": 8}))
    assert torch.equal(weights(one), weights(again))
    assert history == same_history
    assert not torch.equal(weights(one), weights(other))


def test_the_best_epochs_weights_are_kept_and_patience_ends_the_rest() -> None:
    """A learning rate at which it overfits noise soon: the end is worse than the best."""
    train, validation = planted(60, 1, strength=0.2), planted(60, 2, strength=0.2)
    params = PARAMS.model_copy(update={"learning_rate": 0.03, "max_epochs": 60, "patience": 5, "dropout": 0.0})
    probe, history = train_probe(train, validation, params)
    losses = history.validation_loss
    assert len(losses) == len(history.train_loss) == history.best_epoch + params.patience + 1 < params.max_epochs
    assert losses[history.best_epoch] == min(losses) < losses[-1]
    kept = probe_loss(
        predict(probe, validation.states),
        validation.correct,
        validation.weight,
        params.huber_lambda,
        params.huber_delta,
    )
    assert float(kept) == losses[history.best_epoch]


def test_weights_of_rows_change_what_is_learnt() -> None:
    """The same states under contradicting labels: the heavier ones win."""
    rows = planted(200, 1)
    both = Rows(rows.states * 2, torch.cat([rows.correct, 1 - rows.correct]), torch.ones(400))
    test = planted(200, 3)
    for heavy in (0, 1):
        both.weight[:200], both.weight[200:] = (1.0, 0.1) if heavy == 0 else (0.1, 1.0)
        probe, _ = train_probe(both, both, PARAMS.model_copy(update={"max_epochs": 6}))
        assert (auroc(test.correct.numpy(), predict_confidence(probe, test.states).numpy()) > 0.5) == (heavy == 0)


def test_thumbs_of_weight_zero_are_left_out_even_where_they_fill_a_batch() -> None:
    train = planted(120, 1)
    train.weight[40:] = 0
    probe, history = train_probe(train, planted(60, 2), PARAMS.model_copy(update={"batch_size": 2, "max_epochs": 3}))
    assert torch.isfinite(weights(probe)).all()
    assert np.isfinite([*history.train_loss, *history.validation_loss]).all()


@pytest.mark.parametrize("part", ["train", "validation"])
@pytest.mark.parametrize("value", [0, 1])
def test_a_split_of_one_class_is_an_error_with_a_remedy(part: str, value: int) -> None:
    splits = {"train": planted(20, 1), "validation": planted(20, 2)}
    splits[part].correct.fill_(value)
    with pytest.raises(AbstainError, match=f"the {part} split has answers of one class only: bring feedback"):
        train_probe(splits["train"], splits["validation"], PARAMS)


def test_a_class_that_weighs_nothing_is_not_there() -> None:
    train = planted(20, 1)
    train.weight[train.correct == 1] = 0
    with pytest.raises(AbstainError, match="the train split has answers of one class only"):
        train_probe(train, planted(20, 2), PARAMS)


def test_progress_counts_epochs() -> None:
    seen: list[tuple[int, int]] = []
    params = PARAMS.model_copy(update={"max_epochs": 2})
    train_probe(planted(20, 1), planted(20, 2), params, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


class Watched(Sequence):
    """States that are not in memory: what is read is counted, and nothing but single rows can be had."""

    def __init__(self, rows: Sequence[Tensor]) -> None:
        self._rows = rows
        self.read: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tensor:
        assert isinstance(index, int)
        self.read[index] += 1
        return self._rows[index].clone()


def test_states_that_are_read_when_asked_for_train_the_same_probe_and_are_read_once_an_epoch() -> None:
    train, validation = planted(120, 1), planted(60, 2)
    train.weight[::3] = 0
    validation.weight[5] = 0
    params = PARAMS.model_copy(update={"max_epochs": 3})
    expected, history = train_probe(train, validation, params)
    lazy = [Rows(Watched(rows.states), rows.correct, rows.weight) for rows in (train, validation)]
    probe, same_history = train_probe(*lazy, params)
    assert torch.equal(weights(probe), weights(expected))
    assert history == same_history
    of_train, of_validation = (rows.states.read for rows in lazy)
    assert of_train.keys() == {i for i in range(120) if i % 3}
    # One more for the deviation, and the first also for the width.
    assert {of_train[i] for i in of_train if i != 1} == {4} and of_train[1] == 5
    assert of_validation == {i: 3 for i in range(60) if i != 5}


def test_take_keeps_states_labels_and_weights_together() -> None:
    rows = planted(5, 1)
    rows.weight[:] = torch.arange(5)
    taken = rows.take(torch.tensor([4, 0]))
    assert torch.equal(taken.states[0], rows.states[4])
    assert taken.weight.tolist() == [4, 0]
    assert taken.correct.tolist() == [rows.correct[4], rows.correct[0]]


def test_predictions_do_not_depend_on_how_rows_are_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    probe, rows = Probe(D, 8, 0.5), planted(10, 1).states
    whole = predict_confidence(probe, rows)
    monkeypatch.setattr("abstain.models.training.EVALUATION_BATCH", 3)
    torch.testing.assert_close(predict_confidence(probe, rows), whole)
    torch.testing.assert_close(whole, confidence(predict(probe, rows)))
