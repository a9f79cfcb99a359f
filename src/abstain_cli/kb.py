"""`abstain kb`: search the knowledge base, update its index.

The encoder and the index are imported by the commands, as in `abstain_cli.app`: `--help` is instant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import typer

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_cli.progress_bar import show_progress
from abstain_cli.terminal import console

if TYPE_CHECKING:
    from abstain.core.contracts import Chunk, Context
    from abstain.knowledge.retrieval.index import SearchHit
    from abstain.knowledge.retrieval.retriever import Retriever, SyncResult

app = typer.Typer(help="The knowledge base: search, sync.", no_args_is_help=True)

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
    _print_unreadable(base.chunks)


def print_hits(hits: Sequence[SearchHit]) -> None:
    """Print search hits, best first, with the chunks' locations and texts, and the entitlements that these need.

    Args:
        hits: The hits.
    """
    from abstain.core.contracts import PATH_SEPARATOR, format_location

    if not hits:
        console.print("nothing that this user may read")
    for place, hit in enumerate(hits, start=1):
        needs = f"  needs {', '.join(hit.chunk.entitlements)}" if hit.chunk.entitlements else ""
        console.print(f"{place}. {hit.score:.3f}  {hit.chunk.chunk_id}{needs}", soft_wrap=True)
        text = hit.chunk.text.removeprefix(PATH_SEPARATOR.join(hit.chunk.section_path))
        console.print(f"   {format_location(hit.chunk)}" + text.replace("\n", "\n   "), soft_wrap=True)


@app.command()
def sync() -> None:
    """Bring the shared index (ABSTAIN_INDEX) up to date with the current data; without one, keep its embeddings."""
    with knowledge_base() as base:
        result = base.synced
    console.print(
        f"{result.written} chunks written, {result.removed} removed; {result.n_entries} can be found"
        + _NOT_SHARED * (not base.shared),
        soft_wrap=True,
    )
    _print_unreadable(base.chunks)


def _print_unreadable(chunks: Sequence[Chunk]) -> None:
    """Print how many documents nobody can read, with the remedy; nothing if there are none."""
    from abstain.core.contracts import NOBODY

    doc_ids = {chunk.doc_id for chunk in chunks if NOBODY in chunk.entitlements and chunk.removed_at is None}
    if doc_ids:
        names = min(doc_ids) + ", ..." * (len(doc_ids) > 1)
        console.print(
            f"nobody can read {len(doc_ids):,} documents, because nothing says who may ({names}): add "
            "`entitlements` to their front matter, or to `documents.defaults` of their source in sources.yaml, and "
            "ingest them again; `[]` is everyone",
            soft_wrap=True,
        )


@dataclass(frozen=True)
class KnowledgeBase:
    """The opened knowledge base.

    Attributes:
        chunks: Its chunks.
        retriever: Searches them.
        synced: Result of the synchronization.
        shared: Whether the index is shared.
    """

    chunks: Sequence[Chunk]
    retriever: Retriever
    synced: SyncResult
    shared: bool

    @cached_property
    def chunk_by_id(self) -> Mapping[str, Chunk]:
        """Id -> chunk, removed ones included: answers may still cite them."""
        return {chunk.chunk_id: chunk for chunk in self.chunks}

    def find_contexts(self, text: str, entitlements: Sequence[str], k: int) -> list[Context]:
        """Find the chunks nearest to a text, as contexts of an answer; see `RetrieveChunks`."""
        from abstain.core.contracts import Context

        hits = self.retriever.search(text, k, entitlements)
        return [Context(chunk_id=hit.chunk.chunk_id, text=hit.chunk.text) for hit in hits]

    def check_held(self) -> None:
        """Raise `AbstainError` if nothing can be found."""
        if not self.synced.n_entries:
            raise AbstainError(Code.NO_ROWS, _EMPTY)


@contextmanager
def knowledge_base() -> Iterator[KnowledgeBase]:
    """Open the current data's chunks with a retriever that holds them.

    Yields:
        The knowledge base.

    Raises:
        AbstainError: There are no chunks.
    """
    from abstain.config.settings import load_settings
    from abstain.core import paths
    from abstain.data.store.dataset import DataStore
    from abstain.knowledge.documents.reader import read_documents
    from abstain.knowledge.retrieval.retriever import open_retriever
    from abstain_tasks.runs.workspace import open_workspace

    settings = load_settings()
    with open_workspace() as workspace:
        store = DataStore(workspace.path / paths.DATA)
        chunks = list(store.iter_chunks())
        products = {document.doc_id: document.product for document in read_documents(store.list_document_files())}
    if not chunks:  # chunks that are all tombstones are allowed: a shared index must remove them
        raise AbstainError(Code.NO_ROWS, _EMPTY)
    with open_retriever(settings) as retriever:
        with show_progress(console, "index") as progress:
            synced = retriever.sync(chunks, products, progress)
        yield KnowledgeBase(chunks, retriever, synced, settings.index is not None)


@contextmanager
def open_if_enabled(is_enabled: bool) -> Iterator[KnowledgeBase | None]:
    """Open the current knowledge base, which is indexed once, for the server or for answers.

    Args:
        is_enabled: Whether to open it.

    Yields:
        The knowledge base; None if it is not enabled.

    Raises:
        AbstainError: There are no chunks.
    """
    if not is_enabled:
        yield None
        return
    with knowledge_base() as base:
        base.check_held()
        yield base
