"""Who is compared with whom, on which answers and by which weights: what the stage `evaluate` hands to the report.

What each figure is, is tested in tests/learning; here, that it is of the right rows, weights and files.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.errors import AbstainError
from abstain.data.store import splits
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import compute_holdout_digest, select_reviewed
from abstain.learning.estimators.fusion import Fusion
from abstain.learning.estimators.onnx_probe import OnnxProbe
from abstain.learning.estimators.probe_registry import load_probe
from abstain.learning.estimators.probes.base import predict_confidence
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.llm.features.extraction import FeatureSource
from abstain.llm.signals.counterfactuals import shuffle_answers
from abstain.stages.evaluate import __main__ as evaluate
from abstain.stages.shared import artifacts
from abstain.stages.shared.ideal_answers import read_ideal_answers, read_rouge
from abstain.stages.shared.states import load_labelled_states
from tests.stages.conftest import run_stages, write_labels
from tests.tolerance import assert_near

pytestmark = pytest.mark.slow

SIGNALS = ["sequence_log_prob", "context_gain", "yes_score_fused", "verbalized", "writer", "length_only"]
REGRESSORS = ["random_forest_label", "linear_label", "random_forest_cosine", "linear_cosine"]
FUSIONS = ["fusion", "fusion_one_pass", "fusion_two_passes"]
EVERYBODY = ["probe", *FUSIONS, *SIGNALS, *REGRESSORS, "lstm", "base_rate"]


def holdout_rows() -> tuple[pd.DataFrame, list]:
    """The reviewed answers of the hold-out that could be read, by interaction, with their states."""
    frame, states = load_labelled_states()
    rows = select_reviewed(frame[frame["split"] == "holdout"])
    return rows.set_index("interaction_id"), list(states.subset(rows.index))


def scores_of(split: str) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """The scores of a split's reviewed answers, what is right of them, and how many answers each stands for."""
    scores = pd.read_parquet(paths.SCORES)
    rows = scores[scores["split"] == split]
    weight = (1 / rows["inclusion_probability"].fillna(1.0)).to_numpy()
    return rows, rows["correct"].to_numpy(int), weight / weight.max()


def test_scorers_have_the_confidences_of_their_files(bank: Params) -> None:
    """The served probe as `probe`, by the file that serves; its own architecture not a second time."""
    rows, states = holdout_rows()
    scores = pd.read_parquet(paths.SCORES).set_index("interaction_id").loc[rows.index]
    assert [name for name in scores if name in EVERYBODY] == EVERYBODY and "linear" not in scores
    assert_near(scores["probe"], OnnxProbe(paths.ONNX).predict(states))
    probes = {
        name: predict_confidence(load_probe(paths.PROBES / f"{name}.safetensors"), states).numpy().astype(float)
        for name in ("linear", "lstm")
    }
    np.testing.assert_allclose(scores["lstm"], probes["lstm"], rtol=1e-6)
    signals = artifacts.read_signals("asked").loc[rows.index]
    pd.testing.assert_frame_equal(scores[SIGNALS], signals[SIGNALS], check_exact=True)
    fusion = Fusion.from_dict(artifacts.read_json(paths.FUSIONS)["fusion"])
    np.testing.assert_allclose(scores["fusion"], fusion.score(signals.assign(**probes)), rtol=1e-6)
    train = load_labelled_states()[0].query("split == 'train'")
    assert scores["base_rate"].unique() == [pytest.approx(np.average(train["correct"], weights=train["weight"]))]


def test_tables_name_the_same_scorers(bank: Params) -> None:
    found, said = artifacts.read_json(paths.METRICS)["holdout"], artifacts.read_json(paths.EVALUATION)
    assert found["scorers"].keys() == said["kinds"].keys() == said["forward_tokens"].keys() == set(EVERYBODY)
    others = {"probe": "served probe", "lstm": "probe", "base_rate": "baseline"}
    others |= dict.fromkeys(REGRESSORS, "regressor") | dict.fromkeys(FUSIONS, "fusion")
    assert said["kinds"] == {**dict.fromkeys(SIGNALS, "signal"), **others, "length_only": "baseline"}
    costs = said["forward_tokens"]
    assert costs["lstm"] == costs["probe"] > 0 == costs["length_only"] == costs["base_rate"]
    assert costs["fusion"] > costs["random_forest_label"] > costs["sequence_log_prob"] > 0
    assert said["served"].items() >= {"name": "probe", "kind": "probe", "layer": 2, "site": "residual"}.items()
    assert said["probe"] == artifacts.read_json(paths.PROBE_CHOICE)
    assert found["served"] == {"name": "probe", "kind": "probe", "forward_tokens": costs["probe"]}
    aurocs = {name: found["scorers"][name]["auroc"] for name in SIGNALS if name != "length_only"}
    drawn = {"probe", "fusion", "length_only", max(aurocs, key=aurocs.__getitem__)}
    assert set(pd.read_csv(paths.PLOTS / "roc.csv")["scorer"]) == drawn
    assert found["scorers"]["probe"]["auroc_difference"] is None, "others are compared with it"
    assert set(said["at_own_threshold"]) == set(EVERYBODY)
    own, heuristic = said["at_own_threshold"]["probe"], found["at_heuristic"]
    assert own["precision"] == pytest.approx(heuristic["precision"]) and own["note"] == ""


