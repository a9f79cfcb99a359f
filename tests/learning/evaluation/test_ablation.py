from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from abstain.data.store import splits
from abstain.learning.estimators.cross_validation import FittedProbe, fit_probe
from abstain.learning.estimators.probes.base import predict_confidence
from abstain.learning.estimators.training_rows import make_training_rows
from abstain.learning.evaluation.ablation import (
    ReadStates,
    compute_auroc_with_interval,
    compute_out_of_fold_aurocs,
    evaluate_left_out_products,
    evaluate_site,
)
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig
from abstain.learning.thresholds.selection import tune_threshold
from tests.checkout import shipped_params

PARAMS = shipped_params()
THRESHOLD = PARAMS.threshold.model_copy(update={"metric": "precision", "target": 0.7, "min_shown": 5})
RESAMPLES = BootstrapConfig(100, 1)
ROWS, D = 360, 5
SPLITS = ("train", "train", "validation", "holdout", "holdout", "newest")


def data_set(seed: int = 0) -> tuple[pd.DataFrame, ReadStates]:
    """Answers of sixty groups, of which wrong ones were reviewed more often; their states know something of it.

    Three products: what is right of `odd` ones stands in a place of its own.
    """
    drawn = np.random.default_rng(seed)
    group = np.arange(ROWS) % 60
    correct = drawn.integers(2, size=ROWS)
    product = np.where(group < 10, "rare", np.where(group < 30, "odd", "cards"))
    frame = pd.DataFrame(
        {
            "interaction_id": [f"i-{at}" for at in range(ROWS)],
            "group": [f"g-{name}" for name in group],
            "split": np.array(SPLITS)[group % len(SPLITS)],
            "correct": correct,
            "weight": 1.0,
            "source": np.where(drawn.random(ROWS) < 0.9, "review", "thumb"),
            "product": product,
            "inclusion_probability": np.where(correct == 1, 0.5, 1.0),
            "sampled": True,
        },
        index=pd.RangeIndex(100, 100 + ROWS),
    )
    signal = 0.6 * (2 * correct - 1)[:, None] + drawn.normal(size=(ROWS, 3))
    states = torch.zeros(ROWS, 2, D)
    states[:, :, 2:] = torch.from_numpy(drawn.normal(size=(ROWS, 2, D - 2))).float()
    place = np.where(product == "odd", 1, 0)
    states[torch.arange(ROWS)[:, None], torch.arange(2), torch.from_numpy(place)[:, None]] = torch.from_numpy(
        signal[:, :2]
    ).float()

    def take(index: pd.Index) -> Sequence[Tensor]:
        return [states[at - 100] for at in index]

    return frame, take


FRAME, TAKE = data_set()
ROUGE = np.where(np.arange(ROWS) % 4 == 0, np.linspace(0, 1, ROWS), np.nan)


def reviewed(split: str, frame: pd.DataFrame = FRAME) -> pd.DataFrame:
    return frame[(frame["split"] == split) & (frame["source"] == "review")]


def weights(rows: pd.DataFrame) -> np.ndarray:
    return np.asarray(1 / rows["inclusion_probability"].to_numpy())


@pytest.fixture(scope="module")
def row() -> dict[str, object]:
    return evaluate_site(FRAME, TAKE, "linear", PARAMS.probe, THRESHOLD, RESAMPLES, ROUGE)


def fit(train: pd.DataFrame) -> FittedProbe:
    return fit_probe("linear", make_training_rows(train, TAKE), train["group"].to_numpy(), PARAMS.probe)


@pytest.fixture(scope="module")
def fitted() -> FittedProbe:
    return fit(FRAME[FRAME["split"] == "train"])


@pytest.fixture(scope="module")
def probe_of_all(fitted: FittedProbe) -> pd.Series:
    """Every row's confidence by a probe that was trained on the training split."""
    return pd.Series(predict_confidence(fitted.probe, TAKE(FRAME.index)).numpy(), FRAME.index)


