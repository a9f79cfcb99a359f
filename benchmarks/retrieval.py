"""How often retrieval finds the answer to a question, and how long a search takes: `python -m benchmarks.retrieval`.

Notes:

* Recall on the sample: the gold chunk states the fact that was asked for, and the user's entitlements apply. Questions
  that no chunk answers for their user are excluded and counted.
* Recall on FeedbackQA, which the project may not ship (`--feedbackqa` names its folder): people's questions, each
  written for one passage, the gold one. Passages are indexed whole, and chunked as ingest chunks documents.
* Latency is of the search only, after embedding, one question at a time, among 45,000 chunks with entitlements. Their
  vectors are random, because the time of an exact search does not depend on them. CPU time is reported too: it leaves
  out other load.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from abstain.config.settings import load_settings
from abstain.core.contracts import Chunk, Document
from abstain.knowledge.documents.chunks import chunk_document
from abstain.knowledge.retrieval.embeddings import Embeddings, normalize_rows
from abstain.knowledge.retrieval.encoder import SentenceEncoder, Vectors
from abstain.knowledge.retrieval.faiss_index import FaissIndex
from abstain.knowledge.retrieval.index import IndexEntry, VectorIndex
from abstain.knowledge.retrieval.retriever import Retriever, open_index
from benchmarks.recall import KS, PAPER, GoldQuestion, compute_recall, find_gold_ranks, select_answerable

FEEDBACKQA = Path(__file__).parents[1].parent / "shared/data/feedbackqa"
K = 10
RIGHTS = ("premium", "staff", "advisers", "board", "partners", "branch")


class RandomEncoder:
    """An encoder of which only name and width are used."""

    identity = "drawn"

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    def encode(self, texts: Sequence[str]) -> Vectors:
        raise AssertionError("the vectors are drawn")


def recall_row(name: str, chunks: Sequence[Chunk], questions: Sequence[GoldQuestion], embeddings: Embeddings) -> str:
    """Return one line of the table: recall at every k with its interval."""
    retriever = Retriever(FaissIndex(), embeddings)
    retriever.sync(chunks)
    cells = [
        f"{recall.share:.3f} ({recall.low:.3f} to {recall.high:.3f})"
        for recall in compute_recall(find_gold_ranks(retriever, questions))
    ]
    return f"| {name} | {len(chunks):,} | {len(questions):,} | {' | '.join(cells)} |"


def format_head() -> str:
    """Return the head of the table."""
    paper = " | ".join(f"{PAPER[k]:.2f}" for k in KS)
    return (
        f"| on | chunks | questions | {' | '.join(f'R@{k}' for k in KS)} |\n| --- | --: | --: |{' --: |' * len(KS)}\n"
        f"| the paper's table 3 | | | {paper} |"
    )


def sample(embeddings: Embeddings) -> Iterator[str]:
    """Yield the lines of recall on the shipped sample."""
    from benchmarks.sample.handbook import build_handbook
    from benchmarks.sample.judge import is_answerable
    from benchmarks.sample.questions import build_questions

    pages = build_handbook()
    chunks_by_page = {page.doc_id: page.chunks() for page in pages}
    questions = build_questions(pages)
    gold_questions = [
        GoldQuestion(question=question.text, gold=gold, entitlements=question.entitlements)
        for question in questions
        if (
            gold := tuple(
                c.chunk_id for c in chunks_by_page[question.fact.doc_id] if is_answerable(question.fact, [c.text])
            )
        )
    ]
    chunks = [chunk for page_chunks in chunks_by_page.values() for chunk in page_chunks]
    answerable = select_answerable(gold_questions, chunks)
    yield recall_row("the sample", chunks, answerable, embeddings)
    yield (
        f"\nOf the sample's {len(questions):,} questions {len(questions) - len(gold_questions)} ask for what stands "
        f"on no page, and "
        f"{len(gold_questions) - len(answerable)} come from people who may not read the page: left out."
    )


def feedbackqa(folder: Path, count: int, embeddings: Embeddings) -> Iterator[str]:
    """Yield the lines of recall on FeedbackQA's knowledge base, over all domains and within each."""
    passages = list(_rows(folder / "kb_passages.jsonl.gz"))
    questions = list(_rows(folder / "kb_questions.jsonl.gz"))
    sampled = random.Random(0).sample(questions, min(count, len(questions)))
    by_domain = {domain: [row for row in passages if row["domain"] == domain] for domain in _domains(passages)}
    for cut_label, is_cut in (("passages whole", False), ("passages cut", True)):
        chunks = {
            domain: [
                chunk
                for row in rows
                for chunk in (chunk_document(_make_document(row)) if is_cut else [_make_whole_chunk(row)])
            ]
            for domain, rows in by_domain.items()
        }
        all_chunks = [chunk for domain_chunks in chunks.values() for chunk in domain_chunks]
        yield recall_row(f"FeedbackQA, all, {cut_label}", all_chunks, _make_gold_questions(sampled), embeddings)
        for domain, domain_chunks in chunks.items():
            domain_questions = _make_gold_questions(row for row in sampled if row["domain"] == domain)
            yield recall_row(f"{domain} alone, {cut_label}", domain_chunks, domain_questions, embeddings)
    yield f"\nFeedbackQA: {len(sampled):,} of its {len(questions):,} questions, drawn with seed 0."


