import shutil
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import pytest

from abstain.config.params import Params
from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.llm.engine import prompts
from abstain.llm.signals.feature_plan import list_components, list_fusions
from abstain.llm.signals.length import LengthOnly
from abstain.llm.signals.registry import AvailableScorers, build_scorers
from tests.checkout import shipped_params
from tests.llm.builders import save_speaking_model
from tests.llm.signals.builders import save_encoder

NAMES = ("sequence_log_prob", "yes_score", "yes_score_fused", "verbalized", "entailment", "extractive_qa")
EVERY_NAME = (
    *("sequence_log_prob", "joint_log_prob", "mean_log_prob", "min_log_prob", "entropy", "context_gain", "overlap"),
    *("yes_score", "yes_score_tokens", "yes_score_fused", "verbalized", "entailment", "extractive_qa", "familiarity"),
    *("text_similarity", "cross_encoder", "writer"),
)


def params_for(model: Path, **scorers: object) -> Params:
    params = shipped_params()
    changed = {"enabled": NAMES, "entailment_model": None, "extractive_qa_model": None, **scorers}
    llm = params.llm.model_copy(update={"model": str(model)})
    return params.model_copy(update={"llm": llm, "scorers": params.scorers.model_copy(update=changed)})


def test_build_scorers_skips_unavailable_with_the_reason(tiny_folder: Path, settings: Settings) -> None:
    """The tiny model splits Yes and No into letters."""
    params = params_for(tiny_folder)
    found = build_scorers(params, settings)
    assert [scorer.name for scorer in found.scorers] == ["sequence_log_prob", "verbalized", "length_only"]
    assert dict(found.unavailable) == {
        "yes_score": f"A202: {params.llm.model} has no token of its own for 'Yes'",
        "yes_score_fused": f"A202: {params.llm.model} has no token of its own for 'Yes'",
        "entailment": "A601: no model: set scorers.entailment_model in params.yaml",
        "extractive_qa": "A601: no model: set scorers.extractive_qa_model in params.yaml",
    }


def test_build_scorers_with_auxiliary_models(tiny_folder: Path, tmp_path: Path, settings: Settings) -> None:
    nli = save_encoder(tmp_path / "nli", "classify", id2label={0: "no", 1: "entailment"})
    qa = save_encoder(tmp_path / "qa", "answer")
    params = params_for(tiny_folder, enabled=NAMES[4:], entailment_model=str(nli), extractive_qa_model=str(qa))
    found = build_scorers(params, settings)
    assert [scorer.name for scorer in found.scorers] == [*NAMES[4:], "length_only"]
    assert not found.unavailable


def test_build_scorers_unknown_name_lists_all_names(tiny_folder: Path, settings: Settings) -> None:
    def built(*enabled: str) -> AvailableScorers:
        return build_scorers(params_for(tiny_folder, enabled=enabled), settings)

    with pytest.raises(AbstainError) as wrong:
        built("entropy", "yes_scores", "no_scores")
    assert str(wrong.value) == f"scorers.enabled: no scorer 'yes_scores': there are {', '.join(EVERY_NAME)}"
    assert built() == AvailableScorers((LengthOnly(),))
    found = built("entropy", "yes_score", "entropy", "yes_score")
    assert ([one.name for one in found.scorers], list(found.unavailable)) == (["entropy", "length_only"], ["yes_score"])
    found = built(*EVERY_NAME)
    assert sorted([*(one.name for one in found.scorers), *found.unavailable]) == sorted([*EVERY_NAME, "length_only"])


def test_build_scorers_layout_without_question_skips_fused(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("layouts", "questions"):
        shutil.copytree(resources.files("abstain.llm.engine") / folder, tmp_path / folder)
    (tmp_path / "layouts" / "rag-plain-v1.yaml").rename(tmp_path / "layouts" / "teams-own-v1.yaml")
    monkeypatch.setattr(prompts.resources, "files", lambda package: tmp_path)
    params = params_for(save_speaking_model(tmp_path / "tiny"), enabled=("yes_score", "yes_score_fused", "entropy"))
    params = params.model_copy(update={"llm": params.llm.model_copy(update={"layout": "teams-own-v1"})})
    found = build_scorers(params, settings)
    assert [scorer.name for scorer in found.scorers] == ["yes_score", "entropy", "length_only"]
    assert list(found.unavailable) == ["yes_score_fused"]
    why = found.unavailable["yes_score_fused"]
    assert "'after-teams-own-v1'" in why and "after-rag-plain-v1" in why


def test_fusions_by_what_their_components_read(tiny_folder: Path, settings: Settings) -> None:
    names = ("sequence_log_prob", "joint_log_prob", "context_gain", "verbalized", "writer")
    params = params_for(tiny_folder, enabled=names)
    scorers = build_scorers(params, settings).scorers
    components = list_components(params, (*scorers, SimpleNamespace(name="cross_encoder", requires=())))
    assert components.keys() == {"probe", "regressors", *names}, "all but what cannot be served"
    one_pass = {"probe", "sequence_log_prob", "joint_log_prob", "writer"}
    two_passes = one_pass | {"context_gain", "regressors"}
    fusions = {name: set(fusion) for name, fusion in list_fusions(params, scorers, components).items()}
    assert fusions.pop("fusion_free") == {"probe", "writer"}
    assert fusions == {
        "fusion_one_pass": one_pass,
        "fusion_two_passes": two_passes,
        "fusion": two_passes | {"verbalized"},
    }
    cheap = [scorer for scorer in scorers if scorer.name not in ("verbalized", "writer")]
    assert list(list_fusions(params, cheap, list_components(params, cheap))) == ["fusion_one_pass", "fusion_two_passes"]
    assert list_fusions(params, (), {"probe": components["probe"]}) == {}
    perturbed = params.model_copy(update={"perturbation": params.perturbation.model_copy(update={"n_copies": 1})})
    assert set(list_fusions(perturbed, scorers, components)["fusion_two_passes"]) == two_passes - {"regressors"}
