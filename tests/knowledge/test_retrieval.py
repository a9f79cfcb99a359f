import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.contracts import Chunk
from abstain.errors import AbstainError
from abstain.knowledge.retrieval import DenseIndex, Hit, SentenceEncoder, Vectors, embedded_encoder_folder

VOCABULARY = ("fee", "limit", "card", "loan", "rate")


class BagOfWords:
    """How often each word of the vocabulary occurs: similarities can be told from the texts."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        assert texts, "nothing to encode"
        return np.array([[text.split().count(word) for word in VOCABULARY] for text in texts], dtype=np.float32)


def chunk(key: str, text: str, *entitlements: str) -> Chunk:
    return Chunk(
        chunk_id=key,
        doc_id="d",
        section_path=("T",),
        kind="text",
        text=text,
        entitlements=entitlements,
        updated_at="2026-08-01T00:00:00Z",
        content_hash="0",
    )


def index(*chunks: Chunk) -> DenseIndex:
    return DenseIndex(chunks, BagOfWords())


def ids(hits: list[Hit]) -> list[str]:
    return [hit.chunk.chunk_id for hit in hits]


OPEN = (chunk("far", "rate"), chunk("near", "fee card card"), chunk("best", "fee fee"), chunk("next", "fee card"))


def test_the_nearest_come_first_and_at_most_k() -> None:
    hits = index(*OPEN).search("fee", k=3)
    assert ids(hits) == ["best", "next", "near"]
    # The cosine: how long a text is plays no part.
    assert [hit.score for hit in hits] == pytest.approx([1, 1 / math.sqrt(2), 1 / math.sqrt(5)])
    assert len(index(*OPEN).search("fee", k=99)) == len(OPEN)


@pytest.mark.parametrize("k", [0, -1])
def test_less_than_one_hit_cannot_be_asked_for(k: int) -> None:
    with pytest.raises(ValueError, match=f"k must be at least 1, not {k}"):
        index(*OPEN).search("fee", k)


def test_what_the_asker_may_not_read_neither_shows_up_nor_crowds_out() -> None:
    secret = index(*(chunk(f"secret {n}", "fee", "staff") for n in range(5)), *OPEN)
    assert ids(secret.search("fee", k=2)) == ["best", "next"]
    assert ids(secret.search("fee", k=2, entitlements=["premium"])) == ["best", "next"]
    assert ids(secret.search("fee", k=2, entitlements=["staff"])) == ["secret 0", "secret 1"]
    # Nor does it raise the bar for others.
    assert ids(secret.search("card", k=9, max_gap=0.01)) == ["near"]
    assert index(chunk("s", "fee", "staff")).search("fee", k=1) == []


def test_a_reader_must_hold_every_entitlement() -> None:
    both = index(chunk("both", "fee", "staff", "premium"))
    assert both.search("fee", 1, ["staff"]) == both.search("fee", 1, ["premium"]) == []
    assert ids(both.search("fee", 1, ["premium", "other", "staff"])) == ["both"]


rights = st.lists(st.sampled_from(["staff", "premium"]), max_size=2, unique=True)
some_chunks = st.lists(st.tuples(st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=4), rights), max_size=8)


@given(some_chunks, rights, st.integers(1, 4), st.sampled_from([0.0, 0.3, math.inf]))
def test_a_search_is_as_if_the_forbidden_chunks_were_not_there(
    some: list[tuple[list[str], list[str]]], held: list[str], k: int, max_gap: float
) -> None:
    found = [chunk(f"c#{n}", " ".join(text), *needed) for n, (text, needed) in enumerate(some)]
    readable = [one for one in found if set(one.entitlements) <= set(held)]
    hits = index(*found).search("fee card", k, held, max_gap)
    assert ids(hits) == ids(index(*readable).search("fee card", k, held, max_gap))


def test_hits_far_below_the_best_are_dropped() -> None:
    found = index(*OPEN)
    assert ids(found.search("fee", 4, max_gap=0.5)) == ["best", "next"]
    assert ids(found.search("fee", 4, max_gap=0)) == ["best"]
    assert len(found.search("fee", 4, max_gap=1)) == 4  # the gap itself is allowed


def test_equal_scores_keep_the_order_of_the_chunks() -> None:
    texts = ("fee", "fee limit", "limit")
    same = [chunk(f"c{n}", texts[n * 5 % 7 % 3]) for n in range(300)]  # so many that an unstable sort would mix them
    expected = [one.chunk_id for text in texts for one in same if one.text == text]
    assert ids(index(*same).search("fee", 300)) == expected
    assert ids(index(*same).search("fee", 3, max_gap=0)) == expected[:3]


def test_an_empty_index_finds_nothing() -> None:
    assert index().search("fee", k=3) == []


def test_a_query_that_means_nothing_scores_zero() -> None:
    assert [hit.score for hit in index(*OPEN).search("what?", 2)] == [0, 0]


def test_without_the_embedded_encoder_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abstain.knowledge.retrieval.EMBEDDED_ENCODER", "no_such_encoder")
    with pytest.raises(AbstainError, match=r"not installed: pip install no-such-encoder$"):
        embedded_encoder_folder()


@pytest.mark.slow
def test_the_embedded_encoder_finds_the_chunk_that_a_paraphrase_means() -> None:
    paraphrases = {
        "What do I pay every year for having the card?": "Gold Card > Fees\nThe annual fee is 95 euros.",
        "How much money can I take out of a machine each day?": "Gold Card > Limits\nCash withdrawals: 500 euros a day.",
        "My plastic was stolen, whom do I ring?": "Gold Card > Loss\nReport a lost or stolen card to the hotline.",
        "Am I old enough to get one?": "Gold Card > Who can apply\nApplicants must be at least 18.",
    }
    encoder = SentenceEncoder()
    found = DenseIndex([chunk(f"c{n}", text) for n, text in enumerate(paraphrases.values())], encoder)
    assert [found.search(query, 1)[0].chunk.text for query in paraphrases] == list(paraphrases.values())
    vectors = encoder.encode(["one", "two"])
    assert vectors.shape == (2, 384)
    assert vectors.dtype == np.float32
