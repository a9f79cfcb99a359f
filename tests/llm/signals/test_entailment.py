import json
import shutil
from itertools import chain, pairwise
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub.constants
import numpy as np
import pytest
import torch
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


def test_entailment_unreadable_row_is_nan(scorer: Entailment) -> None:
    too_long = interaction("word " * 60)
    found = scorer.score(unread(interaction(contexts=[]), too_long, interaction()))
    assert np.isnan(found).tolist() == [True, True, False]
    assert scorer.score(unread()).shape == (0,)


def test_entailment_second_run_loads_no_model(
    scorer: Entailment, folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [*ROWS, interaction("word " * 60)]
    first = scorer.score(unread(*rows))
    monkeypatch.setattr(auxiliary_model, "_load", Mock(side_effect=AssertionError("was loaded")))
    again = make_entailment_scorer(str(folder), settings)
    assert_near(again.score(unread(*rows[::-1])), first[::-1])
    with pytest.raises(AssertionError, match="was loaded"):
        again.score(unread(interaction("6 euros")))


def test_entailment_equal_pairs_are_computed_once(scorer: Entailment, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    run = auxiliary_model.AuxiliaryModel.run
    monkeypatch.setattr(
        auxiliary_model.AuxiliaryModel, "run", lambda self, excerpts: ran.append(len(excerpts)) or run(self, excerpts)
    )
    twice = [interaction(name="one"), interaction(name="two"), interaction(contexts=TEXTS[::-1])]
    found = scorer.score(unread(*twice))
    assert ran == [2]
    assert found[0] == found[1] == found[2]


def test_entailment_other_weights_give_other_scores(scorer: Entailment, settings: Settings, tmp_path: Path) -> None:
    other = make_entailment_scorer(str(save_encoder(tmp_path / "tiny-nli", "classify", seed=1, id2label=NLI)), settings)
    assert scorer.model.ref.name == other.model.ref.name
    assert not np.isclose(scorer.score(unread(ROWS[0])), other.score(unread(ROWS[0])), atol=1e-3).any()


@pytest.mark.parametrize("tokens", [1, 150])
def test_entailment_scores_do_not_depend_on_the_batch(
    folder: Path, tmp_path: Path, scorer: Entailment, tokens: int
) -> None:
    narrow = [Settings(home=tmp_path / name, device="cpu", batch_tokens=tokens) for name in ("one", "two")]
    one, two = (make_entailment_scorer(str(folder), settings).score(unread(*ROWS)) for settings in narrow)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(one, scorer.score(unread(*ROWS)), atol=1e-6)


def test_entailment_tokenizer_without_padding_is_accepted(
    folder: Path, settings: Settings, tmp_path: Path, scorer: Entailment
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "unpadded"))
    tokenizer = AutoTokenizer.from_pretrained(copy)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(copy)
    unpadded = make_entailment_scorer(str(copy), settings)
    found = unpadded.score(unread(*ROWS))
    assert unpadded.model.tokenizer.pad_token is None
    np.testing.assert_allclose(found, scorer.score(unread(*ROWS)), atol=1e-6)


def test_entailment_roberta_window_excludes_padding_positions(tmp_path: Path, settings: Settings) -> None:
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
def test_find_supported_label_by_names(names: list[str], expected: int | None) -> None:
    assert find_supported_label(dict(enumerate(names))) == expected


@pytest.mark.parametrize(
    "names", [["LABEL_0", "LABEL_1", "LABEL_2"], ["positive", "negative"], ["entailment", "supported"]]
)
def test_entailment_ambiguous_labels_are_listed(names: list[str], tmp_path: Path, settings: Settings) -> None:
    folder = save_encoder(tmp_path / "m", "classify", id2label=dict(enumerate(names)))
    with pytest.raises(ScorerUnavailable) as caught:
        make_entailment_scorer(str(folder), settings)
    assert ", ".join(names) in str(caught.value) and "scorers.entailment_model" in str(caught.value)


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
    for name, says in {
        None: "^no model: set scorers.entailment_model",
        "": "^no model: set scorers.entailment_model",
        "nobody/no-such-model@v1": "^model 'nobody/no-such-model@v1' cannot be found.*scorers.entailment_model",
        str(tmp_path): "is no model folder",
        str(another): "is a BertForQuestionAnswering: scorers.entailment_model",
    }.items():
        with pytest.raises(ScorerUnavailable, match=says) as caught:
            make_entailment_scorer(name, settings)
        assert "\n" not in str(caught.value)


def test_entailment_damaged_model_is_an_error(folder: Path, tmp_path: Path, settings: Settings) -> None:
    def score(copy: Path) -> None:
        make_entailment_scorer(str(copy), settings).score(unread(interaction()))

    tokenless, half, pickled, headless, unfinite = (
        Path(shutil.copytree(folder, tmp_path / f"tiny-{n}")) for n in range(5)
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tokenless / name).unlink()
    with pytest.raises(ScorerUnavailable, match="its tokenizer knows no words"):
        score(tokenless)
    (half / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:100])
    with pytest.raises(AbstainError, match="^the files of tiny-1 cannot be used"):
        score(half)
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").rename(pickled / "other.safetensors")
    with pytest.raises(AbstainError, match=r"\(OSError: .*\bmodel\.safetensors\b"):
        score(pickled)
    config = (headless / "config.json").read_text()
    BertModel.from_pretrained(headless).save_pretrained(headless)
    (headless / "config.json").write_text(config)
    with pytest.raises(AbstainError, match="^tiny-3: its weights lack classifier.bias"):
        score(headless)
    model = AutoModelForSequenceClassification.from_pretrained(unfinite)
    model.classifier.bias.data[0] = float("nan")
    model.save_pretrained(unfinite)
    with pytest.raises(AbstainError, match="^tiny-4: its logits are not finite"):
        score(unfinite)


def test_entailment_runs_no_code_of_a_folder(folder: Path, tmp_path: Path, settings: Settings) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "tiny"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(
        json.dumps(config | {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}})
    )
    (copy / "own.py").write_text("raise SystemExit('this was run')")
    with pytest.raises(ScorerUnavailable, match="cannot be used .*scorers.entailment_model"):
        make_entailment_scorer(str(copy), settings)
