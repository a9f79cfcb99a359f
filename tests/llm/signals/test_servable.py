from __future__ import annotations

from pathlib import Path

import pytest

from abstain.config.params import Params
from abstain.config.settings import Settings
from abstain.llm.signals.registry import build_scorers
from abstain.llm.signals.servable import (
    explain_not_servable,
    get_servable_kind,
    list_servable_components,
    list_servable_fusions,
)
from tests.checkout import shipped_params
from tests.llm.builders import save_tiny_model

ENABLED = ("sequence_log_prob", "joint_log_prob", "context_gain", "yes_score", "verbalized", "writer")


@pytest.fixture
def params(tmp_path: Path) -> Params:
    shipped = shipped_params()
    llm = {"model": str(save_tiny_model(tmp_path / "tiny-bank")), "layout": "rag-plain-v1", "layer": 1}
    return shipped.model_copy(
        update={
            "llm": shipped.llm.model_copy(update=llm),
            "scorers": shipped.scorers.model_copy(update={"enabled": ENABLED}),
        }
    )


def perturbed(params: Params) -> Params:
    return params.model_copy(update={"perturbation": params.perturbation.model_copy(update={"n_copies": 1})})


def test_a_fusion_is_of_all_that_so_many_passes_give(params: Params, settings: Settings) -> None:
    scorers = build_scorers(params, settings).scorers
    fusions = list_servable_fusions(list_servable_components(params, scorers))
    one, both = (set(fusions[name]) for name in ("fusion_one_pass", "fusion_two_passes"))
    assert one == {"probe", "sequence_log_prob", "writer"}
    assert both == one | {"context_gain", "regressors"}
    assert list_servable_fusions({"probe": list_servable_components(params, ())["probe"]}) == {}, (
        "one part alone is no fusion"
    )


def test_what_needs_another_prompt_or_model_is_not_servable_with_the_reason(params: Params, settings: Settings) -> None:
    scorers = build_scorers(params, settings).scorers
    why = explain_not_servable(params, scorers)
    assert {one.name for one in scorers} - set(list_servable_components(params, scorers)) == set(why)
    assert "prompt of its own" in why["verbalized"] and why["length_only"] == "it is a baseline"
    assert "no threshold can part them" in why["joint_log_prob"]
    assert "perturbation.n_copies" in explain_not_servable(perturbed(params), scorers)["regressors"]
    assert "regressors" not in list_servable_components(perturbed(params), scorers)


def test_kinds() -> None:
    names = ("probe", "writer", "fusion_one_pass", "fusion_two_passes", "min_log_prob", "linear_label")
    assert [get_servable_kind(name) for name in names] == [
        "probe",
        "writer",
        "fusion",
        "fusion",
        "log_prob",
        "regressor",
    ]