def test_scores_are_of_all_reviewed_answers_that_no_training_saw(bank: Params) -> None:
    scores, frame = pd.read_parquet(paths.SCORES), load_labelled_states()[0]
    judged = frame[(frame["source"] == "review") & frame["split"].isin(["holdout", "newest"])]
    assert sorted(scores["interaction_id"]) == sorted(judged["interaction_id"]) and len(judged) > 50
    both = scores.merge(judged, on="interaction_id", suffixes=("", "_of_data"))
    for name in ("split", "group", "product", "correct", "source"):
        assert (both[name] == both[f"{name}_of_data"]).all()
    np.testing.assert_array_equal(both["inclusion_probability"], both["inclusion_probability_of_data"])
    assert set(scores["inclusion_probability"].fillna(0)) == {0.0, 0.5, 1.0}, "one drawn in an unknown way among them"
    found, rows = artifacts.read_json(paths.METRICS)["holdout"], holdout_rows()[0]
    assert found["digest"] == compute_holdout_digest(list(rows.index), rows["correct"].tolist())
    assert found["label_source"] == "review"


def test_figures_stand_for_all_answers(bank: Params) -> None:
    """Sure answers were reviewed every other time, so each counts twice."""
    found = artifacts.read_json(paths.METRICS)
    rows, correct, weight = scores_of("holdout")
    holdout, probe = found["holdout"], found["holdout"]["scorers"]["probe"]
    assert holdout["rows"] == len(rows) and holdout["sampled_unevenly"] == (weight < 1).sum() > 0
    assert holdout["effective_sample_size"] == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
    assert holdout["base_rate"] == pytest.approx(np.average(correct, weights=weight))
    assert abs(holdout["base_rate"] - correct.mean()) > 0.05
    for name in ("probe", "lstm", "fusion", "sequence_log_prob", "length_only"):
        auroc = roc_auc_score(correct, rows[name], sample_weight=weight)
        assert holdout["scorers"][name]["auroc"] == pytest.approx(auroc)
    assert abs(probe["auroc"] - roc_auc_score(correct, rows["probe"])) > 1e-3
    assert probe["brier"] == pytest.approx(np.average((rows["probability"] - correct) ** 2, weights=weight))
    roc = pd.read_csv(paths.PLOTS / "roc.csv").query("scorer == 'probe'")
    area = np.trapezoid(roc["true_positive_rate"], roc["false_positive_rate"])
    assert area == pytest.approx(probe["auroc"])
    newest, (rows, correct, weight) = found["newest"], scores_of("newest")
    assert newest["rows"] == len(rows) > 5 and newest["sampled_unevenly"] == (weight < 1).sum() > 0
    assert newest["effective_sample_size"] == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
    assert newest["auroc"] == pytest.approx(roc_auc_score(correct, rows["probe"], sample_weight=weight))


