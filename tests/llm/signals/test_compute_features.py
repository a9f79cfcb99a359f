from pathlib import Path

import numpy as np
import pytest
import torch

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.llm.engine.prefix_tree import count_common_prefix
from abstain.llm.engine.requests import NLL, Generate, HiddenStates, NextTokenProbs
from abstain.llm.features.extraction import FeatureSource, UnreadableInteraction
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch, Scorer, Signal
from abstain.llm.signals.compute_features import (
    COST_SAMPLE_SIZE,
    FeatureReader,
    collect_feature_requests,
    compute_missing,
    estimate_forward_tokens,
    read_features,
)
from abstain.llm.signals.context_conditions import make_condition_requests
from abstain.llm.signals.counterfactuals import remove_contexts, shuffle_answers
from abstain.llm.signals.feature_plan import (
    LabelledAnswers,
    ProbeSite,
    get_served_site,
    list_candidate_sites,
    list_sweep_sites,
    plan_features,
    plan_nll_features,
)
from abstain.llm.signals.length import LengthOnly
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS, NLL_WITH_CONTEXT, NLL_WITHOUT_CONTEXT
from abstain.llm.signals.verbalized import make_verbalized_signal
from abstain.llm.signals.yes_no import make_yes_no_signals
from benchmarks.full_params import full_params
from tests.llm.builders import LAYERS, WINDOW, byte_tokenizer
from tests.llm.signals.builders import interaction, labels
from tests.tolerance import assert_near

CONTEXT = "The annual fee of the gold card is 5 euros."
ROW = interaction("5 euros", [CONTEXT], "What is the fee?")
PROBE = FeatureRequest(HiddenStates(1))


@pytest.mark.parametrize(
    "readings",
    [
        (PROBE, FeatureRequest(HiddenStates(3, "mlp"))),
        (NLL_WITH_CONTEXT, PROBE),
        (NLL_WITH_CONTEXT, FeatureRequest(NextTokenProbs(("Y", "N")), "asked_after"), NLL_WITHOUT_CONTEXT),
    ],
)
def test_estimate_forward_tokens_equals_those_of_the_engine(
    tiny_params: LLMParams, settings: Settings, readings: tuple[FeatureRequest, ...]
) -> None:
    deepest = max(one.operation.layer if isinstance(one.operation, HiddenStates) else LAYERS for one in readings)
    done = compute_missing(tiny_params, settings, [([ROW], readings)])
    assert done.rows == len(readings)
    cost = estimate_forward_tokens(tiny_params, settings, [ROW], readings)
    assert cost == pytest.approx(done.forward_tokens * deepest / LAYERS)


def test_estimate_forward_tokens_includes_generated_tokens(tiny_params: LLMParams, settings: Settings) -> None:
    def cost(*readings: FeatureRequest) -> float:
        return estimate_forward_tokens(tiny_params, settings, [ROW], readings)

    yes, number = (FeatureRequest(Generate(n), kind) for n, kind in ((5, "yes_score"), (12, "probability")))
    rendered = [one.render(tiny_params.layout, ROW.question, [CONTEXT], ROW.answer) for one in (yes, number)]
    prompts = ["".join(segment.text for segment in prompt) for prompt in rendered]
    assert (cost(yes), cost(number)) == (len(prompts[0]) + 5, len(prompts[1]) + 12), "a byte is a token"
    assert cost(yes, number) == cost(yes) + cost(number) - count_common_prefix(*map(list, prompts))


def test_estimate_forward_tokens_is_a_mean_of_the_first_answers(tiny_params: LLMParams, settings: Settings) -> None:
    def cost(*rows: Interaction) -> float:
        return estimate_forward_tokens(tiny_params, settings, rows, [NLL_WITH_CONTEXT])

    whole, long = cost(ROW), interaction("5 euros" + "!" * 10, [CONTEXT], "What is the fee?")
    assert cost(ROW, long) == whole + 5
    assert cost(*[ROW] * COST_SAMPLE_SIZE, long) == whole
    assert cost(ROW, interaction("5 euros", ["word " * 200])) == whole / 2, "it cannot be read"
    assert cost() == estimate_forward_tokens(tiny_params, settings, [ROW], []) == 0


