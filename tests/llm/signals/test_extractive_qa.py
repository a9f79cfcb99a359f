from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from abstain.config.settings import Settings
from abstain.llm.signals import auxiliary_model
from abstain.llm.signals.base import ScorerUnavailable
from abstain.llm.signals.extractive_qa import (
    LONGEST,
    TOP,
    ExtractiveQA,
    Readout,
    best_spans,
    expected_f1,
    extractive_scorer,
    token_f1,
)
from tests.llm.signals.builders import TEXTS, cut_windows, interaction, labels, save_encoder, unread
from tests.tolerance import assert_near

LONG = " ".join(f"Line {n} says that {word} is not what it was." for n, word in enumerate("abcdefghijklmn"))
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
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", device="cpu")


@pytest.fixture
def scorer(folder: Path, settings: Settings) -> ExtractiveQA:
    return extractive_scorer(str(folder), settings)


LOGITS = st.floats(-8, 8).map(lambda value: round(value, 3))


@st.composite
def readouts(draw: st.DrawFn) -> list[Readout]:
    """Windows of up to three chunks whose tokens are one character each, some of them in two windows."""
    found = []
    for chunk in range(draw(st.integers(1, 3))):
        for first in draw(st.sampled_from([[0], [0, 3], [0, 2, 4]])):
            n = draw(st.integers(1, 5))
            start, end = (np.array(draw(st.lists(LOGITS, min_size=n, max_size=n))) for _ in range(2))
            places = np.column_stack([np.arange(first, first + n), np.arange(first, first + n) + 1])
            found.append(Readout(chunk, start, end, places, draw(st.none() | LOGITS)))
    return found


def computed_by_hand(windows: Sequence[Readout], longest: int) -> dict[tuple[int, int, int], float]:
    """p of every span, in plain Python."""
    scores: dict[tuple[int, int, int], float] = {}
    for one in windows:
        for first in range(len(one.start)):
            for last in range(first, min(first + longest, len(one.start))):
                span = (one.chunk, int(one.places[first][0]), int(one.places[last][1]))
                scores[span] = max(scores.get(span, -math.inf), float(one.start[first] + one.end[last]))
    none = [one.none for one in windows if one.none is not None]
    total = sum(math.exp(score) for score in scores.values()) + (math.exp(min(none)) if none else 0.0)
    return {span: math.exp(score) / total for span, score in scores.items()}


@pytest.mark.heavy
@given(readouts(), st.integers(1, 6), st.integers(1, 4))
def test_spans_have_the_probabilities_that_a_plain_loop_gives_them(
    windows: list[Readout], top: int, longest: int
) -> None:
    expected = computed_by_hand(windows, longest)
    found = best_spans(windows, top, longest)
    assert found.shape == (min(top, len(expected)), 4)
    spans = [(int(chunk), int(first), int(last)) for chunk, first, last, _ in found]
    assert len(set(spans)) == len(spans)
    assert found[:, 3] == pytest.approx([expected[span] for span in spans])
    assert found[:, 3] == pytest.approx(sorted(expected.values(), reverse=True)[:top])


@settings_of(max_examples=50)
@given(readouts())
def test_without_no_answer_all_spans_together_are_certain(windows: list[Readout]) -> None:
    sure = [Readout(one.chunk, one.start, one.end, one.places) for one in windows]
    assert best_spans(sure, top=1000)[:, 3].sum() == pytest.approx(1)
    assert best_spans(windows, top=1000)[:, 3].sum() <= 1 + 1e-9


def test_there_is_no_answer_only_if_no_window_has_one() -> None:
    places = np.array([[0, 1]])
    sure = Readout(0, np.zeros(1), np.zeros(1), places, none=-50.0)
    unsure = Readout(1, np.zeros(1), np.zeros(1), places, none=50.0)
    assert best_spans([sure, unsure])[:, 3] == pytest.approx([0.5, 0.5])
    assert best_spans([unsure])[0, 3] < 1e-20


def test_large_logits_do_not_overflow() -> None:
    one = Readout(0, np.array([900.0, -900.0]), np.array([900.0, -900.0]), np.array([[0, 1], [1, 2]]), none=0.0)
    assert best_spans([one])[0].tolist() == [0, 0, 1, 1]


