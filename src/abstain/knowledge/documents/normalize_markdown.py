"""Make all tables and lists of Markdown plain, so that each can be cut between rows and items.

Notes:

* Raw HTML that holds a table or a list, and a block quote that does, are rendered and converted like an HTML page,
  with all that stands between the first and the last of them in a section: tags may be closed many blocks later.
* Everything else stays unchanged: a chunk's id depends on its content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.knowledge.documents.html import html_to_markdown

_CANDIDATE = re.compile(r"^[ \t]*>|<(?:table|ul|ol|dl)\b", re.IGNORECASE | re.MULTILINE)
_TAG = re.compile(r"</?(?:table|ul|ol|dl)(?=[\s/>]|\Z)", re.IGNORECASE)
_LITERAL = re.compile(r"<!--.*?(?:-->|\Z)|<(pre|script|style|textarea)\b.*?(?:</\1|\Z)", re.IGNORECASE | re.DOTALL)
_STRUCTURES = ("table_open", "bullet_list_open", "ordered_list_open")
_PARSER = MarkdownIt("commonmark", {"maxNesting": 1_000}).enable("table")  # by default it omits what is deeper than 20


def normalize_markdown(body: str) -> str:
    """Write the tables and lists of raw HTML and of block quotes as plain Markdown.

    Args:
        body: The Markdown, with line feeds only.

    Returns:
        The Markdown with plain tables and lists.

    Raises:
        AbstainError: Quotes, brackets or tags are nested too deeply.
    """
    if not _CANDIDATE.search(body):
        return body
    try:
        tokens = _PARSER.parse(body)
    except RecursionError:
        raise AbstainError(Code.TOO_LARGE, "its quotes or brackets are nested too deeply: simplify the page") from None
    starts = [index for index, token in enumerate(tokens) if not token.level and token.nesting >= 0]
    blocks = [tokens[start:end] for start, end in pairwise([*starts, len(tokens)])]
    headings = [index for index, block in enumerate(blocks) if block[0].type == "heading_open"]
    lines, out, n_done = body.split("\n"), list[str](), 0
    for section in pairwise([0, *headings, len(blocks)]):
        structures = {index: names for index in range(*section) if (names := _find_structures(blocks[index]))}
        # A lone opening tag in running text is a word about HTML.
        if any(blocks[index][0].type != "paragraph_open" or "</" in names for index, names in structures.items()):
            first, last = min(structures), max(structures)
            region = blocks[first : last + 1]
            (start, _), (_, end) = region[0][0].map or (0, 0), region[-1][0].map or (0, 0)
            out += [*lines[n_done:start], "", html_to_markdown(_render(region)), ""]
            n_done = end
    return "\n".join([*out, *lines[n_done:]])


def _find_structures(block: Sequence[Token]) -> str:
    """Return the tags of raw tables and lists in a block that is no list or table itself, and what a quote holds."""
    if block[0].type not in ("html_block", "paragraph_open", "blockquote_open"):
        return ""
    parts = [part for token in block for part in (token, *(token.children or ()))]
    html = "".join(part.content for part in parts if part.type in ("html_block", "html_inline"))
    return " ".join([*_TAG.findall(_LITERAL.sub("", html)), *(part.type for part in parts if part.type in _STRUCTURES)])


def _render(blocks: Sequence[Sequence[Token]]) -> str:
    tokens = [token for block in blocks for token in block if not token.type.startswith("blockquote_")]
    for token in tokens:
        if token.type == "code_block" and token.content.lstrip().startswith("<"):
            token.type = "html_block"  # part of a table, indented after a blank line
    return str(_PARSER.renderer.render(tokens, _PARSER.options, {}))
