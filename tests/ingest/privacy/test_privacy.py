from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.config.settings import Settings
from abstain.core.contracts import Context
from abstain.core.errors import AbstainError
from abstain.ingest.pipeline.parsing import ParsedRow, parse_line, read_document
from abstain.ingest.privacy.policy import Privacy
from abstain.sample.write import write_sample
from tests.data import builders as rows
from tests.ingest.privacy import builders
from tests.ingest.privacy.builders import params

KEY = "k" * 32
MAIL, CARD = "ann@example.org", "4111 1111 1111 1111"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSTAIN_ORIGIN", raising=False)
    monkeypatch.setenv("ABSTAIN_USER_KEY", KEY)


def open_privacy(**changes: Any) -> Privacy:
    return Privacy.open(params(**changes), Settings(user_key=KEY))


def read(**fields: Any) -> ParsedRow:
    return parse_line(json.dumps(rows.row(**fields)).encode(), "f.jsonl", 1)


def typed(text: str) -> ParsedRow:
    """A row that has `text` wherever somebody may have typed it, and where nobody did."""
    contexts = [{"chunk_id": "a#1", "text": text}]
    thumb, review = rows.thumb(user="ann", comment=text), rows.verdict(ideal_answer=text)
    return read(question=text, answer=text, contexts=contexts, group=text, thumb=thumb, review=review)


def test_users_get_pseudonyms_and_reviewers_keep_their_names() -> None:
    privacy = open_privacy(redact=())
    row = privacy.apply(typed("Who?"))
    assert row.feedback is not None and row.feedback.user == privacy.pseudonym("ann") != "ann"
    assert row.review is not None and row.review.reviewer == "sme-1"
    assert privacy.apply(row) is row
    both = open_privacy(redact=(), pseudonymise=False, pseudonymise_reviewers=True).apply(typed("Who?"))
    assert both.review is not None and both.review.reviewer.startswith("r-")
    assert both.feedback is not None and both.feedback.user == "ann"


class Blank:
    """In place of a redactor, whose recognizers take seconds to import."""

    def redact(self, text: str) -> tuple[str, Counter[str]]:
        return text.replace(MAIL, "<EMAIL_ADDRESS>"), Counter(EMAIL_ADDRESS=text.count(MAIL))


def test_what_somebody_typed_goes_through_the_redactor_and_contexts_and_ids_do_not() -> None:
    privacy, text = Privacy(Blank()), f"Write to {MAIL}."  # type: ignore[arg-type]
    row = privacy.apply(typed(text))
    assert row.interaction is not None and row.feedback is not None and row.review is not None
    redacted = (row.interaction.question, row.interaction.answer, row.feedback.comment, row.review.ideal_answer)
    assert set(redacted) == {"Write to <EMAIL_ADDRESS>."}
    assert row.interaction.contexts[0].text == row.interaction.group == text
    assert privacy.counts == {"EMAIL_ADDRESS": 4}
    everything = Privacy(Blank(), contexts=True).apply(typed(text))  # type: ignore[arg-type]
    assert everything.interaction is not None and everything.interaction.contexts[0].text == redacted[0]


def test_off_is_off() -> None:
    row = typed(f"{MAIL} {CARD}")
    for privacy in (Privacy.off(), open_privacy(redact=(), pseudonymise=False)):
        assert privacy.apply(row) is row and privacy.redact_raw(row.raw) is row.raw
        assert privacy.pseudonym("ann") == "ann" and privacy.counts == {}


def test_documents_and_rows_without_contents_stay() -> None:
    privacy = open_privacy()
    document = read_document(rows.markdown(body=f"Write to {MAIL}.").encode(), "a.md")
    broken = parse_line(b'{"question": 1}', "f.jsonl", 1)
    assert document.document is not None and privacy.apply(document) is document
    assert broken.reasons and privacy.apply(broken) is broken


def test_a_row_with_nothing_to_hide_is_the_same() -> None:
    row = read(thumb=rows.thumb(comment="Thanks"), review=rows.verdict(ideal_answer="90 euros"))
    assert open_privacy().apply(row) is row


