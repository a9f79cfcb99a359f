"""Rows that ingest refuses: what is left of them, and what they cost."""

import json

from abstain.ingest.parsing import parse_line
from abstain.ingest.privacy.policy import MAX_MESSAGE_CHARACTERS, Privacy
from abstain.ingest.privacy.redaction import Redactor
from abstain.ingest.quarantine import QuarantinedRow
from tests.attacks.conftest import Count
from tests.ingest.privacy.builders import SHIPPED

USER, SECRET = "ann-4711", "ann@example.org"
KEYS = [
    *("user", "User", "\uff35\uff33\uff25\uff32", "us\u00ader", "us\u200ber", "user ", "us\u00e9r", "user\x00"),
    "\U0001d42eser",
]
"""Spellings of a key, of which a thumb may have the first."""


def test_quarantine_keeps_no_misspelled_user(assert_repelled: Count) -> None:
    """An erasure could not find it by a key that is none of the contract's."""
    privacy, repelled = Privacy(Redactor(SHIPPED)), 0
    for key in KEYS:
        fields = {"interaction_id": "i", "given_at": "2026-11-20", "thumb": "sideways", key: USER, "comment": SECRET}
        row = privacy.apply(parse_line(json.dumps(fields).encode(), "inbox", 1))
        kept = QuarantinedRow.from_row(row, map(privacy.redact_reason, row.reasons))
        repelled += kept.raw is None and USER not in kept.to_json_line() and SECRET not in kept.to_json_line()
    assert_repelled("misspelled keys of user ids", len(KEYS), repelled)


def test_redact_message_keeps_no_identifier_at_its_cut(assert_repelled: Count) -> None:
    privacy, repelled = Privacy(Redactor(SHIPPED)), 0
    lengths = range(MAX_MESSAGE_CHARACTERS - 40, MAX_MESSAGE_CHARACTERS + 400, 4)
    for length in lengths:
        shown = privacy.redact_message("x" * 7 + " y" * (length // 2) + f" {SECRET} " + "z" * 5000)
        repelled += "ann" not in shown and len(shown) <= MAX_MESSAGE_CHARACTERS + 1
    assert_repelled("identifiers in cut messages", len(lengths), repelled)
