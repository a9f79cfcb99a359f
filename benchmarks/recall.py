"""Recall@k, how often a gold chunk is among the first k: `python -m benchmarks.recall QUESTIONS.jsonl`.

Table 3 of *Confidence-Based Response Abstinence* (Huang et al.) reports it for the paper's own system. Here a question
is found at k when any of its gold chunks, or any chunk of its gold documents, is among the first k that its user may
read; with one gold chunk that is recall in the strict sense.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field
from rich.table import Table
from scipy.stats import binomtest

from abstain.core.codes import Code
from abstain.core.contracts import Chunk, Row, Text
from abstain.core.errors import AbstainError
from abstain.core.json_lines import parse_lines
from abstain.knowledge.retrieval.retriever import Retriever
from abstain_cli.entry import prepare_run, run_app
from abstain_cli.kb import knowledge_base
from abstain_cli.progress_bar import show_progress
from abstain_cli.terminal import console

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
KS = (1, 3, 5, 10, 25)
PAPER = {1: 0.54, 3: 0.75, 5: 0.80, 10: 0.84, 25: 0.88}
"""Table 3. Our copy shows the headings of the columns 3, 10 and 25 only: 1 and 5 are what the other two must be."""


class GoldQuestion(Row):
    """A question and its gold chunks or documents."""

    question: Text
    gold: tuple[Text, ...] = Field(min_length=1, description="ids of chunks, or of documents; any one will do")
    entitlements: tuple[Text, ...] = Field((), description="what its asker may read")


@dataclass(frozen=True)
class Recall:
    """Share of questions found among the first `k`, with Wilson's 95 % interval as if questions were independent."""

    k: int
    share: float
    low: float
    high: float


def read_questions(file: Path) -> list[GoldQuestion]:
    """Read JSON Lines of `GoldQuestion`.

    Raises:
        AbstainError: a line is invalid, or there is none.
    """
    try:
        lines = file.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise AbstainError(Code.NOT_READABLE, f"{file}: cannot be read: {error.strerror}") from None
    questions = list(parse_lines(lines, GoldQuestion, str(file)))
    if not questions:
        raise AbstainError(
            Code.WRONG_FORMAT, f'{file}: holds no question: write lines like {{"question": "...", "gold": ["DOC_ID"]}}'
        )
    return questions


def select_answerable(questions: Iterable[GoldQuestion], chunks: Iterable[Chunk]) -> list[GoldQuestion]:
    """Return the questions with a gold chunk in `chunks` that still exists and that the user may read."""
    needed: defaultdict[str, set[frozenset[str]]] = defaultdict(set)
    for chunk in chunks:
        if chunk.removed_at is None:
            for name in (chunk.chunk_id, chunk.doc_id):
                needed[name].add(frozenset(chunk.entitlements))
    return [
        question
        for question in questions
        if any(rights.issubset(question.entitlements) for name in question.gold for rights in needed.get(name, ()))
    ]


def find_gold_ranks(
    retriever: Retriever,
    questions: Sequence[GoldQuestion],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[int | None]:
    """Search the first `max(KS)` chunks for each question and return the rank of its first gold chunk, or None.

    The embeddings of questions are cached like those of chunks: the same file is evaluated again after every change.
    `progress` is called with the number of encoded questions and their total.
    """
    vectors = retriever.embeddings.embed([question.question for question in questions], progress)
    hits = (
        retriever.index.search(vector, max(KS), question.entitlements)
        for question, vector in zip(questions, vectors, strict=True)
    )
    return [
        find_gold_rank((hit.chunk for hit in chunk_hits), question.gold)
        for question, chunk_hits in zip(questions, hits, strict=True)
    ]


def find_gold_rank(chunks: Iterable[Chunk], gold: Collection[str]) -> int | None:
    """Return the rank, from 1, of the first gold chunk in `chunks`, best first; None without one."""
    ranks = (rank for rank, chunk in enumerate(chunks, start=1) if chunk.chunk_id in gold or chunk.doc_id in gold)
    return next(ranks, None)


def compute_recall(ranks: Sequence[int | None], ks: Sequence[int] = KS) -> list[Recall]:
    """Return the recall at each k, by the `ranks` of the first gold chunk (None for not found).

    Raises:
        ValueError: there are no ranks.
    """
    if not ranks:
        raise ValueError("no question, no recall")

    rows = []
    for k in ks:
        n_found = sum(rank is not None and rank <= k for rank in ranks)
        interval = binomtest(n_found, len(ranks)).proportion_ci(0.95, method="wilson")
        rows.append(Recall(k, n_found / len(ranks), float(interval.low), float(interval.high)))
    return rows


@app.command()
def show_recall(
    file: Annotated[Path, typer.Argument(help='JSON Lines: {"question", "gold": [ids of chunks or documents]}')],
) -> None:
    """Measure how often a gold chunk is among the first k (docs/knowledge.md has the fields of FILE)."""
    questions = read_questions(file)
    with knowledge_base() as base:
        base.check_held()
        answerable_questions = select_answerable(questions, base.chunks)
        if not answerable_questions:
            raise AbstainError(
                Code.NO_ROWS,
                f"{file}: of {len(questions)} questions none has a gold chunk or document that is in the knowledge "
                "base and that its user may read: check the ids and the entitlements",
            )
        with show_progress(console, "questions") as progress:
            ranks = find_gold_ranks(base.retriever, answerable_questions, progress)
    table = Table("k", "recall", "95 % interval", "paper's table 3")
    for recall in compute_recall(ranks):
        table.add_row(
            str(recall.k), f"{recall.share:.3f}", f"{recall.low:.3f} to {recall.high:.3f}", f"{PAPER[recall.k]:.2f}"
        )
    console.print(table)
    console.print(
        f"{len(answerable_questions)} questions over {base.synced.n_entries} chunks; "
        f"{len(questions) - len(answerable_questions)} questions left out: "
        "they have no gold chunk that still exists and that the user may read",
        soft_wrap=True,
    )


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.recall", prepare_run)
