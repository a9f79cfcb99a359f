import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Context, Question
from abstain.core.errors import AbstainError
from abstain.ingest.parsing import ParsedRow, make_document_row, parse_line, serialize_row
from abstain.ingest.pipeline.run import BatchRejected, ingest
from abstain.ingest.privacy import policy
from abstain.ingest.privacy.policy import Privacy
from abstain.ingest.privacy.pseudonyms import Pseudonyms
from abstain.ingest.quarantine import Quarantine
from abstain.ingest.sources.files import FileSource, make_explicit_sources
from abstain.knowledge.documents.reader import parse_document
from abstain.reports.data_reports.ingest import ingest_report
from tests import factories as rows
from tests.ingest.builders import read_all, refuse_keys, take
from tests.ingest.privacy.builders import params

KEY = "k" * 32
MAIL, CARD = "ann@example.org", "4111 1111 1111 1111"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSTAIN_ORIGIN", raising=False)
    monkeypatch.setenv("ABSTAIN_USER_KEY", KEY)


def open_privacy(**changes: Any) -> Privacy:
    return Privacy.from_params(params(**changes), Settings(user_key=KEY))


def read(**fields: Any) -> ParsedRow:
    return parse_line(json.dumps(rows.row(**fields)).encode(), "f.jsonl", 1)


def make_typed_row(text: str) -> ParsedRow:
    """A row that has `text` wherever somebody may have typed it, and where nobody did."""
    contexts = [{"chunk_id": "a#1", "text": text}]
    thumb, review = rows.thumb(user="ann", comment=text), rows.verdict(ideal_answer=text)
    return read(question=text, answer=text, contexts=contexts, group=text, thumb=thumb, review=review)


def test_privacy_users_get_pseudonyms_reviewers_only_if_set() -> None:
    privacy, typed = open_privacy(redact=()), make_typed_row(f"{MAIL} {CARD}")
    row = privacy.apply(typed)
    assert row.thumb.user == privacy.get_pseudonym("ann") != "ann"
    assert row.review.reviewer == "sme-1"
    assert privacy.apply(row) is row
    both = open_privacy(redact=(), pseudonymize=False, pseudonymize_reviewers=True).apply(typed)
    assert both.review.reviewer.startswith("r-")
    assert both.thumb.user == "ann"
    for off in (Privacy.noop(), open_privacy(redact=(), pseudonymize=False)):
        assert off.apply(typed) is typed
        assert off.get_pseudonym("ann") == "ann" and off.counts == {}


USER = "user-of-the-bank"
BLANK = SimpleNamespace(
    redact=lambda text: (text.replace(MAIL, "<EMAIL_ADDRESS>"), Counter(EMAIL_ADDRESS=text.count(MAIL)))
)
"""In place of a redactor, whose recognizers take seconds to import."""
PRIVACY = Privacy(BLANK, replace_user=Pseudonyms(KEY.encode()).pseudonymize_user)


def test_privacy_typed_text_is_redacted_contexts_and_ids_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "Redactor", lambda params: BLANK)
    privacy, text = open_privacy(), f"Write to {MAIL}."
    row = privacy.apply(make_typed_row(text))
    redacted = (row.interaction.question, row.interaction.answer, row.thumb.comment, row.review.ideal_answer)
    assert set(redacted) == {"Write to <EMAIL_ADDRESS>."}
    assert row.interaction.contexts[0].text == row.interaction.group == text
    assert privacy.counts == {"EMAIL_ADDRESS": 4}
    assert privacy.apply(row) is row
    contexts = [{"chunk_id": MAIL, "text": "a"}, {"chunk_id": "a#2", "text": text}]
    redacted_contexts = open_privacy(redact_contexts=True).apply(read(contexts=contexts)).interaction
    question = Question(interaction_id="q", question=text, contexts=redacted_contexts.contexts)
    assert privacy.redact_row(question).question == redacted[0]
    assert redacted_contexts.contexts == (Context(chunk_id=MAIL, text="a"), Context(chunk_id="a#2", text=redacted[0]))


def test_privacy_documents_and_rejected_rows_stay() -> None:
    privacy, text = open_privacy(), rows.markdown(body=f"Write to {MAIL}.")
    document = make_document_row(parse_document(text.encode(), "a.md"), "a.md")
    broken = parse_line(b'{"question": 1}', "f.jsonl", 1)
    assert document.document is not None and privacy.apply(document) is document
    assert broken.reasons and privacy.apply(broken) is broken
    assert serialize_row(broken) is None and serialize_row(document) == document.raw.decode()


