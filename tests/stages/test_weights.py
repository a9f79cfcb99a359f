"""Inclusion probabilities on their way from the data set into every figure of an evaluation."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from abstain.config.params import Params
from abstain.core import paths
from abstain.stages.evaluate import __main__ as evaluate
from abstain.stages.shared import artifacts
from abstain.stages.shared.ideal_answers import read_ideal_answers, read_rouge
from abstain.stages.shared.states import read_labelled_states
from tests.data.builders import bytes_of

pytestmark = pytest.mark.slow


def scores_of(split: str) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """The scores of a split's reviewed answers, what is right of them, and how many answers each stands for."""
    scores = pd.read_parquet(paths.SCORES)
    rows = scores[scores["split"] == split]
    weight = (1 / rows["inclusion_probability"].fillna(1.0)).to_numpy()
    return rows, rows["correct"].to_numpy(int), weight / weight.max()


def risk_by_hand(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray) -> float:
    """The mean, over answers, of the share of errors among those that are at least as sure."""
    risks = [np.average(1 - correct[confidence >= one], weights=weight[confidence >= one]) for one in confidence]
    return float(np.average(risks, weights=weight))


def ece_by_hand(correct: np.ndarray, probability: np.ndarray, weight: np.ndarray) -> float:
    bins = np.minimum((probability * 10).astype(int), 9)
    gaps = [abs((weight * (probability - correct))[bins == one].sum()) for one in range(10)]
    return float(sum(gaps) / weight.sum())


def test_the_scores_are_of_all_reviewed_answers_that_no_training_saw(bank: Params) -> None:
    scores, frame = pd.read_parquet(paths.SCORES), read_labelled_states()[0]
    judged = frame[(frame["source"] == "sme") & frame["split"].isin(["holdout", "newest"])]
    assert sorted(scores["interaction_id"]) == sorted(judged["interaction_id"]) and len(judged) > 50
    both = scores.merge(judged, on="interaction_id", suffixes=("", "_of_data"))
    for name in ("split", "group", "product", "correct", "source"):
        assert (both[name] == both[f"{name}_of_data"]).all()
    np.testing.assert_array_equal(both["inclusion_probability"], both["inclusion_probability_of_data"])
    assert set(scores["inclusion_probability"].fillna(0)) == {0.0, 0.5, 1.0}, "one drawn in an unknown way among them"


def test_figures_are_those_of_all_answers(bank: Params) -> None:
    found = artifacts.read_json(paths.METRICS)["holdout"]
    rows, correct, weight = scores_of("holdout")
    assert found["rows"] == len(rows) and found["drawn_unevenly"] == (weight < 1).sum() > 0
    assert found["effective_sample_size"] == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
    assert found["base_rate"] == pytest.approx(np.average(correct, weights=weight))
    assert abs(found["base_rate"] - correct.mean()) > 0.05, "sure answers were reviewed every other time"
    for name in ("probe", "lstm", "fusion", "sequence_log_prob", "length_only"):
        confidence, row = rows[name].to_numpy(), found["scorers"][name]
        assert row["auroc"] == pytest.approx(roc_auc_score(correct, confidence, sample_weight=weight))
        assert row["auprc"] == pytest.approx(average_precision_score(correct, confidence, sample_weight=weight))
        assert row["aurc"] == pytest.approx(risk_by_hand(correct, confidence, weight))
        assert row["unscored"] == 0
    unweighted = roc_auc_score(correct, rows["probe"])
    assert abs(found["scorers"]["probe"]["auroc"] - unweighted) > 1e-3


def test_what_is_guaranteed_is_measured_on_the_calibrated_probability(bank: Params) -> None:
    found = artifacts.read_json(paths.METRICS)["holdout"]["scorers"]["probe"]
    rows, correct, weight = scores_of("holdout")
    probability = rows["probability"].to_numpy()
    assert found["brier"] == pytest.approx(np.average((probability - correct) ** 2, weights=weight))
    assert found["ece"] == pytest.approx(ece_by_hand(correct, probability, weight))
    said = probability >= 0.5
    assert found["accuracy"] == pytest.approx(np.average(said == (correct == 1), weights=weight))
    assert found["brier"] != pytest.approx(np.average((rows["probe"] - correct) ** 2, weights=weight), abs=1e-4)
    order = np.argsort(rows["probe"], kind="stable")
    assert (np.diff(probability[order]) >= 0).all(), "calibrated, they rank as before"


@pytest.mark.parametrize("name", ["at_threshold", "at_heuristic"])
def test_what_a_threshold_shows_is_counted_of_all_answers(bank: Params, name: str) -> None:
    row, threshold = artifacts.read_json(paths.METRICS)["holdout"][name], artifacts.read_json(paths.THRESHOLD)
    rows, correct, weight = scores_of("holdout")
    assert row["threshold"] == (threshold if name == "at_threshold" else threshold["heuristic"])["threshold"]
    shown = (rows["probe"] >= row["threshold"]).to_numpy()
    assert 0 < shown.sum() < len(shown)
    assert row["precision"] == pytest.approx(np.average(correct[shown], weights=weight[shown]))
    assert row["recall"] == pytest.approx(weight[shown & (correct == 1)].sum() / weight[correct == 1].sum())
    assert row["coverage"] == pytest.approx(weight[shown].sum() / weight.sum())
    assert row["abstention_rate"] == pytest.approx(1 - row["coverage"])
    assert row["accuracy"] == pytest.approx(np.average(shown == (correct == 1), weights=weight))
    assert row["f1"] == pytest.approx(2 / (1 / row["precision"] + 1 / row["recall"]))


