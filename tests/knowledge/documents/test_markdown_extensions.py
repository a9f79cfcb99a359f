"""Markdown of MkDocs and Docusaurus: its own marks are no text, and what they indent is no code."""

import pytest

from abstain.knowledge.documents.chunks import chunk_document
from abstain.knowledge.documents.markdown_extensions import remove_extensions
from abstain.knowledge.documents.reader import get_parser
from tests.knowledge.builders import document


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('!!! note "Fees"\n\n    Free.\n\n    - a\n    - b\n\nx', "Fees\n\nFree.\n\n- a\n- b\n\nx"),
        ("!!! note\n    Free.\nx", "Free.\n\nx"),
        ('???+ warning inline end "Fees"\n\tFree.', "Fees\n\nFree."),
        ('!!! note ""\n    Free.', "Free."),
        ('!!! a "A"\n    x\n\n    !!! b "B"\n        y\n\n        z', "A\n\nx\n\nB\n\ny\n\nz"),
        ('- a\n\n    !!! b "B"\n        c\n\n- d', "- a\n\n    B\n\n    c\n\n- d"),
        ('=== "Home"\n\n    1\n\n=== "Abroad"\n\n    2', "Home\n\n1\n\nAbroad\n\n2"),
        ("x\n:::note\nFree.\n:::\ny", "x\n\nFree.\n\ny"),
        (":::note Our fees\n\nFree.\n\n:::", "Our fees\n\nFree."),
        (":::tip[Our fees]{#id}\n\nFree.\n\n:::", "Our fees\n\nFree."),
        ("::::note[A]\n:::tip[B]\nx\n:::\n::::", "A\n\nB\n\nx"),
        ("  :::note Fees\n  Free.\n  :::", "  Fees\n\n  Free."),
        ("::: {.note}\nFree.\n:::", "Free."),
        ("import Tabs from '@theme/Tabs';\nimport 'a.css'\nimport {\n  A,\n  B\n} from \"b\"\n\nx", "x"),
        ("## Fees {#fees}\n\n### Cash {: .wide #cash }", "## Fees\n\n### Cash"),
        ("[TOC]\n\n# Fees", "# Fees"),
    ],
)
def test_remove_extensions_keeps_titles_and_contents(body: str, expected: str) -> None:
    lines = remove_extensions(body).split("\n")
    plain = [line for number, line in enumerate(lines) if line or (number and lines[number - 1])]  # one blank line
    assert "\n".join(plain).strip("\n") == expected


@pytest.mark.parametrize(
    "body",
    [
        "```\n!!! note\n    x\n:::note\nimport a from 'b'\n# a {#b}\n```\n",
        "~~~~md\n:::note\n~~~\n:::\n",  # never closed
        "!!! Attention\n\nNo fees.\n",
        "Fees\n=== \n\n    code\n",
        "import of goods is 'free'\n",
        "import duties from abroad\n",
        "# The set {a, b}\n\nSee {#fees}.\n",
        "::: module.name\n",
        "a ::: b\n",
    ],
)
def test_remove_extensions_other_text_stays(body: str) -> None:
    assert remove_extensions(body) == body


def test_parse_markdown_reads_a_table_in_an_admonition() -> None:
    body = (
        '# Fees {#fees}\n\n!!! note "Cash"\n\n    | A |\n    | --- |\n    | 1 |\n\n    <!-- page 2 -->\n\n    > - x\n'
    )
    fields, markdown = get_parser("a.mdx")(body.encode())
    chunks = chunk_document(document(markdown), count_tokens=len)
    assert [(chunk.kind, chunk.text.partition("\n")[2], chunk.page) for chunk in chunks] == [
        ("text", "Cash", None),
        ("table", "| A |\n| --- |\n| 1 |", None),
        ("list", "- x", None),
    ]
    assert fields == {} and {chunk.section_path for chunk in chunks} == {("Gold Card", "Fees")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [" ", "`", "!!! ", "!!! a\n", ":::", "import ", "{", "# {", "    ", '"', "\n", "from "]
)
def test_remove_extensions_takes_linear_time(part: str) -> None:
    for start in ("", "!!! ", "import ", ":::", "# ", "```", "=== "):
        assert remove_extensions(start + part * 50_000 + "\n\nx").endswith("x")
