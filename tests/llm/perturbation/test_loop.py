from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from torch import Tensor

from abstain.llm.engine.prompts import Segment
from abstain.llm.engine.requests import Perturb
from abstain.llm.perturbation.loop import EncodedText, TokenProposal, encode_text, make_allowed_mask, perturb_texts
from abstain.llm.perturbation.text import TokenTexts
from tests.llm.perturbation.builders import HOSTILE, TEXTS, bpe_tokenizer, chunk, t5_tokenizer
from tests.llm.signals.builders import word_tokenizer


class Table:
    """A model for which token t has log-likelihood -t, and token t + 100 would have taken its place.

    `pull`: how much likelier a token is after a changed one.
    """

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


@pytest.mark.parametrize("where", ["entropy", "random"])
@pytest.mark.parametrize("when", ["single_shot", "iterative"])
def test_perturb_texts_fewer_places_than_tokens_takes_all(where: Any, when: Any) -> None:
    texts = [make_text([5, 6, 7], fixed=[1]), make_text([]), make_text([5, 6], fixed=[0, 1]), make_text([8])]
    steps = perturb_texts(Table(texts), texts, Perturb(where, when, 25))
    assert [sorted(list_places(of_row)) for of_row in steps] == [[0, 2], [], [], [0]]
    assert perturb_texts(Table([]), [], Perturb(where, when, 25)) == []


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


def test_perturb_texts_random_places_are_uniform() -> None:
    counts: Counter[int] = Counter()
    texts = [make_text([5] * 10, fixed=[3])]
    for seed in range(900):
        counts.update(list_places(perturb_texts(Table(texts), texts, Perturb("random", "single_shot", 3, seed))[0]))
    assert set(counts) == set(range(10)) - {3}
    assert all(abs(count - 300) < 75 for count in counts.values()), counts  # 5 standard deviations


def encode(tokenizer: Any, *segments: Segment) -> EncodedText:
    return encode_text(TokenTexts.from_tokenizer(tokenizer), segments, make_allowed_mask(tokenizer, len(tokenizer)))


def test_encode_text_spans_tile_the_segment() -> None:
    for written in (*TEXTS, HOSTILE, "  two  spaces\n\n", "免费🙂"):
        found = encode(bpe_tokenizer(), *chunk(written))
        assert "".join(written[start:end] for _, start, end in found.spans) == written
        assert found.ids == bpe_tokenizer().encode(written, split_special_tokens=True)


def test_encode_text_part_of_a_character_is_fixed() -> None:
    found = encode(bpe_tokenizer(), *chunk("a 🎈 ü"))
    (gone,) = [
        "a 🎈 ü"[start:end]
        for (_, start, end), free in zip(found.spans, found.replaceable, strict=True)
        if not free and start < end
    ]
    assert gone.strip() == "🎈"
    assert found.replaceable[0] and found.replaceable[-1]


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


def test_allowed_mask_is_computed_once_per_tokenizer() -> None:
    tokenizer = bpe_tokenizer()
    once = make_allowed_mask(tokenizer, 310)
    assert make_allowed_mask(tokenizer, 310) is once and once.shape == (310,)
    assert not once[tokenizer.all_special_ids].any() and not once[len(tokenizer) :].any()
    assert once[tokenizer.convert_tokens_to_ids("Ġcard")]
    assert not once[tokenizer.convert_tokens_to_ids("Ã")], "the first of two bytes"
