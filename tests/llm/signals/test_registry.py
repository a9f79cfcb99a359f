from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from abstain.config.params import Params, load_params
from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.llm.engine import prompts as layout
from abstain.llm.signals.length import LengthOnly
from abstain.llm.signals.registry import build_scorers
from tests.conftest import ROOT
from tests.llm.builders import save_tiny_model
from tests.llm.signals.builders import save_encoder

NAMES = ("sequence_log_prob", "yes_score", "yes_score_fused", "verbalised", "entailment", "extractive_qa")
EVERY_NAME = (
    *("sequence_log_prob", "joint_log_prob", "mean_log_prob", "min_log_prob", "entropy", "context_gain"),
    *("yes_score", "yes_score_tokens", "yes_score_fused", "verbalised", "entailment", "extractive_qa"),
)


def params_for(folder: Path, **scorers: object) -> Params:
    params = load_params(ROOT / "params.yaml")
    changed = {"enabled": NAMES, "entailment_model": None, "extractive_qa_model": None, **scorers}
    return params.model_copy(
        update={
            "llm": params.llm.model_copy(update={"model": str(save_tiny_model(folder / "tiny-bank"))}),
            "scorers": params.scorers.model_copy(update=changed),
        }
    )


def add_words(params: Params, *words: str) -> None:
    """Give the base model's tokenizer tokens for `words`."""
    tokenizer = AutoTokenizer.from_pretrained(params.llm.model)
    tokenizer.add_tokens(list(words))
    tokenizer.save_pretrained(params.llm.model)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", device="cpu")


def test_what_cannot_be_had_is_skipped_and_says_why(tmp_path: Path, settings: Settings) -> None:
    """The tiny model splits Yes and No into letters, and no other model is named."""
    params = params_for(tmp_path)
    found = build_scorers(params, settings)
    assert [scorer.name for scorer in found.scorers] == ["sequence_log_prob", "verbalised", "length_only"]
    assert dict(found.skipped) == {
        "yes_score": f"{params.llm.model} has no token of its own for 'Yes'",
        "yes_score_fused": f"{params.llm.model} has no token of its own for 'Yes'",
        "entailment": "no model: set scorers.entailment_model in params.yaml",
        "extractive_qa": "no model: set scorers.extractive_qa_model in params.yaml",
    }


def test_a_model_with_words_of_its_own_can_be_asked(tmp_path: Path, settings: Settings) -> None:
    params = params_for(tmp_path, enabled=("yes_score", "yes_score_tokens", "yes_score_fused"))
    add_words(params, "Yes", "No")
    found = build_scorers(params, settings)
    assert [scorer.name for scorer in found.scorers] == [*params.scorers.enabled, "length_only"] and not found.skipped


def test_models_that_are_named_are_compared(tmp_path: Path, settings: Settings) -> None:
    nli = save_encoder(tmp_path / "nli", "classify", id2label={0: "no", 1: "entailment"})
    qa = save_encoder(tmp_path / "qa", "answer")
    params = params_for(tmp_path, enabled=NAMES[4:], entailment_model=str(nli), extractive_qa_model=str(qa))
    found = build_scorers(params, settings)
    assert (tuple(scorer.name for scorer in found.scorers), dict(found.skipped)) == ((*NAMES[4:], "length_only"), {})


def test_a_name_that_is_none_is_an_error_that_lists_them_all(tmp_path: Path, settings: Settings) -> None:
    with pytest.raises(AbstainError) as wrong:
        build_scorers(params_for(tmp_path, enabled=("entropy", "yes_scores", "no_scores")), settings)
    assert str(wrong.value) == f"scorers.enabled: no scorer 'yes_scores': there are {', '.join(EVERY_NAME)}"


def test_every_name_of_the_list_can_be_asked_for_and_nothing_is_lost(tmp_path: Path, settings: Settings) -> None:
    found = build_scorers(params_for(tmp_path, enabled=EVERY_NAME), settings)
    assert {scorer.name for scorer in found.scorers} | set(found.skipped) == {*EVERY_NAME, "length_only"}
    assert not {scorer.name for scorer in found.scorers} & set(found.skipped)


def test_what_is_named_twice_is_compared_once(tmp_path: Path, settings: Settings) -> None:
    found = build_scorers(params_for(tmp_path, enabled=("entropy", "yes_score", "entropy", "yes_score")), settings)
    assert [scorer.name for scorer in found.scorers] == ["entropy", "length_only"] and list(found.skipped) == [
        "yes_score"
    ]


def test_where_nothing_is_compared_length_is(tmp_path: Path, settings: Settings) -> None:
    found = build_scorers(params_for(tmp_path, enabled=()), settings)
    assert found.scorers == (LengthOnly(),) and not found.skipped


def test_a_layout_that_nothing_is_asked_after_leaves_out_the_fused_score_alone(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A team's own layout, without a question beside it in engine/questions."""
    shutil.copytree(resources.files("abstain.llm.engine") / "layouts", tmp_path / "layouts")
    shutil.copytree(resources.files("abstain.llm.engine") / "questions", tmp_path / "questions")
    (tmp_path / "layouts" / "rag-plain-v1.yaml").rename(tmp_path / "layouts" / "teams-own-v1.yaml")
    monkeypatch.setattr(layout.resources, "files", lambda package: tmp_path)
    params = params_for(tmp_path, enabled=("yes_score", "yes_score_fused", "entropy"))
    params = params.model_copy(update={"llm": params.llm.model_copy(update={"layout": "teams-own-v1"})})
    add_words(params, "Yes", "No")
    found = build_scorers(params, settings)
    assert [scorer.name for scorer in found.scorers] == ["yes_score", "entropy", "length_only"]
    assert list(found.skipped) == ["yes_score_fused"]
    why = found.skipped["yes_score_fused"]
    assert "'after-teams-own-v1'" in why and "after-rag-plain-v1" in why and "\n" not in why
