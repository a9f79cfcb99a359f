"""What the format of a handbook costs: `python -m benchmarks.formats` writes the sample's as other tools have it.

Every page of the shipped sample is written as HTML, Word, PDF (printed by Chromium) and spreadsheet, and in folders
like those of Confluence, MkDocs and Docusaurus, and read as ingest reads it. The table has, for each format:

* recall@k of the questions that a Markdown page answers: a chunk is gold if it states the fact that was asked for. A
  question whose fact is in no chunk of a format is not found there. Every user may read every page.
* how many of Markdown's section paths, by page, there are too.

`--documents 1000` measures instead how long it takes to turn mixed documents into chunks, a fifth of them PDFs of ten
pages, and the peak memory of both processes.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import docx
import psutil
from bs4 import BeautifulSoup
from bs4.element import Tag
from markdown_it import MarkdownIt
from openpyxl import Workbook
from playwright.sync_api import Browser, sync_playwright

from abstain.config.settings import load_settings
from abstain.core.contracts import Chunk, Document
from abstain.ingest.sources.document_files import DocumentRules
from abstain.ingest.sources.files import FileSource
from abstain.knowledge.documents.chunks import chunk_document
from abstain.knowledge.retrieval.embeddings import Embeddings
from abstain.knowledge.retrieval.encoder import SentenceEncoder
from abstain.knowledge.retrieval.faiss_index import FaissIndex
from abstain.knowledge.retrieval.retriever import Retriever
from benchmarks.recall import KS, compute_recall, find_gold_rank
from benchmarks.sample.handbook import Page, build_handbook
from benchmarks.sample.judge import is_answerable
from benchmarks.sample.questions import SampleQuestion, build_questions

WriteFolder = Callable[[Path, Sequence[Page]], None]
EVERYONE = DocumentRules.model_validate({"defaults": {".": {"entitlements": []}}})
PAGES_OF_PDF = 10
_RENDER = MarkdownIt("commonmark").enable("table").render


def render_page(document: Document) -> str:
    """Return a page as HTML with a title and the time of its last change."""
    head = f'<title>{document.title}</title><meta name="updated_at" content="{document.updated_at.isoformat()}">'
    style = "<style>table, td, th { border: 1px solid; border-collapse: collapse; padding: 4px }</style>"
    body = f"<h1>{document.title}</h1>{_RENDER(document.body)}"
    return f'<!doctype html><html><head><meta charset="utf-8">{head}{style}</head><body>{body}</body></html>'


def write_markdown(folder: Path, pages: Sequence[Page]) -> None:
    """Write the pages as they are."""
    for page in pages:
        (folder / f"{page.doc_id}.md").write_text(page.markdown)


def write_html(folder: Path, pages: Sequence[Page]) -> None:
    """Write the pages as HTML."""
    for page in pages:
        (folder / f"{page.doc_id}.html").write_text(render_page(page.document()))


def write_word(folder: Path, pages: Sequence[Page]) -> None:
    """Write the pages as Word documents, with Word's own styles."""
    for page in pages:
        document = docx.Document()
        for tag in iter_blocks(page):
            if tag.name[0] == "h":
                document.add_heading(tag.get_text(), int(tag.name[1]) - 1)
            elif tag.name in ("ul", "ol"):
                for item in tag.find_all("li"):
                    document.add_paragraph(item.get_text(), "List Bullet" if tag.name == "ul" else "List Number")
            elif tag.name == "table":
                rows = read_rows(tag)
                table = document.add_table(len(rows), len(rows[0]))
                for cells, texts in zip(table.rows, rows, strict=True):
                    for cell, text in zip(cells.cells, texts, strict=True):
                        cell.text = text
            else:
                document.add_paragraph(tag.get_text())
        document.save(str(folder / f"{page.doc_id}.docx"))


def write_spreadsheets(folder: Path, pages: Sequence[Page]) -> None:
    """Write the pages as spreadsheets: a sheet a section, and a row for each paragraph, item and row of a table."""
    for page in pages:
        book = Workbook()
        book.properties.title = page.document().title
        sheet = book.active
        for tag in iter_blocks(page):
            if tag.name == "h1":
                continue
            if tag.name[0] == "h":
                sheet = book.create_sheet(tag.get_text())
                continue
            assert sheet is not None
            for row in read_rows(tag) if tag.name == "table" else [[text] for text in read_items(tag)]:
                sheet.append(row)
            sheet.append([])
        book.save(folder / f"{page.doc_id}.xlsx")


