import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.llm.engine.prefix_tree import count_common_prefix
from abstain.llm.engine.prompts import load_layout
from abstain.llm.engine.requests import NLL, Generate, HiddenStates, NextTokenProbs
from abstain.llm.engine.tokenization import encode_prompt
from abstain.llm.features.extraction import FeatureSource, UnreadableInteraction
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.nll import ENTROPIES, SEGMENTS, STATISTICS, TokenStatsBySegment, compute_nll_features
from abstain.llm.features.shard_job import row_key
from abstain.llm.signals.base import FeatureBatch, Scorer, Signal
from abstain.llm.signals.compute_features import (
    COST_SAMPLE_SIZE,
    FeatureReader,
    collect_feature_requests,
    compute_missing,
    estimate_forward_tokens,
    expand_requests,
    read_features,
)
from abstain.llm.signals.context_conditions import ContextConditions, make_condition_requests
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
from tests.llm.builders import LAYERS, WINDOW, byte_tokenizer, make_params, plain_surprise, shared_model
from tests.llm.perturbation.builders import PERTURBATION
from tests.llm.signals.builders import TEXTS, interaction, labels
from tests.tolerance import assert_near

LAYOUT = "rag-plain-v1"
ROWS = [
    interaction("5 euros", TEXTS[:1]),
    interaction("call", TEXTS[1:], "How is a card blocked?", "i-2"),
    interaction("no", [], "Why?", "i-3"),
    interaction("5", TEXTS, name="i-4"),
]


def conditions(base: Path, settings: Settings, **changes: Any) -> ContextConditions:
    return ContextConditions(make_params(base, layer=1), PERTURBATION.model_copy(update=changes), settings)


def plain_nll(row: Interaction, condition: str) -> dict[str, Tensor]:
    """Segment -> NLLs of its tokens, by one plain forward of the prompt."""
    contexts = [] if condition == "B" else [one.text for one in row.contexts]
    encoded, found = plain_surprise(shared_model(), load_layout(LAYOUT).render(row.question, contexts, row.answer))
    first, _ = encoded.spans["answer"]
    spans = {name: encoded.spans[name] for name in ("instruction", "context", "question")}
    spans |= {"prompt": (0, first), "output": (first, len(encoded.ids))}
    return {name: found[slice(*span), 0] for name, span in spans.items()}


@pytest.mark.heavy
def test_context_conditions_equal_plain_forwards(tiny_folder: Path, settings: Settings, tmp_path: Path) -> None:
    asked = conditions(tiny_folder, settings, n_copies=2)
    table, copies = asked.build_table(ROWS), asked.perturber.perturb(ROWS)
    assert len(table) == len(ROWS) and (table.dtypes == np.float64).all()
    names = ("mean", "max", "sum", "last")
    for at, row in enumerate(ROWS):
        rows = {"N": row, "B": row, "P0": copies[0][at], "P1": copies[1][at]}
        found = {condition: plain_nll(of, condition) for condition, of in rows.items()}
        for segment in found["N"]:
            nll = {condition: of[segment][~of[segment].isnan()] for condition, of in found.items()}
            by_hand = {
                condition: np.array([of.mean(), of.max(), of.sum(), of[-1]] if len(of) else [math.nan] * 4)
                for condition, of in nll.items()
            }
            by_hand["P"] = (by_hand["P0"] + by_hand["P1"]) / 2
            by_hand["Ps"] = abs(by_hand["P0"] - by_hand["P1"]) / 2
            for condition in ("N", "B", "P", "Ps"):
                ours = [table.loc[at, f"{condition}.{segment}.nll_{name}"] for name in names]
                assert ours == pytest.approx(by_hand[condition], abs=1e-2, nan_ok=True), (condition, segment)
        for segment in ("question", "output"):
            gap = found["N"][segment] - found["B"][segment]
            assert table.loc[at, f"N-B.{segment}.nll_max"] == pytest.approx(float(gap.max()), abs=1e-3)
            gaps = [float((found[copy][segment] - found["B"][segment]).max()) for copy in ("P0", "P1")]
            assert table.loc[at, f"P-B.{segment}.nll_max"] == pytest.approx(np.mean(gaps), abs=1e-3)
    elsewhere = settings.model_copy(update={"home": tmp_path / "alone"})
    alone = conditions(tiny_folder, elsewhere, n_copies=2).build_table(ROWS[3:])
    assert alone.iloc[0].to_numpy() == pytest.approx(table.iloc[3].to_numpy(), abs=1e-3, nan_ok=True)
    assert not any(name.startswith("Ps") for name in conditions(tiny_folder, settings).build_table(ROWS[:1]))


