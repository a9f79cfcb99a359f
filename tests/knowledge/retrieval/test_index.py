import random
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abstain.core.contracts import NOBODY, Chunk
from abstain.core.errors import AbstainError
from abstain.knowledge.retrieval.embeddings import Embeddings, normalize_rows
from abstain.knowledge.retrieval.encoder import Vectors
from abstain.knowledge.retrieval.faiss_index import FaissIndex
from abstain.knowledge.retrieval.index import EntryRejected, IndexEntry, SearchHit, VectorIndex, filter_near_best
from abstain.knowledge.retrieval.pgvector_index import PgVectorIndex
from abstain.knowledge.retrieval.retriever import Retriever, open_index
from tests.knowledge.builders import VOCABULARY, BagOfWords, chunk
from tests.postgres import database

ENCODER = BagOfWords()
RIGHTS = ("staff", "premium", "board")


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    with database(request.getfixturevalue("postgres")) as url:
        yield url


@pytest.fixture(params=["faiss", pytest.param("pgvector", marks=pytest.mark.slow)])
def index(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[VectorIndex]:
    url = request.getfixturevalue("server") if request.param == "pgvector" else None
    encoder = BagOfWords()
    encoder.identity = secrets.token_hex(4)
    with closing(open_index(url, encoder)) as made:
        assert isinstance(made, PgVectorIndex if url else FaissIndex)
        yield made


def fill(index: VectorIndex, *chunks: Chunk, products: Sequence[str | None] = ()) -> VectorIndex:
    entries = [IndexEntry(one, *products[at : at + 1]) for at, one in enumerate(chunks)]
    index.upsert(entries, normalize_rows(ENCODER.encode([one.text for one in chunks])))
    return index


def vector(text: str) -> Vectors:
    (found,) = normalize_rows(ENCODER.encode([text]))
    return found


def ids(hits: Sequence[SearchHit]) -> list[str]:
    return [hit.chunk.chunk_id for hit in hits]


OPEN = (
    chunk("a#far", "rate"),
    chunk("a#near", "fee card card"),
    chunk("a#best", "fee fee"),
    chunk("b#next", "fee card"),
)


def test_search_empty_index_gives_nothing(index: VectorIndex) -> None:
    assert index.search(vector("fee"), 3, ["staff"], {"product": "cards"}) == []
    assert index.digests() == {}
    index.remove(["a#1"])
    index.upsert([], np.zeros((0, 0), np.float32))
    assert index.search(vector("fee"), 3) == []


def test_search_entitlement_may_be_any_text(index: VectorIndex) -> None:
    some = ["a,b", '"', "{}", "'; --", "\\", "NULL", "ä b"]
    fill(index, *(chunk(f"a#{at}", "fee", right) for at, right in enumerate(some)))
    assert index.search(vector("fee"), 9, ["a", "b", ""]) == []
    assert [ids(index.search(vector("fee"), 9, [right])) for right in some] == [[f"a#{at}"] for at in range(len(some))]


def test_search_nobody_is_held_by_no_user(index: VectorIndex) -> None:
    """Even if a request says so, and even beside other entitlements."""
    fill(index, chunk("a#1", "fee", NOBODY), chunk("a#2", "fee", "staff", NOBODY), chunk("a#3", "fee", "staff"))
    retriever = Retriever(index, Embeddings(ENCODER))
    assert retriever.search("fee", 9, [NOBODY]) == []
    assert ids(retriever.search("fee", 9, {"staff", NOBODY})) == ["a#3"]


def test_search_filters_by_product_document_and_kind(index: VectorIndex) -> None:
    table = chunk("a#table", "fee", kind="table")
    products = ["cards", None, "cards", "loans", "loans", "cards"]
    fill(index, *OPEN, table, chunk("s#1", "fee", "staff"), products=products)
    question = vector("fee")
    assert ids(index.search(question, 9, where={"product": "cards"})) == ["a#best", "a#far"]
    assert ids(index.search(question, 1, where={"product": "loans", "kind": "table"})) == ["a#table"]
    assert ids(index.search(question, 9, where={"doc_id": "b"})) == ["b#next"]
    assert index.search(question, 9, where={"product": "None"}) == []
    assert ids(index.search(question, 1, ["staff"], {"product": "cards", "doc_id": "s"})) == ["s#1"]
    assert index.search(question, 1, ["premium"], {"doc_id": "s"}) == []
    with pytest.raises(ValueError, match="'prodct': use product, doc_id, kind$"):
        index.search(question, 1, where={"prodct": "cards"})


def test_index_removed_entry_is_not_found_upserted_is_replaced(index: VectorIndex) -> None:
    fill(index, *OPEN)
    index.remove(["a#best", "a#unknown"])
    assert ids(index.search(vector("fee"), 9)) == ["b#next", "a#near", "a#far"]
    closed, new = OPEN[3].model_copy(update={"entitlements": ("staff",)}), chunk("c#1", "loan")
    fill(index, closed, new, products=["cards"])
    assert ids(index.search(vector("fee"), 2)) == ["a#near", "a#far"]
    assert ids(index.search(vector("fee"), 1, ["staff"], {"product": "cards"})) == ["b#next"]
    entries = [IndexEntry(OPEN[0]), IndexEntry(OPEN[1]), IndexEntry(closed, "cards"), IndexEntry(new)]
    assert index.digests() == {entry.chunk.chunk_id: entry.digest for entry in entries}
    index.remove(list(index.digests()))
    assert index.search(vector("fee"), 9) == []


def test_upsert_last_of_two_with_one_id_counts(index: VectorIndex) -> None:
    fill(index, chunk("a#1", "fee"), chunk("a#2", "card"), chunk("a#1", "loan", "staff"))
    assert ids(index.search(vector("fee"), 9)) == ["a#2"]
    assert [hit.chunk.text for hit in index.search(vector("loan"), 1, ["staff"])] == ["loan"]


def test_upsert_tombstone_raises(index: VectorIndex) -> None:
    dead = chunk("a#1", "fee", removed_at="2026-09-01T00:00:00Z")
    with pytest.raises(ValueError, match="a#1 was removed"):
        fill(index, chunk("a#2", "fee"), dead)
    assert index.digests() == {}


def test_search_equal_scores_are_in_order_of_ids(index: VectorIndex) -> None:
    texts = ("fee", "fee limit", "limit")
    same = [chunk(f"c#{n:03}", texts[n * 5 % 7 % 3]) for n in range(300)]  # an unstable sort would mix so many
    expected = [one.chunk_id for text in texts for one in same if one.text == text]
    fill(index, *random.Random(0).sample(same, 200))
    fill(index, *same)
    for k in (1, 3, 50, len(expected) // 2, 300):
        assert ids(index.search(vector("fee"), k)) == expected[:k]


rights = st.lists(st.sampled_from(RIGHTS), max_size=3, unique=True)
texts = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=4).map(" ".join)
some_chunks = st.lists(st.tuples(texts, rights, st.sampled_from([None, "cards", "loans"])), max_size=25)
Search = tuple[str, list[str], int, dict[str, str]]
searches = st.tuples(
    texts,
    rights,
    st.integers(1, 30),
    st.dictionaries(st.just("product"), st.sampled_from(["cards", "loans"]), max_size=1),
)


def brute_force(entries: Sequence[IndexEntry], search: Search) -> list[tuple[str, float]]:
    """The best that may be read, best first: cosines rounded as float32 sums differ in their last bits."""
    question, held, k, where = search
    allowed = [
        (-round(float(vector(entry.chunk.text) @ vector(question)), 5), entry.chunk.chunk_id)
        for entry in entries
        if set(entry.chunk.entitlements) <= set(held) and where.get("product", entry.product) == entry.product
    ]
    return [(key, -score) for score, key in sorted(allowed)[:k]]


@pytest.mark.heavy
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some_chunks, searches)
def test_search_is_brute_force_over_readable_chunks(index: VectorIndex, some: list[Any], search: Search) -> None:
    entries = [IndexEntry(chunk(f"d{n}#1", text, *needed), product) for n, (text, needed, product) in enumerate(some)]
    index.remove(list(index.digests()))
    if entries:
        index.upsert(entries, normalize_rows(ENCODER.encode([entry.chunk.text for entry in entries])))
    question, held, k, where = search
    hits = index.search(vector(question), k, held, where)
    assert all(set(hit.chunk.entitlements) <= set(held) for hit in hits)
    assert all(hit.chunk in [entry.chunk for entry in entries] for hit in hits), "whole"
    expected = brute_force(entries, search)
    assert [round(hit.score, 5) for hit in hits] == pytest.approx([score for _, score in expected], abs=2e-5)
    assert {hit.chunk.chunk_id for hit in hits if hit.score > expected[-1][1] + 1e-4} == {
        key for key, score in expected if score > expected[-1][1] + 1e-4
    }


