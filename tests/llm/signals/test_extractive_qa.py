import math
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from abstain.config.settings import Settings
from abstain.llm.signals import auxiliary_model
from abstain.llm.signals.auxiliary_model import TextExcerpt
from abstain.llm.signals.base import ScorerUnavailable
from abstain.llm.signals.extractive_qa import (
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


def test_find_best_spans_of_overlapping_excerpts() -> None:
    """A span in both excerpts has its better score: e^1, e^2, e^2.5, e^0.5 and e^0 are the weights of five spans."""
    one = ExcerptLogits(0, np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([[0, 1], [1, 2]]))
    other = ExcerptLogits(0, np.array([0.5, 0.0]), np.array([2.0, 0.0]), np.array([[1, 2], [2, 3]]))
    spans = find_best_spans([one, other], max_tokens=2)
    assert spans[:, :3].tolist() == [[0, 1, 2], [0, 0, 2], [0, 0, 1], [0, 1, 3], [0, 2, 3]]
    assert spans[:, 3] == pytest.approx([0.4885, 0.2963, 0.1090, 0.0661, 0.0401], abs=1e-4)
    assert find_best_spans([one, other], 2, 1)[:, 1:] == pytest.approx(
        np.array([[1, 2, 0.7662], [0, 1, 0.1710]]), abs=1e-4
    )


def make_logits(chunk: int, *start: float, no_answer: float | None = None) -> ExcerptLogits:
    """Tokens of one character; the start and the end of each have the same logit."""
    places = np.array([[at, at + 1] for at in range(len(start))]).reshape(-1, 2)
    return ExcerptLogits(chunk, np.array(start), np.array(start), places, no_answer)


@pytest.mark.parametrize(
    ("excerpts", "expected"),
    [
        ([make_logits(0, 0.0, no_answer=-50.0), make_logits(1, 0.0, no_answer=50.0)], [0.5, 0.5]),
        ([make_logits(1, 0.0, no_answer=50.0)], [0.0]),
        ([make_logits(0, 900.0, -900.0, no_answer=0.0)], [1.0, 0.0, 0.0]),
        ([make_logits(0, no_answer=1.0)], []),
        ([], []),
    ],
    ids=["one excerpt has an answer", "no excerpt has one", "large logits", "no tokens", "no excerpts"],
)
def test_find_best_spans_probabilities(excerpts: list[ExcerptLogits], expected: list[float]) -> None:
    spans = find_best_spans(excerpts)
    assert spans.shape == (len(expected), 4)
    assert spans[:, 3] == pytest.approx(expected)


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


@pytest.mark.parametrize(
    ("answer", "spans", "expected"),
    [
        ("ab c", [("AB", 0.5), ("c ab", 0.25), ("d.", 0.25)], 0.5 * 2 / 3 + 0.25),
        ("5 euros", [], math.nan),
        ("—", [("5 euros", 1.0)], math.nan),
        ("", [("5", 1.0)], math.nan),
    ],
)
def test_expected_f1_is_the_mean_over_spans(answer: str, spans: list[tuple[str, float]], expected: float) -> None:
    assert compute_expected_f1(answer, spans) == pytest.approx(expected, nan_ok=True)


def plain_excerpt_logits(folder: Path, chunk: int, excerpt: TextExcerpt) -> ExcerptLogits:
    """The logits of an excerpt by transformers alone; "no answer" is at CLS, the first token."""
    start, end = (logits.double().numpy() for logits in plain_logits(folder, "answer", excerpt.inputs))
    is_chunk = np.array([text == 1 for text in excerpt.sequence_ids])
    places = np.array(excerpt.offsets)[is_chunk]
    return ExcerptLogits(chunk, start[is_chunk], end[is_chunk], places, float(start[0] + end[0]))


def test_extractive_qa_score_is_that_of_plain_logits(scorer: ExtractiveQA, folder: Path) -> None:
    assert (scorer.name, scorer.requires) == ("extractive_qa", ())
    expected = []
    for row in ROWS:
        excerpts = [
            plain_excerpt_logits(folder, chunk, excerpt)
            for chunk, context in enumerate(row.contexts)
            for excerpt in scorer.model.build_excerpts(row.question, context.text, "second")
        ]
        texts = [(row.contexts[int(n)].text[int(a) : int(b)], p) for n, a, b, p in find_best_spans(excerpts)]
        expected.append(compute_expected_f1(row.answer, texts))
    found = scorer.fit(unread(), labels([])).score(unread(*ROWS))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert len(set(found.round(4))) == len(ROWS)
    unreadable = [interaction(contexts=[]), interaction(question="word " * 60), interaction("—")]
    assert np.isnan(scorer.score(unread(*unreadable, interaction()))).tolist() == [True, True, True, False]
    assert scorer.score(unread()).shape == (0,)


def test_extractive_qa_second_answer_loads_no_model(
    scorer: ExtractiveQA, folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = scorer.score(unread(*ROWS, interaction(contexts=[])))
    monkeypatch.setattr(auxiliary_model, "_load", Mock(side_effect=AssertionError("was loaded")))
    again = make_extractive_scorer(str(folder), settings)
    assert_near(again.score(unread(*ROWS, interaction(contexts=[]))), first)
    other, own = again.score(unread(ROWS[1].model_copy(update={"answer": "nothing else"}), ROWS[1]))
    assert other == 0.0 < own == pytest.approx(first[1])
    with pytest.raises(AssertionError, match="was loaded"):
        again.score(unread(interaction(question="Which fee?")))


def test_extractive_qa_missing_model_is_unavailable(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ScorerUnavailable, match="^no model: set scorers.extractive_qa_model"):
        make_extractive_scorer(None, settings)
    folder = save_encoder(tmp_path / "nli", "classify")
    with pytest.raises(ScorerUnavailable, match="is a BertForSequenceClassification"):
        make_extractive_scorer(str(folder), settings)