def test_shown_answers_are_compared_with_ideal_ones_by_weight(bank: Params) -> None:
    """A sure answer is the ideal one, word for word; "Perhaps 123?" has one word of two in common with its four."""
    row = artifacts.read_json(paths.METRICS)["holdout"]["at_threshold"]
    rows, _, weight = scores_of("holdout")
    ideal, examples = read_ideal_answers(), read_rouge(rows)
    known = rows["interaction_id"].isin(list(ideal)).to_numpy()
    assert (np.isnan(examples) == ~known).all() and set(np.round(examples[known], 3)) == {1.0, 0.333}
    shown = (rows["probe"] >= row["threshold"]).to_numpy()
    for name, of in (("shown", known & shown), ("withheld", known & ~shown)):
        assert row[f"rouge_{name}_answers"] == of.sum() > 0
        assert row[f"rouge_{name}"] == pytest.approx(np.average(examples[of], weights=weight[of]))


def test_the_newest_window_is_counted_apart(bank: Params) -> None:
    found = artifacts.read_json(paths.METRICS)["newest"]
    rows, correct, weight = scores_of("newest")
    assert found["rows"] == len(rows) > 5 and found["drawn_unevenly"] == (weight < 1).sum() > 0
    assert found["effective_sample_size"] == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
    assert found["auroc"] == pytest.approx(roc_auc_score(correct, rows["probe"], sample_weight=weight))
    frame = artifacts.read_dataset_frame()
    turned = frame.assign(correct=frame["correct"].where(frame["split"] != "newest", 1 - frame["correct"]))
    turned.to_parquet(paths.DATASET, index=False)
    before = artifacts.read_json(paths.METRICS)
    evaluate.stage(bank)
    after = artifacts.read_json(paths.METRICS)
    assert after["holdout"] == before["holdout"]
    assert after["newest"]["auroc"] == pytest.approx(1 - before["newest"]["auroc"])


def test_without_a_newest_window_its_figure_is_none(bank: Params) -> None:
    frame = artifacts.read_dataset_frame()
    frame.assign(split=frame["split"].replace("newest", "excluded")).to_parquet(paths.DATASET, index=False)
    evaluate.stage(bank)
    assert artifacts.read_json(paths.METRICS)["newest"] == {
        "rows": 0,
        "drawn_unevenly": 0,
        "effective_sample_size": 0.0,
        "auroc": None,
    }
    assert set(pd.read_parquet(paths.SCORES)["split"]) == {"holdout"}


def test_curves_are_weighted(bank: Params) -> None:
    rows, correct, weight = scores_of("holdout")
    curve = pd.read_csv(paths.PLOTS / "risk_coverage.csv").query("scorer == 'probe'")
    base_rate = artifacts.read_json(paths.METRICS)["holdout"]["base_rate"]
    assert curve["risk"].iloc[-1] == pytest.approx(1 - base_rate) and curve["coverage"].iloc[-1] == pytest.approx(1)
    roc = pd.read_csv(paths.PLOTS / "roc.csv").query("scorer == 'probe'")
    area = np.trapezoid(roc["true_positive_rate"], roc["false_positive_rate"])
    assert area == pytest.approx(roc_auc_score(correct, rows["probe"], sample_weight=weight))
    bars = pd.read_csv(paths.PLOTS / "confidence.csv")
    assert bars["correct"].sum() == pytest.approx(base_rate) and bars["incorrect"].sum() == pytest.approx(1 - base_rate)


def test_equal_chances_give_the_figures_of_none(bank: Params) -> None:
    frame = artifacts.read_dataset_frame()
    found = []
    for chance in (np.nan, 0.3, 1.0):
        frame.assign(inclusion_probability=chance).to_parquet(paths.DATASET, index=False)
        evaluate.stage(bank)
        found.append((artifacts.read_json(paths.METRICS), artifacts.read_json(paths.EVALUATION), bytes_of(paths.PLOTS)))
    assert found[0] == found[1] == found[2]
    holdout = found[0][0]["holdout"]
    assert holdout["drawn_unevenly"] == 0 and holdout["effective_sample_size"] == holdout["rows"] == len(
        scores_of("holdout")[0]
    )


def test_a_data_set_without_the_column_is_an_error_and_not_unweighted(bank: Params) -> None:
    artifacts.read_dataset_frame().drop(columns="inclusion_probability").to_parquet(paths.DATASET, index=False)
    with pytest.raises(KeyError, match="inclusion_probability"):
        evaluate.stage(bank)