def write_pdfs(folder: Path, pages: Sequence[Page]) -> None:
    """Print the pages by Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for page in pages:
            print_pdf(browser, render_page(page.document()), folder / f"{page.doc_id}.pdf")
        browser.close()


def print_pdf(browser: Browser, html: str, path: Path, page_ranges: str = "") -> None:
    """Print HTML with a running head and page numbers."""
    page = browser.new_page()
    page.set_content(html)
    page.pdf(
        path=path,
        page_ranges=page_ranges,
        display_header_footer=True,
        header_template='<span style="font-size: 8px; margin-left: 40px">Aurora Bank, handbook</span>',
        footer_template='<span style="font-size: 8px; margin-left: 40px">Page <span class="pageNumber"></span></span>',
        margin={"top": "60px", "bottom": "60px", "left": "40px", "right": "40px"},
    )
    page.close()


def write_confluence(folder: Path, pages: Sequence[Page]) -> None:
    """Write the pages as Confluence exports a space."""
    for page in pages:
        document = page.document()
        (folder / f"{page.doc_id}.html").write_text(
            f'<html><head><title>{document.title}</title></head><body><div id="page"><div id="main">'
            '<div id="main-header"><div id="breadcrumb-section"><ol id="breadcrumbs"><li class="first"><a>Bank</a></li>'
            f'</ol></div><h1 id="title-heading"><span id="title-text">{document.title}</span></h1></div>'
            '<div id="content"><div class="page-metadata">Created by <span class="author">A. Person</span></div>'
            f'<div id="main-content"><div class="toc-macro"><ul><li><a href="#a">Contents</a></li></ul></div>'
            f'{_RENDER(document.body)}</div></div></div><div id="footer">Document generated by Confluence</div></div>'
            "</body></html>"
        )


def write_mkdocs(folder: Path, pages: Sequence[Page]) -> None:
    """Write the pages as MkDocs has them: no front matter, the title as a heading."""
    for page in pages:
        document = page.document()
        (folder / f"{page.doc_id}.md").write_text(f"# {document.title}\n\n{document.body}\n")


def write_docusaurus(folder: Path, pages: Sequence[Page]) -> None:
    """Write the pages as Docusaurus has them: its own front matter, an import, ids of headings."""
    for page in pages:
        document = page.document()
        front_matter = f"---\nid: {page.doc_id}\ntitle: {document.title}\nsidebar_position: 3\n---\n"
        body = "\n".join(f"{line} {{#part}}" if line.startswith("## ") else line for line in document.body.split("\n"))
        (folder / f"{page.doc_id}.mdx").write_text(f"{front_matter}import Tabs from '@theme/Tabs';\n\n{body}\n")


FORMATS: Mapping[str, WriteFolder] = {
    "Markdown": write_markdown,
    "HTML": write_html,
    "Word": write_word,
    "PDF": write_pdfs,
    "spreadsheet": write_spreadsheets,
    "like Confluence": write_confluence,
    "like MkDocs": write_mkdocs,
    "like Docusaurus": write_docusaurus,
}


def iter_blocks(page: Page) -> Iterator[Tag]:
    """Yield the headings, paragraphs, lists and tables of a page, beginning with its title."""
    body = BeautifulSoup(render_page(page.document()), "lxml").body
    assert body is not None
    yield from (child for child in body.children if isinstance(child, Tag))


def read_rows(table: Tag) -> list[list[str]]:
    """Return the texts of a table."""
    return [[cell.get_text() for cell in row.find_all(["th", "td"])] for row in table.find_all("tr")]


def read_items(tag: Tag) -> list[str]:
    """Return the texts of a list, or the text of a paragraph."""
    return [item.get_text() for item in tag.find_all("li")] or [tag.get_text()]


def read_chunks(folder: Path) -> list[Chunk]:
    """Read a folder as ingest does, and return the chunks of its documents."""
    rows = FileSource(name="handbook", url=str(folder), documents=EVERYONE).read({})
    chunks: list[Chunk] = []
    for row in rows:
        if row.document is None:
            raise SystemExit(f"{row.source}: {row.reasons[0]}")
        chunks += chunk_document(row.document)
    return chunks


def compare_formats(folder: Path) -> Iterator[str]:
    """Yield the lines of the table of formats."""
    pages = build_handbook()
    questions = build_questions(pages)
    embeddings = Embeddings(SentenceEncoder(device=load_settings().device), folder / "embeddings")
    yield f"| format | chunks | questions | {' | '.join(f'R@{k}' for k in KS)} | section paths |"
    yield f"| --- | --: | --: |{' --: |' * (len(KS) + 1)}"
    expected_paths: set[tuple[str, tuple[str, ...]]] = set()
    answered: list[SampleQuestion] = []
    for name, write_folder in FORMATS.items():
        place = folder / name
        place.mkdir()
        write_folder(place, pages)
        chunks = read_chunks(place)
        paths = {(chunk.doc_id, chunk.section_path) for chunk in chunks}
        gold = {question.question_id: find_gold(question, chunks) for question in questions}
        if name == "Markdown":
            expected_paths, answered = paths, [question for question in questions if gold[question.question_id]]
        retriever = Retriever(FaissIndex(), embeddings)
        retriever.sync([chunk.model_copy(update={"entitlements": ()}) for chunk in chunks])
        vectors = embeddings.embed([question.text for question in answered])
        hits = [retriever.index.search(vector, max(KS)) for vector in vectors]
        ranks = [
            find_gold_rank((hit.chunk for hit in question_hits), gold[question.question_id])
            for question, question_hits in zip(answered, hits, strict=True)
        ]
        recalls = " | ".join(f"{r.share:.3f} ({r.low:.3f} to {r.high:.3f})" for r in compute_recall(ranks))
        share = len(expected_paths & paths) / len(expected_paths)
        yield f"| {name} | {len(chunks):,} | {len(answered):,} | {recalls} | {share:.0%} |"


def find_gold(question: SampleQuestion, chunks: Sequence[Chunk]) -> tuple[str, ...]:
    """Return the ids of the chunks of the question's page that state what it asks for."""
    fact = question.fact
    page = (chunk for chunk in chunks if chunk.doc_id == fact.doc_id)
    return tuple(chunk.chunk_id for chunk in page if is_answerable(fact, [chunk.text]))