def test_hold_outs_figures_are_of_drawn_reviews_and_the_others_are_apart(
    bank: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, digest = pd.read_parquet(paths.SCORES), artifacts.read_json(paths.METRICS)["holdout"]["digest"]
    assert artifacts.read_json(paths.METRICS)["holdout"]["self_selected"] is None
    write_labels("split == 'holdout' and interaction_id.str.endswith('1')", sampled=False, inclusion_probability=0.8)
    monkeypatch.setattr(splits, "MIN_SAMPLED", 20)
    threshold = artifacts.read_json(paths.THRESHOLD)
    evidence = threshold["guarantee"]["evidence"]
    evidence["sampled"] = False
    artifacts.write_json(paths.THRESHOLD, threshold)
    evaluate.stage(bank)
    mixed = artifacts.read_json(paths.METRICS)["holdout"]
    assert mixed["rows"] == (together["split"] == "holdout").sum() and mixed["self_selected"] is None
    evidence["sampled"] = True
    artifacts.write_json(paths.THRESHOLD, threshold)
    evaluate.stage(bank)
    found, scores = artifacts.read_json(paths.METRICS)["holdout"], pd.read_parquet(paths.SCORES)
    assert scores["interaction_id"].tolist() == together["interaction_id"].tolist() and found["digest"] == digest
    rows, correct, weight = scores_of("holdout")
    drawn = rows["sampled"].to_numpy()
    assert (
        0
        < (~drawn).sum()
        < drawn.sum()
        == found["rows"]
        == sum(row["rows"] for row in artifacts.read_json(paths.EVALUATION)["slices"] if row["by"] == "product")
    )
    assert found["base_rate"] == pytest.approx(np.average(correct[drawn], weights=weight[drawn]))
    auroc = roc_auc_score(correct[drawn], rows["probe"][drawn], sample_weight=weight[drawn])
    assert found["scorers"]["probe"]["auroc"] == pytest.approx(auroc)
    shown = (rows["probe"] >= threshold["threshold"]).to_numpy()
    apart = found["self_selected"]
    assert apart["rows"] == (~drawn).sum()
    assert apart["coverage"] == pytest.approx(np.average(shown[~drawn], weights=weight[~drawn]))


def test_figures_without_twins_are_of_the_other_answers(bank: Params) -> None:
    twins = scores_of("holdout")[0]["interaction_id"].tolist()[::3]
    write_labels(f"interaction_id in {twins}", duplicate_in_training=True)
    evaluate.stage(bank)
    rows, correct, weight = (part[np.arange(len(part)) % 3 > 0] for part in scores_of("holdout"))
    shown = rows["probe"] >= artifacts.read_json(paths.THRESHOLD)["threshold"]
    figures = {
        "rows": len(rows),
        "near_duplicates": len(twins),
        "auroc": roc_auc_score(correct, rows["probe"], sample_weight=weight),
        "precision": np.average(correct[shown], weights=weight[shown]),
        "coverage": np.average(shown, weights=weight),
        "error_rate": np.average(shown & (correct == 0), weights=weight),
    }
    assert artifacts.read_json(paths.METRICS)["holdout"]["without_near_duplicates"] == pytest.approx(figures)


@pytest.mark.parametrize(("name", "mark"), [("at_threshold", "guaranteed"), ("at_heuristic", "heuristic")])
def test_what_a_threshold_shows_stands_for_all_answers(bank: Params, name: str, mark: str) -> None:
    """A sure answer is the ideal one, word for word; "Perhaps 123?" has one word of two in common with its four."""
    row, threshold = artifacts.read_json(paths.METRICS)["holdout"][name], artifacts.read_json(paths.THRESHOLD)
    rows, correct, weight = scores_of("holdout")
    assert row["threshold"] == (threshold if mark == "guaranteed" else threshold["heuristic"])["threshold"]
    shown = (rows["probe"] >= row["threshold"]).to_numpy()
    assert 0 < shown.sum() < len(shown)
    assert row["precision"] == pytest.approx(np.average(correct[shown], weights=weight[shown]))
    assert row["recall"] == pytest.approx(weight[shown & (correct == 1)].sum() / weight[correct == 1].sum())
    assert row["coverage"] == pytest.approx(weight[shown].sum() / weight.sum())
    known, likeness = rows["interaction_id"].isin(list(read_ideal_answers())).to_numpy(), read_rouge(rows)
    assert (np.isnan(likeness) == ~known).all() and set(np.round(likeness[known], 3)) == {1.0, 0.333}
    for part, of in (("shown", known & shown), ("withheld", known & ~shown)):
        mean = np.average(likeness[of], weights=weight[of]) if of.any() else None
        assert (row[f"rouge_{part}_answers"], row[f"rouge_{part}"]) == (of.sum(), pytest.approx(mean))
    table = pd.read_csv(paths.PLOTS / "threshold.csv", keep_default_na=False)
    assert table.loc[table["mark"] == mark, "threshold"].tolist() == [row["threshold"]] and len(table) == 12


def test_audits_are_of_the_answers_as_they_were_asked_about(bank: Params) -> None:
    """An answer that no prompt has room for is in the hold-out: it was another question's in the shuffle, which then
    could not be read, either, and is left out."""
    frame = artifacts.read_dataset_frame()
    everyone = DataStore(paths.DATA).read_interactions(
        select_reviewed(frame[frame["split"] == "holdout"])["interaction_id"]
    )
    rows, states = holdout_rows()
    assert len(everyone) == len(rows) + 1
    changed = shuffle_answers(everyone)
    found = dict(FeatureSource(bank.llm, load_settings()).read(changed))
    served = OnnxProbe(paths.ONNX)
    confidence = {changed[at].interaction_id: float(served.predict([row.float()])[0]) for at, row in found.items()}
    names = [name for name in rows.index if name in confidence]
    assert len(names) == len(rows) - 1
    own = dict(zip(rows.index, served.predict(states).tolist(), strict=True))
    weight = pd.Series(metrics.row_weights(rows["inclusion_probability"].to_numpy()), rows.index)
    right = [name for name in names if rows.loc[name, "correct"] == 1]
    audits = artifacts.read_json(paths.EVALUATION)["audits"]
    audit = {row["scorer"]: row for row in audits["answers_shuffled"]}
    expected = roc_auc_score(
        np.repeat([1, 0], len(right)),
        [*(own[name] for name in right), *(confidence[name] for name in right)],
        sample_weight=np.tile(weight[right], 2),
    )
    assert list(audit) == EVERYBODY and audit["probe"]["auroc_against_shuffled"] == pytest.approx(expected)
    shown = np.array([confidence[name] for name in names]) >= artifacts.read_json(paths.THRESHOLD)["threshold"]
    assert audit["probe"]["shown_changed"] == pytest.approx(np.average(shown, weights=weight[names]))
    removed = {row["scorer"]: row for row in audits["context_removed"]}
    assert list(removed) == EVERYBODY and removed["probe"]["mean"] != removed["probe"]["mean_changed"]
    assert removed["length_only"]["auroc"] == removed["length_only"]["auroc_changed"]
    assert removed["context_gain"]["mean_changed"] == pytest.approx(0.5)


def test_slices_and_examples_are_of_the_served_threshold(bank: Params) -> None:
    said, rows = artifacts.read_json(paths.EVALUATION), holdout_rows()[0]
    threshold = artifacts.read_json(paths.THRESHOLD)["threshold"]
    scores = pd.read_parquet(paths.SCORES).set_index("interaction_id").loc[rows.index]
    by_product = {row["slice"]: row for row in said["slices"] if row["by"] == "product"}
    assert by_product.keys() == set(rows["product"])
    for name, row in by_product.items():
        of = rows["product"] == name
        assert (row["rows"], row["shown"]) == (of.sum(), (scores.loc[of, "probe"] >= threshold).sum())
    assert by_product["vault"]["note"] == "fewer than 15 answers: not judged"
    assert {row["by"] for row in said["slices"]} == {
        *("kind of answer", "product", "line of business", "retrieved chunks", "answer length")
    }
    by_kind = {row["slice"]: row["rows"] for row in said["slices"] if row["by"] == "kind of answer"}
    hedged = [one.answer.startswith("Perhaps") for one in DataStore(paths.DATA).read_interactions(rows.index)]
    assert {row["slice"]: row["rows"] for row in said["by_kind"]} == by_kind
    assert by_kind == {"answers": len(rows) - sum(hedged), "refusals": sum(hedged)} and sum(hedged) > 0
    assert {row["slice"] for row in said["slices"] if row["by"] == "retrieved chunks"} == {"2", "3"}
    for kind, (shown, right) in {"caught": (0, 0), "missed": (1, 0), "withheld": (0, 1)}.items():
        for one in said["examples"][kind]:
            assert (one["confidence"] >= threshold, rows.loc[one["interaction_id"], "correct"]) == (shown, right)
    assert said["examples"]["caught"] and said["examples"]["missed"]
    with_ideal = {one["ideal_answer"] for of in said["examples"].values() for one in of}
    assert None in with_ideal and len(with_ideal) > 1


def test_calibration_of_the_served_probe_is_that_of_its_file(bank: Params) -> None:
    calibration = artifacts.read_json(paths.EVALUATION)["calibration"]
    rows = {row["method"]: row for row in calibration["by_method"]}
    assert calibration["method"] == "isotonic"
    assert list(rows) == ["none", "temperature", "isotonic", "venn_abers", "none, lstm"]
    own = artifacts.read_json(paths.METRICS)["holdout"]["scorers"]["probe"]
    assert all(rows["isotonic"][name] == pytest.approx(own[name]) for name in ("ece", "brier"))
    artifacts.write_json(paths.CALIBRATION, {"method": "isotonic", "knots": [0.0, 1.0], "values": [0.0, 0.5]})
    evaluate.stage(bank)
    scores = pd.read_parquet(paths.SCORES)
    np.testing.assert_allclose(scores["probability"], scores["probe"] / 2)


def test_holdout_of_thumbs_alone_is_an_error(bank: Params) -> None:
    write_labels("split == 'holdout'", source="thumb")
    with pytest.raises(AbstainError) as failed:
        evaluate.stage(bank)
    assert str(failed.value) == ("no answer of the hold-out was reviewed, and thumbs cannot test: ingest reviews of it")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@pytest.mark.parametrize("only", [0, 1])
def test_holdout_of_one_class_has_no_figure_that_needs_both(bank: Params, only: int) -> None:
    write_labels("split == 'holdout'", correct=only)
    write_labels("split == 'newest'", split="excluded")
    evaluate.stage(bank)
    found = artifacts.read_json(paths.METRICS)
    holdout = found["holdout"]
    assert holdout["base_rate"] == only
    assert {row["auroc"] for row in holdout["scorers"].values()} == {None}
    assert holdout["scorers"]["probe"]["brier"] is not None and holdout["at_threshold"]["precision"] == only
    notes = {row["note"] for row in artifacts.read_json(paths.EVALUATION)["slices"] if row["slice"] == "cards"}
    assert notes == {"one class only"}
    assert found["newest"] == {"rows": 0, "sampled_unevenly": 0, "effective_sample_size": 0.0, "auroc": None}
    assert set(pd.read_parquet(paths.SCORES)["split"]) == {"holdout"}


def test_without_scorers_to_compare_the_probes_still_are(bank: Params) -> None:
    alone = bank.model_copy(update={"scorers": bank.scorers.model_copy(update={"enabled": ()})})
    run_stages(alone, "features", "train_fusion", "evaluate")
    said = artifacts.read_json(paths.EVALUATION)
    assert set(said["kinds"]) == {"probe", "fusion", "length_only", *REGRESSORS, "lstm", "base_rate"}
    assert said["rank_correlation"] == {"names": [], "matrix": []} and said["skipped"] == said["improbable"] == {}
    assert said["neither"] is None


def test_ablations_are_of_every_site_and_of_products_with_enough_answers(bank: Params) -> None:
    found, said = artifacts.read_json(paths.ABLATIONS), artifacts.read_json(paths.EVALUATION)
    assert said["ablations"] == found["sites"] and said["audits"]["product_left_out"] == found["left_out"]
    sites = {(row["layer"], row["site"], row["chunks"]): row for row in found["sites"]}
    assert list(sites) == [(2, "residual", None), (1, "residual", None), (3, "residual", None), (2, "residual", 1)]
    assert [row["served"] for row in sites.values()] == [True, False, False, False]
    assert len({row["auroc"] for row in sites.values()}) == len({row["out_of_fold"] for row in sites.values()}) == 4
    # The sweep's architecture is the one that is served: there they are the same probe.
    own, here = artifacts.read_json(paths.METRICS)["holdout"], sites[2, "residual", None]
    assert here["auroc"] == pytest.approx(own["scorers"]["probe"]["auroc"])
    assert here["out_of_fold"] == pytest.approx(artifacts.read_json(paths.PROBE_CHOICE)["out_of_fold"]["linear"])
    assert {name: here[name] for name in ("precision", "recall", "rouge_shown")} == pytest.approx(
        {name: own["at_heuristic"][name] for name in ("precision", "recall", "rouge_shown")}
    )
    left_out = {row["product"]: row for row in found["left_out"]}
    assert list(left_out) == ["cards", "loans", "vault"] and left_out["vault"].keys() == {"product", "rows", "note"}
    slices = {row["slice"]: row for row in said["slices"] if row["by"] == "product"}
    for name in ("cards", "loans"):
        assert left_out[name]["note"] == "" and left_out[name]["auroc"] != left_out[name]["auroc_trained_on_all"]
        assert left_out[name]["auroc_trained_on_all"] == pytest.approx(slices[name]["auroc"])