def latency(count: int, queries: int, dimension: int, postgres: str | None) -> Iterator[str]:
    """Yield the milliseconds of a search for `K` chunks among `count`, by entitlements and index."""
    generator = np.random.default_rng(0)
    entries = [IndexEntry(_make_chunk(n, generator), product=f"product {n % 20}") for n in range(count)]
    vectors = normalize_rows(generator.standard_normal((count, dimension)).astype(np.float32))
    questions = normalize_rows(generator.standard_normal((queries, dimension)).astype(np.float32))
    askers: list[tuple[str, tuple[str, ...], Mapping[str, str]]] = [
        ("everything", RIGHTS, {}),
        ("two of six rights", RIGHTS[:2], {}),
        ("no right", (), {}),
        ("two of six rights, one product of 20", RIGHTS[:2], {"product": "product 7"}),
    ]
    columns = ("index", "may read", "chunks to search", "searches", "p50 ms", "p99 ms", "p99 ms on the processor")
    yield f"\n| {' | '.join(columns)} |\n| --- | --- |{' --: |' * 5}"
    for name, url in (("faiss", None), *([("pgvector", postgres)] if postgres else [])):
        with closing(open_index(url, RandomEncoder(dimension))) as index:
            index.upsert(entries, vectors)
            for asker, entitlements, filters in askers:
                readable = sum(_fits(entry, entitlements, filters) for entry in entries)
                searched = questions if url is None else questions[: max(queries // 10, 1)]
                p50, p99, cpu_p99 = time_searches(index, searched, entitlements, filters)
                cpu_cell = f"{cpu_p99:.1f}" if url is None else "on the server"
                yield f"| {name} | {asker} | {readable:,} | {len(searched):,} | {p50:.1f} | {p99:.1f} | {cpu_cell} |"


def time_searches(
    index: VectorIndex, questions: Vectors, entitlements: Sequence[str], filters: Mapping[str, str]
) -> tuple[float, float, float]:
    """Return median and 99th percentile of one search, and the latter of its CPU time, all in milliseconds."""
    durations, cpu_durations = [], []
    for question in questions:
        start, start_busy = time.perf_counter(), time.thread_time()
        hits = index.search(question, K, entitlements, filters)
        durations.append(1000 * (time.perf_counter() - start))
        cpu_durations.append(1000 * (time.thread_time() - start_busy))
        assert all(set(hit.chunk.entitlements) <= set(entitlements) for hit in hits)
    return float(np.median(durations)), float(np.percentile(durations, 99)), float(np.percentile(cpu_durations, 99))


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _domains(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted({row["domain"] for row in rows})


def _make_gold_questions(rows: Iterable[Mapping[str, Any]]) -> list[GoldQuestion]:
    return [GoldQuestion(question=row["question"], gold=(row["gold_kb_id"],)) for row in rows]


def _path(row: Mapping[str, Any]) -> list[str]:
    return [" ".join(part.split()) for part in (row["page_title"], *row["section_headers"]) if part and part.strip()]


def _make_document(row: Mapping[str, Any]) -> Document:
    """Return a passage as a document: its headings, then its text, in which a line is a paragraph."""
    title, *headings = _path(row) or [row["kb_id"]]
    parts = [f"{'#' * min(level, 6)} {heading}" for level, heading in enumerate(headings, start=1)]
    lines = [line.strip() for line in row["text"].split("\n") if line.strip()]
    return Document(doc_id=row["kb_id"], title=title, updated_at=_LONG_AGO, body="\n\n".join([*parts, " ".join(lines)]))


def _make_whole_chunk(row: Mapping[str, Any]) -> Chunk:
    path = _path(row) or [row["kb_id"]]
    text = " > ".join(path) + "\n" + row["text"]
    return _make_text_chunk(f"{row['kb_id']}#0", text, tuple(path))


def _make_chunk(number: int, generator: np.random.Generator) -> Chunk:
    """Return a chunk that is public with probability 0.4, and else needs one right or two."""
    rights = (
        ()
        if generator.random() < 0.4
        else tuple(generator.choice(RIGHTS, size=generator.integers(1, 3), replace=False).tolist())
    )
    text = f"Product {number % 20} > Section {number}\n" + "What a section of a handbook says about a fee. " * 12
    return _make_text_chunk(f"d{number // 10}#{number}", text, ("Product", "Section"), rights)


def _make_text_chunk(chunk_id: str, text: str, path: tuple[str, ...], rights: tuple[str, ...] = ()) -> Chunk:
    return Chunk(
        chunk_id=chunk_id,
        doc_id=chunk_id.partition("#")[0],
        section_path=path,
        kind="text",
        text=text,
        entitlements=rights,
        updated_at=_LONG_AGO,
        content_hash=chunk_id,
    )


def _fits(entry: IndexEntry, entitlements: Sequence[str], filters: Mapping[str, str]) -> bool:
    return set(entry.chunk.entitlements) <= set(entitlements) and filters.items() <= entry.metadata.items()


_LONG_AGO: Any = "2020-01-01T00:00:00Z"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieval")
    parser.add_argument("--feedbackqa", type=Path, default=FEEDBACKQA)
    parser.add_argument("--questions", type=int, default=4000, help="of FeedbackQA's, drawn with a seed")
    parser.add_argument("--chunks", type=int, default=45_000, help="to search for the latency")
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--parts", nargs="*", default=["sample", "feedbackqa", "latency"])
    options = parser.parse_args()
    settings = load_settings()
    embeddings = Embeddings(SentenceEncoder(device=settings.device), settings.embeddings)
    if {"sample", "feedbackqa"} & set(options.parts):
        print(format_head(), flush=True)
    if "sample" in options.parts:
        print(*sample(embeddings), sep="\n", flush=True)
    if "feedbackqa" in options.parts:
        if options.feedbackqa.is_dir():
            for line in feedbackqa(options.feedbackqa, options.questions, embeddings):
                print(line, flush=True)
        else:
            print(f"{options.feedbackqa} is not there: left out")
    if "latency" in options.parts:
        from tests.postgres import database, start_postgres

        with tempfile.TemporaryDirectory(prefix="abstain-postgres-") as folder:
            Path(folder).chmod(0o755)
            with start_postgres(Path(folder) / "data") as server, database(server) as url:
                for line in latency(options.chunks, options.queries, options.dimension, url):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
