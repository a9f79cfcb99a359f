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
    compute_out_of_fold_aurocs,
    evaluate_left_out_products,
    evaluate_site,
)
from abstain.learning.evaluation.records import ProductLeftOut, SiteMetrics
from abstain.learning.evaluation.selective_prediction import ScoredAnswers, evaluate_at_threshold
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig
from abstain.learning.thresholds.selection import tune_threshold
from tests.checkout import shipped_params

pytestmark = pytest.mark.heavy

PARAMS = shipped_params()
THRESHOLD = PARAMS.threshold.model_copy(update={"metric": "precision", "target": 0.7, "min_shown": 5})
RESAMPLES = BootstrapConfig(100, 1)
ROWS, D = 360, 5
SPLITS = ("train", "train", "validation", "holdout", "holdout", "newest")


def make_data_set(seed: int = 0) -> tuple[pd.DataFrame, ReadStates]:
    """Answers of sixty groups, of which wrong ones were reviewed more often; their states know something of it.

    Of three products, the label of `odd` ones is in a dimension of its own.
    """
    generator = np.random.default_rng(seed)
    group = np.arange(ROWS) % 60
    correct = generator.integers(2, size=ROWS)
    product = np.where(group < 10, "rare", np.where(group < 30, "odd", "cards"))
    frame = pd.DataFrame(
        {
            "interaction_id": [f"i-{i}" for i in range(ROWS)],
            "group": [f"g-{name}" for name in group],
            "split": np.array(SPLITS)[group % len(SPLITS)],
            "correct": correct,
            "weight": 1.0,
            "source": np.where(generator.random(ROWS) < 0.9, "review", "thumb"),
            "product": product,
            "inclusion_probability": np.where(correct == 1, 0.5, 1.0),
            "sampled": True,
        },
        index=pd.RangeIndex(100, 100 + ROWS),
    )
    signal = 0.6 * (2 * correct - 1)[:, None] + generator.normal(size=(ROWS, 3))
    states = np.zeros((ROWS, 2, D), np.float32)
    states[:, :, 2:] = generator.normal(size=(ROWS, 2, D - 2))
    states[np.arange(ROWS)[:, None], [0, 1], np.where(product == "odd", 1, 0)[:, None]] = signal[:, :2]
    return frame, lambda index: [torch.from_numpy(states[i - 100]) for i in index]


FRAME, READ = make_data_set()
ROUGE = np.where(np.arange(ROWS) % 4 == 0, np.linspace(0, 1, ROWS), np.nan)


def select(split: str) -> pd.DataFrame:
    return FRAME[(FRAME["split"] == split) & (FRAME["source"] == "review")]


def get_weights(rows: pd.DataFrame) -> np.ndarray:
    return np.asarray(1 / rows["inclusion_probability"].to_numpy())


def fit(train: pd.DataFrame) -> FittedProbe:
    return fit_probe("linear", make_training_rows(train, READ), train["group"].to_numpy(), PARAMS.probe)


@pytest.fixture(scope="module")
def site() -> SiteMetrics:
    return evaluate_site(FRAME, READ, "linear", PARAMS.probe, THRESHOLD, RESAMPLES, ROUGE)


@pytest.fixture(scope="module")
def fitted() -> FittedProbe:
    return fit(FRAME[FRAME["split"] == "train"])


@pytest.fixture(scope="module")
def confidence(fitted: FittedProbe) -> pd.Series:
    """Every row's confidence by a probe that was trained on the training split."""
    return pd.Series(predict_confidence(fitted.probe, READ(FRAME.index)).numpy(), FRAME.index)


def test_evaluate_site_tunes_on_validation_and_weights(site: SiteMetrics, confidence: pd.Series) -> None:
    validation, holdout = select("validation"), select("holdout")
    of_validation = confidence[validation.index].to_numpy(), validation["correct"].to_numpy()
    weight = metrics.row_weights(validation["inclusion_probability"].to_numpy())
    tuned = tune_threshold(*of_validation, THRESHOLD, weight)
    assert site.threshold == tuned.threshold and site.note == ""
    predicted, correct, weight = confidence[holdout.index], holdout["correct"], get_weights(holdout)
    assert site.auroc == pytest.approx(roc_auc_score(correct, predicted, sample_weight=weight))
    assert site.auroc_low < site.auroc < site.auroc_high
    answers = ScoredAnswers(correct.to_numpy(), predicted.to_numpy(), weight)
    expected = evaluate_at_threshold(answers, tuned.threshold, ROUGE[holdout.index - 100])
    assert 0 < expected.coverage < 1
    for name in ("precision", "abstention_rate", "rouge_shown", "rouge_withheld"):
        assert getattr(site, name) == pytest.approx(getattr(expected, name))


