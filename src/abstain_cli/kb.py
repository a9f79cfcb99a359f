"""`abstain kb`: search the knowledge base, update its index, measure its recall.

The encoder and the index are imported by the commands, as in `abstain_cli.app`: `--help` is instant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_cli.progress_bar import bar
from abstain_cli.terminal import console

if TYPE_CHECKING:
    from abstain.core.contracts import Chunk
    from abstain.knowledge.retrieval.index import SearchHit
    from abstain.knowledge.retrieval.retriever import Retriever, Synced

app = typer.Typer(help="The knowledge base: search, sync, recall.", no_args_is_help=True)

_EMPTY = "the knowledge base is empty: `abstain ingest` a folder of Markdown or HTML documents first"
_NOT_SHARED = "; ABSTAIN_INDEX is not set: the index lives as long as one command, only embeddings are kept"


@app.command()
def search(
    question: Annotated[str, typer.Argument()],
    entitlement: Annotated[
        list[str] | None, typer.Option("--entitlement", "-e", help="an entitlement of the user; repeatable")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="chunks at most")] = 5,
    product: Annotated[str | None, typer.Option("--product", "-p", help="only of this product")] = None,
    doc: Annotated[str | None, typer.Option("--doc", help="only of this document")] = None,
) -> None:
    """Show the chunks nearest to a question, best first, among those that the user may read."""
    if not question.strip():
        raise AbstainError(Code.USAGE, "the question is empty: write what you look for")
    where = {name: value for name, value in (("product", product), ("doc_id", doc)) if value is not None}
    with knowledge_base() as base:
        base.check_held()
        hits = base.retriever.search(question, k, entitlement or (), where=where)
    print_hits(hits)


def print_hits(hits: Sequence[SearchHit]) -> None:
    """Show `hits`, best first, with their chunks' texts and the entitlements that these need."""
    if not hits:
        console.print("nothing that this user may read")
    for place, hit in enumerate(hits, start=1):
        needs = f"  needs {', '.join(hit.chunk.entitlements)}" if hit.chunk.entitlements else ""
        console.print(f"{place}. {hit.score:.3f}  {hit.chunk.chunk_id}{needs}", soft_wrap=True)
        console.print("   " + hit.chunk.text.replace("\n", "\n   "), soft_wrap=True)


@app.command()
def sync() -> None:
    """Bring the shared index (ABSTAIN_INDEX) up to date with the current data; without one, keep its embeddings."""
    with knowledge_base() as base:
        done = base.synced
    console.print(
        f"{done.written} chunks written, {done.removed} removed; {done.held} can be found"
        + _NOT_SHARED * (not base.shared),
        soft_wrap=True,
    )


@app.command()
def recall(
    file: Annotated[Path, typer.Argument(help='JSON Lines: {"question", "gold": [ids of chunks or documents]}')],
) -> None:
    """Measure how often a gold chunk is among the first k (docs/knowledge.md has the fields of FILE)."""
    from abstain.knowledge.retrieval.recall import PAPER, answerable, measure, read_questions, recall_at

    questions = read_questions(file)
    with knowledge_base() as base:
        base.check_held()
        asked = answerable(questions, base.chunks)
        if not asked:
            raise AbstainError(
                Code.NO_ROWS,
                f"{file}: of {len(questions)} questions none has a gold chunk or document that is in the knowledge "
                "base and that its user may read: check the ids and the entitlements",
            )
        with bar(console, "questions") as progress:
            ranks = measure(base.retriever, asked, progress)
    table = Table("k", "recall", "95 % interval", "paper's table 3")
    for one in recall_at(ranks):
        table.add_row(str(one.k), f"{one.share:.3f}", f"{one.low:.3f} to {one.high:.3f}", f"{PAPER[one.k]:.2f}")
    console.print(table)
    console.print(
        f"{len(asked)} questions over {base.synced.held} chunks; {len(questions) - len(asked)} questions left out: "
        "they have no gold chunk that still exists and that the user may read",
        soft_wrap=True,
    )


@dataclass(frozen=True)
class KnowledgeBase:
    chunks: Sequence[Chunk]
    retriever: Retriever
    synced: Synced
    shared: bool

    def check_held(self) -> None:
        if not self.synced.held:
            raise AbstainError(Code.NO_ROWS, _EMPTY)


@contextmanager
def knowledge_base() -> Iterator[KnowledgeBase]:
    """The current data's chunks, and a retriever that holds them."""
    from abstain.config.settings import load_settings
    from abstain.core import paths
    from abstain.data.store.dataset import DataStore
    from abstain.knowledge.documents.reader import read_documents
    from abstain.knowledge.retrieval.retriever import open_retriever
    from tasks.workspace import open_workspace

    settings = load_settings()
    with open_workspace() as workspace:
        store = DataStore(workspace.path / paths.DATA)
        chunks = list(store.chunks())
        products = {document.doc_id: document.product for document in read_documents(store.document_files())}
    if not chunks:  # chunks that are all tombstones are allowed: a shared index must remove them
        raise AbstainError(Code.NO_ROWS, _EMPTY)
    with open_retriever(settings) as retriever:
        with bar(console, "index") as progress:
            synced = retriever.sync(chunks, products, progress)
        yield KnowledgeBase(chunks, retriever, synced, settings.index is not None)
