import math
import shutil
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertModel

from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.llm.signals import auxiliary_model
from abstain.llm.signals.auxiliary_model import TextExcerpt
from abstain.llm.signals.base import ScorerUnavailable
from abstain.llm.signals.entailment import (
    Entailment,
    compute_support_probability,
    find_supported_label,
    make_entailment_scorer,
)
from abstain.llm.signals.extractive_qa import (
    ExcerptLogits,
    ExtractiveQA,
    compute_expected_f1,
    find_best_spans,
    make_extractive_scorer,
    token_f1,
)
from tests.llm.signals.builders import LONG, TEXTS, WINDOW, interaction, labels, plain_logits, save_encoder, unread
from tests.tolerance import assert_near

NLI = {0: "contradiction", 1: "neutral", 2: "entailment"}
ROWS = [
    interaction(),
    interaction("None at all.", TEXTS[1:]),
    interaction("By day, and by night.", [LONG, *TEXTS], "When may I call?"),
    interaction("The hotline.", [LONG], "Who blocks a card?"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("models") / "tiny-nli", "classify", id2label=NLI)


@pytest.fixture
def scorer(folder: Path, settings: Settings) -> Entailment:
    return make_entailment_scorer(str(folder), settings)


def test_entailment_score_is_that_of_the_best_chunk(
    scorer: Entailment, folder: Path, settings: Settings, tmp_path: Path
) -> None:
    assert (scorer.name, scorer.requires, scorer.supported_index) == ("entailment", (), 2)
    expected = [
        max(
            float(plain_logits(folder, "classify", excerpt.inputs)[0].softmax(-1)[2])
            for context in row.contexts
            for excerpt in scorer.model.build_excerpts(context.text, f"{row.question} {row.answer}", "first")
        )
        for row in ROWS
    ]
    found = scorer.fit(unread(), labels([])).score(unread(*ROWS))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert len(set(found.round(4))) == len(ROWS)
    other = save_encoder(tmp_path / folder.name, "classify", seed=1, id2label=NLI)
    other_found = make_entailment_scorer(str(other), settings).score(unread(*ROWS))
    assert not np.isclose(found, other_found, atol=1e-3).any(), "of other weights of the same name"
    unreadable = [interaction(contexts=[]), interaction("word " * 60), interaction()]
    assert np.isnan(scorer.score(unread(*unreadable))).tolist() == [True, True, False]
    assert scorer.score(unread()).shape == (0,)


@pytest.mark.parametrize("long", [0, 1])
def test_build_excerpts_cover_the_long_text_with_overlap(scorer: Entailment, long: int) -> None:
    model, tokenizer = scorer.model, scorer.model.tokenizer
    short = "Who blocks a card? [SEP] The hotline.[CLS]"
    pair, split = ((LONG, short), "first") if long == 0 else ((short, LONG), "second")
    excerpts = model.build_excerpts(*pair, split)  # type: ignore[arg-type]
    assert len(excerpts) > 2
    other = tokenizer(short, add_special_tokens=False)["input_ids"]
    parts = []
    for excerpt in excerpts:
        ids = excerpt.inputs["input_ids"]
        assert len(ids) <= WINDOW
        assert (ids.count(tokenizer.sep_token_id), ids.count(tokenizer.cls_token_id)) == (2, 1)
        assert [of for of, text in zip(ids, excerpt.sequence_ids, strict=True) if text == 1 - long] == other
        parts.append([place for place, text in zip(excerpt.offsets, excerpt.sequence_ids, strict=True) if text == long])
    assert list(dict.fromkeys(chain(*parts))) == tokenizer(LONG, return_offsets_mapping=True)["offset_mapping"][1:-1]
    overlap = (WINDOW - 3 - len(other)) // 4  # beside three special tokens
    assert all(one[-overlap:] == next_one[:overlap] for one, next_one in pairwise(parts))
    (fits,) = model.build_excerpts(TEXTS[0], "A card.", split)  # type: ignore[arg-type]
    assert fits.inputs == dict(tokenizer(TEXTS[0], "A card."))


def test_entailment_equal_pairs_are_computed_once(scorer: Entailment, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Mock(side_effect=partial(auxiliary_model.AuxiliaryModel.run, scorer.model))
    monkeypatch.setattr(auxiliary_model.AuxiliaryModel, "run", run)
    twice = [interaction(name="one"), interaction(name="two"), interaction(contexts=TEXTS[::-1])]
    assert len(set(scorer.score(unread(*twice)))) == 1
    assert [len(call.args[0]) for call in run.call_args_list] == [2]


@pytest.mark.parametrize("tokens", [1, 150])
def test_entailment_scores_do_not_depend_on_the_batch(
    folder: Path, tmp_path: Path, scorer: Entailment, tokens: int
) -> None:
    narrow = [Settings(home=tmp_path / name, device="cpu", batch_tokens=tokens) for name in ("one", "two", "three")]
    one, two = (make_entailment_scorer(str(folder), settings).score(unread(*ROWS)) for settings in narrow[:2])
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(one, scorer.score(unread(*ROWS)), atol=1e-6)
    copy = Path(shutil.copytree(folder, tmp_path / "unpadded"))
    tokenizer = AutoTokenizer.from_pretrained(copy)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(copy)
    unpadded = make_entailment_scorer(str(copy), narrow[2])
    assert unpadded.model.tokenizer.pad_token is None
    np.testing.assert_allclose(one, unpadded.score(unread(*ROWS)), atol=1e-6)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["contradiction", "neutral", "entailment"], 2),
        (["ENTAILMENT", "NOT_ENTAILMENT"], 0),
        (["SUPPORTS", "REFUTES", "NOT ENOUGH INFO"], 0),
        (["inconsistent", "consistent"], 1),
        (["unsupported", "Supported"], 1),
        (["LABEL_0", "LABEL_1"], 1),
        (["LABEL_0"], None),
    ],
)
def test_find_supported_label_by_names(names: list[str], expected: int | None) -> None:
    assert find_supported_label(dict(enumerate(names))) == expected