def test_context_conditions_without_context_are_equal(tiny_folder: Path, settings: Settings) -> None:
    table = conditions(tiny_folder, settings).build_table(ROWS)
    missing = {name for name in table if table[name].isna().any()}
    assert missing == {f"{c}.context.{name}" for c in "NBP" for name in (*STATISTICS, *ENTROPIES)}
    assert table.filter(regex=r"^B\.context").isna().all(axis=None)
    assert table.filter(regex=r"^[NP]\.context").isna().sum(axis=1).tolist() == [0, 0, 22, 0]
    empty = table.iloc[2]
    assert (empty.filter(regex=r"^.-.\.") == 0).all(), "P_c = N_c = B_c"
    for segment in set(SEGMENTS) - {"context"}:
        assert empty[f"P.{segment}.nll_sum"] == empty[f"N.{segment}.nll_sum"] == empty[f"B.{segment}.nll_sum"]
    assert (table.iloc[[0, 1, 3]].filter(regex=r"^P-N\.output\.nll_max") != 0).all(axis=None)
    instruction = table["N.instruction.nll_mean"].to_numpy()  # fixed and read first, it cannot vary
    assert_near(instruction, np.full(len(ROWS), instruction[0]), np.float32)


@pytest.mark.heavy
def test_context_conditions_are_computed_once(tiny_folder: Path, settings: Settings) -> None:
    asked = conditions(tiny_folder, settings)
    seen: list[tuple[int, int]] = []
    # Of four rows five segments under N_c and P_c, four under B_c; three have a context to be perturbed.
    every = 4 * 5 + 4 * 4 + 4 * 5
    assert asked.count_missing(ROWS)[0] == 3 + every and len(asked.get_known_work(ROWS)) == 1
    perturbing, reading = asked.compute_missing(ROWS, lambda part, whole: seen.append((part, whole)))
    requests = expand_requests(asked.llm, settings, asked.get_known_work(ROWS))
    different = {(request.operation, row_key(request)) for at in range(len(requests)) if (request := requests[at])}
    assert (perturbing.rows, reading.rows, len(requests)) == (3, len(different), every)
    assert perturbing.forward_tokens > 0 and 3 * reading.forward_tokens < reading.pass_tokens
    assert (3, 3) in seen and seen[-1] == (reading.rows, reading.rows)
    again = conditions(tiny_folder, settings).compute_missing(ROWS)
    assert [done.rows for done in again] == [0, 0] and asked.count_missing(ROWS) == (3 + every, 0)
    pd.testing.assert_frame_equal(asked.build_table(ROWS), conditions(tiny_folder, settings).build_table(ROWS))
    assert conditions(tiny_folder, settings, model="another").perturber.model == "another"


