from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import DataStore
from abstain.learning.metrics.weighted_metrics import auroc, row_weights
from abstain.llm.familiarity.familiarity import FamiliarityConfig, SelfFamiliarity
from abstain.llm.signals import familiarity
from abstain.serving.live_scorer import LiveScorer
from abstain.serving.predictor import Predictor
from abstain.stages.shared import artifacts
from abstain.stages.shared.states import load_labelled_states
from tests.llm.signals.builders import save_encoder
from tests.stages.builders import FUSIONS, REGRESSORS
from tests.stages.conftest import Finished, change, enter_copy, read_readable, run_stages

pytestmark = pytest.mark.slow

ASKING = ("yes_score", "yes_score_tokens", "yes_score_fused", "verbalized")
WITHOUT_PASS = ("entailment", "extractive_qa", "familiarity", "overlap", "text_similarity")


def read_served_confidences() -> pd.Series:
    return pd.read_parquet(paths.SERVED_SCORES).set_index("interaction_id")["confidence"]


@pytest.fixture(scope="module")
def wide_bank(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """The bank with every scorer, some of which run tiny models of their own with random weights."""
    root = tmp_path_factory.mktemp("wide")
    params = change(
        change(finished.params, "audits", enabled=()),
        "scorers",
        enabled=(*finished.params.scorers.enabled, *ASKING, *WITHOUT_PASS),
        entailment_model=str(save_encoder(root / "nli", "classify")),
        extractive_qa_model=str(save_encoder(root / "qa", "answer")),
    )
    short = FamiliarityConfig(explanation_tokens=6, beams=2, guess_tokens=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(familiarity, "SelfFamiliarity", partial(SelfFamiliarity, config=short))
        enter_copy(finished, root, patch)
        run_stages(params, "features", "train_fusion")
        yield Finished(root, finished.home, params)


@pytest.fixture
def wide(wide_bank: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    enter_copy(wide_bank, tmp_path, monkeypatch)
    return wide_bank.params


@pytest.mark.parametrize(
    "name",
    [
        *("probe", "sequence_log_prob", "context_gain", "writer", *ASKING, *WITHOUT_PASS, "linear_label"),
        *FUSIONS,
    ],
)
def test_exported_files_decide_as_evaluated(wide: Params, name: str) -> None:
    params = change(wide, "serve", scorer=name)
    run_stages(params, "choose_scorer", "tune_threshold", "export_onnx")
    served = artifacts.read_json(paths.SCORER_CHOICE)
    assert served["name"] == name
    rows = read_readable("holdout")
    predictor = Predictor.open(paths.ONNX, load_settings())
    assert predictor.scorer.name == name
    decisions = predictor.decide_interactions(DataStore(paths.DATA).read_interactions(rows["interaction_id"]))
    found = np.array([np.nan if one.confidence is None else one.confidence for one in decisions])
    np.testing.assert_allclose(found, read_served_confidences()[rows["interaction_id"]], rtol=0, atol=1e-4)
    shown = [one.decision == "show" for one in decisions]
    assert shown == [confidence >= predictor.threshold for confidence in found]
    assert predictor.threshold == artifacts.read_json(paths.THRESHOLD)["threshold"]
    parity = artifacts.read_json(paths.PARITY)
    files = {file.stem for file in paths.ONNX_PARTS.iterdir()}
    whole = {f"{name}, of its files"} if name.startswith("fusion") else set()
    assert parity["by_component"].keys() == {"probe", *files, *whole} and parity["max_abs_difference"] < 1e-4
    assert files == {name, *served["components"]} - {
        *("probe", "sequence_log_prob", "context_gain", *ASKING, *WITHOUT_PASS)
    }


def test_evaluate_served_fusion_as_it_decides(wide: Params) -> None:
    run_stages(
        change(wide, "serve", scorer="fusion"), "choose_scorer", "tune_threshold", "export_onnx", "evaluate", "report"
    )
    assert "fusion" in (paths.REPORT / "report.html").read_text()
    evaluation = artifacts.read_json(paths.EVALUATION)
    assert evaluation["kinds"]["fusion"] == "served fusion" and evaluation["served"]["name"] == "fusion"
    assert set(WITHOUT_PASS) < evaluation["kinds"].keys()
    scores = pd.read_parquet(paths.SCORES).set_index("interaction_id")
    expected = read_served_confidences()[scores.index]
    np.testing.assert_allclose(scores["fusion"], expected, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(scores["fusion"], scores["confidence"])


def test_choose_scorer_training_confidences_are_out_of_fold(wide: Params) -> None:
    run_stages(change(wide, "serve", scorer="fusion_two_passes"), "choose_scorer")
    frame, _ = load_labelled_states()
    train = frame.loc[frame["split"] == "train", "interaction_id"]
    out_of_fold = pd.read_parquet(paths.FUSION_OUT_OF_FOLD).set_index("interaction_id")["fusion_two_passes"]
    np.testing.assert_array_equal(read_served_confidences()[train], out_of_fold[train])


def test_choose_scorer_serves_cheapest_of_the_best(wide: Params) -> None:
    run_stages(change(wide, "serve", scorer="best"), "choose_scorer")
    choice = artifacts.read_json(paths.SCORER_CHOICE)
    rows = {row["scorer"]: row for row in choice["candidates"]}
    costs = [row["forward_tokens"] for row in choice["candidates"]]
    assert costs == sorted(costs) and rows["writer"]["forward_tokens"] == 0, "the writer's scores need no pass"
    assert rows["fusion_free"]["forward_tokens"] == rows["probe"]["forward_tokens"]
    assert rows.keys() == {
        *("probe", "writer", "sequence_log_prob", "context_gain", *ASKING, *WITHOUT_PASS),
        *FUSIONS,
        *REGRESSORS,
    }
    cheap_to_dear = ("probe", "fusion_one_pass", "fusion_two_passes", "linear_label", "fusion")
    tokens = [rows[name]["forward_tokens"] for name in cheap_to_dear]
    assert tokens == sorted(set(tokens)), "regressors perturb contexts and read the answer with them, too"
    served, best = rows[choice["name"]], max(row["auroc"] for row in rows.values())
    assert all(row["auroc"] < best for row in rows.values() if row["forward_tokens"] < served["forward_tokens"])
    reviewed = read_readable("train")
    weight = row_weights(reviewed["inclusion_probability"].to_numpy())
    confidence = read_served_confidences()[reviewed["interaction_id"]].to_numpy()
    assert served["auroc"] == pytest.approx(auroc(reviewed["correct"].to_numpy(), confidence, weight))


def test_live_scorer_changed_component_file_raises(wide: Params) -> None:
    run_stages(change(wide, "serve", scorer="fusion_one_pass"), "choose_scorer", "tune_threshold", "export_onnx")
    assert len(LiveScorer.open(paths.ONNX, load_settings()).components) > 1
    file = paths.ONNX_PARTS / "fusion_one_pass.onnx"
    content = file.read_bytes()
    for damaged in (content[:-1], b""):
        file.write_bytes(damaged)
        with pytest.raises(AbstainError, match=r"fusion_one_pass\.onnx"):
            LiveScorer.open(paths.ONNX, load_settings())


def test_live_scorer_without_its_model_raises(wide: Params) -> None:
    run_stages(change(wide, "serve", scorer="entailment"), "choose_scorer", "tune_threshold", "export_onnx")
    weights = Path(wide.scorers.entailment_model or "") / "model.safetensors"
    gone = weights.rename(weights.with_suffix(".gone"))
    with pytest.raises(AbstainError) as error:
        LiveScorer.open(paths.ONNX, load_settings())
    gone.rename(weights)
    assert error.value.code is Code.NO_MODEL and str(weights.parent) in error.value.message