@pytest.mark.slow
def test_ingest_field_names_leave_redacted_and_escaped(tmp_path: Path) -> None:
    name = f"{MAIL} [x](http://evil/) <img src=http://evil/x> \x1b[2J\u202e"
    fields = [{**rows.row("i-1"), name: 1}, {**rows.row("i-2"), "thumb": {**rows.thumb(), name: 2}}]
    fields += [{**rows.row("i-3"), "x" * 75 + MAIL: 1}, {**rows.row("i-4"), "x" * 50_000: 1}]
    twice = f'{{"{"x" * 75}{MAIL}": 1, "{"x" * 75}{MAIL}": 2}}'
    inbox, data = tmp_path / "in", tmp_path / "data"
    inbox.mkdir()
    rows.write_lines(inbox / "a.jsonl", *fields, twice, "{}")
    (inbox / "b.csv").write_text(f"interaction_id,question,{name}\n1,2,3\n")
    (inbox / f"{MAIL} <img src=x>.txt").write_text("a")
    with pytest.raises(BatchRejected) as refused:
        ingest(make_explicit_sources([str(inbox)]), data, rows.PARAMS, rows.NOW, privacy=open_privacy())
    kept = [row for path in Quarantine(data).list_paths() for row in Quarantine(data).iter_rows(path)]
    markdown, page = ingest_report(refused.value.report, "run", kept, str(refused.value))
    (block,) = Quarantine(data).blocking.values()
    reasons = [reason.message_with_code for row in kept for reason in row.reasons]
    for text in (markdown, page, str(refused.value), block.message, *reasons):
        assert MAIL.partition(".")[0] not in text and not set("\x1b\u202e") & set(text)
    assert "<img" not in page and "<img" not in markdown.replace("\\<img", "")
    assert max(map(len, reasons)) <= 1_100


def test_ingest_error_of_a_source_is_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "Redactor", lambda params: BLANK)
    problem = AbstainError(Code.WRONG_FORMAT, f"its fields are {MAIL} \x1b[2J")
    source = SimpleNamespace(name="a", read=Mock(side_effect=problem))
    with pytest.raises(AbstainError) as error:
        ingest([source], tmp_path, rows.PARAMS, rows.NOW, privacy=open_privacy())
    assert str(error.value) == "its fields are <EMAIL_ADDRESS> \ufffd[2J" and error.value.code == Code.WRONG_FORMAT


def test_privacy_without_pseudonyms_makes_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSTAIN_USER_KEY")
    Privacy.from_params(params(pseudonymize=False), Settings(home=tmp_path))
    assert list(tmp_path.iterdir()) == []
    Privacy.from_params(params(pseudonymize=False, pseudonymize_reviewers=True), Settings(home=tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["user.key"]


@pytest.mark.parametrize("validate", [rows.accept_all, refuse_keys("interactions/")], ids=["accepted", "rejected"])
def test_ingest_valid_row_is_stored_redacted(tmp_path: Path, validate: Any) -> None:
    file = rows.write_lines(tmp_path / "a.jsonl", rows.row(question=f"I am {MAIL}", thumb=rows.thumb(user=USER)))
    take(tmp_path / "data", file, privacy=PRIVACY, validate=validate)
    stored = read_all(tmp_path / "data")
    assert "I am <EMAIL_ADDRESS>" in stored and PRIVACY.get_pseudonym(USER) in stored
    assert MAIL not in stored and USER not in stored


def test_ingest_rejected_rows_leave_no_secret_anywhere(tmp_path: Path) -> None:
    inbox, data = tmp_path / "in", tmp_path / "data"
    inbox.mkdir()
    half = f'{{"user": "{USER}", "question": "{MAIL}'
    rows.write_lines(inbox / "a.jsonl", rows.row(**{MAIL: 1}), rows.row(user_id=USER, question=f"I am {MAIL}"), half)
    (inbox / "headless.csv").write_text(f"q-1,{USER},{MAIL}\n")
    (inbox / "shifted.csv").write_text(f"interaction_id,user,comment\nq-1,{USER},my address, {MAIL}\n")
    source = FileSource(name="inbox", url=str(inbox))
    with pytest.raises(BatchRejected, match="5 of 5 new rows fail") as refused:
        ingest([source], data, rows.PARAMS, rows.NOW, privacy=PRIVACY, validate=rows.accept_all)
    found = str(refused.value) + refused.value.report.to_markdown() + read_all(data)
    assert MAIL not in found and USER not in found
    assert "<EMAIL_ADDRESS>: unknown field" in found and PRIVACY.get_pseudonym(USER) not in found
