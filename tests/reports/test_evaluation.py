"""The report: its text by state in golden files, and what holds for any input; `test_report_browser` has the look."""

import re
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from abstain.core.formatting import format_percent_near
from abstain.core.markdown import bold, document, heading, paragraph, records_table, table, to_single_line
from abstain.learning.evaluation.evaluation_result import EvaluationResult
from abstain.reports.evaluation import render_evaluation, render_leaderboard
from abstain.reports.evaluation.verdict import make_verdict
from abstain.reports.page import STATUS_MARKS, State, render_html, replace_images
from abstain.reports.plots import PLOTS
from tests.reports import builders
from tests.reports.builders import AT_THRESHOLD, GUARANTEE, LINK, NASTY, TAG, evaluated, make_contradiction
from tests.reports.reading import READER, Page, said_in_markdown, said_on_page, shown, tokens, words

pytestmark = pytest.mark.heavy  # whole reports with their plots

IMAGES = {name: f"<svg>{name}</svg>".encode() for name in PLOTS}
STATES: dict[str, dict[str, Any]] = {"guaranteed": {}, "infeasible": {"guaranteed": False}, "few_rows": {"few": True}}


def render_markdown(**options: Any) -> str:
    return render_evaluation(*evaluated(**options))


@cache
def render_example() -> str:
    return render_markdown()


@cache
def render_example_page() -> str:
    return render_html(render_example(), IMAGES)


@pytest.mark.parametrize("state", STATES)
def test_render_evaluation_is_golden_file_as_is_its_page(state: str) -> None:
    markdown = render_markdown(**STATES[state])
    builders.assert_golden(f"{state}.md", markdown)
    assert render_leaderboard(evaluated(**STATES[state]).result).strip() in markdown
    assert said_on_page(render_html(markdown, IMAGES)) == said_in_markdown(markdown)
    assert not {"nan", "None", "inf", "Undefined"} & set(words(shown(markdown)))
    assert not re.search(r"(?<![\w.])/(?:home|work|tmp|root|Users)/", markdown), "no absolute path"


def rates(precision: float | None, coverage: float = 0.5026, shown: int = 96) -> dict[str, Any]:
    values = {"precision": precision, "coverage": coverage, "shown": shown, "shown_n_eff": float(shown)}
    values["shown_groups"] = min(shown, 29)
    return {f"{AT_THRESHOLD}.{name}": value for name, value in values.items()}


KEPT, BROKEN, NOTHING, FEW = rates(0.8723), rates(0.7851), rates(None, 0.0, 0), rates(1.0, shown=1)
FOUR_GROUPS = KEPT | {f"{AT_THRESHOLD}.shown_groups": 4}


@pytest.mark.parametrize(
    ("state", "metric", "target", "changed", "guaranteed"),
    [
        ("passed", "precision", 0.85, KEPT, True),
        ("failed", "precision", 0.85, BROKEN, True),
        ("failed", "precision", 0.85, rates(0.84996), True),
        ("warned", "precision", 0.85, NOTHING, True),
        ("warned", "precision", 0.85, FEW, True),
        ("warned", "precision", 0.85, FOUR_GROUPS, True),
        ("warned", "precision", 0.85, BROKEN, False),
        ("warned", "precision", 0.85, NOTHING, False),
        ("passed", "error_rate", 0.11, BROKEN, True),
        ("failed", "error_rate", 0.1, BROKEN, True),
        ("warned", "error_rate", 0.1, NOTHING, True),
    ],
)
def test_make_verdict_state_opens_the_report(
    state: State, metric: str, target: float, changed: dict[str, Any], guaranteed: bool
) -> None:
    changed = {**changed, f"{GUARANTEE}.metric": metric, f"{GUARANTEE}.target": target}
    given = evaluated(guaranteed=guaranteed, changed=changed)
    verdict = make_verdict(given.result)
    assert verdict.state == state
    page = Page(render_html(render_evaluation(*given), IMAGES))
    assert page.of("h1", "h2")[1] == f"{STATUS_MARKS[state]} {verdict.headline}"
    assert ("section", {"class": f"card verdict {state}", "id": "verdict"}) in page.elements
    assert page.of("title") == [f"Confidence model: evaluation: {verdict.headline}"]