@pytest.mark.heavy
def test_a_place_is_judged_as_the_served_probe_is(row: dict[str, object], probe_of_all: pd.Series) -> None:
    """Threshold from the validation split, all else of the reviewed hold-out, weighted."""
    validation, holdout = reviewed("validation"), reviewed("holdout")
    tuned = tune_threshold(
        probe_of_all[validation.index].to_numpy(),
        validation["correct"].to_numpy(),
        THRESHOLD,
        metrics.row_weights(validation["inclusion_probability"].to_numpy()),
    )
    assert row["threshold"] == tuned.threshold and row["note"] == ""
    confidence, correct, weight = probe_of_all[holdout.index], holdout["correct"], weights(holdout)
    assert row["auroc"] == pytest.approx(roc_auc_score(correct, confidence, sample_weight=weight))
    shown = (confidence >= tuned.threshold).to_numpy()
    assert 0 < shown.sum() < len(shown)
    assert row["precision"] == pytest.approx(np.average(correct[shown], weights=weight[shown]))
    assert row["abstention_rate"] == pytest.approx(weight[~shown].sum() / weight.sum())
    rouge = ROUGE[holdout.index - 100]
    known = ~np.isnan(rouge)
    assert row["rouge_shown"] == pytest.approx(np.average(rouge[known & shown], weights=weight[known & shown]))
    assert row["rouge_withheld"] == pytest.approx(np.average(rouge[known & ~shown], weights=weight[known & ~shown]))
    assert row["rouge_withheld_answers"] == (known & ~shown).sum()


def test_an_answer_is_out_of_fold_where_the_place_is_judged_on_training_answers(
    row: dict[str, object], fitted: FittedProbe, probe_of_all: pd.Series
) -> None:
    judged = reviewed("train")
    held_out = pd.Series(fitted.out_of_fold, FRAME.index[FRAME["split"] == "train"])[judged.index]
    assert row["out_of_fold"] == pytest.approx(
        roc_auc_score(judged["correct"], held_out, sample_weight=weights(judged))
    )
    seen = roc_auc_score(judged["correct"], probe_of_all[judged.index], sample_weight=weights(judged))
    assert isinstance(row["out_of_fold"], float) and row["out_of_fold"] < seen


def test_labels_of_other_splits_than_train_reach_no_probe_and_a_target_out_of_reach_is_noted(
    row: dict[str, object],
) -> None:
    turned = FRAME.assign(correct=FRAME["correct"].where(FRAME["split"] == "train", 1 - FRAME["correct"]))
    unreachable = THRESHOLD.model_copy(update={"target": 0.999, "min_shown": 40})
    found = evaluate_site(turned, TAKE, "linear", PARAMS.probe, unreachable, RESAMPLES, ROUGE)
    assert found["out_of_fold"] == row["out_of_fold"]
    # Nearly all of what the probe knows is now wrong.
    assert isinstance(row["auroc"], float) and found["auroc"] < 0.4 < 0.6 < row["auroc"]
    assert str(found["note"]).startswith("no threshold reaches precision 0.999 on ") and "\n" not in str(found["note"])
    assert found.keys() == {"out_of_fold", "auroc", "auroc_low", "auroc_high", "note"}


def test_reviews_that_chose_themselves_judge_no_place_where_enough_were_drawn(
    row: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "MIN_SAMPLED", 20)
    judged = FRAME["split"].isin(["validation", "holdout"]) & (np.arange(ROWS) % 12 > 5)
    noisy = FRAME.assign(sampled=~judged, correct=FRAME["correct"].where(~judged, 1 - FRAME["correct"]))
    without = FRAME[~judged]
    places = FRAME.index.get_indexer(without.index)
    arguments = TAKE, "linear", PARAMS.probe, THRESHOLD, RESAMPLES
    assert evaluate_site(noisy, *arguments, ROUGE) == evaluate_site(without, *arguments, ROUGE[places])


