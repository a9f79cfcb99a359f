from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertModel

from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.llm.signals import auxiliary_model
from abstain.llm.signals.base import ScorerUnavailable
from abstain.llm.signals.entailment import Entailment, entailment_scorer, probability, supported_label
from tests.llm.signals.builders import (
    TEXTS,
    WINDOW,
    cut_windows,
    interaction,
    labels,
    save_encoder,
    unread,
    word_tokenizer,
)
from tests.tolerance import assert_near

NLI = {0: "contradiction", 1: "neutral", 2: "entailment"}
LONG = " ".join(f"Line {n} says that {word} is not what it was." for n, word in enumerate("abcdefghijklmn"))
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
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", device="cpu")


@pytest.fixture
def scorer(folder: Path, settings: Settings) -> Entailment:
    return entailment_scorer(str(folder), settings)


def supported(folder: Path, premise: str, hypothesis: str) -> float:
    """p(entailment), one pair by itself, with nothing but transformers; of a long premise, over windows cut by hand."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    one, two = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (premise, hypothesis))
    found = []
    for piece in (one[window] for window in cut_windows(two, one)):
        ids = [tokenizer.cls_token_id, *piece, tokenizer.sep_token_id, *two, tokenizer.sep_token_id]
        types = [0] * (len(piece) + 2) + [1] * (len(two) + 1)
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits[0]
        found.append(float(logits.softmax(-1)[2]))
    return max(found)


def test_entailment_score_is_that_of_the_best_chunk(scorer: Entailment, folder: Path) -> None:
    assert (scorer.name, scorer.readings, scorer.supported) == ("entailment", (), 2)
    assert len(scorer.model.windows(LONG, "Who blocks a card? The hotline.", "first")) > 2
    found = scorer.fit(unread(), labels([])).score(unread(*ROWS))
    expected = [
        max(supported(folder, context.text, f"{row.question} {row.answer}") for context in row.contexts) for row in ROWS
    ]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert len(set(found.round(4))) == len(ROWS)


def test_windows_hold_all_of_a_long_chunk_and_overlap(scorer: Entailment) -> None:
    hypothesis = "Who blocks a card? The hotline."
    windows = scorer.model.windows(LONG, hypothesis, "first")
    whole = scorer.model.tokenizer(hypothesis, add_special_tokens=False)["input_ids"]
    assert max(len(window.places) for window in windows) == WINDOW
    covered = np.zeros(len(LONG), int)
    for window in windows:
        (*_, last) = premise = [place for place, text in zip(window.places, window.texts, strict=True) if text == 0]
        covered[premise[0][0] : last[1]] += 1
        ids = [of for of, text in zip(window.inputs["input_ids"], window.texts, strict=True) if text == 1]
        assert ids == whole
    assert covered.min() == 1 and (covered > 1).any()


def test_what_cannot_be_said_is_nan(scorer: Entailment) -> None:
    too_long = interaction("word " * 60)
    found = scorer.score(unread(interaction(contexts=[]), too_long, interaction()))
    assert np.isnan(found).tolist() == [True, True, False]
    assert scorer.score(unread()).shape == (0,)


def test_a_second_run_computes_nothing_and_loads_nothing(
    scorer: Entailment, folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [*ROWS, interaction("word " * 60)]
    first = scorer.score(unread(*rows))

    def refuse(*_: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(auxiliary_model, "_load", refuse)
    again = entailment_scorer(str(folder), settings)
    assert_near(again.score(unread(*rows[::-1])), first[::-1])
    with pytest.raises(AssertionError, match="was loaded"):
        again.score(unread(interaction("6 euros")))


def test_a_pair_is_computed_once_whatever_row_it_is_in(scorer: Entailment, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    run = auxiliary_model.AuxiliaryModel.run
    monkeypatch.setattr(
        auxiliary_model.AuxiliaryModel, "run", lambda self, windows: ran.append(len(windows)) or run(self, windows)
    )
    twice = [interaction(name="one"), interaction(name="two"), interaction(contexts=TEXTS[::-1])]
    found = scorer.score(unread(*twice))
    assert ran == [2]
    assert found[0] == found[1] == found[2]


def test_another_model_is_another_score(scorer: Entailment, settings: Settings, tmp_path: Path) -> None:
    other = entailment_scorer(str(save_encoder(tmp_path / "tiny-nli", "classify", seed=1, id2label=NLI)), settings)
    assert scorer.model.ref.name == other.model.ref.name
    assert not np.isclose(scorer.score(unread(ROWS[0])), other.score(unread(ROWS[0])), atol=1e-3).any()


@pytest.mark.parametrize("tokens", [1, 150])
def test_what_runs_together_changes_nothing(folder: Path, tmp_path: Path, scorer: Entailment, tokens: int) -> None:
    narrow = Settings(home=tmp_path / "other", device="cpu", batch_tokens=tokens)
    found = entailment_scorer(str(folder), narrow).score(unread(*ROWS))
    np.testing.assert_allclose(found, scorer.score(unread(*ROWS)), atol=1e-6)


def test_a_tokenizer_without_padding_does(folder: Path, settings: Settings, tmp_path: Path, scorer: Entailment) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "unpadded"))
    tokenizer = AutoTokenizer.from_pretrained(copy)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(copy)
    unpadded = entailment_scorer(str(copy), settings)
    found = unpadded.score(unread(*ROWS))
    assert unpadded.model.tokenizer.pad_token is None
    np.testing.assert_allclose(found, scorer.score(unread(*ROWS)), atol=1e-6)


def test_one_run_is_like_another_to_the_last_bit(folder: Path, tmp_path: Path) -> None:
    one, two = (Settings(home=tmp_path / name, device="cpu") for name in ("one", "two"))
    np.testing.assert_array_equal(*(entailment_scorer(str(folder), s).score(unread(*ROWS)) for s in (one, two)))


def test_what_people_wrote_holds_no_special_tokens(scorer: Entailment) -> None:
    (window,) = scorer.model.windows("A card.[SEP][CLS]", "Yes [SEP] no", "first")
    tokenizer = scorer.model.tokenizer
    ids = window.inputs["input_ids"]
    assert (ids.count(tokenizer.sep_token_id), ids.count(tokenizer.cls_token_id)) == (2, 1)


def test_roberta_counts_its_positions_from_after_padding(tmp_path: Path, settings: Settings) -> None:
    folder = save_encoder(tmp_path / "r", "classify", family="roberta", id2label=NLI)
    scorer = entailment_scorer(str(folder), settings)
    assert max(len(window.places) for window in scorer.model.windows(LONG, "A claim.", "first")) == WINDOW
    assert np.isfinite(scorer.score(unread(*ROWS))).all()


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
def test_the_label_that_means_supported(names: list[str], expected: int | None) -> None:
    assert supported_label(dict(enumerate(names))) == expected


@pytest.mark.parametrize(
    "names", [["LABEL_0", "LABEL_1", "LABEL_2"], ["positive", "negative"], ["entailment", "supported"]]
)
def test_labels_that_do_not_say_so_are_listed(names: list[str], tmp_path: Path, settings: Settings) -> None:
    folder = save_encoder(tmp_path / "m", "classify", id2label=dict(enumerate(names)))
    with pytest.raises(ScorerUnavailable) as caught:
        entailment_scorer(str(folder), settings)
    assert str(caught.value) == (
        f"{folder}: the label that means 'supported' is ambiguous among {', '.join(names)}; "
        "change scorers.entailment_model"
    )


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=4), st.data())
def test_a_probability_is_the_softmax_or_of_one_logit_the_sigmoid(logits: list[float], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(logits) - 1))
    exact = np.exp(np.array(logits) - max(logits))
    found = probability(torch.tensor(logits), at)
    assert found == pytest.approx(exact[at] / exact.sum(), abs=1e-6)
    one = probability(torch.tensor(logits[:1]), None)
    assert one == pytest.approx(1 / (1 + np.exp(-logits[0])), abs=1e-6)


def test_a_single_logit_is_a_log_odds(tmp_path: Path, settings: Settings) -> None:
    folder = save_encoder(tmp_path / "hhem", "classify", num_labels=1)
    scorer = entailment_scorer(str(folder), settings)
    assert scorer.supported is None
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        logit = model(**tokenizer(TEXTS[0], "What is the fee? 5 euros", return_tensors="pt")).logits[0, 0]
    expected = float(torch.sigmoid(logit))
    assert scorer.score(unread(interaction(contexts=TEXTS[:1])))[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", [None, ""])
def test_no_model_is_said(name: str | None, settings: Settings) -> None:
    with pytest.raises(ScorerUnavailable, match=r"^no model: set scorers.entailment_model in params.yaml$"):
        entailment_scorer(name, settings)


def test_a_model_that_is_not_there_is_one_line_with_a_remedy(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ScorerUnavailable) as caught:
        entailment_scorer("nobody/no-such-model@v1", settings)
    message = str(caught.value)
    assert message.startswith("model 'nobody/no-such-model@v1' cannot be found")
    assert message.endswith("; set scorers.entailment_model in params.yaml") and "\n" not in message
    with pytest.raises(ScorerUnavailable, match="is no model folder"):
        entailment_scorer(str(tmp_path), settings)


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_model_with_another_head_is_refused(tmp_path: Path, settings: Settings) -> None:
    folder = save_encoder(tmp_path / "qa", "answer")
    with pytest.raises(ScorerUnavailable) as caught:
        entailment_scorer(str(folder), settings)
    assert str(caught.value) == (
        f"{folder} is a BertForQuestionAnswering: scorers.entailment_model needs a ...ForSequenceClassification"
    )


def test_a_model_without_a_tokenizer_beside_it_is_refused(tmp_path: Path, settings: Settings) -> None:
    folder = save_encoder(tmp_path / "mute", "classify", id2label=NLI)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ScorerUnavailable, match="its tokenizer knows no words: save the tokenizer beside the model"):
        entailment_scorer(str(folder), settings)


def test_weights_that_cannot_be_read_are_one_line(tmp_path: Path, settings: Settings) -> None:
    folder = save_encoder(tmp_path / "broken", "classify", id2label=NLI)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(
        AbstainError, match=r"^the files of broken cannot be used \(.*: save them anew, or name another"
    ):
        entailment_scorer(str(folder), settings).score(unread(interaction()))


def test_a_model_that_brings_its_own_code_is_refused(tmp_path: Path, settings: Settings) -> None:
    folder = save_encoder(tmp_path / "own", "classify", id2label=NLI)
    edit_config(folder, model_type="own", auto_map={"AutoConfig": "own.OwnConfig"})
    (folder / "own.py").write_text("raise SystemExit('this was run')")
    with pytest.raises(
        ScorerUnavailable, match=r"cannot be used \(.*\): save them anew, or set scorers.entailment_model in params"
    ):
        entailment_scorer(str(folder), settings)


def test_a_head_that_was_never_trained_is_an_error_and_no_score(tmp_path: Path, settings: Settings) -> None:
    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    BertModel(BertConfig(vocab_size=300, max_position_embeddings=WINDOW, **small)).save_pretrained(tmp_path / "bare")
    word_tokenizer().save_pretrained(tmp_path / "bare")
    edit_config(tmp_path / "bare", architectures=["BertForSequenceClassification"], id2label=NLI)
    scorer = entailment_scorer(str(tmp_path / "bare"), settings)
    with pytest.raises(AbstainError, match=r"^bare: its weights lack classifier.bias"):
        scorer.score(unread(interaction()))


def test_logits_that_are_not_finite_are_an_error(tmp_path: Path, settings: Settings) -> None:
    folder = save_encoder(tmp_path / "nan", "classify", id2label=NLI)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.classifier.bias.data[0] = float("nan")
    model.save_pretrained(folder)
    with pytest.raises(AbstainError, match="^nan: its logits are not finite"):
        entailment_scorer(str(folder), settings).score(unread(interaction()))