def test_search_no_question_gets_an_unreadable_chunk(index: VectorIndex) -> None:
    draw = np.random.default_rng(7)
    secret = [chunk(f"s#{n}", f"fee {n}", RIGHTS[n % 3], RIGHTS[(n + n % 2) % 3]) for n in range(1500)]
    for_all = [chunk(f"p#{n}", f"fee {n}") for n in range(40)]
    vectors = normalize_rows(draw.standard_normal((1540, 5)).astype(np.float32))
    index.upsert([IndexEntry(one) for one in (*secret, *for_all)], vectors)
    nothing = np.full(5, np.nan, np.float32)
    for question in (nothing, np.array([np.inf, 0, 0, 0, 0], np.float32), np.array([0, 0, 0, 0, -np.inf], np.float32)):
        with pytest.raises(ValueError, match="NaN or infinite"):
            index.search(question, 10)
    # Even who asks with a secret chunk's own vector.
    for question in (*vectors[:30], *normalize_rows(draw.standard_normal((10, 5)).astype(np.float32))):
        for k in (1, 10, 2000):
            public = index.search(question, k)
            assert ({hit.chunk.doc_id for hit in public}, len(public)) == ({"p"}, min(k, 40))
            staff = index.search(question, k, ["staff"])
            assert {hit.chunk.entitlements for hit in staff} <= {(), ("staff", "staff")}
            assert len(staff) == min(k, 40 + 250)