def test_the_interval_is_of_groups_and_reaches_over_the_figure() -> None:
    holdout = reviewed("holdout")
    confidence = np.random.default_rng(2).random(len(holdout))
    found = compute_auroc_with_interval(holdout, confidence, RESAMPLES)
    assert found["auroc_low"] < found["auroc"] < found["auroc_high"]
    assert found == compute_auroc_with_interval(holdout, confidence, RESAMPLES)
    one = compute_auroc_with_interval(holdout.assign(group="g"), confidence, RESAMPLES)
    assert one["auroc"] == pytest.approx(found["auroc"]) and np.isnan(one["auroc_low"]) and np.isnan(one["auroc_high"])


def left_out(frame: pd.DataFrame, confidence: pd.Series, min_n_eff: int = 15) -> dict[str, dict[str, object]]:
    rows = evaluate_left_out_products(frame, TAKE, "linear", PARAMS.probe, RESAMPLES, min_n_eff, confidence)
    names = [str(row.pop("product")) for row in rows]
    assert names == sorted(set(names))
    return dict(zip(names, rows, strict=True))


def about(*products: str) -> pd.DataFrame:
    """The data set, where answers about other products are about none."""
    return FRAME.assign(product=FRAME["product"].where(FRAME["product"].isin(products), None))


@pytest.mark.heavy
def test_a_product_that_was_never_trained_on_is_known_less_well(probe_of_all: pd.Series) -> None:
    """What is right of the odd products is told by a state that tells nothing of the others.

    Answers about no product are trained on and not listed; too few about one are not judged.
    """
    found = left_out(about("odd", "rare"), probe_of_all, min_n_eff=30)
    assert list(found) == ["odd", "rare"]
    odd = reviewed("holdout")[lambda rows: rows["product"] == "odd"]
    own = roc_auc_score(odd["correct"], probe_of_all[odd.index], sample_weight=weights(odd))
    assert found["odd"]["auroc_trained_on_all"] == pytest.approx(own) and own > 0.8
    without = predict_confidence(
        fit(FRAME[(FRAME["split"] == "train") & (FRAME["product"] != "odd")]).probe, TAKE(odd.index)
    )
    expected = roc_auc_score(odd["correct"], without, sample_weight=weights(odd))
    assert found["odd"]["auroc"] == pytest.approx(expected) and expected < 0.65
    assert (found["odd"]["rows"], found["odd"]["note"]) == (len(odd), "")
    few = reviewed("holdout")["product"].value_counts()["rare"]
    assert found["rare"] == {"rows": few, "note": "fewer than 30 answers: not judged"} and few < 30


def test_a_product_that_cannot_be_left_out_says_why(probe_of_all: pd.Series) -> None:
    (found,) = left_out(FRAME.assign(product="cards"), probe_of_all).values()
    assert "bring feedback" in str(found["note"]) and "auroc" not in found
    (found,) = left_out(about("odd").assign(correct=1), probe_of_all).values()
    assert "one class only" in str(found["note"]) and "auroc" not in found
    assert left_out(about(), probe_of_all) == {}


def test_a_site_is_judged_out_of_fold_on_reviewed_training_answers() -> None:
    """States that know the label of their own group alone are worth nothing for another group."""
    frame, take = data_set()
    train = frame[frame["split"] == "train"]

    def noise(index: pd.Index) -> Sequence[Tensor]:
        return [torch.from_numpy(np.random.default_rng(at).normal(size=(2, D))).float() for at in index]

    found = compute_out_of_fold_aurocs(train, {"knows": take, "noise": noise}, "linear", PARAMS.probe, RESAMPLES)
    changed = train.assign(correct=np.where(train["source"] == "thumb", 1 - train["correct"], train["correct"]))
    of_reviews = compute_out_of_fold_aurocs(
        changed.assign(weight=(train["source"] == "review") * 1.0), {"knows": take}, "linear", PARAMS.probe, RESAMPLES
    )
    assert found["knows"].value > 0.7 > found["noise"].value
    assert of_reviews["knows"].value > 0.7  # labels of thumbs are not what it is judged by
    assert len(found["noise"].resamples) == RESAMPLES.n_resamples
