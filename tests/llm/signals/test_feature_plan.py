from abstain.config.settings import Settings
from abstain.llm.engine.requests import NLL, HiddenStates
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import Signal
from abstain.llm.signals.context_conditions import make_condition_requests
from abstain.llm.signals.feature_plan import (
    LabelledAnswers,
    ProbeSite,
    get_served_site,
    list_candidate_sites,
    list_sweep_sites,
    plan_features,
    plan_nll_features,
)
from benchmarks.full_params import full_params
from tests.llm.signals.builders import interaction

PARAMS = full_params()
SURPRISE = FeatureRequest(NLL(("answer",)))
SIGNALS = [Signal("a", (SURPRISE,), lambda _, found: 0.5), Signal("b", (SURPRISE,), lambda _, found: 0.5)]


def test_sweep_sites_are_layers_times_sites_and_chunks() -> None:
    places = list_sweep_sites(PARAMS)
    here = get_served_site(PARAMS)
    grid = {ProbeSite(layer, site) for layer in PARAMS.sweep.layers for site in PARAMS.sweep.sites}
    chunks = {ProbeSite(here.layer, here.site, k) for k in PARAMS.sweep.contexts}
    assert set(places) == (grid | chunks) - {here} and len(places) == len(set(places))
    reading = ProbeSite(8, "mlp", 1).make_feature_request(PARAMS.llm)
    assert reading.operation == HiddenStates(8, "mlp", ("answer", "eos")) and reading.chunks == 1


def test_candidate_sites_read_eos_only_if_the_probe_does() -> None:
    without = PARAMS.model_copy(update={"llm": PARAMS.llm.model_copy(update={"includes_eos": False})})
    for place in (get_served_site(without), *list_sweep_sites(without), *list_candidate_sites(30)):
        reading = place.make_feature_request(without.llm)
        assert (
            reading.operation == HiddenStates(place.layer, place.site, ("answer",)) and reading.chunks == place.chunks
        )


def test_plan_features_has_no_repetition() -> None:
    rows = [interaction(name=f"i-{at}") for at in range(3)]
    (labelled, readings), *audits = plan_features(
        PARAMS, SIGNALS, LabelledAnswers(rows, rows[:1], PARAMS.audits.enabled)
    )
    unperturbed = set(make_condition_requests(PARAMS.llm.layout))
    assert labelled == rows and len(readings) == len(set(readings))
    assert {get_served_site(PARAMS).make_feature_request(PARAMS.llm), SURPRISE} <= set(readings)
    assert len(readings) == len({SURPRISE, *unperturbed}) + 1 + len(list_sweep_sites(PARAMS))
    assert [len(changed) for changed, _ in audits] == [1, 1]
    assert all(
        set(of) == {get_served_site(PARAMS).make_feature_request(PARAMS.llm), SURPRISE, *unperturbed}
        for _, of in audits
    )


def test_plan_features_without_regressors() -> None:
    none = PARAMS.model_copy(update={"regressors": PARAMS.regressors.model_copy(update={"targets": ()})})
    labelled = LabelledAnswers([interaction()], [], PARAMS.audits.enabled)
    (_, readings), *_ = plan_features(none, SIGNALS, labelled)
    assert set(readings) == {
        get_served_site(none).make_feature_request(none.llm),
        SURPRISE,
        *(place.make_feature_request(none.llm) for place in list_sweep_sites(none)),
    }
    assert plan_nll_features(none, Settings(), labelled)[1] == []
    changed = LabelledAnswers(
        [interaction(name="i-0")], [interaction(name="i-1"), interaction(name="i-2")], PARAMS.audits.enabled
    )
    assert [row.interaction_id for row in plan_nll_features(PARAMS, Settings(), changed)[1]] == [
        "i-0",
        *("i-1", "i-2"),  # without their contexts
        *("i-1", "i-2"),  # with each other's answers
    ]