def test_read_features_results_are_in_row_order(tiny_params: LLMParams, settings: Settings) -> None:
    rows = [interaction("no", name="a"), interaction("5 euros", ["word " * 200]), interaction("no", name="b"), ROW]
    answers = read_features(tiny_params, settings, rows, (PROBE, NLL_WITHOUT_CONTEXT))
    assert answers.interactions is rows
    found = {request: [None if one is None else len(one) for one in of] for request, of in answers.features.items()}
    assert found == {PROBE: [3, None, 3, 8], NLL_WITHOUT_CONTEXT: [3, 8, 3, 8]}
    first, _, again, last = answers.features[PROBE]
    assert first is not None and again is not None and torch.equal(first, again)
    assert_near(read_features(tiny_params, settings, [ROW], (PROBE,)).features[PROBE][0], last)


def test_feature_reader_computes_missing_and_writes_nothing(tiny_params: LLMParams, settings: Settings) -> None:
    rows = [interaction(text, [CONTEXT], "What is the fee?", f"i-{at}") for at, text in enumerate(("5", "6", "7"))]
    readings = (PROBE, NLL_WITH_CONTEXT, NLL_WITHOUT_CONTEXT)
    expected = read_features(tiny_params, settings, rows, readings)
    alone = Settings(home=settings.home / "other", device="cpu", dtype="float32")
    compute_missing(tiny_params, alone, [(rows[:1], readings)])
    files = sorted(Path(alone.features).rglob("*"))
    reader = FeatureReader(tuple(FeatureSource(tiny_params, alone, one) for one in readings))
    engine = reader.sources[0].load_engine()
    before = engine.stats.forward_tokens
    found = reader.read([*rows, interaction("x" * WINDOW, name="i-long")])
    each = [estimate_forward_tokens(tiny_params, alone, [row], readings) for row in rows[1:]]
    assert engine.stats.forward_tokens - before <= sum(each), "the states are of a pass that is run anyway"
    assert found.forward_tokens == pytest.approx([0, *each, 0]), "what was cached costs nothing"
    for reading in readings:
        *read, last = found.batch.features[reading]
        assert last is None
        for one, other in zip(read, expected.features[reading], strict=True):
            assert_near(one, other)
    assert found.unreadable[:3] == [None] * 3 and isinstance(found.unreadable[3], UnreadableInteraction)
    assert sorted(Path(alone.features).rglob("*")) == files
    nothing = FeatureReader(()).read(rows)
    assert nothing.batch.features == {} and nothing.unreadable == [None] * 3 and nothing.forward_tokens == [0] * 3


def test_signal_score_reads_rows_in_order_unread_is_nan() -> None:
    one, two = FeatureRequest(NLL(("answer",))), FeatureRequest(NextTokenProbs(("Yes",)))
    difference = Signal("d", (one, two), lambda row, found: float(found[0].sum() - found[1].sum()) / len(row.answer))
    rows = [interaction(name=f"i-{n}", answer=answer) for n, answer in enumerate(("5 euros", "6 euros", "none"))]
    full = {
        two: [torch.full((1, 1), float(n)) for n in range(3)],
        one: [torch.full((2, 1), float(n)) for n in (5, 6, 7)],
    }
    found = difference.score(FeatureBatch(rows, full))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [10 / 7, 11 / 7, 12 / 4])
    answers = FeatureBatch(rows, {one: [full[one][0], None, full[one][2]], two: [*full[two][:2], None]})
    assert difference.fit(answers, labels([])) is difference
    np.testing.assert_allclose(difference.score(answers), [10 / 7, np.nan, np.nan])
    assert difference.score(answers.take([])).shape == (0,)


def test_collect_feature_requests_has_no_repetition() -> None:
    tokenizer = byte_tokenizer()
    scorers: list[Scorer] = [*LIKELIHOOD_SIGNALS, *make_yes_no_signals(tokenizer), make_verbalized_signal(tokenizer)]
    requests = collect_feature_requests([*scorers, LengthOnly()])
    assert len({scorer.name for scorer in scorers}) == len(scorers)
    assert len(requests) == len(set(requests)) == 5
    assert {NLL_WITH_CONTEXT, NLL_WITHOUT_CONTEXT} < set(requests)


