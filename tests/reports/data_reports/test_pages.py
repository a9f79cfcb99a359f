"""What the two pages say, read as a browser would read them, but for how they look (`test_report_browser`)."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.codes import Code
from abstain.core.reasons import Reason, Reasons
from abstain.data.store.profile import MEASURES
from abstain.data.validation import results as module
from abstain.data.validation.results import MAX_REPORTED_ROWS, CheckResult, SplitLabels, ValidationResult
from abstain.ingest.quarantine import QuarantinedRow
from abstain.ingest.report import IngestReport
from abstain.reports.data_reports.charts import LANGUAGES_SHOWN, drift_images, histogram
from abstain.reports.data_reports.ingest import ingest_report
from abstain.reports.data_reports.validation import validation_report
from tests.reports.builders import assert_golden
from tests.reports.reading import Page, said_in_markdown, said_on_page

DRIFT = module.DriftStatistics(
    limit=0.25,
    rows={"newest": 100, "previous": 900},
    shift=dict.fromkeys(MEASURES, 0.01) | {"question language": 3.73},
    newest={name: {"32": 40, "64": 60} for name in MEASURES} | {"question language": {"en": 50, "de": 50}},
    previous={name: {"32": 500, "91": 400} for name in MEASURES} | {"question language": {"en": 900}},
)
SPLITS = (SplitLabels("all", 40, 30, 10), SplitLabels("train", 40, 30, 10), SplitLabels("holdout", 0, 0, 0))


def make_check(suite: str, column: str, failing: int = 0, severity: str = "error", message: str = "") -> CheckResult:
    keys = tuple(f"{suite}/row-{n}" for n in range(min(failing, 5)))
    return CheckResult(
        suite=suite,
        expectation="ExpectColumnValuesToBeBetween",
        column=column,
        arguments={"min_value": 1, "max_value": 20_000},
        severity=severity,
        success=not failing,
        failed_rows=failing,
        sample=keys,
        messages=(message,) if message else keys,
        remark=f"{column}: not liked",
        code=Code.DRIFT if suite == "drift" else Code.FAILED_CHECK,
    )


def render_page(*results: ValidationResult) -> Page:
    read = [ValidationResult.from_dict(json.loads(json.dumps(result.to_dict()))) for result in results]
    markdown, page = validation_report(ValidationResult.merge(read), "retrain shiny-fox")
    assert said_on_page(page) == said_in_markdown(markdown)
    return Page(page)


def make_reasons(field: str, message: str) -> Reasons:
    return (Reason(Code.FAILED_CHECK, field, message),)


def make_result(failing: int = 0, **changes: Any) -> ValidationResult:
    checks = (make_check("interactions", "question_chars"), make_check("interactions", "answer_chars", failing))
    return ValidationResult(rows={"interactions": 1_200, "feedback": 0}, checks=checks, **changes)


HOSTILE = (
    '<img src="http://elsewhere.invalid/x.png" onerror="document.title=1"><script src="http://elsewhere.invalid/x.js">'
)
FAILED = ValidationResult.merge(
    [
        make_result(
            3,
            reasons={
                "interactions/q-17": make_reasons(
                    "answer", "31,204 characters, 20,000 allowed (validation.max_text_chars)"
                ),
                f"interactions/{HOSTILE}": make_reasons("asked_at", "86,400 s in the future"),
                f"interactions/{'long' * 60}": make_reasons("contexts", "no ingested document holds 'fees#1'"),
            },
        ),
        ValidationResult(
            {"drift": 5}, (make_check("drift", "shift", 1, "warning", "question language: 3.73"),), drift=DRIFT
        ),
        ValidationResult({"labels": 40}, (make_check("labels", "straddles"),), splits=SPLITS),
    ]
)


def test_data_reports_equal_golden_files() -> None:
    validation, page = validation_report(FAILED, "retrain shiny-fox")
    assert said_on_page(page) == said_in_markdown(validation)
    assert_golden("validation.md", validation)
    drift = ValidationResult({"drift": 5}, (make_check("drift", "shift"),), drift=DRIFT)
    accepted = make_report(reasons={"answer: missing": 5}, validation=drift)
    ingest, page = ingest_report(accepted, "ingest calm-owl", REFUSED)
    assert said_on_page(page) == said_in_markdown(ingest)
    assert_golden("ingest.md", ingest)
    assert "alert(1)" not in page, "the raw text of a row is not shown"


def test_validation_report_state_is_worst_expectation() -> None:
    warning = ValidationResult({"drift": 5}, (make_check("drift", "shift", 1, "warning"),))
    for result, mark in ((make_result(), "✓"), (ValidationResult.merge([make_result(), warning]), "!"), (FAILED, "✗")):
        assert render_page(result).of("h2")[0].startswith(mark)


def test_validation_report_lists_first_failing_rows() -> None:
    reasons = {f"interactions/row-{n:03d}": make_reasons("answer", f"reason {n}") for n in range(60)}
    words = render_page(make_result(60, reasons=reasons)).prose
    assert f"answer: reason {MAX_REPORTED_ROWS - 1}" in words and f"answer: reason {MAX_REPORTED_ROWS}" not in words
    assert "and 10 more" in words


def test_histogram_shares_scale_to_highest() -> None:
    lengths = histogram(DRIFT, "answer length")
    assert lengths == {"32": (0.4, 500 / 900), "46": (0, 0), "64": (0.6, 0), "91": (0, 400 / 900)}
    drawing = drift_images(DRIFT)["drift_answer_length"].decode()
    heights = [float(height) for height in re.findall(r'<rect [^>]*height="([\d.]+)"', drawing)]
    assert heights == [46.7, 64.8, 0, 0, 70, 0, 0, 51.9], "the newest batch beside those before, class by class"
    assert "prefers-color-scheme:dark" in drawing
    many = replace(DRIFT, newest={"answer language": {f"l{at}": 9 for at in range(20)}})
    assert len(histogram(many, "answer language")) == LANGUAGES_SHOWN


@pytest.mark.heavy
@given(st.text(min_size=1), st.text())
def test_validation_report_row_content_is_text(key: str, reason: str) -> None:
    def render(key: str, *texts: str) -> Page:
        result = make_result(1, reasons={f"interactions/{key}": make_reasons("y", *texts)}, notes=texts)
        check = replace(result.checks[1], sample=(f"interactions/{key}",))
        return render_page(replace(result, checks=(check,)))

    sound, page = render("x", "z"), render(key, reason)
    assert set(page.tags) <= {*sound.tags, "ul", "li"} - {"script", "img", "iframe"}
    assert page.attributes("src") == []
    assert {*page.attributes("href")} <= {"data:,", *(f"#{name}" for name in page.attributes("id"))}


def make_report(**changes: Any) -> IngestReport:
    counts = {"read": 20, "accepted": 12, "duplicate": 1, "pending": 2, "quarantined": 5}
    contracts = {"interactions": 12, "feedback": 3, "reviews": 0, "documents": 0}
    return IngestReport(**{**counts, "contracts": contracts, **changes})


def make_rejected_row(line: int, raw: str, field: str, message: str) -> QuarantinedRow:
    reasons = (Reason(Code.INVALID_ROW, field, message),)
    return QuarantinedRow(source="a.jsonl", line=line, digest=str(line), size=len(raw), raw=raw, reasons=reasons)


REFUSED = [
    make_rejected_row(7, '{"question": "<script>alert(1)</script>"}', "answer", "this field is missing"),
    make_rejected_row(9, "\\xff", "line", "not valid UTF-8"),
]


def test_ingest_report_rejected_batch_comes_first() -> None:
    rejection = "batch of a.jsonl rejected: 5 of 20 rows fail"
    page = Page(ingest_report(make_report(), "ingest calm-owl", REFUSED, rejection)[1])
    assert page.of("h2")[0].startswith("✗") and rejection in page.of("p", "li")
    assert page.of("title") == [f"Ingest: {page.of('h2')[0][2:]}"]
    assert "valid, not accepted" in page.prose


def test_ingest_report_nothing_new_passes() -> None:
    known = make_report(read=1, accepted=0, duplicate=1, pending=0, quarantined=0, contracts={"interactions": 0})
    page = Page(ingest_report(known, "ingest calm-owl")[1])
    assert [title[0] for title in page.of("h2")] == ["✓"]