def test_nothing_to_read_is_no_span() -> None:
    assert best_spans([]).shape == (0, 4)
    assert best_spans([Readout(0, np.empty(0), np.empty(0), np.empty((0, 2), int), none=1.0)]).shape == (0, 4)


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

    assert expected_f1(answer, spans) == pytest.approx(sum(p * f1(text) for text, p in spans))
    assert 0 <= expected_f1(answer, spans) <= 1


def test_an_answer_that_is_one_span_alone_scores_its_probability() -> None:
    spans = [("5 euros", 0.6), ("day or night", 0.3)]
    assert expected_f1("5 euros", spans) == pytest.approx(0.6)
    assert expected_f1("The fee is 5 euros.", spans) == pytest.approx(0.6 * 4 / 7)
    assert expected_f1("a pound", spans) == 0.0


@pytest.mark.parametrize(("answer", "spans"), [("5 euros", []), ("—", [("5 euros", 1.0)]), ("", [("5", 1.0)])])
def test_what_cannot_be_compared_is_nan(answer: str, spans: list[tuple[str, float]]) -> None:
    assert math.isnan(expected_f1(answer, spans))


def score_by_hand(folder: Path, question: str, contexts: Sequence[str], answer: str) -> float:
    """The score with nothing but transformers, each window by itself."""
    model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = tokenizer(question, add_special_tokens=False)["input_ids"]
    windows = []
    for chunk, text in enumerate(contexts):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        whole, places = encoded["input_ids"], np.array(encoded["offset_mapping"])
        for window in cut_windows(asked, whole):
            piece = whole[window]
            ids = [tokenizer.cls_token_id, *asked, tokenizer.sep_token_id, *piece, tokenizer.sep_token_id]
            types = [0] * (len(asked) + 2) + [1] * (len(piece) + 1)
            with torch.inference_mode():
                out = model(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types]))
            start, end = out.start_logits[0].double().numpy(), out.end_logits[0].double().numpy()
            of_text = slice(len(asked) + 2, len(asked) + 2 + len(piece))
            windows.append(Readout(chunk, start[of_text], end[of_text], places[window], float(start[0] + end[0])))
    spans = sorted(computed_by_hand(windows, LONGEST).items(), key=lambda item: -item[1])[:TOP]
    return expected_f1(answer, [(contexts[chunk][first:last], p) for (chunk, first, last), p in spans])


def test_extractive_qa_score_equals_a_plain_loop_over_windows(scorer: ExtractiveQA, folder: Path) -> None:
    assert (scorer.name, scorer.readings) == ("extractive_qa", ())
    assert len(scorer.model.windows("When?", LONG, "second")) > 2
    found = scorer.fit(unread(), labels([])).score(unread(*ROWS))
    expected = [
        score_by_hand(folder, row.question, [context.text for context in row.contexts], row.answer) for row in ROWS
    ]
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
    again = extractive_scorer(str(folder), settings)
    assert_near(again.score(unread(*ROWS, interaction(contexts=[]))), first)
    other, own = again.score(unread(ROWS[1].model_copy(update={"answer": "nothing else"}), ROWS[1]))
    assert other == 0.0 < own == pytest.approx(first[1])
    with pytest.raises(AssertionError, match="was loaded"):
        again.score(unread(interaction(question="Which fee?")))


def test_what_runs_together_changes_nothing(folder: Path, tmp_path: Path, scorer: ExtractiveQA) -> None:
    narrow = Settings(home=tmp_path / "other", device="cpu", batch_tokens=1)
    found = extractive_scorer(str(folder), narrow).score(unread(*ROWS))
    np.testing.assert_allclose(found, scorer.score(unread(*ROWS)), atol=1e-6)


def test_no_model_is_said(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ScorerUnavailable, match=r"^no model: set scorers.extractive_qa_model in params.yaml$"):
        extractive_scorer(None, settings)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ScorerUnavailable, match="cannot be found.*; set scorers.extractive_qa_model in params.yaml$"):
        extractive_scorer("nobody/no-such-model", settings)
    folder = save_encoder(tmp_path / "nli", "classify")
    with pytest.raises(ScorerUnavailable, match=r"is a BertForSequenceClassification: .* a ...ForQuestionAnswering$"):
        extractive_scorer(str(folder), settings)
