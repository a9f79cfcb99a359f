"""Take out what MkDocs and Docusaurus add to Markdown: it would become text, or make code of what it indents."""

from __future__ import annotations

import re

_EXTENSION = re.compile(
    r"""
    # A fence of code, in which all is as it stands.
    ^[ \t]*(?P<fence>`{3,}|~{3,})[^`\n]*\n(?s:.*?)(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)
    # MkDocs: `!!! note "Title"`, `??? note`, `=== "Tab"`, above an indented content.
    | ^(?P<indent>[ ]*)(?:!!!|\?{3}\+?|={3}[+!]?(?=[ \t]+"))[ \t][\w \t-]*+(?:"(?P<title>[^\n]*)")?[ \t]*\n
      (?=(?:[ \t]*\n)*(?P=indent)(?:[ ]{4}|\t)[ \t]*\S)
      (?P<content>(?:[ \t]*\n|(?P=indent)(?:[ ]{4}|\t)[^\n]*(?:\n|\Z))*+)
    # Docusaurus: `:::note Title`, `:::note[Title]`, `:::`.
    | ^(?P<colons>[ \t]*:{3,})[ \t]*+
      (?:\{?\.?[A-Za-z][\w-]*\}?(?:\[(?P<bracketed>[^\]\n]*)\]|[ \t](?P<rest>[^{\n]*))?(?:\{[^}\n]*\})?[ \t]*)?$
    # MDX: `import Tabs from '@theme/Tabs';`
    | ^import(?:[ \t]+|\b[^'"\n;{(]*(?:\{[^{}'";]*\}[^'"\n;{]*)?\bfrom[ \t]*)(?P<quote>['"])[^'"\n]+(?P=quote);?[ \t]*$
    # A heading's id or class: `## Fees {#fees}`.
    | ^(?P<heading>[ ]{0,3}\#{1,6}[ \t][^{\n]*)\{:?[ \t]*[\#.][^{}\n]*\}[ \t]*$
    # The place of a table of contents.
    | ^\[TOC\][ \t]*$
    """,
    re.MULTILINE | re.VERBOSE,
)


def remove_extensions(body: str) -> str:
    """Remove imports, ids of headings, and the marks of admonitions and tabs, whose titles and contents stay.

    Args:
        body: The Markdown, with line feeds only.

    Returns:
        The Markdown without them.
    """
    while (plain := _EXTENSION.sub(_replace, body)) != body:
        body = plain  # in which a nested one may stand now
    return body


def _replace(match: re.Match[str]) -> str:
    if match["fence"]:
        return match[0]
    if match["heading"]:
        return match["heading"].rstrip()
    if match["colons"]:
        title = (match["bracketed"] or match["rest"] or "").strip()
        return f"\n{match['colons'].rstrip(':')}{title}\n" if title else ""
    if match["content"]:
        indent, title = match["indent"], (match["title"] or "").strip()
        content = re.sub(rf"^{indent}(?: {{4}}|\t)", indent, match["content"], flags=re.MULTILINE).strip("\n")
        return "\n".join(["", *([indent + title, ""] if title else []), content, "", ""])
    return ""
