from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from abstain.config.settings import Settings
from abstain.llm.signals import auxiliary_model
from abstain.llm.signals.auxiliary_model import TextExcerpt
from abstain.llm.signals.base import ScorerUnavailable
from abstain.llm.signals.extractive_qa import (
    MAX_SPAN_TOKENS,
    MAX_SPANS,
    ExcerptLogits,
    ExtractiveQA,
    compute_expected_f1,
    find_best_spans,
    make_extractive_scorer,
    token_f1,
)
from tests.llm.signals.builders import LONG, TEXTS, interaction, labels, plain_logits, save_encoder, unread
from tests.tolerance import assert_near

ROWS = [
    interaction(),
    interaction("call the hotline", question="How is a card blocked?"),
    interaction("The fee of the gold card is 5 euros.", [LONG, *TEXTS]),
    interaction("Line 3 says it was not.", [LONG], "When?"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("models") / "tiny-qa", "answer", initializer_range=0.1)


@pytest.fixture
def scorer(folder: Path, settings: Settings) -> ExtractiveQA:
    return make_extractive_scorer(str(folder), settings)


LOGITS = st.floats(-8, 8).map(lambda value: round(value, 3))


@st.composite
def readouts(draw: st.DrawFn) -> list[ExcerptLogits]:
    """Windows of up to three chunks whose tokens are one character each, some of them in two excerpts."""
    found = []
    for chunk in range(draw(st.integers(1, 3))):
        for first in draw(st.sampled_from([[0], [0, 3], [0, 2, 4]])):
            n = draw(st.integers(1, 5))
            start, end = (np.array(draw(st.lists(LOGITS, min_size=n, max_size=n))) for _ in range(2))
            places = np.column_stack([np.arange(first, first + n), np.arange(first, first + n) + 1])
            found.append(ExcerptLogits(chunk, start, end, places, draw(st.none() | LOGITS)))
    return found


def computed_by_hand(excerpts: Sequence[ExcerptLogits], longest: int) -> dict[tuple[int, int, int], float]:
    """p of every span, in plain Python."""
    scores: dict[tuple[int, int, int], float] = {}
    for one in excerpts:
        for first in range(len(one.start)):
            for last in range(first, min(first + longest, len(one.start))):
                span = (one.chunk, int(one.offsets[first][0]), int(one.offsets[last][1]))
                scores[span] = max(scores.get(span, -math.inf), float(one.start[first] + one.end[last]))
    none = [one.no_answer_logit for one in excerpts if one.no_answer_logit is not None]
    total = sum(math.exp(score) for score in scores.values()) + (math.exp(min(none)) if none else 0.0)
    return {span: math.exp(score) / total for span, score in scores.items()}


@pytest.mark.heavy
@given(readouts(), st.integers(1, 6), st.integers(1, 4))
def test_spans_have_the_probabilities_that_a_plain_loop_gives_them(
    excerpts: list[ExcerptLogits], top: int, longest: int
) -> None:
    expected = computed_by_hand(excerpts, longest)
    found = find_best_spans(excerpts, top, longest)
    assert found.shape == (min(top, len(expected)), 4)
    spans = [(int(chunk), int(first), int(last)) for chunk, first, last, _ in found]
    assert len(set(spans)) == len(spans)
    assert found[:, 3] == pytest.approx([expected[span] for span in spans])
    assert found[:, 3] == pytest.approx(sorted(expected.values(), reverse=True)[:top])


@settings_of(max_examples=50)
@given(readouts())
def test_without_no_answer_all_spans_together_are_certain(excerpts: list[ExcerptLogits]) -> None:
    sure = [ExcerptLogits(one.chunk, one.start, one.end, one.offsets) for one in excerpts]
    assert find_best_spans(sure, max_spans=1000)[:, 3].sum() == pytest.approx(1)
    assert find_best_spans(excerpts, max_spans=1000)[:, 3].sum() <= 1 + 1e-9


def test_there_is_no_answer_only_if_no_window_has_one() -> None:
    places = np.array([[0, 1]])
    sure = ExcerptLogits(0, np.zeros(1), np.zeros(1), places, no_answer_logit=-50.0)
    unsure = ExcerptLogits(1, np.zeros(1), np.zeros(1), places, no_answer_logit=50.0)
    assert find_best_spans([sure, unsure])[:, 3] == pytest.approx([0.5, 0.5])
    assert find_best_spans([unsure])[0, 3] < 1e-20


def test_large_logits_do_not_overflow() -> None:
    one = ExcerptLogits(
        0, np.array([900.0, -900.0]), np.array([900.0, -900.0]), np.array([[0, 1], [1, 2]]), no_answer_logit=0.0
    )
    assert find_best_spans([one])[0].tolist() == [0, 0, 1, 1]


def test_nothing_to_read_is_no_span() -> None:
    assert find_best_spans([]).shape == (0, 4)
    assert find_best_spans(
        [ExcerptLogits(0, np.empty(0), np.empty(0), np.empty((0, 2), int), no_answer_logit=1.0)]
    ).shape == (0, 4)


@pytest.mark.parametrize(
    ("answer", "span", "expected"),
    [
        ("5 euros", "5 Euros.", 1.0),
        ("It is 5 euros.", "5 euros", 2 * 2 / (4 + 2)),
        ("5 5 5", "5 euros", 2 * 1 / (3 + 2)),
        ("none", "5 euros", 0.0),
        ("Gebühr: 5 €", "gebühr", 2 * 1 / (2 + 1)),
        ("yes", "...", 0.0),
    ],
)
def test_token_f1(answer: str, span: str, expected: float) -> None:
    assert token_f1(answer, span) == pytest.approx(expected)
    assert token_f1(span, answer) == pytest.approx(expected)


WORDS = st.lists(st.sampled_from(["ab", "AB", "c", "d.", "e"]), min_size=1, max_size=5).map(" ".join)
SPANS = st.lists(st.tuples(WORDS, st.floats(0.01, 1)), min_size=1, max_size=6).map(
    lambda spans: [(text, p / sum(p for _, p in spans)) for text, p in spans]
)


@given(WORDS, SPANS)
def test_the_expected_f1_is_the_mean_over_spans(answer: str, spans: list[tuple[str, float]]) -> None:
    def f1(text: str) -> float:
        a, b = ([word.strip(".").lower() for word in one.split()] for one in (answer, text))
        same = sum(min(a.count(word), b.count(word)) for word in set(a))
        return 0.0 if not same else 2 / (len(a) / same + len(b) / same)

    assert compute_expected_f1(answer, spans) == pytest.approx(sum(p * f1(text) for text, p in spans))
    assert 0 <= compute_expected_f1(answer, spans) <= 1


@pytest.mark.parametrize(("answer", "spans"), [("5 euros", []), ("—", [("5 euros", 1.0)]), ("", [("5", 1.0)])])
def test_what_cannot_be_compared_is_nan(answer: str, spans: list[tuple[str, float]]) -> None:
    assert math.isnan(compute_expected_f1(answer, spans))


def readout_by_hand(folder: Path, chunk: int, excerpt: TextExcerpt) -> ExcerptLogits:
    """One excerpt by transformers alone; "no answer" stands at CLS, which comes first."""
    start, end = (of.double().numpy() for of in plain_logits(folder, "answer", excerpt.inputs))
    of_chunk = np.array([text == 1 for text in excerpt.sequence_ids])
    return ExcerptLogits(
        chunk, start[of_chunk], end[of_chunk], np.array(excerpt.offsets)[of_chunk], float(start[0] + end[0])
    )


def test_extractive_qa_score_equals_a_plain_loop_over_windows(scorer: ExtractiveQA, folder: Path) -> None:
    assert (scorer.name, scorer.requires) == ("extractive_qa", ())
    expected = []
    for row in ROWS:
        excerpts = [
            readout_by_hand(folder, chunk, excerpt)
            for chunk, context in enumerate(row.contexts)
            for excerpt in scorer.model.build_excerpts(row.question, context.text, "second")
        ]
        spans = sorted(computed_by_hand(excerpts, MAX_SPAN_TOKENS).items(), key=lambda item: -item[1])[:MAX_SPANS]
        texts = [(row.contexts[chunk].text[first:last], p) for (chunk, first, last), p in spans]
        expected.append(compute_expected_f1(row.answer, texts))
    found = scorer.fit(unread(), labels([])).score(unread(*ROWS))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert len(set(found.round(4))) == len(ROWS)


def test_what_cannot_be_said_is_nan(scorer: ExtractiveQA) -> None:
    rows = [interaction(contexts=[]), interaction(question="word " * 60), interaction("—"), interaction()]
    assert np.isnan(scorer.score(unread(*rows))).tolist() == [True, True, True, False]
    assert scorer.score(unread()).shape == (0,)


def test_another_answer_to_the_same_question_costs_nothing(
    scorer: ExtractiveQA, folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = scorer.score(unread(*ROWS, interaction(contexts=[])))

    def refuse(*_: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(auxiliary_model, "_load", refuse)
    again = make_extractive_scorer(str(folder), settings)
    assert_near(again.score(unread(*ROWS, interaction(contexts=[]))), first)
    other, own = again.score(unread(ROWS[1].model_copy(update={"answer": "nothing else"}), ROWS[1]))
    assert other == 0.0 < own == pytest.approx(first[1])
    with pytest.raises(AssertionError, match="was loaded"):
        again.score(unread(interaction(question="Which fee?")))


def test_a_model_that_is_not_named_or_has_another_head_is_unavailable(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ScorerUnavailable, match=r"^no model: set scorers.extractive_qa_model in params.yaml$"):
        make_extractive_scorer(None, settings)
    folder = save_encoder(tmp_path / "nli", "classify")
    with pytest.raises(ScorerUnavailable, match=r"is a BertForSequenceClassification: .* a ...ForQuestionAnswering$"):
        make_extractive_scorer(str(folder), settings)