@pytest.mark.filterwarnings("ignore:overflow encountered in nextafter")
def test_faiss_index_answer_without_a_chunk_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    index = FaissIndex()
    fill(index, chunk("a#1", "fee"), chunk("s#1", "fee", "staff"))
    # Finite, yet its products with a stored vector of both signs would be inf - inf.
    index.upsert([IndexEntry(chunk("a#2", "x"))], np.array([[3e38, -3e38, 0, 0, 0]], np.float32))
    index.upsert([IndexEntry(chunk("t#1", "x", "staff"))], vector("fee")[None])
    hits = index.search(np.array([3e38, 3e38, 0, 0, 0], np.float32), 9)
    assert set(ids(hits)) <= {"a#1", "a#2"}
    # The check of the vector taken away, what faiss itself gives must not open the last entry either.
    monkeypatch.setattr("abstain.knowledge.retrieval.faiss_index.check_vectors", lambda *_: None)
    for value in (np.nan, np.inf, -np.inf):
        assert set(ids(index.search(np.full(5, value, np.float32), 9))) <= {"a#1", "a#2"}
        assert set(ids(index.search(np.full(5, value, np.float32), 1))) <= {"a#1", "a#2"}


def test_index_unusable_vector_or_number_raises(index: VectorIndex) -> None:
    fill(index, *OPEN)
    with pytest.raises(ValueError, match="k must be at least 1, not 0"):
        index.search(vector("fee"), 0)
    for shape in ((4,), (6,), (1, 5)):
        with pytest.raises(ValueError, match=r"the index needs \(5,\)$"):
            index.search(np.zeros(shape, np.float32), 1)
    for shape in ((4,), (6,), (2, 5)):
        with pytest.raises(ValueError, match=r"the index needs \(1, 5\)$"):
            index.upsert([IndexEntry(chunk("c#1", "fee"))], np.zeros(shape, np.float32))
    broken = np.array([[1, 0, 0, 0, 0], [0, np.nan, 0, 0, 0]], np.float32)
    with pytest.raises(ValueError, match="NaN or infinite"):
        index.upsert([IndexEntry(chunk("c#1", "fee")), IndexEntry(chunk("c#2", "fee"))], broken)
    assert len(index.digests()) == len(OPEN)


def test_filter_near_best_drops_hits_far_below() -> None:
    hits = fill(FaissIndex(), *OPEN).search(vector("fee"), 4)
    assert ids(filter_near_best(hits, 0.5)) == ["a#best", "b#next"]
    assert ids(filter_near_best(hits, 0)) == ["a#best"]
    assert filter_near_best(hits, 1) == filter_near_best(hits) == hits  # the gap itself is allowed
    assert filter_near_best([], 0) == []


