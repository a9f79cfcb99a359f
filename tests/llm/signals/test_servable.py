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
from tests.llm.builders import make_params, save_tiny_model

ENABLED = ("sequence_log_prob", "joint_log_prob", "context_gain", "yes_score", "verbalized", "writer")


@pytest.fixture
def params(tmp_path: Path) -> Params:
    shipped = shipped_params()
    llm = make_params(save_tiny_model(tmp_path / "tiny-bank"), layer=1)
    scorers = shipped.scorers.model_copy(update={"enabled": ENABLED})
    return shipped.model_copy(update={"llm": llm, "scorers": scorers})


def test_servable_fusions_by_number_of_passes(params: Params, settings: Settings) -> None:
    scorers = build_scorers(params, settings).scorers
    fusions = list_servable_fusions(list_servable_components(params, scorers))
    one, both = (set(fusions[name]) for name in ("fusion_one_pass", "fusion_two_passes"))
    assert one == {"probe", "sequence_log_prob", "writer"}
    assert both == one | {"context_gain", "regressors"}
    assert list_servable_fusions({"probe": list_servable_components(params, ())["probe"]}) == {}


def test_explain_not_servable_gives_the_reason(params: Params, settings: Settings) -> None:
    scorers = build_scorers(params, settings).scorers
    why = explain_not_servable(params, scorers)
    assert {one.name for one in scorers} - set(list_servable_components(params, scorers)) == set(why)
    assert "prompt of its own" in why["verbalized"] and why["length_only"] == "it is a baseline"
    assert "no threshold can part them" in why["joint_log_prob"]
    one_copy = params.perturbation.model_copy(update={"n_copies": 1})
    perturbed = params.model_copy(update={"perturbation": one_copy})
    assert "perturbation.n_copies" in explain_not_servable(perturbed, scorers)["regressors"]
    assert "regressors" not in list_servable_components(perturbed, scorers)


def test_servable_kind_by_name() -> None:
    kinds = {"probe": "probe", "writer": "writer", "fusion_one_pass": "fusion", "fusion_two_passes": "fusion"}
    kinds |= {"min_log_prob": "log_prob", "linear_label": "regressor"}
    assert {name: get_servable_kind(name) for name in kinds} == kinds
