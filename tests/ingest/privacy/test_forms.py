"""Identifiers as a paste, a keyboard or a web page changes them: what docs/privacy.md says of each form."""

import pytest

from abstain.ingest.privacy.redaction import Redactor
from benchmarks.redaction import FORMS, main, make_number_lists, measure_recall
from tests.ingest.privacy import builders

pytestmark = pytest.mark.slow  # Presidio takes seconds to import

REDACTOR = Redactor(builders.SHIPPED)
NOT_FOUND = ("` @ `", "Cyrillic and Greek look-alikes", "quoted local part", "in pairs")


@pytest.mark.parametrize("form", [form for form in FORMS if form not in NOT_FOUND])
def test_redact_finds_identifiers_of_a_form(form: str) -> None:
    kinds = [kind for kind in FORMS[form][1] if (form, kind) != ("other separators", "US_SSN")]
    assert {kind: share for kind in kinds if (share := measure_recall(REDACTOR, form, kind, 24)) < 0.95} == {}


@pytest.mark.parametrize(
    "text",
    [
        "ann[at]example.org",
        "ann at example dot org",
        "ann @ example.org",
        '"ann b"@example.org',
        "0049 30 1234567",
        "4l11 1111 1111 1111",
        "4111 and 1111 1111 1111",
        "41 11 11 11 11 11 11 11",
        "536/90/4399",
        "\u7528\u6237@\u4f8b\u5b50.\u516c\u53f8",
    ],
)
def test_redact_forms_that_are_documented_as_missed_stay(text: str) -> None:
    assert REDACTOR.redact(text)[0] == text


def test_redact_numbers_of_everyday_text_stay() -> None:
    texts = make_number_lists(500)
    changed = [text for text in texts if REDACTOR.redact(text)[0] != text]
    assert len(changed) <= 0.001 * len(texts), changed[:10]


def test_redaction_benchmark_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--each", "6", "--numbers", "5"])
    said = capsys.readouterr().out
    assert "| as written | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 |" in said and "answers of the sample" in said