def test_find_supported_label_ambiguous_lists_all() -> None:
    for names in (["LABEL_0", "LABEL_1", "LABEL_2"], ["positive", "negative"], ["entailment", "supported"]):
        with pytest.raises(ValueError, match=", ".join(names)):
            find_supported_label(dict(enumerate(names)))


@pytest.mark.parametrize(
    ("logits", "index", "expected"),
    [([0.0, 0.0], 1, 0.5), ([1.0, 2.0, 3.0], 0, 0.0900), ([-30.0, 30.0], 1, 1.0), ([2.0], None, 0.8808)],
)
def test_support_probability_is_softmax_or_sigmoid(logits: list[float], index: int | None, expected: float) -> None:
    assert compute_support_probability(torch.tensor(logits), index) == pytest.approx(expected, abs=1e-4)


def test_entailment_single_logit_is_log_odds(tmp_path: Path, settings: Settings) -> None:
    folder = save_encoder(tmp_path / "hhem", "classify", num_labels=1)
    scorer = make_entailment_scorer(str(folder), settings)
    assert scorer.supported_index is None
    pair = AutoTokenizer.from_pretrained(folder)(TEXTS[0], "What is the fee? 5 euros")
    expected = float(torch.sigmoid(plain_logits(folder, "classify", pair)[0][0]))
    assert scorer.score(unread(interaction(contexts=TEXTS[:1])))[0] == pytest.approx(expected, abs=1e-5)


