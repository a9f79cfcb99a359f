import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.knowledge.documents.sections import MAX_HEADING, split_sections
from tests.knowledge.builders import document

SUBSECTIONS = "Intro.\n\n# Gold Card\n\nTop.\n\n## Fees\n\n### Abroad\n\nA.\n\n### At home\n\nH.\n\n## Limits\n\nL.\n"
IN_BLOCKS = "- a\n\n  # b\n\n> # c\n\n```\n# d\n```\n\n<div>\n# e\n</div>\n\n    # f"
LARGE = "word " * (MAX_HEADING // 5 + 1)


@pytest.mark.parametrize(
    ("body", "sections"),
    [
        (
            SUBSECTIONS,
            [
                ("Gold Card", "Intro."),
                ("Gold Card", "Top."),  # a first heading that repeats the title is no section
                ("Gold Card > Fees > Abroad", "A."),
                ("Gold Card > Fees > At home", "H."),
                ("Gold Card > Limits", "L."),
            ],
        ),
        ("# Fees\n\n## Abroad\n", []),
        ("# Fees\n \n\t\n## Abroad\n\nx", [("Gold Card > Fees > Abroad", "x")]),
        (
            "Fees\n====\n\n#### Deep\n\nd\n\n## Less  deep\n\nl\n",
            [("Gold Card > Fees > Deep", "d"), ("Gold Card > Fees > Less deep", "l")],
        ),
        ("# Fees\n\na\n\n# Fees\n\nb\n", [("Gold Card > Fees", "a"), ("Gold Card > Fees", "b")]),
        (IN_BLOCKS, [("Gold Card", IN_BLOCKS)]),
        (f"# Fees\n\na\n\n## {LARGE}\n\nb", [("Gold Card > Fees", f"a\n\n## {LARGE}\n\nb")]),
    ],
    ids=["subsections", "empty", "blank", "skipped level", "repeated", "inside a block", "long heading"],
)
def test_split_sections_paths_and_bodies(body: str, sections: list[tuple[str, str]]) -> None:
    assert [(" > ".join(one.path), one.body.strip()) for one in split_sections(document(body))] == sections


lines = st.sampled_from(
    ["# A", "## B", "### C", "####", "x", "- y", "  - z", "", "| a | b |", "|---|---|", "===", "---", "> q"]
)


@given(st.lists(lines, max_size=15).map("\n".join).filter(str.strip), st.sampled_from(["\n", "\r\n", "\r"]))
def test_split_sections_every_line_is_in_one_section_or_heading(body: str, end: str) -> None:
    parts = split_sections(document(body.replace("\n", end)))
    lines = [line for one in parts for line in one.body.split("\n") if line.strip()]
    rest = iter(line for line in document(body).body.split("\n") if line.strip())
    assert all(line in rest for line in lines)  # in order, none twice
    assert parts == split_sections(document(body))
