"""What the two pages say, read as a browser would read them, but for how they look (`test_report_browser`)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.codes import Code
from abstain.core.reasons import Reason, Reasons
from abstain.data.store.profile import MEASURES
from abstain.data.validation.results import MAX_REPORTED_ROWS, CheckResult, ValidationResult
from abstain.ingest.quarantine import QuarantinedRow
from abstain.ingest.report import IngestReport
from abstain.reports.data_reports.charts import LANGUAGES_SHOWN, drift_images, histogram
from abstain.reports.data_reports.pages import ingest_report
from abstain.reports.data_reports.pages import validation_report
from tests.reports.reading import Page, said_in_markdown, said_on_page

DRIFT = {
    "limit": 0.25,
    "rows": {"newest": 100, "previous": 900},
    "shift": dict.fromkeys(MEASURES, 0.01) | {"question language": 3.73},
    "newest": {name: {"32": 40, "64": 60} for name in MEASURES} | {"question language": {"en": 50, "de": 50}},
    "previous": {name: {"32": 500, "91": 400} for name in MEASURES} | {"question language": {"en": 900}},
}
SPLITS = [
    {"split": "all", "answers": 40, "correct": 30, "reviewed": 10},
    {"split": "train", "answers": 40, "correct": 30, "reviewed": 10},
    {"split": "holdout", "answers": 0, "correct": 0, "reviewed": 0},
]


def check(suite: str, column: str, unexpected: int = 0, severity: str = "error", told: str = "") -> CheckResult:
    keys = tuple(f"{suite}/row-{at}" for at in range(min(unexpected, 5)))
    between = {"min_value": 1, "max_value": 20_000}
    return CheckResult(
        suite=suite,
        expectation="ExpectColumnValuesToBeBetween",
        column=column,
        arguments=between,
        severity=severity,
        success=not unexpected,
        failed_rows=unexpected,
        sample=keys,
        messages=(told,) if told else keys,
        remark=f"{column}: not liked",
        code=Code.DRIFT if suite == "drift" else Code.FAILED_CHECK,
    )


def page_of(*results: ValidationResult) -> Page:
    read = [json.loads(json.dumps(result.to_dict())) for result in results]
    markdown, page = validation_report(read, "retrain shiny-fox")
    assert said_on_page(page) == said_in_markdown(markdown)
    return Page(page)


def failed(field: str, message: str) -> Reasons:
    return (Reason(Code.FAILED_CHECK, field, message),)


def rows_result(**changes: Any) -> ValidationResult:
    fields: dict[str, Any] = {
        "rows": {"interactions": 1_200, "feedback": 0},
        "checks": (check("interactions", "question_chars"), check("interactions", "answer_chars")),
    }
    return ValidationResult(**{**fields, **changes})


HOSTILE = (
    '<img src="http://elsewhere.invalid/x.png" onerror="document.title=1"><script src="http://elsewhere.invalid/x.js">'
)
FAILED = ValidationResult.merge(
    [
        rows_result(
            checks=(check("interactions", "question_chars"), check("interactions", "answer_chars", 3)),
            reasons={
                "interactions/q-17": failed("answer", "31,204 characters, 20,000 allowed (validation.max_text_chars)"),
                f"interactions/{HOSTILE}": failed("asked_at", "86,400 s in the future"),
                f"interactions/{'long' * 60}": failed("contexts", "no ingested document holds 'fees#1'"),
            },
        ),
        ValidationResult(
            {"drift": 5},
            (check("drift", "shift", 1, "warning", "question language: 3.73"),),
            statistics={"drift": DRIFT},
        ),
        ValidationResult({"labels": 40}, (check("labels", "straddles"),), statistics={"splits": SPLITS}),
    ]
)


def test_a_sound_store_has_passed() -> None:
    words = page_of(rows_result()).prose
    assert "Data validation retrain shiny-fox ✓ Passed 2 expectations hold on 1,200 rows" in words
    assert "feedback: no rows, the suite was skipped" in words
    assert "1,200 interactions 0 feedback" in words
    assert "✓ interactions: 1,200 rows, 2 of 2 expectations hold" in words


def test_the_verdict_comes_first_then_the_rows_that_fail() -> None:
    failing = rows_result(
        checks=(check("interactions", "question_chars"), check("interactions", "answer_chars", 60)),
        reasons={f"interactions/row-{at:03d}": failed("answer", f"reason {at}") for at in range(60)},
    )
    words = page_of(failing).prose
    assert "✗ 1 expectation failed, by 60 rows interactions: answer_chars: not liked (60)" in words
    places = [
        words.index(what) for what in ("1 expectation failed", "Rows that fail", "answer: reason 0", "What was checked")
    ]
    assert places == sorted(places)
    assert f"answer: reason {MAX_REPORTED_ROWS - 1}" in words and f"answer: reason {MAX_REPORTED_ROWS}" not in words
    assert "and 10 more" in words
    assert (
        "answer_chars at least 1, at most 20,000 fails 60 row-0, row-1, row-2, row-3, row-4 answer_chars: not liked"
        in words
    )


def test_warnings_figures_and_charts_are_shown() -> None:
    drift = ValidationResult(
        {"drift": 5},
        (check("drift", "shift", 1, "warning", "question language: 3.73 from"),),
        statistics={"drift": DRIFT},
    )
    table = ValidationResult(
        {"labels": 40, "splits": 3}, (check("labels", "straddles"),), statistics={"splits": SPLITS}
    )
    page = page_of(ValidationResult.merge([rows_result(), drift]), table)
    assert "! Passed, with 1 warning 3 expectations hold" in page.prose
    assert "Warnings A108 question language: 3.73 from" in page.prose
    assert f"train 40 75.0 % {'█' * 15}{'░' * 5} 25.0 % {'█' * 5}{'░' * 15}" in page.prose
    assert "holdout 0 no answers" in page.prose
    assert "the newest batch, 100 interactions; grey: those before, 900" in page.prose
    assert "question language: shift 3.73: large." in page.prose and "answer length: shift 0.01." in page.prose
    assert page.tags.count("img") == len(MEASURES)
    (told,) = (alt.replace("\xa0", " ") for alt in page.attributes("alt") if alt.startswith("question language"))
    assert told == "question language: en: 50.0 %, before 100.0 %; de: 50.0 %, before 0.0 %."


def test_bars_are_shares_scaled_to_the_highest() -> None:
    lengths = histogram(DRIFT, "answer length")
    assert lengths == {"32": (0.4, 500 / 900), "46": (0, 0), "64": (0.6, 0), "91": (0, 400 / 900)}
    drawing = drift_images(DRIFT)["drift_answer_length"].decode()
    heights = [float(height) for height in re.findall(r'<rect [^>]*height="([\d.]+)"', drawing)]
    assert heights == [46.7, 64.8, 0, 0, 70, 0, 0, 51.9], "the newest batch beside those before, class by class"
    assert "prefers-color-scheme:dark" in drawing
    many = DRIFT | {"newest": DRIFT["newest"] | {"answer language": {f"l{at}": 9 for at in range(20)}}}
    assert len(histogram(many, "answer language")) == LANGUAGES_SHOWN


@pytest.mark.heavy
@given(st.text(min_size=1), st.text())
def test_whatever_a_row_holds_is_text_and_nothing_else(key: str, reason: str) -> None:
    sound = page_of(rows_result(reasons={"interactions/x": failed("y", "z")}))
    page = page_of(rows_result(reasons={f"interactions/{key}": failed("y", reason)}, notes=(reason,), statistics={}))
    assert set(page.tags) <= {*sound.tags, "ul", "li"} - {"script", "img", "iframe"}
    assert page.attributes("src") == []
    assert {*page.attributes("href")} <= {"data:,", *(f"#{name}" for name in page.attributes("id"))}


def report(**changes: Any) -> IngestReport:
    counts = {"read": 20, "accepted": 12, "duplicate": 1, "pending": 2, "quarantined": 5}
    contracts = {"interactions": 12, "feedback": 3, "reviews": 0, "documents": 0}
    return IngestReport(**{**counts, "contracts": contracts, **changes})


def refused(line: int, raw: str, field: str, message: str) -> QuarantinedRow:
    reasons = (Reason(Code.INVALID_ROW, field, message),)
    return QuarantinedRow(source="a.jsonl", line=line, digest=str(line), size=len(raw), raw=raw, reasons=reasons)


REFUSED = [
    refused(7, '{"question": "<script>alert(1)</script>"}', "answer", "this field is missing"),
    refused(9, "\\xff", "line", "not valid UTF-8"),
]


def test_an_accepted_batch_says_what_it_brought() -> None:
    drift = ValidationResult({"drift": 5}, (check("drift", "shift"),), statistics={"drift": DRIFT})
    given = report(reasons={"answer: missing": 5}, validation=drift)
    markdown, html = ingest_report(given, "ingest calm-owl", REFUSED)
    assert said_on_page(html) == said_in_markdown(markdown)
    words = Page(html).prose
    assert "! 12 rows accepted, 5 quarantined" in words
    assert "New: 12 interactions, 3 feedback, 0 reviews, 0 documents." in words
    assert "20 read 12 accepted 1 duplicate 2 pending 5 quarantined" in words
    assert "5 x answer: missing" in words
    assert "a.jsonl, line 7 A103 answer: this field is missing" in words and "and 3 more" in words
    assert "2 thumbs and reviews without their interaction" in words
    assert "abstain quarantine retry ID" in words
    assert "alert(1)" not in words


def test_a_refused_batch_says_so_first() -> None:
    _, page = ingest_report(report(), "ingest calm-owl", REFUSED, "batch of a.jsonl rejected: 5 of 20 rows fail")
    words = Page(page).prose
    assert "✗ Batch rejected, nothing accepted batch of a.jsonl rejected: 5 of 20 rows fail" in words
    assert "12 valid, not accepted" in words
    assert "line: not valid UTF-8" in words
    assert re.search(r"<title>Ingest: Batch rejected, nothing accepted</title>", page)


def test_a_batch_that_brought_nothing_new_has_nothing_to_do() -> None:
    known = report(read=1, accepted=0, duplicate=1, pending=0, quarantined=0, contracts={"interactions": 0})
    words = Page(ingest_report(known, "ingest calm-owl")[1]).prose
    assert "✓ 0 rows accepted" in words and "New: 0 interactions." in words
    assert "What to do" not in words
