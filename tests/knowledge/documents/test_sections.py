from hypothesis import given
from hypothesis import strategies as st

from abstain.knowledge.documents.sections import MAX_HEADING, split_sections
from tests.knowledge.builders import document


def found(body: str, **changes: str) -> list[tuple[str, str]]:
    return [(" > ".join(one.path), one.body.strip()) for one in split_sections(document(body, **changes))]


def test_each_subsection_is_a_document_of_its_own() -> None:
    body = "Intro.\n\n# Gold Card\n\nTop.\n\n## Fees\n\n### Abroad\n\nA.\n\n### At home\n\nH.\n\n## Limits\n\nL.\n"
    assert found(body) == [
        ("Gold Card", "Intro."),
        ("Gold Card", "Top."),  # a first heading that repeats the title is no section
        ("Gold Card > Fees > Abroad", "A."),
        ("Gold Card > Fees > At home", "H."),
        ("Gold Card > Limits", "L."),
    ]


def test_a_heading_with_nothing_under_it_makes_no_section() -> None:
    assert found("# Fees\n\n## Abroad\n") == []
    assert found("# Fees\n \n\t\n## Abroad\n\nx") == [("Gold Card > Fees > Abroad", "x")]


def test_headings_that_skip_a_level_or_are_underlined_nest_all_the_same() -> None:
    body = "Fees\n====\n\n#### Deep\n\nd\n\n## Less  deep\n\nl\n"
    assert found(body) == [("Gold Card > Fees > Deep", "d"), ("Gold Card > Fees > Less deep", "l")]


def test_headings_that_repeat_each_other_are_sections_of_their_own() -> None:
    first, second = split_sections(document("# Fees\n\na\n\n# Fees\n\nb\n"))
    assert first.path == second.path == ("Gold Card", "Fees")
    assert first.content_hash != second.content_hash


def test_what_looks_like_a_heading_inside_something_else_is_none() -> None:
    body = "- a\n\n  # b\n\n> # c\n\n```\n# d\n```\n\n<div>\n# e\n</div>\n\n    # f"
    assert found(body) == [("Gold Card", body)]


def test_a_paragraph_that_somebody_made_large_stays_in_the_section_above() -> None:
    large = "word " * (MAX_HEADING // 5 + 1)
    assert found(f"# Fees\n\na\n\n## {large}\n\nb") == [("Gold Card > Fees", f"a\n\n## {large}\n\nb")]


def test_the_hash_is_of_path_and_body_alone() -> None:
    (one,) = split_sections(document("# Fees\n\na"))
    (same,) = split_sections(
        document("# Fees\n\na", doc_id="silver", updated_at="2026-09-01T00:00:00Z", entitlements=("x",))
    )
    assert one.content_hash == same.content_hash
    others = [document("# Fees\n\nb"), document("# Fee\n\na"), document("# Fees\n\na", title="Gold")]
    assert (
        len({one.content_hash, *(section.content_hash for other in others for section in split_sections(other))}) == 4
    )


lines = st.sampled_from(
    ["# A", "## B", "### C", "####", "x", "- y", "  - z", "", "| a | b |", "|---|---|", "===", "---", "> q"]
)


@given(st.lists(lines, max_size=15).map("\n".join).filter(str.strip), st.sampled_from(["\n", "\r\n", "\r"]))
def test_every_line_stands_in_one_section_or_is_a_heading(body: str, end: str) -> None:
    parts = split_sections(document(body.replace("\n", end)))
    lines = [line for one in parts for line in one.body.split("\n") if line.strip()]
    rest = iter(line for line in document(body).body.split("\n") if line.strip())
    assert all(line in rest for line in lines)  # in order, none twice
    assert parts == split_sections(document(body))