def test_evaluate_site_training_auroc_is_out_of_fold(
    site: SiteMetrics, fitted: FittedProbe, confidence: pd.Series
) -> None:
    rows = select("train")
    out_of_fold = pd.Series(fitted.out_of_fold, FRAME.index[FRAME["split"] == "train"])
    expected, in_sample = (
        roc_auc_score(rows["correct"], predicted[rows.index], sample_weight=get_weights(rows))
        for predicted in (out_of_fold, confidence)
    )
    assert site.out_of_fold == pytest.approx(expected) and expected < in_sample


def test_evaluate_site_uses_training_labels_only(site: SiteMetrics) -> None:
    inverted = FRAME.assign(correct=FRAME["correct"].where(FRAME["split"] == "train", 1 - FRAME["correct"]))
    unreachable = THRESHOLD.model_copy(update={"target": 0.999, "min_shown": 40})
    other = evaluate_site(inverted, READ, "linear", PARAMS.probe, unreachable, RESAMPLES, ROUGE)
    assert other.out_of_fold == site.out_of_fold
    assert other.auroc < 0.4 < 0.6 < site.auroc
    assert "0.999" in other.note
    assert other.to_dict().keys() == {"out_of_fold", "auroc", "auroc_low", "auroc_high", "note"}


def test_evaluate_site_ignores_self_selected_reviews(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "MIN_SAMPLED", 20)
    chosen = FRAME["split"].isin(["validation", "holdout"]) & (np.arange(ROWS) % 12 > 5)
    noisy = FRAME.assign(sampled=~chosen, correct=FRAME["correct"].where(~chosen, 1 - FRAME["correct"]))
    without = FRAME[~chosen]
    arguments = READ, "linear", PARAMS.probe, THRESHOLD, RESAMPLES
    expected = evaluate_site(without, *arguments, ROUGE[FRAME.index.get_indexer(without.index)])
    assert evaluate_site(noisy, *arguments, ROUGE) == expected


def leave_out(frame: pd.DataFrame, confidence: pd.Series, min_n_eff: int = 15) -> list[ProductLeftOut]:
    return evaluate_left_out_products(frame, READ, "linear", PARAMS.probe, RESAMPLES, min_n_eff, confidence)


def keep_products(*products: str) -> pd.DataFrame:
    """The data set, where answers about other products are about none."""
    return FRAME.assign(product=FRAME["product"].where(FRAME["product"].isin(products), None))


def test_left_out_product_is_ranked_less_well(confidence: pd.Series) -> None:
    odd, rare = leave_out(keep_products("odd", "rare"), confidence, min_n_eff=30)
    assert (odd.product, rare.product) == ("odd", "rare")
    rows = select("holdout")[lambda rows: rows["product"] == "odd"]
    train = FRAME[(FRAME["split"] == "train") & (FRAME["product"] != "odd")]
    without, with_all = (
        roc_auc_score(rows["correct"], predicted, sample_weight=get_weights(rows))
        for predicted in (predict_confidence(fit(train).probe, READ(rows.index)), confidence[rows.index])
    )
    assert odd.auroc == pytest.approx(without) and without < 0.65
    assert odd.auroc_trained_on_all == pytest.approx(with_all) and with_all > 0.8
    assert odd.lost == pytest.approx(with_all - without) and odd.lost_low < odd.lost < odd.lost_high
    assert (odd.rows, odd.note) == (len(rows), "")
    few = select("holdout")["product"].value_counts()["rare"]
    assert rare.to_dict() == {"product": "rare", "rows": few, "note": "fewer than 30 answers: not judged"} and few < 30


def test_left_out_product_without_training_or_classes_has_note(confidence: pd.Series) -> None:
    (untrained,) = leave_out(FRAME.assign(product="cards"), confidence)
    assert "bring feedback" in untrained.note and untrained.auroc is None
    (one_class,) = leave_out(keep_products("odd").assign(correct=1), confidence)
    assert "one class only" in one_class.note and one_class.auroc is None
    assert leave_out(keep_products(), confidence) == []


def test_out_of_fold_aurocs_use_reviewed_training_answers() -> None:
    train = FRAME[FRAME["split"] == "train"]

    def read_noise(index: pd.Index) -> Sequence[Tensor]:
        return [torch.from_numpy(np.random.default_rng(i).normal(size=(2, D))).float() for i in index]

    aurocs = compute_out_of_fold_aurocs(train, {"knows": READ, "noise": read_noise}, "linear", PARAMS.probe, RESAMPLES)
    assert aurocs["knows"].value > 0.7 > aurocs["noise"].value
    assert len(aurocs["noise"].resamples) == RESAMPLES.n_resamples
    is_review = train["source"] == "review"
    wrong_thumbs = train.assign(correct=train["correct"].where(is_review, 1 - train["correct"]), weight=is_review * 1.0)
    (reviewed,) = compute_out_of_fold_aurocs(wrong_thumbs, {"knows": READ}, "linear", PARAMS.probe, RESAMPLES).values()
    assert reviewed.value > 0.7
