"""Markdown -> Markdown whose tables and lists are all plain: raw HTML is converted, and block quotes are opened.

Notes:

* Raw HTML that holds a table or a list is converted like a page. It reaches to the end tag, over blank lines, which
  would end it in Markdown; without an end tag it is the one block that Markdown parses.
* A block quote that holds a table or a list loses its `>`; one of text keeps it.
* Everything else stays unchanged: a chunk's id depends on its content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from markdown_it.token import Token

from abstain.knowledge.documents.sections import parse_blocks

_TAG = re.compile(r"<(/?)(?:table|ul|ol|dl)(?=[\s/>]|\Z)", re.IGNORECASE)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_CODE = re.compile(r"(?<!`)(`++).*?(?<!`)\1(?!`)", re.DOTALL)
_LITERAL = re.compile(r"\s*<(?:pre|script|style|textarea)\b", re.IGNORECASE)
_STRUCTURE = frozenset({"table_open", "bullet_list_open", "ordered_list_open"})
_QUOTE = re.compile(r"^ {0,3}> ?")
_QUOTE_TAB = re.compile(r"^( {0,3}>)\t")  # a tab after the mark: three columns, of which one is the mark's


def normalize_markdown(body: str) -> str:
    """`body` with its raw HTML tables and lists as Markdown, and those in block quotes without the quote's marks."""
    lines, tokens = parse_blocks(body)
    blocks = [at for at, token in enumerate(tokens) if not token.level and token.map and token.nesting >= 0]
    sources = [_visible(lines, tokens[at]) for at in blocks]
    ends = _ends([sum(-1 if tag[1] else 1 for tag in _TAG.finditer(source)) for source in sources])
    out: list[str] = []
    taken = 0  # lines that stand in `out`, as they were or replaced
    for number, at in enumerate(blocks):
        start, end = tokens[at].map or [0, 0]
        if start < taken:
            continue
        found = None
        if tokens[at].type == "blockquote_open":
            if _holds_structure(tokens, at):
                found = normalize_markdown("\n".join(_unquoted(line) for line in lines[start:end]))
        elif tokens[at].type in ("html_block", "paragraph_open") and (tag := _TAG.search(sources[number])):
            last = ends[number]
            if tokens[at].type == "html_block" or last is not None:
                end = (tokens[blocks[last]].map or [0, 0])[1] if last is not None else end
                before = tag.start() if tokens[at].type == "paragraph_open" else 0
                found = _converted("\n".join(lines[start:end]), before)
        if found is not None:
            out += [*lines[taken:start], "", found, ""]
            taken = end
    return "\n".join([*out, *lines[taken:]]) if taken else body


def _visible(lines: Sequence[str], token: Token) -> str:
    """The source of a block with everything but HTML markup blanked; as long as the source."""
    source = "\n".join(lines[slice(*(token.map or [0, 0]))])
    if token.type == "fence" or (token.type == "html_block" and _LITERAL.match(source)):
        return ""
    source = _COMMENT.sub(_blank, source)
    return source if token.type == "html_block" else _CODE.sub(_blank, source)


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _ends(steps: Sequence[int]) -> list[int | None]:
    """For each block the first one, from it on, in which all that was opened since is closed again."""
    ends: list[int | None] = [None] * len(steps)
    waiting: list[tuple[int, int]] = []  # the depths before blocks without an end yet, deeper and deeper
    depth = 0
    for at, step in enumerate(steps):
        waiting.append((depth, at))
        depth += step
        while waiting and depth <= waiting[-1][0]:
            ends[waiting.pop()[1]] = at
    return ends


def _holds_structure(tokens: Sequence[Token], quote: int) -> bool:
    return any(
        token.type in _STRUCTURE
        or (token.type == "html_block" and not _LITERAL.match(token.content) and _TAG.search(token.content))
        or (token.type == "inline" and _TAG.search(_CODE.sub(_blank, token.content)))
        for token in _inside(tokens, quote)
    )


def _inside(tokens: Sequence[Token], opening: int) -> Iterator[Token]:
    for at in range(opening + 1, len(tokens)):
        if not tokens[at].level:
            return
        yield tokens[at]


def _unquoted(line: str) -> str:
    return _QUOTE.sub("", _QUOTE_TAB.sub(r"\1   ", line))


def _converted(source: str, before: int) -> str | None:
    """`source` with all from the character `before` on as Markdown; None where its tags are nested too deeply, or a
    table is too large."""
    # Lazily: the parser costs a quarter of a second.
    from abstain.knowledge.documents.html import read_fragment
    from abstain.knowledge.documents.html_tables import TooManyCells

    try:
        return f"{source[:before].rstrip()}\n\n{read_fragment(source[before:])}"
    except (RecursionError, TooManyCells):
        return None