def test_make_verdict_shortfall_is_compared_with_chance() -> None:
    def shortfall(target: float = 0.85, low: float | None = None, high: float | None = None, **more: Any) -> str:
        interval = {f"{AT_THRESHOLD}.precision_low": low, f"{AT_THRESHOLD}.precision_high": high}
        changed = {**BROKEN, **interval, "metrics.holdout.effective_sample_size": 187.0, **more}
        return make_verdict(evaluated(changed=changed | {f"{GUARANTEE}.target": target}).result).shortfall

    assert re.findall(r"\d+", shortfall()) == ["6", "94"]
    assert "may be chance" in shortfall(low=0.7, high=0.86) and "may be chance" not in shortfall(low=0.7, high=0.84)
    assert re.findall(r"\d+", shortfall(0.1, **{f"{GUARANTEE}.metric": "error_rate"})) == ["1", "187"]
    assert shortfall(0.75) == ""


def test_report_unchecked_guarantee_is_marked_everywhere() -> None:
    pattern = "not checked (?:on the hold-out )?yet"
    for unchecked in (FEW, FOUR_GROUPS):
        assert len(re.findall(pattern, render_markdown(changed=unchecked))) == 4
    assert not re.search(pattern, render_example() + render_markdown(guaranteed=False, changed=FEW))


def test_evaluation_result_round_trip_keeps_values() -> None:
    result = evaluated(changed={"evaluation.served.future": 5}).result
    content = result.to_dict()
    assert content["evaluation"]["served"]["future"] == 5, "a key of a later version is kept"
    assert EvaluationResult.from_files(**content) == result
    scorer = content["metrics"]["holdout"]["scorers"]["probe"]
    assert result.served_metrics.get("brier_low") == scorer["brier_low"] and result.served_metrics.get("x") is None


def test_report_context_audit_depends_on_the_loss() -> None:
    def finding(**changed: float | None) -> str:
        changes = {f"evaluation.audits.context_removed.0.{name}": value for name, value in changed.items()}
        return render_markdown(changed=changes).partition("### Context removed\n\n")[2].partition("\n")[0]

    clear = {"auroc": 0.8, "auroc_lost": 0.18, "auroc_lost_low": 0.1, "auroc_lost_high": 0.2}
    assert "40 %" in finding(auroc_changed=0.62, **clear) and "0 %" in finding(auroc_changed=0.45, **clear)
    others = [finding(), finding(auroc=0.5, auroc_changed=0.4), finding(auroc_changed=None)]
    assert len(set(others)) == 3 and not re.search(r"\d", "".join(others))


TAGS = {
    "html", "head", "meta", "link", "title", "style", "body", "main", "section", "nav", "h1", "h2", "h3", "p", "span",
    "strong", "ul", "ol", "li", "a", "div", "table", "caption", "thead", "tbody", "tr", "th", "td", "figure",
    "figcaption", "img", "bdi",
}  # fmt: skip
BLOCKS = ("heading", "paragraph", "table", "thead", "tbody", "tr", "th", "td")
PLAIN = {"inline", "text", "text_special", *(f"{part}_{end}" for part in BLOCKS for end in ("open", "close"))}
"""All that a page, and texts and tables in Markdown are made of."""


def test_page_user_text_stays_text() -> None:
    page = Page(render_example_page())
    assert set(page.tags) <= TAGS
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    addresses = page.attributes("href") + page.attributes("src")
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert len(page.attributes("src")) == len(PLOTS)
    assert not re.search(r"url\(|@import", render_example_page())
    told = page.of("bdi")
    for text in NASTY[:4]:
        assert to_single_line(text) in told


def test_render_html_ignores_links_and_html_of_markdown() -> None:
    asked = [f"a {LINK} b", TAG, "![x](other.svg)", "![y](data:image/png;base64,AA==)", "&lt;i&gt;", "```", TAG, "```"]
    page = Page(render_html(make_report(*asked), IMAGES))
    assert page.attributes("href") == ["data:,", "#only"]
    assert page.attributes("src") == []
    assert not {"script", "i", "code", "pre"} & {tag for tag, _ in page.elements}
    assert "&lt;i&gt;" in " ".join(text for _, text in page.texts), "an entity is text, too"


def test_page_warning_precedes_the_verdict() -> None:
    warning = f"trained on erased rows since 2026-11-20; kept on purpose: {' '.join(NASTY)}"
    page = Page(render_html(f"{paragraph(bold(warning))}\n\n{render_example()}", IMAGES))
    assert page.texts.index(("strong", to_single_line(warning))) < page.texts.index(("h2", page.of("h2")[0]))


def test_markdown_tables_have_all_cells() -> None:
    tables = Page(READER.render(render_example())).tables
    rules = [line for line in render_example().splitlines() if re.fullmatch(r"\|( -{3}:? \|)+", line)]
    assert len(tables) == len(rules) == len(Page(render_example_page()).tables)
    for rows, rule in zip(tables, rules, strict=True):
        assert {len(row) for row in rows} == {rule.count("---")}
        assert rows[1:]
    spanning = [row[-1] for table in Page(render_example_page()).tables for row in table if len(row) < len(table[0])]
    assert spanning and not [text for text in spanning if re.match(r"[+−]?\d", text)]
    assert f"mine | {TAG}" in [row[0] for table in tables for row in table]


