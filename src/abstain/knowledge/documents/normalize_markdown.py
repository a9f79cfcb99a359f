"""Make all tables and lists of Markdown plain: raw HTML is converted, and block quotes are opened.

Notes:

* Raw HTML that holds a table or a list is converted like a page. It reaches to the end tag, over blank lines, which
  would end it in Markdown; without an end tag it is the one block that Markdown parses.
* A block quote that holds a table or a list loses its `>`; one with only text keeps it.
* Everything else stays unchanged: a chunk's id depends on its content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from markdown_it.token import Token

from abstain.knowledge.documents.html import html_to_markdown
from abstain.knowledge.documents.sections import parse_blocks

_TAG = re.compile(r"<(/?)(?:table|ul|ol|dl)(?=[\s/>]|\Z)", re.IGNORECASE)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_CODE = re.compile(r"(?<!`)(`++).*?(?<!`)\1(?!`)", re.DOTALL)
_LITERAL = re.compile(r"\s*<(?:pre|script|style|textarea)\b", re.IGNORECASE)
_STRUCTURE = frozenset({"table_open", "bullet_list_open", "ordered_list_open"})
_QUOTE = re.compile(r"^ {0,3}> ?")
_QUOTE_TAB = re.compile(r"^( {0,3}>)\t")  # a tab after the mark: three columns, of which one is the mark's


def normalize_markdown(body: str) -> str:
    """Return `body` with raw HTML tables and lists as Markdown, and those in block quotes without the quote's marks."""
    lines, tokens = parse_blocks(body)
    blocks = [index for index, token in enumerate(tokens) if not token.level and token.map and token.nesting >= 0]
    sources = [_get_markup(lines, tokens[index]) for index in blocks]
    ends = _find_ends([sum(-1 if tag[1] else 1 for tag in _TAG.finditer(source)) for source in sources])
    out: list[str] = []
    n_done = 0  # lines that stand in `out`, as they were or replaced
    for i, index in enumerate(blocks):
        start, end = tokens[index].map or [0, 0]
        if start < n_done:
            continue
        replacement = None
        if tokens[index].type == "blockquote_open":
            if _holds_structure(tokens, index):
                replacement = normalize_markdown("\n".join(_unquote(line) for line in lines[start:end]))
        elif tokens[index].type in ("html_block", "paragraph_open") and (tag := _TAG.search(sources[i])):
            last = ends[i]
            if tokens[index].type == "html_block" or last is not None:
                end = (tokens[blocks[last]].map or [0, 0])[1] if last is not None else end
                offset = tag.start() if tokens[index].type == "paragraph_open" else 0
                source = "\n".join(lines[start:end])
                replacement = f"{source[:offset].rstrip()}\n\n{html_to_markdown(source[offset:])}"
        if replacement is not None:
            out += [*lines[n_done:start], "", replacement, ""]
            n_done = end
    return "\n".join([*out, *lines[n_done:]]) if n_done else body


def _get_markup(lines: Sequence[str], token: Token) -> str:
    """Return the source of a block, at the same length, with everything blanked in which tags are no markup."""
    source = "\n".join(lines[slice(*(token.map or [0, 0]))])
    if token.type == "fence" or (token.type == "html_block" and _LITERAL.match(source)):
        return ""
    source = _COMMENT.sub(_blank, source)
    return source if token.type == "html_block" else _CODE.sub(_blank, source)


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _find_ends(steps: Sequence[int]) -> list[int | None]:
    """Return for each block the first block, from it on, by which all tags that were opened since are closed again."""
    ends: list[int | None] = [None] * len(steps)
    open_blocks: list[tuple[int, int]] = []  # the depths before blocks without an end yet, deeper and deeper
    depth = 0
    for index, step in enumerate(steps):
        open_blocks.append((depth, index))
        depth += step
        while open_blocks and depth <= open_blocks[-1][0]:
            ends[open_blocks.pop()[1]] = index
    return ends


def _holds_structure(tokens: Sequence[Token], quote: int) -> bool:
    return any(
        token.type in _STRUCTURE
        or (token.type == "html_block" and not _LITERAL.match(token.content) and _TAG.search(token.content))
        or (token.type == "inline" and _TAG.search(_CODE.sub(_blank, token.content)))
        for token in _iter_inside(tokens, quote)
    )


def _iter_inside(tokens: Sequence[Token], opening: int) -> Iterator[Token]:
    for index in range(opening + 1, len(tokens)):
        if not tokens[index].level:
            return
        yield tokens[index]


def _unquote(line: str) -> str:
    return _QUOTE.sub("", _QUOTE_TAB.sub(r"\1   ", line))