def test_context_conditions_unreadable_row_is_nan(
    tiny_folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = interaction("no", ["word " * WINDOW])
    asked, remarks = conditions(tiny_folder, settings), {"empty": 0, "too_long": 1, "fewer": 0, "not_reproduced": 0}
    table = asked.build_table([ROWS[0], long])
    assert asked.count_remarks([ROWS[0], long]) == remarks | {"other_chunks": 0}
    assert table.iloc[1].isna().all()
    assert table.iloc[0].drop(table.filter(regex=r"^B\.context").columns).notna().all()
    monkeypatch.setattr(type(asked.perturber), "perturb", lambda perturber, rows: [[long, *rows[1:]]])
    assert asked.count_remarks(ROWS)["other_chunks"] == 1


def test_context_conditions_cost_is_that_of_three_prompts(tiny_folder: Path, settings: Settings) -> None:
    asked, row = conditions(tiny_folder, settings), ROWS[0]
    ((changed,),) = asked.perturber.perturb([row])
    lengths = [
        len(encode_prompt(byte_tokenizer(), load_layout(LAYOUT).render(row.question, texts, row.answer)).ids)
        for texts in ([TEXTS[0]], [], [changed.contexts[0].text])
    ]
    shared = len(load_layout(LAYOUT).render("", [], "")[0].text.encode())
    perturbed = len(TEXTS[0].encode())  # a token is a byte
    expected = sum(lengths) - shared + perturbed
    assert asked.estimate_forward_tokens([row]) == expected, "what N_c and B_c begin with counts once"
    more = conditions(tiny_folder, settings, n_copies=3)
    assert more.estimate_forward_tokens([row]) == pytest.approx(expected + 2 * (lengths[2] + perturbed), abs=30)
    once, step_by_step = (
        conditions(tiny_folder, settings, selection="entropy", schedule=schedule).estimate_perturbed_forward_tokens(
            [row]
        )
        for schedule in ("single_shot", "iterative")
    )
    assert step_by_step - once == pytest.approx((PERTURBATION.tokens - 1) * perturbed, abs=30)


NAN = float("nan")


def tokens(*nll: float, entropy: float = 0.5) -> Tensor:
    """(tokens, 2): these NLLs, and `entropy` times the token's number."""
    return torch.tensor([[value, entropy * at] for at, value in enumerate(nll)], dtype=torch.float32).reshape(-1, 2)


def found(**segments: Tensor | None) -> TokenStatsBySegment:
    plain: dict[str, Tensor | None] = {name: tokens(1.0, 2.0) for name in SEGMENTS}
    return plain | segments


NORMAL = found(prompt=tokens(NAN, 1.0, 2.0), instruction=tokens(NAN, 1.0), output=tokens(4.0, 1.0, 1.0, 2.0))
BASELINE: TokenStatsBySegment = {
    name: value for name, value in found(output=tokens(5.0, 1.0, 0.0, 4.0)).items() if name != "context"
}
PERTURBED = found(output=tokens(6.0, 0.0, 1.0, 2.0), context=tokens(3.0, 7.0))


def test_nll_features_equal_statistics_by_pandas() -> None:
    """By pandas; the first token of a pass, which nothing precedes, is left out."""
    row = compute_nll_features(NORMAL, BASELINE, [PERTURBED])
    for condition, segments in (("N", NORMAL), ("B", BASELINE), ("P", PERTURBED)):
        for segment, found in segments.items():
            nll, entropy = pd.DataFrame(found.numpy()).dropna().to_numpy(float).T if found is not None else ([], [])
            names = ["mean", "std", "min", "median", "q90", "max", "sum", "first", "last"]
            assert [row[f"{condition}.{segment}.nll_{name}"] for name in names] == pytest.approx(by_pandas(nll))
            of_entropy = by_pandas(entropy)
            ours = [row[f"{condition}.{segment}.entropy_{name}"] for name in ("mean", "max")]
            assert ours == pytest.approx([of_entropy[0], of_entropy[5]])
    gaps = {"N-B": [-1, 0, 1, -2], "P-N": [2, -1, 0, 0], "P-B": [1, -1, 1, -2]}
    for pair, gap in gaps.items():
        ours = [row[f"{pair}.output.nll_{name}"] for name in ("mean", "std", "min", "max")]
        assert ours == pytest.approx([by_pandas(gap)[at] for at in (0, 1, 2, 5)])
    assert len(row) == 3 * 5 * (9 + 2) + 3 * 2 * 4, "conditions, segments, statistics; pairs, segments, statistics"


def by_pandas(tokens: Sequence[float]) -> list[float]:
    of = pd.Series(tokens, dtype=float)
    first, last = of.iloc[0], of.iloc[-1]
    return [of.mean(), of.std(ddof=0), of.min(), of.median(), of.quantile(0.9), of.max(), of.sum(), first, last]


def test_nll_features_unread_row_is_nan() -> None:
    unread: TokenStatsBySegment = dict.fromkeys(SEGMENTS)
    row = compute_nll_features(unread, BASELINE, [PERTURBED, PERTURBED])
    assert row.keys() == compute_nll_features(NORMAL, BASELINE, [PERTURBED, PERTURBED]).keys()
    assert all(math.isnan(value) for value in row.values())
    assert not math.isnan(compute_nll_features(NORMAL, BASELINE, [unread])["N.output.nll_mean"])


def test_nll_features_missing_segment_is_nan() -> None:
    """The context under B_c, an empty segment, one of a single first token, a prompt that could not be read."""
    row = compute_nll_features(NORMAL | {"question": tokens()}, BASELINE, [dict.fromkeys(SEGMENTS)])
    missing = {name for name, value in row.items() if math.isnan(value)}
    assert {name for name in row if name.startswith(("B.context", "N.question", "P", "N-B.question"))} == missing
    shorter = compute_nll_features(NORMAL, BASELINE, [found(output=tokens(1.0))])
    assert math.isnan(shorter["P-N.output.nll_mean"]), "the tokens are others"
    first = compute_nll_features(NORMAL | {"instruction": tokens(NAN)}, BASELINE, [PERTURBED])
    assert {name for name, value in first.items() if math.isnan(value)} == {
        name for name in row if name.startswith(("N.instruction", "B.context"))
    }


def test_nll_features_of_copies_are_mean_and_spread() -> None:
    copies = [found(output=tokens(value, value)) for value in (1.0, 2.0, 6.0)]
    both = found(output=tokens(1.0, 3.0))
    row, single = compute_nll_features(both, both, copies), compute_nll_features(both, both, copies[:1])
    assert row["P.output.nll_mean"] == 3.0 and row["Ps.output.nll_mean"] == pytest.approx(math.sqrt(14 / 3))
    assert row["P-N.output.nll_mean"] == 1.0 and row["Ps-N.output.nll_mean"] == row["Ps-B.output.nll_mean"]
    assert row["Ps.context.nll_sum"] == 0.0
    assert {name for name in row if name not in single} == {f"Ps{name[1:]}" for name in single if name.startswith("P")}
    with_none = compute_nll_features(both, both, [copies[0], dict.fromkeys(SEGMENTS)])
    assert math.isnan(with_none["P.output.nll_mean"]) and math.isnan(with_none["Ps.output.nll_mean"])


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
