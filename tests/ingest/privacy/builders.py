"""The shipped parameters with one thing changed, and personal data that is nobody's, right to its check digits."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from abstain.config.params import PrivacyParams
from abstain.ingest.privacy import redaction
from abstain.ingest.privacy.recognizers import FindEntities
from benchmarks.redaction import IBAN_LENGTHS, add_check_digit, make_iban, split_groups
from tests.checkout import shipped_params

SHIPPED = shipped_params().privacy

DIGITS = "0123456789"
CARDS = [("4", 16), ("4", 13), ("51", 16), ("55", 16), ("2221", 16), ("2720", 16), ("37", 15), ("6011", 16), ("62", 19)]

BEFORE = [" ", "\n", "\u00a0", "(", '"', "\u201e", ": ", "<", "|", "。", "我的卡号", "これは", "мой: ", "เลข"]
AFTER = [" ", "\n", "\u00a0", ")", '"', "!", "?", ", ", ". ", ">", "|", "。", "谢谢", "です", "으로", "ครับ"]


def params(**changes: Any) -> PrivacyParams:
    return SHIPPED.model_copy(update=changes)


def record_handed_texts(monkeypatch: pytest.MonkeyPatch, finder: str) -> list[str]:
    """Every text that redactors made from now on hand to a recognizer of `finder`, as they do."""
    handed: list[str] = []
    make: Callable[..., FindEntities] = getattr(redaction, finder)

    def watched(*arguments: object) -> FindEntities:
        find = make(*arguments)
        return lambda text: handed.append(text) or find(text)

    monkeypatch.setattr(redaction, finder, watched)
    return handed


@st.composite
def emails(draw: st.DrawFn) -> str:
    local = draw(st.from_regex(r"[a-z0-9](?:[a-z0-9._+-]{0,12}[a-z0-9])?", fullmatch=True))
    name = draw(st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True))
    domain = draw(st.sampled_from(["com", "org", "de", "co.uk", "com.br", "bank", "museum", "internal", "local"]))
    case = draw(st.sampled_from([str, str.upper, str.title]))
    return case(f"{local}@{name}.{domain}")


@st.composite
def cards(draw: st.DrawFn) -> str:
    start, length = draw(st.sampled_from(CARDS))
    rest = draw(st.text(DIGITS, min_size=length - len(start) - 1, max_size=length - len(start) - 1))
    separators = ["", " ", "-"] if length > 13 else [""]
    return split_groups(add_check_digit(start + rest), draw(st.sampled_from(separators)))


@st.composite
def ibans(draw: st.DrawFn) -> str:
    country = draw(st.sampled_from(sorted(IBAN_LENGTHS)))
    account = draw(st.text(DIGITS, min_size=IBAN_LENGTHS[country] - 4, max_size=IBAN_LENGTHS[country] - 4))
    case = draw(st.sampled_from([str, str.lower]))
    return case(split_groups(make_iban(country, account), draw(st.sampled_from(["", " "]))))


phones = st.sampled_from(
    ["+49 170 1234567", "+4917012345678", "+44 20 7946 0958", "+1 212-555-0123", "+33 6 12 34 56 78"]
)
numbers_of_social_security = st.sampled_from(["536-90-4399", "536 90 4399", "219-09-9998"])
secrets = st.one_of(emails(), cards(), ibans(), phones, numbers_of_social_security)
