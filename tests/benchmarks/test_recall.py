from pathlib import Path

import pytest

from abstain.knowledge.retrieval.embeddings import Embeddings
from abstain.knowledge.retrieval.faiss_index import FaissIndex
from abstain.knowledge.retrieval.retriever import Retriever
from benchmarks.recall import (
    KS,
    GoldQuestion,
    Recall,
    compute_recall,
    find_gold_rank,
    find_gold_ranks,
    select_answerable,
)
from tests.knowledge.builders import BagOfWords, chunk

pytestmark = pytest.mark.soak(twin="test_recall_over_a_file")

CHUNKS = (chunk("a#1", "fee"), chunk("a#2", "fee card"), chunk("b#1", "loan", "staff"), chunk("c#1", "rate"))


def ask(question: str, *gold: str, held: tuple[str, ...] = ()) -> GoldQuestion:
    return GoldQuestion(question=question, gold=gold, entitlements=held)


def test_compute_recall_is_the_share_within_k() -> None:
    found = compute_recall([1, 2, None, 26, 10], [*KS, 26])
    assert [(one.k, one.share) for one in found[:-1]] == [(1, 0.2), (3, 0.4), (5, 0.4), (10, 0.6), (25, 0.6)]
    assert found[-1] == Recall(26, 0.8, pytest.approx(0.3755, abs=1e-3), pytest.approx(0.9638, abs=1e-3))


def test_find_gold_ranks_encodes_a_question_once(tmp_path: Path) -> None:
    encoder = BagOfWords()
    retriever = Retriever(FaissIndex(), Embeddings(encoder, tmp_path))
    retriever.sync(CHUNKS)
    questions = [ask("fee", "a#1"), ask("card", "a#1"), ask("loan", "b", held=("staff",)), ask("loan", "b")]
    assert [find_gold_ranks(retriever, questions) for _ in range(2)] == [[1, 2, 1, None]] * 2
    assert encoder.encoded.count("card") == 1


def test_find_gold_rank_of_chunks_and_documents() -> None:
    ranks = [find_gold_rank(CHUNKS, gold) for gold in (["a#2"], ["b"], ["c#1", "a#2"], ["a#9"], ["d"])]
    assert ranks == [2, 3, 2, None, None]


def test_select_answerable_respects_entitlements() -> None:
    dead = chunk("d#1", "fee", removed_at="2026-09-01T00:00:00Z")
    good = [ask("?", "a#1"), ask("?", "a"), ask("?", "zzz", "c"), ask("?", "b", held=("staff", "x"))]
    bad = [ask("?", "a#9"), ask("?", "b"), ask("?", "b#1", held=("premium",)), ask("?", "d"), ask("?", "d#1")]
    assert select_answerable([*bad, *good], [*CHUNKS, dead]) == good