PARAMS = full_params()
SURPRISE = FeatureRequest(NLL(("answer",)))
SIGNALS = [Signal(name, (SURPRISE,), lambda _, found: 0.5) for name in "ab"]


def test_sweep_sites_are_layers_times_sites_and_chunks() -> None:
    sites, here = list_sweep_sites(PARAMS), get_served_site(PARAMS)
    grid = {ProbeSite(layer, site) for layer in PARAMS.sweep.layers for site in PARAMS.sweep.sites}
    chunks = {ProbeSite(here.layer, here.site, k) for k in PARAMS.sweep.contexts}
    assert set(sites) == (grid | chunks) - {here} and len(sites) == len(set(sites))
    request = ProbeSite(8, "mlp", 1).make_feature_request(PARAMS.llm)
    assert request == FeatureRequest(HiddenStates(8, "mlp", ("answer", "eos")), chunks=1)
    without = PARAMS.llm.model_copy(update={"includes_eos": False})
    for site in (here, *sites, *list_candidate_sites(30)):
        operation = HiddenStates(site.layer, site.site, ("answer",))
        assert site.make_feature_request(without) == FeatureRequest(operation, chunks=site.chunks), "EOS as the probe"


def test_plan_features_has_no_repetition() -> None:
    rows, audits = [interaction(name=f"i-{at}") for at in range(3)], PARAMS.audits.enabled
    (planned, requests), *changed = plan_features(PARAMS, SIGNALS, LabelledAnswers(rows, rows[:1], audits))
    served = get_served_site(PARAMS).make_feature_request(PARAMS.llm)
    every_row = {served, SURPRISE, *make_condition_requests(PARAMS.llm.layout)}
    swept = {site.make_feature_request(PARAMS.llm) for site in list_sweep_sites(PARAMS)}
    assert planned == rows and set(requests) == every_row | swept and len(requests) == len(set(requests))
    assert [(len(of), set(asked)) for of, asked in changed] == [(1, every_row)] * 2
    none = PARAMS.model_copy(update={"regressors": PARAMS.regressors.model_copy(update={"targets": ()})})
    alone = LabelledAnswers(rows, [], audits)
    (_, requests), *_ = plan_features(none, SIGNALS, alone)
    assert set(requests) == {served, SURPRISE} | swept and plan_nll_features(none, Settings(), alone)[1] == []
    audited = plan_nll_features(PARAMS, Settings(), LabelledAnswers(rows[:1], rows[1:], audits))[1]
    without_contexts = with_other_answers = ["i-1", "i-2"]
    assert [row.interaction_id for row in audited] == ["i-0", *without_contexts, *with_other_answers]


ANSWERS = [
    interaction(answer=f"answer {at % 5}", name=f"i-{at}").model_copy(update={"product": "gold" if at % 2 else "blue"})
    for at in range(20)
]


def test_counterfactuals_change_contexts_or_answers_only() -> None:
    scored = [row.model_copy(update={"writer_scores": {"judge": 1.0}, "token_log_probs": (-1.0,)}) for row in ANSWERS]
    for rows in (ANSWERS, scored):
        assert remove_contexts(rows) == [row.model_copy(update={"contexts": ()}) for row in ANSWERS]
        shuffled = shuffle_answers(rows)
        assert all(new.answer != row.answer for new, row in zip(shuffled, rows, strict=True))
        assert shuffled == [
            row.model_copy(update={"answer": new.answer}) for new, row in zip(shuffled, ANSWERS, strict=True)
        ]
    for product in ("gold", "blue"):
        own, new = ([row.answer for row in of if row.product == product] for of in (ANSWERS, shuffled))
        assert set(new) <= set(own)
    alone = [scored[0].model_copy(update={"contexts": ()})]
    assert remove_contexts(alone) == shuffle_answers(alone) == alone, "what is not changed keeps its scores"


def test_shuffle_answers_depends_on_ids_only() -> None:
    assert shuffle_answers(ANSWERS[::-1]) == shuffle_answers(ANSWERS)[::-1]
    alike = [interaction(answer="No.", name=f"i-{at}") for at in range(3)]
    assert shuffle_answers(alike) == alike and shuffle_answers(alike[:1]) == alike[:1] and shuffle_answers([]) == []