@given(st.text() | st.lists(st.sampled_from([*"\\`*_[]<>|~&$#!():@/.-+=1a ", "://", "www.", "\n"])).map("".join))
@example("1. a")
@example("a_b _c_ __d__")
@example("**")
@example("\r-")
@example("\ud800\x00")
def test_markdown_any_text_reads_unchanged(text: str) -> None:
    markdown = make_report(paragraph(text), table(("a", "b"), [("r", text), ("s", f"{text} (below)")]))
    found = tokens(markdown)
    assert {token.type for token in found} <= PLAIN
    assert sum(token.type == "heading_open" for token in found) == 3
    inner = to_single_line(text).strip()
    cells = [row for grid in Page(READER.render(markdown)).tables for row in grid[1:]]
    assert [len(row) for row in cells] == [2, 2]
    assert cells[0][1].strip() == inner
    assert cells[1][1].split() == [*inner.split(), "(below)"]
    assert inner in "".join(token.content for token in found if token.type.startswith("text"))


@lru_cache(maxsize=2)
def list_kinds(text: str) -> list[str]:
    """The kinds of the blocks of a report with `text` in every place for a text."""
    keys = ("examples.caught.0.question", "examples.caught.0.product", "skipped.entailment", "slices.0.slice")
    changed = {f"evaluation.{key}": text for key in keys} | {"dataset.contradicting.named": [make_contradiction(text)]}
    return [token.type for token in READER.parse(render_markdown(changed=changed))]


@settings(max_examples=40)
@given(st.text().filter(str.strip))
@example("# a\n- b | c <i>")
def test_report_any_text_changes_no_structure(text: str) -> None:
    assert list_kinds(text) == list_kinds("x")


@given(st.text())
def test_render_html_any_text_reads_unchanged(text: str) -> None:
    page = render_html(make_report(paragraph(text, " ", bold(text)), table(("a",), [(text,)], text)), IMAGES)
    parsed = Page(page)
    assert parsed.tables[0][1][0].strip() == to_single_line(text).strip().replace("\xa0", " ")
    assert page.encode()


def make_report(*blocks: str) -> str:
    return document([heading(1, "title"), paragraph("about"), heading(2, "✓ kept"), heading(2, "Only"), *blocks])


def test_page_is_accessible() -> None:
    page = Page(render_example_page())
    assert ("html", {"lang": "en"}) in page.elements
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert {attrs.get("scope") for tag, attrs in page.elements if tag == "th"} == {"col", "row"}
    captions = [text for tag, text in page.texts if tag == "span"]
    boxes = [attrs for _, attrs in page.elements if attrs.get("class") == "scroll"]
    assert len(boxes) == len(page.tables) - 1  # the key figures fit into any window
    assert {(box["tabindex"], box["role"]) for box in boxes} == {("0", "region")}
    assert {box["aria-label"] for box in boxes} <= set(captions)
    alts = page.attributes("alt")
    assert len(alts) == len(PLOTS) and all(re.search(r"\d", alt) and len(alt) > 40 for alt in alts)
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    assert {address[1:] for address in page.attributes("href") if address != "data:,"} <= set(ids)


def test_replace_images_keeps_the_words() -> None:
    text = replace_images(render_example())
    assert "image" not in {token.type for token in tokens(text)}
    assert words(shown(text)) == words(shown(render_example()))


def test_records_table_has_one_line_per_row() -> None:
    records = records_table(
        [
            {"a": 1, "b": "x | y\nz", "c": 0.25, "d": LINK},
            {"a": 2, "b": bold("failed"), "c": None, "d": TAG},
            {"a": 3, "b": bold("a*b"), "c": float("nan"), "d": ""},
        ],
        text_columns=("d",),
    )
    assert records.splitlines()[:2] == ["| a | b | c | d |", "| --- | ---: | ---: | --- |"]
    assert len(records.splitlines()) == 5
    assert "| 1 | x \\| y z | 0.25 |" in records
    assert "| 2 | **failed** | not defined |" in records
    assert "| 3 | **a\\*b** | not defined |  |" in records
    assert not {"link_open", "html_inline"} & {token.type for token in tokens(records)}


def test_format_percent_near_separates_value_and_target() -> None:
    texts = [format_percent_near(value, 0.85) for value in (0.8501, 0.84999, 0.85, 0.7, None)]
    assert texts == ["85.01 %", "84.999 %", "85.0 %", "70.0 %", "not defined"]
