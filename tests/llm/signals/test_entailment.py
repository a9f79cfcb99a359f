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
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertModel

from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.llm.signals import auxiliary_model
from abstain.llm.signals.base import ScorerUnavailable
from abstain.llm.signals.entailment import (
    Entailment,
    compute_support_probability,
    find_supported_label,
    make_entailment_scorer,
)
from tests.llm.signals.builders import (
    LONG,
    TEXTS,
    WINDOW,
    interaction,
    labels,
    plain_logits,
    save_encoder,
    unread,
)
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


def test_entailment_score_is_that_of_the_best_chunk(scorer: Entailment, folder: Path) -> None:
    """Of a long chunk, of its best excerpt; of a row alone, by transformers."""
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


@pytest.mark.parametrize("long", [0, 1])
def test_windows_hold_all_of_a_long_text_and_overlap_by_a_quarter(scorer: Entailment, long: int) -> None:
    """And the whole other text. A pair that fits is as the tokenizer has it; no one can write a special token."""
    model, tokenizer = scorer.model, scorer.model.tokenizer
    side, short = ("first", "second")[long], "Who blocks a card? [SEP] The hotline.[CLS]"
    excerpts = model.build_excerpts(*((LONG, short) if long == 0 else (short, LONG)), side)  # type: ignore[arg-type]
    encoded = tokenizer(LONG, add_special_tokens=False, return_offsets_mapping=True)
    other = tokenizer(short, add_special_tokens=False)["input_ids"]
    room = WINDOW - 3 - len(other)  # beside three special tokens
    shared = end = room // 4
    for excerpt in excerpts:
        ids = excerpt.inputs["input_ids"]
        assert (ids.count(tokenizer.sep_token_id), ids.count(tokenizer.cls_token_id)) == (2, 1)
        assert [of for of, text in zip(ids, excerpt.sequence_ids, strict=True) if text == 1 - long] == other
        mine = [at for at, text in enumerate(excerpt.sequence_ids) if text == long]
        assert len(mine) == room or excerpt is excerpts[-1]
        here = slice(end - shared, end - shared + len(mine))
        assert [ids[at] for at in mine] == encoded["input_ids"][here]
        assert [excerpt.offsets[at] for at in mine] == encoded["offset_mapping"][here]
        end = here.stop
    assert end == len(encoded["input_ids"]) and len(excerpts) > 2
    (fits,) = model.build_excerpts(TEXTS[0], "A card.", side)  # type: ignore[arg-type]
    assert fits.inputs == dict(tokenizer(TEXTS[0], "A card."))


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
    again = make_entailment_scorer(str(folder), settings)
    assert_near(again.score(unread(*rows[::-1])), first[::-1])
    with pytest.raises(AssertionError, match="was loaded"):
        again.score(unread(interaction("6 euros")))


def test_a_pair_is_computed_once_whatever_row_it_is_in(scorer: Entailment, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    run = auxiliary_model.AuxiliaryModel.run
    monkeypatch.setattr(
        auxiliary_model.AuxiliaryModel, "run", lambda self, excerpts: ran.append(len(excerpts)) or run(self, excerpts)
    )
    twice = [interaction(name="one"), interaction(name="two"), interaction(contexts=TEXTS[::-1])]
    found = scorer.score(unread(*twice))
    assert ran == [2]
    assert found[0] == found[1] == found[2]


def test_another_model_is_another_score(scorer: Entailment, settings: Settings, tmp_path: Path) -> None:
    other = make_entailment_scorer(str(save_encoder(tmp_path / "tiny-nli", "classify", seed=1, id2label=NLI)), settings)
    assert scorer.model.ref.name == other.model.ref.name
    assert not np.isclose(scorer.score(unread(ROWS[0])), other.score(unread(ROWS[0])), atol=1e-3).any()


@pytest.mark.parametrize("tokens", [1, 150])
def test_what_runs_together_changes_nothing(folder: Path, tmp_path: Path, scorer: Entailment, tokens: int) -> None:
    """And one run is like another to the last bit."""
    narrow = [Settings(home=tmp_path / name, device="cpu", batch_tokens=tokens) for name in ("one", "two")]
    one, two = (make_entailment_scorer(str(folder), settings).score(unread(*ROWS)) for settings in narrow)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(one, scorer.score(unread(*ROWS)), atol=1e-6)


def test_a_tokenizer_without_padding_does(folder: Path, settings: Settings, tmp_path: Path, scorer: Entailment) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "unpadded"))
    tokenizer = AutoTokenizer.from_pretrained(copy)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(copy)
    unpadded = make_entailment_scorer(str(copy), settings)
    found = unpadded.score(unread(*ROWS))
    assert unpadded.model.tokenizer.pad_token is None
    np.testing.assert_allclose(found, scorer.score(unread(*ROWS)), atol=1e-6)