def test_no_key_is_made_where_nobody_gets_a_pseudonym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSTAIN_USER_KEY")
    team = Settings(home=tmp_path, origin="git@example.org:team/abstain.git")
    Privacy.open(params(pseudonymise=False), team)
    assert list(tmp_path.iterdir()) == []
    for changes in ({}, {"pseudonymise": False, "pseudonymise_reviewers": True}):
        with pytest.raises(AbstainError, match="^ABSTAIN_USER_KEY is not set"):
            Privacy.open(params(**changes), team)
    Privacy.open(builders.SHIPPED, Settings(home=tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["user.key"]


def test_what_is_wrong_with_the_parameters_is_told_at_once() -> None:
    with pytest.raises(AbstainError, match="unknown entity 'MAIL'"):
        open_privacy(redact=("MAIL",))


@pytest.mark.slow
def test_the_sample_comes_out_unchanged(tmp_path: Path) -> None:
    write_sample(tmp_path)
    privacy = open_privacy(pseudonymise=False)
    lines = [
        line for name in ("history", "incoming") for line in (tmp_path / f"{name}.jsonl").read_bytes().splitlines()
    ]
    assert len(lines) > 500
    for number, line in enumerate(lines):
        row = parse_line(line, "f.jsonl", number)
        assert privacy.apply(row) is row and privacy.redact_raw(line) == line
    assert privacy.counts == {}


@pytest.mark.slow
def test_what_was_typed_is_redacted_and_the_rest_is_not() -> None:
    privacy = open_privacy()
    row = privacy.apply(typed(f"{MAIL}, {CARD}"))
    hidden = "<EMAIL_ADDRESS>, <CREDIT_CARD>"
    assert row.interaction and row.feedback and row.review
    assert (row.interaction.question, row.interaction.answer) == (hidden, hidden)
    assert (row.feedback.comment, row.review.ideal_answer) == (hidden, hidden)
    assert row.interaction.contexts[0].text == row.interaction.group == f"{MAIL}, {CARD}"
    assert privacy.counts == {"CREDIT_CARD": 4, "EMAIL_ADDRESS": 4} and list(privacy.counts) == sorted(privacy.counts)
    assert privacy.apply(row) is row
    assert privacy.redact(f"to {MAIL}") == "to <EMAIL_ADDRESS>"


@pytest.mark.slow
def test_contexts_are_redacted_where_they_are_not_a_handbooks() -> None:
    row = read(contexts=[{"chunk_id": MAIL, "text": "a"}, {"chunk_id": "a#2", "text": f"to {MAIL}"}])
    redacted = open_privacy(redact_contexts=True).apply(row).interaction
    assert redacted is not None
    assert redacted.contexts == (Context(chunk_id=MAIL, text="a"), Context(chunk_id="a#2", text="to <EMAIL_ADDRESS>"))


texts = st.lists(st.one_of(builders.secrets, st.text(max_size=10), st.just("wörd")), min_size=1).map(" ".join)


@pytest.mark.slow
@settings(deadline=None)
@given(texts.filter(str.strip), st.text(min_size=1).filter(str.strip), st.booleans(), st.booleans())
def test_a_refused_rows_raw_text_gives_the_row_that_would_have_been_accepted(
    text: str, user: str, contexts: bool, escaped: bool
) -> None:
    privacy = open_privacy(redact_contexts=contexts, pseudonymise_reviewers=contexts)
    row = typed(text)
    fields = json.loads(row.raw)
    fields["thumb"]["user"] = user
    raw = json.dumps(fields, ensure_ascii=escaped).encode()
    row = parse_line(raw, "f.jsonl", 1)
    assert not row.reasons
    kept = privacy.redact_raw(raw)
    assert parse_line(kept, "f.jsonl", 1) == replace(privacy.apply(row), raw=kept)
    assert privacy.redact_raw(kept) == kept


@pytest.mark.slow
@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        (f'{{"question": "I am {MAIL}", "user_id": "ann"', '{"question": "I am <EMAIL_ADDRESS>", "user_id": "{ann}"'),
        (f'{{"comment": {CARD.replace(" ", "")}}}', '{"comment": "<CREDIT_CARD>"}'),
        (f"q-1,{MAIL},my card is {CARD},up", "q-1,<EMAIL_ADDRESS>,my card is <CREDIT_CARD>,up"),
        ('{"qestion": "ann\\u0040example.org"}', '{"qestion": "<EMAIL_ADDRESS>"}'),
    ],
)
def test_raw_text_is_redacted_whatever_is_wrong_with_it(raw: str, kept: str) -> None:
    privacy = open_privacy()
    assert privacy.redact_raw(raw.encode()).decode() == kept.replace("{ann}", privacy.pseudonym("ann"))
    assert privacy.counts == {}


@pytest.mark.slow
def test_threads_share_one() -> None:
    privacy, row = open_privacy(), typed(f"{MAIL}, {CARD}")
    found: list[ParsedRow] = []
    threads = [threading.Thread(target=lambda: found.extend(privacy.apply(row) for _ in range(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80 and len({one.interaction.canonical() for one in found if one.interaction}) == 1
    assert privacy.counts == {"CREDIT_CARD": 320, "EMAIL_ADDRESS": 320}