@pytest.mark.slow
def test_pgvector_keeps_entries_by_encoder(server: str) -> None:
    first, other = BagOfWords(), BagOfWords()
    first.identity, other.identity = "kept1", "kept2"
    with closing(open_index(server, first)) as index:
        fill(index, *OPEN)
    with closing(open_index(server, first)) as index, closing(open_index(server, other)) as another:
        assert ids(index.search(vector("fee"), 1)) == ["a#best"]
        assert another.digests() == {}


@pytest.mark.slow
def test_pgvector_approximate_index_starves_no_search(server: str) -> None:
    import psycopg

    encoder = BagOfWords()
    encoder.identity = "hnsw"
    draw = np.random.default_rng(7)
    chunks = [chunk(f"s#{n}", "fee", "staff") for n in range(20_000)] + [chunk(f"p#{n}", "fee") for n in range(5)]
    with closing(open_index(server, encoder)) as index:
        vectors = normalize_rows(draw.standard_normal((len(chunks), 5)).astype(np.float32))
        index.upsert([IndexEntry(one) for one in chunks], vectors)
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute("CREATE INDEX ON abstain_chunks_hnsw USING hnsw (embedding vector_ip_ops)")
            admin.execute("ANALYZE abstain_chunks_hnsw")
        # So many that the server would rather walk through that index: it would find none of the five.
        assert [len(index.search(question, 5)) for question in vectors[:20]] == [5] * 20


@pytest.mark.slow
def test_pgvector_value_that_the_database_rejects_raises(server: str) -> None:
    with closing(open_index(server, ENCODER)) as index, pytest.raises(EntryRejected):
        fill(index, chunk("b#1", "loan"), products=["p\0q"])


@pytest.mark.slow
def test_open_index_at_once_by_several_does_not_collide(postgres: str) -> None:
    with database(postgres) as url, ThreadPoolExecutor(4) as pool:
        for index in list(pool.map(lambda _: open_index(url, ENCODER), range(4))):
            index.close()


@pytest.mark.slow
def test_pgvector_server_that_fails_is_one_line_without_password(server: str) -> None:
    with pytest.raises(AbstainError, match=r"postgresql://127\.0\.0\.1:1/db does not answer.*ABSTAIN_INDEX") as refused:
        open_index("postgresql://ann:secret@127.0.0.1:1/db?connect_timeout=2", ENCODER)
    assert "secret" not in str(refused.value)
    index = open_index(server, ENCODER)
    index.close()
    with pytest.raises(AbstainError, match="does not answer"):
        index.search(vector("fee"), 1)


WRITTEN_WRONG = (
    "postgresql://ann:se@cret@127.0.0.1:1/db",
    "postgresql://ann:se/cret@127.0.0.1:1/db",
    "postgresql://ann:se?cret@127.0.0.1:1/db",
    "postgresql://ann:se#cret@127.0.0.1:1/db",
    "postgresql://ann:se%ZZcret@127.0.0.1:1/db",
    "postgresql://ann:se cret@127.0.0.1:1/db",
    "postgresql://ann:secret@[::1/db",
    "postgresql://127.0.0.1:1/db?password=se@cret",
    "postgresql://127.0.0.1:1/db?pasword=secret",
)


@pytest.mark.parametrize("url", WRITTEN_WRONG)
def test_open_index_malformed_url_shows_no_part_of_the_password(url: str) -> None:
    with pytest.raises(AbstainError, match=r"^ABSTAIN_INDEX .*%40") as refused:
        open_index(url, ENCODER)
    assert not any(part in str(refused.value) for part in ("\n", "cret", "se@", "ann"))


@pytest.mark.parametrize("written", ["s%40cret", "s%2Fcret", "s:cret", "", "%C3%A4"])
def test_open_index_accepts_escaped_passwords(written: str) -> None:
    with pytest.raises(AbstainError, match=r"^the vector index in postgresql://127\.0\.0\.1:1/db does not answer"):
        open_index(f"postgresql://ann:{written}@127.0.0.1:1/db?connect_timeout=2", ENCODER)


def test_open_index_of_another_url_raises() -> None:
    with pytest.raises(AbstainError, match=r"^ABSTAIN_INDEX .*postgresql://"):
        open_index("http://search:9200", ENCODER)