def test_roberta_counts_its_positions_from_after_padding(tmp_path: Path, settings: Settings) -> None:
    folder = save_encoder(tmp_path / "r", "classify", family="roberta", id2label=NLI)
    scorer = make_entailment_scorer(str(folder), settings)
    assert max(len(excerpt.offsets) for excerpt in scorer.model.build_excerpts(LONG, "A claim.", "first")) == WINDOW
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
    assert find_supported_label(dict(enumerate(names))) == expected


@pytest.mark.parametrize(
    "names", [["LABEL_0", "LABEL_1", "LABEL_2"], ["positive", "negative"], ["entailment", "supported"]]
)
def test_labels_that_do_not_say_so_are_listed(names: list[str], tmp_path: Path, settings: Settings) -> None:
    folder = save_encoder(tmp_path / "m", "classify", id2label=dict(enumerate(names)))
    with pytest.raises(ScorerUnavailable) as caught:
        make_entailment_scorer(str(folder), settings)
    assert str(caught.value) == (
        f"{folder}: the label that means 'supported' is ambiguous among {', '.join(names)}; "
        "change scorers.entailment_model"
    )


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=4), st.data())
def test_a_probability_is_the_softmax_or_of_one_logit_the_sigmoid(logits: list[float], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(logits) - 1))
    exact = np.exp(np.array(logits) - max(logits))
    found = compute_support_probability(torch.tensor(logits), at)
    assert found == pytest.approx(exact[at] / exact.sum(), abs=1e-6)
    one = compute_support_probability(torch.tensor(logits[:1]), None)
    assert one == pytest.approx(1 / (1 + np.exp(-logits[0])), abs=1e-6)


def test_a_single_logit_is_a_log_odds(tmp_path: Path, settings: Settings) -> None:
    folder = save_encoder(tmp_path / "hhem", "classify", num_labels=1)
    scorer = make_entailment_scorer(str(folder), settings)
    assert scorer.supported_index is None
    pair = AutoTokenizer.from_pretrained(folder)(TEXTS[0], "What is the fee? 5 euros")
    expected = float(torch.sigmoid(plain_logits(folder, "classify", pair)[0][0]))
    assert scorer.score(unread(interaction(contexts=TEXTS[:1])))[0] == pytest.approx(expected, abs=1e-5)


def test_a_model_that_is_not_named_or_not_there_is_one_line_with_a_remedy(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    another = save_encoder(tmp_path / "qa", "answer")
    for name, says in {
        None: "^no model: set scorers.entailment_model in params.yaml$",
        "": "^no model: set scorers.entailment_model in params.yaml$",
        "nobody/no-such-model@v1": "^model 'nobody/no-such-model@v1' cannot be found.*; set scorers.entailment_model in p",
        str(tmp_path): "is no model folder",
        str(another): "is a BertForQuestionAnswering: scorers.entailment_model needs a ...ForSequenceClassification$",
    }.items():
        with pytest.raises(ScorerUnavailable, match=says) as caught:
            make_entailment_scorer(name, settings)
        assert "\n" not in str(caught.value)


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def without_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def with_code_of_its_own(folder: Path) -> None:
    edit_config(folder, model_type="own", auto_map={"AutoConfig": "own.OwnConfig"})
    (folder / "own.py").write_text("raise SystemExit('this was run')")


def with_pickled_weights(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "other.safetensors")


def with_half_of_its_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])


def with_nan_logits(folder: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.classifier.bias.data[0] = float("nan")
    model.save_pretrained(folder)


def with_a_head_that_was_never_trained(folder: Path) -> None:
    BertModel.from_pretrained(folder).save_pretrained(folder)
    edit_config(folder, architectures=["BertForSequenceClassification"], id2label=NLI)


@pytest.mark.parametrize(
    ("damage", "error", "says"),
    [
        (without_tokenizer, ScorerUnavailable, "its tokenizer knows no words: save the tokenizer beside the model"),
        (
            with_code_of_its_own,
            ScorerUnavailable,
            r"cannot be used \(.*\): save them anew, or set scorers.entailment_mod",
        ),
        (
            with_half_of_its_weights,
            AbstainError,
            r"^the files of tiny cannot be used \(.*: save them anew, or name ano",
        ),
        (with_pickled_weights, AbstainError, r"^the files of tiny cannot be used \(OSError: .*\bmodel\.safetensors\b"),
        (with_a_head_that_was_never_trained, AbstainError, "^tiny: its weights lack classifier.bias"),
        (with_nan_logits, AbstainError, "^tiny: its logits are not finite"),
    ],
)
def test_a_model_that_cannot_be_used_is_an_error_and_no_score(
    folder: Path, tmp_path: Path, settings: Settings, damage: Any, error: type[Exception], says: str
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "tiny"))
    damage(copy)
    with pytest.raises(error, match=says):
        make_entailment_scorer(str(copy), settings).score(unread(interaction()))
