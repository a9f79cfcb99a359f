"""Who is compared with whom, on which answers, and what the stage `evaluate` hands to the report."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import holdout_digest, reviewed
from abstain.learning.estimators.fusion import Fusion
from abstain.learning.estimators.onnx_probe import OnnxProbe
from abstain.learning.estimators.probes.base import predict_confidence
from abstain.learning.estimators.zoo import load_probe
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.llm.features.extraction import FeatureSource
from abstain.llm.signals.counterfactuals import answers_shuffled
from abstain.stages.evaluate import __main__ as evaluate
from abstain.stages.shared import artifacts
from abstain.stages.shared.states import read_labelled_states
from tests.stages.conftest import run_stages
from tests.tolerance import assert_near

pytestmark = pytest.mark.slow

SIGNALS = ["sequence_log_prob", "context_gain", "yes_score_fused", "verbalised", "length_only"]
REGRESSORS = ["random_forest_verdict", "linear_verdict", "random_forest_cosine", "linear_cosine"]
EVERYBODY = ["probe", "fusion", *SIGNALS, *REGRESSORS, "lstm", "base_rate"]


def holdout_rows() -> tuple[pd.DataFrame, list]:
    """The reviewed answers of the hold-out that could be read, by interaction, with their states."""
    frame, states = read_labelled_states()
    rows = reviewed(frame[frame["split"] == "holdout"])
    return rows.set_index("interaction_id"), list(states.subset(rows.index))


def write(frame: pd.DataFrame) -> None:
    frame.to_parquet(paths.DATASET, index=False)


def test_everybody_stands_there_once_with_his_own_confidences(bank: Params) -> None:
    """The served probe as `probe`, by the file that serves; its own architecture not a second time."""
    rows, states = holdout_rows()
    scores = pd.read_parquet(paths.SCORES).set_index("interaction_id").loc[rows.index]
    assert [name for name in scores if name in EVERYBODY] == EVERYBODY and "linear" not in scores
    assert_near(scores["probe"], OnnxProbe(paths.ONNX).confidence(states))
    zoo = {
        name: predict_confidence(load_probe(paths.PROBES / f"{name}.safetensors"), states).numpy().astype(float)
        for name in ("linear", "lstm")
    }
    np.testing.assert_allclose(scores["lstm"], zoo["lstm"], rtol=1e-6)
    np.testing.assert_allclose(scores["probe"], zoo["linear"], atol=1e-6)
    signals = artifacts.read_signals("asked").loc[rows.index]
    pd.testing.assert_frame_equal(scores[SIGNALS], signals[SIGNALS], check_exact=True)
    fusion = Fusion.from_dict(artifacts.read_json(paths.FUSION))
    np.testing.assert_allclose(scores["fusion"], fusion.score(signals.assign(**zoo)), rtol=1e-6)
    train = read_labelled_states()[0].query("split == 'train'")
    assert scores["base_rate"].unique() == [pytest.approx(np.average(train["correct"], weights=train["weight"]))]


def test_the_tables_name_the_same_scorers(bank: Params) -> None:
    found, said = artifacts.read_json(paths.METRICS)["holdout"], artifacts.read_json(paths.EVALUATION)
    assert found["scorers"].keys() == said["kinds"].keys() == said["forward_tokens"].keys() == set(EVERYBODY)
    others = {"probe": "served probe", "fusion": "fusion", "lstm": "probe", "base_rate": "baseline"}
    others |= dict.fromkeys(REGRESSORS, "regressor")
    assert said["kinds"] == {**dict.fromkeys(SIGNALS, "signal"), **others, "length_only": "baseline"}
    costs = said["forward_tokens"]
    assert costs["lstm"] == costs["probe"] > 0 == costs["length_only"] == costs["base_rate"]
    assert said["served"].items() >= {"architecture": "linear", "layer": 2, "site": "residual"}.items()
    assert said["served"]["out_of_fold"] == artifacts.read_json(paths.CHOICE)["out_of_fold"]
    assert set(pd.read_csv(paths.PLOTS / "roc.csv")["scorer"]) == {"probe", "fusion", "length_only"} | best_signal(
        found
    )


def best_signal(found: dict) -> set[str]:
    aurocs = {name: found["scorers"][name]["auroc"] for name in SIGNALS if name != "length_only"}
    return {max(aurocs, key=aurocs.__getitem__)}


def test_a_scorer_that_says_little_is_counted_and_has_no_probability(bank: Params) -> None:
    """Random weights seldom write a number when they are asked for a probability."""
    row = artifacts.read_json(paths.METRICS)["holdout"]["scorers"]["verbalised"]
    rows, _ = holdout_rows()
    silent = artifacts.read_signals("asked").loc[rows.index, "verbalised"].isna()
    assert row["unscored"] == silent.sum() > len(rows) / 2
    assert row["brier"] is row["ece"] is None and 0.3 < row["auroc"] < 0.7


def test_others_are_compared_with_the_served_probe(bank: Params) -> None:
    found = artifacts.read_json(paths.METRICS)["holdout"]["scorers"]
    assert found["probe"]["auroc_difference"] is None and found["probe"]["chance_better"] is None
    for name in ("fusion", "sequence_log_prob", "base_rate"):
        row = found[name]
        assert row["auroc_difference"] == pytest.approx(row["auroc"] - found["probe"]["auroc"])
        assert row["auroc_difference_low"] <= row["auroc_difference_high"] and 0 <= row["chance_better"] <= 1
    assert found["base_rate"]["auroc"] == 0.5 and found["probe"]["auroc_low"] > 0.5


def test_the_exam_has_a_digest_of_its_rows_and_labels(bank: Params) -> None:
    rows, _ = holdout_rows()
    found = artifacts.read_json(paths.METRICS)["holdout"]
    assert found["digest"] == holdout_digest(list(rows.index), rows["correct"].tolist())
    assert found["label_source"] == "sme"


def test_both_thresholds_are_marked_in_the_table(bank: Params) -> None:
    table = pd.read_csv(paths.PLOTS / "threshold.csv", keep_default_na=False)
    threshold = artifacts.read_json(paths.THRESHOLD)
    marked = table[table["mark"] != ""].set_index("mark")["threshold"].to_dict()
    assert marked == {"guaranteed": threshold["threshold"], "heuristic": threshold["heuristic"]["threshold"]}
    assert table["threshold"].is_monotonic_increasing and len(table) == 12


def test_everybody_has_a_threshold_that_validation_asks_for_or_a_note(bank: Params) -> None:
    own = artifacts.read_json(paths.EVALUATION)["at_own_threshold"]
    assert set(own) == set(EVERYBODY)
    heuristic = artifacts.read_json(paths.METRICS)["holdout"]["at_heuristic"]
    assert own["probe"]["precision"] == pytest.approx(heuristic["precision"]) and own["probe"]["note"] == ""
    assert all(row["note"] or 0 < row["coverage"] <= 1 for row in own.values())


def test_reliability_is_shown_of_every_product_with_enough_answers(bank: Params) -> None:
    table = pd.read_csv(paths.PLOTS / "reliability_by_product.csv")
    rows, _ = holdout_rows()
    assert set(table["kind"]) == {"cards", "loans"}
    assert table.groupby("kind")["rows"].sum().to_dict() == rows["product"].value_counts()[["cards", "loans"]].to_dict()
    assert table.groupby("kind")["share"].sum().tolist() == pytest.approx([1, 1])


def test_audits_are_of_the_answers_that_were_asked_about_when_they_were_changed(bank: Params) -> None:
    """An answer that no prompt has room for is in the hold-out: it was another question's in the shuffle, which then
    could not be read, either, and is left out."""
    frame = artifacts.read_dataset_frame()
    everyone = DataStore(paths.DATA).interactions(reviewed(frame[frame["split"] == "holdout"])["interaction_id"])
    rows, states = holdout_rows()
    assert len(everyone) == len(rows) + 1
    changed = answers_shuffled(everyone)
    found = dict(FeatureSource(bank.llm, load_settings()).read(changed))
    served = OnnxProbe(paths.ONNX)
    confidence = {changed[at].interaction_id: float(served.confidence([row.float()])[0]) for at, row in found.items()}
    names = [name for name in rows.index if name in confidence]
    assert len(names) == len(rows) - 1
    own = dict(zip(rows.index, served.confidence(states).tolist(), strict=True))
    weight = pd.Series(metrics.row_weights(rows["inclusion_probability"].to_numpy()), rows.index)
    right = [name for name in names if rows.loc[name, "correct"] == 1]
    audit = {row["scorer"]: row for row in artifacts.read_json(paths.EVALUATION)["audits"]["answers_shuffled"]}
    expected = roc_auc_score(
        np.repeat([1, 0], len(right)),
        [*(own[name] for name in right), *(confidence[name] for name in right)],
        sample_weight=np.tile(weight[right], 2),
    )
    assert list(audit) == EVERYBODY and audit["probe"]["auroc_against_shuffled"] == pytest.approx(expected)
    shown = np.array([confidence[name] for name in names]) >= artifacts.read_json(paths.THRESHOLD)["threshold"]
    assert audit["probe"]["shown_changed"] == pytest.approx(np.average(shown, weights=weight[names]))
    assert audit["fusion"]["shown_changed"] is None and audit["base_rate"]["auroc_against_shuffled"] == 0.5


def test_without_the_context_length_is_what_it_was(bank: Params) -> None:
    audit = {row["scorer"]: row for row in artifacts.read_json(paths.EVALUATION)["audits"]["context_removed"]}
    assert list(audit) == EVERYBODY
    for name in ("length_only", "base_rate"):
        assert (
            audit[name]["auroc"] == audit[name]["auroc_changed"] and audit[name]["mean"] == audit[name]["mean_changed"]
        )
    assert audit["context_gain"]["mean_changed"] == pytest.approx(0.5) and audit["context_gain"]["auroc_changed"] != 0
    assert audit["probe"]["mean"] != audit["probe"]["mean_changed"]


def test_slices_and_examples_are_of_the_threshold_that_is_used(bank: Params) -> None:
    said, rows = artifacts.read_json(paths.EVALUATION), holdout_rows()[0]
    threshold = artifacts.read_json(paths.THRESHOLD)["threshold"]
    scores = pd.read_parquet(paths.SCORES).set_index("interaction_id").loc[rows.index]
    by_product = {row["slice"]: row for row in said["slices"] if row["by"] == "product"}
    assert by_product.keys() == set(rows["product"])
    for name, row in by_product.items():
        of = rows["product"] == name
        assert (row["rows"], row["shown"]) == (of.sum(), (scores.loc[of, "probe"] >= threshold).sum())
    assert by_product["vault"]["note"] == "fewer than 15 answers: not judged" and by_product["vault"]["auroc"] is None
    assert {row["by"] for row in said["slices"]} == {"product", "line of business", "retrieved chunks", "answer length"}
    assert {row["slice"] for row in said["slices"] if row["by"] == "retrieved chunks"} == {"2", "3"}
    for kind, (shown, right) in {"caught": (0, 0), "missed": (1, 0), "withheld": (0, 1)}.items():
        for one in said["examples"][kind]:
            assert (one["confidence"] >= threshold, rows.loc[one["interaction_id"], "correct"]) == (shown, right)
    assert said["examples"]["caught"] and said["examples"]["missed"]
    with_ideal = {one["ideal_answer"] for of in said["examples"].values() for one in of}
    assert None in with_ideal and len(with_ideal) > 1


def test_every_calibrator_is_measured_beside_the_one_that_is_used(bank: Params) -> None:
    calibration = artifacts.read_json(paths.EVALUATION)["calibration"]
    rows = {row["method"]: row for row in calibration["by_method"]}
    assert calibration["method"] == "isotonic"
    assert list(rows) == ["none", "temperature", "isotonic", "venn_abers", "none, lstm"]
    own = artifacts.read_json(paths.METRICS)["holdout"]["scorers"]["probe"]
    assert all(rows["isotonic"][name] == pytest.approx(own[name]) for name in ("ece", "brier"))


def few_wrong(frame: pd.DataFrame, number: int) -> pd.DataFrame:
    """`frame` with `number` wrong answers left of those of the validation split that experts judged."""
    wrong = frame.index[(frame["split"] == "validation") & (frame["source"] == "sme") & (frame["correct"] == 0)]
    frame.loc[wrong[number:], "source"] = "thumb"
    return frame


def test_a_calibrator_that_has_too_little_to_learn_from_stops_nobody_who_asked_for_another(bank: Params) -> None:
    """Twelve wrong answers are enough for isotonic regression; of them, as few were drawn as others, Venn-Abers' even
    sample keeps too few."""
    frame = few_wrong(artifacts.read_dataset_frame(), 12)
    judged = (frame["split"] == "validation") & (frame["source"] == "sme")
    frame.loc[judged, "inclusion_probability"] = np.where(frame.loc[judged, "correct"] == 1, 0.3, 1.0)
    write(frame)
    evaluate.stage(bank)
    rows = {row["method"]: row for row in artifacts.read_json(paths.EVALUATION)["calibration"]["by_method"]}
    assert {name for name, row in rows.items() if row["ece"] is row["brier"] is None} == {"venn_abers"}
    assert rows["isotonic"]["ece"] is not None


def test_the_served_probe_is_judged_by_the_calibration_that_is_released(bank: Params) -> None:
    halved = {"method": "isotonic", "at": [0.0, 1.0], "level": [0.0, 0.5]}
    artifacts.write_json(paths.CALIBRATION, halved)
    evaluate.stage(bank)
    scores = pd.read_parquet(paths.SCORES)
    np.testing.assert_allclose(scores["probability"], scores["probe"] / 2)


def test_too_few_wrong_answers_are_an_error_whose_remedy_helps(bank: Params) -> None:
    write(few_wrong(artifacts.read_dataset_frame(), 9))
    with pytest.raises(
        AbstainError, match=r"only 9 are incorrect .*: bring more reviews, or set calibration.method to none"
    ):
        evaluate.stage(bank)
    raw = bank.model_copy(update={"calibration": bank.calibration.model_copy(update={"method": "none"})})
    artifacts.write_json(paths.CALIBRATION, {"method": "none"})
    evaluate.stage(raw)
    scores = pd.read_parquet(paths.SCORES)
    np.testing.assert_array_equal(scores["probability"], scores["probe"])
    rows = artifacts.read_json(paths.EVALUATION)["calibration"]["by_method"]
    assert [row["method"] for row in rows if row["ece"] is not None] == ["none", "none, lstm"]


def test_without_an_experts_verdict_on_the_holdout_there_is_no_exam(bank: Params) -> None:
    frame = artifacts.read_dataset_frame()
    frame.loc[frame["split"] == "holdout", "source"] = "thumb"
    write(frame)
    with pytest.raises(AbstainError) as failed:
        evaluate.stage(bank)
    assert str(failed.value) == ("no answer of the hold-out was reviewed, and thumbs cannot test: ingest reviews of it")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@pytest.mark.parametrize("only", [0, 1])
def test_a_holdout_of_one_kind_has_no_figure_that_needs_both(bank: Params, only: int) -> None:
    frame = artifacts.read_dataset_frame()
    frame.loc[frame["split"] == "holdout", "correct"] = only
    write(frame)
    evaluate.stage(bank)
    found = artifacts.read_json(paths.METRICS)["holdout"]
    assert found["base_rate"] == only
    assert {row["auroc"] for row in found["scorers"].values()} == {None}
    assert found["scorers"]["probe"]["brier"] is not None and found["at_threshold"]["precision"] == only
    notes = {row["note"] for row in artifacts.read_json(paths.EVALUATION)["slices"] if row["slice"] == "cards"}
    assert notes == {"one class only"}


def test_where_nothing_is_compared_the_probes_still_are(bank: Params) -> None:
    alone = bank.model_copy(update={"scorers": bank.scorers.model_copy(update={"enabled": ()})})
    run_stages(alone, "features", "train_fusion", "evaluate")
    said = artifacts.read_json(paths.EVALUATION)
    assert set(said["kinds"]) == {"probe", "fusion", "length_only", *REGRESSORS, "lstm", "base_rate"}
    assert said["rank_correlation"] == {"names": [], "matrix": []} and said["skipped"] == said["improbable"] == {}
    assert said["neither"] is None


def test_every_place_is_listened_at_and_one_of_them_is_served(bank: Params) -> None:
    rows = artifacts.read_json(paths.ABLATIONS)["listening"]
    assert [(row["layer"], row["site"], row["chunks"]) for row in rows] == [
        (2, "residual", None),
        (1, "residual", None),
        (3, "residual", None),
        (2, "residual", 1),
    ]
    assert [row["served"] for row in rows] == [True, False, False, False]
    assert len({row["auroc"] for row in rows}) == len({row["out_of_fold"] for row in rows}) == 4
    assert artifacts.read_json(paths.EVALUATION)["ablations"] == rows
    # The sweep's architecture is the one that is served: there they are the same probe.
    own = artifacts.read_json(paths.METRICS)["holdout"]
    assert rows[0]["auroc"] == pytest.approx(own["scorers"]["probe"]["auroc"])
    assert rows[0]["out_of_fold"] == pytest.approx(artifacts.read_json(paths.CHOICE)["out_of_fold"]["linear"])
    assert {name: rows[0][name] for name in ("precision", "recall", "rouge_shown")} == pytest.approx(
        {name: own["at_heuristic"][name] for name in ("precision", "recall", "rouge_shown")}
    )


def test_every_product_is_left_out_but_small_ones(bank: Params) -> None:
    rows = {row["product"]: row for row in artifacts.read_json(paths.ABLATIONS)["left_out"]}
    assert list(rows) == ["cards", "loans", "vault"]
    assert artifacts.read_json(paths.EVALUATION)["audits"]["left_out"] == list(rows.values())
    few = (holdout_rows()[0]["product"] == "vault").sum()
    assert rows["vault"] == {"product": "vault", "rows": few, "note": "fewer than 15 answers: not judged"}
    slices = {row["slice"]: row for row in artifacts.read_json(paths.EVALUATION)["slices"] if row["by"] == "product"}
    for name in ("cards", "loans"):
        assert rows[name]["note"] == "" and rows[name]["auroc"] != rows[name]["auroc_trained_on_all"]
        assert rows[name]["auroc_trained_on_all"] == pytest.approx(slices[name]["auroc"])