def measure_speed(folder: Path, count: int) -> str:
    """Return how long it takes to turn `count` mixed documents into chunks."""
    pages = build_handbook()
    body = "".join(_RENDER(page.document().body) for page in pages * 4)
    inbox = folder / "inbox"
    inbox.mkdir()
    writers = [write_markdown, write_html, write_word, write_spreadsheets]
    for index, write_folder in enumerate(writers):
        one_of_each = folder / f"format-{index}"
        one_of_each.mkdir()
        write_folder(one_of_each, pages)
        files = sorted(one_of_each.iterdir())
        for number in range(count // 5):
            file = files[number % len(files)]
            text = file.read_bytes().replace(f"doc_id: {file.stem}\n".encode(), b"")
            (inbox / f"{index}-{number}{file.suffix}").write_bytes(text)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        print_pdf(browser, body, folder / "long.pdf", page_ranges=f"1-{PAGES_OF_PDF}")
        browser.close()
    for number in range(count // 5):
        shutil.copy(folder / "long.pdf", inbox / f"4-{number}.pdf")
    with watch_memory() as peak:
        start = time.perf_counter()
        chunks = read_chunks(inbox)
        seconds = time.perf_counter() - start
    return f"{count:,} documents, {len(chunks):,} chunks: {seconds:.0f} s, at most {peak[0] / 2**20:,.0f} MiB"


@contextmanager
def watch_memory() -> Iterator[list[int]]:
    """Yield a list whose only item is the largest memory, in bytes, of this process and its descendants together."""
    peak, done = [0], Event()

    def watch() -> None:
        this = psutil.Process()
        while not done.wait(0.05):
            total = 0
            for process in (this, *this.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    total += process.memory_full_info().uss
            peak[0] = max(peak[0], total)

    thread = Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, help="measure the time for this many documents")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.documents:
            print(measure_speed(Path(folder), arguments.documents))
        else:
            for line in compare_formats(Path(folder)):
                print(line, flush=True)


if __name__ == "__main__":
    main()