def test_entailment_missing_model_is_one_line(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    another = save_encoder(tmp_path / "qa", "answer")
    unclear = save_encoder(tmp_path / "unclear", "classify", id2label={0: "good", 1: "bad"})
    damaged = save_encoder(tmp_path / "damaged", "classify")
    (damaged / "config.json").write_text("{")
    for name, says in {
        None: "^no model: set scorers.entailment_model",
        "": "^no model: set scorers.entailment_model",
        "nobody/no-such-model@v1": "^model 'nobody/no-such-model@v1' cannot be found.*scorers.entailment_model",
        str(tmp_path): "is no model folder",
        str(damaged): "cannot be used .*scorers.entailment_model",
        str(another): "is a BertForQuestionAnswering: scorers.entailment_model",
        str(unclear): "ambiguous among good, bad; change scorers.entailment_model",
    }.items():
        with pytest.raises(ScorerUnavailable, match=says):
            make_entailment_scorer(name, settings)


def test_entailment_unsuitable_model_is_an_error(folder: Path, tmp_path: Path, settings: Settings) -> None:
    def score(copy: Path) -> None:
        make_entailment_scorer(str(copy), settings).score(unread(interaction()))

    tokenless, headless, infinite = (Path(shutil.copytree(folder, tmp_path / f"tiny-{n}")) for n in range(3))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tokenless / name).unlink()
    with pytest.raises(ScorerUnavailable, match="its tokenizer knows no words"):
        score(tokenless)
    config = (headless / "config.json").read_text()
    BertModel.from_pretrained(headless).save_pretrained(headless)
    (headless / "config.json").write_text(config)
    with pytest.raises(AbstainError, match="^tiny-1: its weights lack classifier.bias"):
        score(headless)
    model = AutoModelForSequenceClassification.from_pretrained(infinite)
    model.classifier.bias.data[0] = float("nan")
    model.save_pretrained(infinite)
    with pytest.raises(AbstainError, match="^tiny-2: its logits are not finite"):
        score(infinite)


QUESTIONS = [
    interaction(),
    interaction("call the hotline", question="How is a card blocked?"),
    interaction("The fee of the gold card is 5 euros.", [LONG, *TEXTS]),
    interaction("Line 3 says it was not.", [LONG], "When?"),
]


@pytest.fixture(scope="module")
def qa_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("models") / "tiny-qa", "answer", initializer_range=0.1)


@pytest.fixture
def qa_scorer(qa_folder: Path, settings: Settings) -> ExtractiveQA:
    return make_extractive_scorer(str(qa_folder), settings)


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


def plain_excerpt_logits(qa_folder: Path, chunk: int, excerpt: TextExcerpt) -> ExcerptLogits:
    """The logits of an excerpt by transformers alone; "no answer" is at CLS, the first token."""
    start, end = (logits.double().numpy() for logits in plain_logits(qa_folder, "answer", excerpt.inputs))
    is_chunk = np.array([text == 1 for text in excerpt.sequence_ids])
    places = np.array(excerpt.offsets)[is_chunk]
    return ExcerptLogits(chunk, start[is_chunk], end[is_chunk], places, float(start[0] + end[0]))


def test_extractive_qa_score_is_that_of_plain_logits(qa_scorer: ExtractiveQA, qa_folder: Path) -> None:
    assert (qa_scorer.name, qa_scorer.requires) == ("extractive_qa", ())
    expected = []
    for row in QUESTIONS:
        excerpts = [
            plain_excerpt_logits(qa_folder, chunk, excerpt)
            for chunk, context in enumerate(row.contexts)
            for excerpt in qa_scorer.model.build_excerpts(row.question, context.text, "second")
        ]
        texts = [(row.contexts[int(n)].text[int(a) : int(b)], p) for n, a, b, p in find_best_spans(excerpts)]
        expected.append(compute_expected_f1(row.answer, texts))
    found = qa_scorer.fit(unread(), labels([])).score(unread(*QUESTIONS))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert len(set(found.round(4))) == len(QUESTIONS)
    unreadable = [interaction(contexts=[]), interaction(question="word " * 60), interaction("—")]
    assert np.isnan(qa_scorer.score(unread(*unreadable, interaction()))).tolist() == [True, True, True, False]
    assert qa_scorer.score(unread()).shape == (0,)


def test_extractive_qa_second_answer_loads_no_model(
    qa_scorer: ExtractiveQA, qa_folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = qa_scorer.score(unread(*QUESTIONS, interaction(contexts=[])))
    monkeypatch.setattr(auxiliary_model, "_load", Mock(side_effect=AssertionError("was loaded")))
    again = make_extractive_scorer(str(qa_folder), settings)
    assert_near(again.score(unread(*QUESTIONS, interaction(contexts=[]))), first)
    other, own = again.score(unread(QUESTIONS[1].model_copy(update={"answer": "nothing else"}), QUESTIONS[1]))
    assert other == 0.0 < own == pytest.approx(first[1])
    with pytest.raises(AssertionError, match="was loaded"):
        again.score(unread(interaction(question="Which fee?")))
