from __future__ import annotations

from abstain.features.readings import Reading
from abstain.llm.asks import NLL, States
from abstain.params import load_params
from abstain.scorers.asked import Listening, everything, served, swept
from abstain.scorers.base import Signal
from tests.conftest import ROOT
from tests.scorers.builders import interaction

PARAMS = load_params(ROOT / "params.yaml")
SURPRISE = Reading(NLL(("answer",)))
SIGNALS = [Signal("a", (SURPRISE,), lambda _, found: 0.5), Signal("b", (SURPRISE,), lambda _, found: 0.5)]


def test_the_sweep_is_layers_times_sites_and_the_numbers_of_chunks_here() -> None:
    places = swept(PARAMS)
    here = served(PARAMS)
    grid = {Listening(layer, site) for layer in PARAMS.sweep.layers for site in PARAMS.sweep.sites}
    chunks = {Listening(here.layer, here.site, k) for k in PARAMS.sweep.contexts}
    assert set(places) == (grid | chunks) - {here} and len(places) == len(set(places))


def test_a_reading_that_several_want_is_asked_once() -> None:
    rows = [interaction(name=f"i-{at}") for at in range(3)]
    (labelled, readings), *audits = everything(PARAMS, SIGNALS, rows, rows[:1])
    assert labelled == rows and len(readings) == len(set(readings))
    assert {served(PARAMS).reading, SURPRISE} <= set(readings)
    assert len(readings) == 2 + len(swept(PARAMS))
    assert [len(changed) for changed, _ in audits] == [1, 1]
    assert all(set(of) == {served(PARAMS).reading, SURPRISE} for _, of in audits)


def test_a_place_is_a_reading_of_answer_and_eos() -> None:
    reading = Listening(8, "mlp", 1).reading
    assert reading.ask == States(8, "mlp", ("answer", "eos")) and reading.chunks == 1
