import json
import re
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from abstain.ingest.privacy.recognizers import EntityHit, FindEntities, make_pattern_finder
from abstain.ingest.privacy.redaction import Redactor, merge_hits
from abstain.ingest.privacy.search_spans import WINDOW
from benchmarks import redaction as benchmark
from tests.checkout import ROOT, TEMPLATE
from tests.ingest.privacy.builders import SHIPPED, params, record_handed_texts

pytestmark = pytest.mark.slow  # Presidio takes seconds to import

REDACTOR = Redactor(SHIPPED)
PLACEHOLDERS = [f"<{name}>" for name in SHIPPED.redact]

DIGITS = "0123456789"
CARDS = [("4", 16), ("4", 13), ("51", 16), ("55", 16), ("2221", 16), ("2720", 16), ("37", 15), ("6011", 16), ("62", 19)]
BEFORE = [" ", "\n", "\u00a0", "(", '"', "\u201e", ": ", "<", "|", "。", "我的卡号", "これは", "мой: ", "เลข"]
AFTER = [" ", "\n", "\u00a0", ")", '"', "!", "?", ", ", ". ", ">", "|", "。", "谢谢", "です", "으로", "ครับ"]
SIGNS = ["@", "+", "-", ".", "DE89 ", "4111 ", "1", "x"]


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
    return benchmark.split_groups(benchmark.add_check_digit(start + rest), draw(st.sampled_from(separators)))


@st.composite
def ibans(draw: st.DrawFn) -> str:
    country = draw(st.sampled_from(sorted(benchmark.IBAN_LENGTHS)))
    length = benchmark.IBAN_LENGTHS[country] - 4
    account = draw(st.text(DIGITS, min_size=length, max_size=length))
    case = draw(st.sampled_from([str, str.lower]))
    return case(benchmark.split_groups(benchmark.make_iban(country, account), draw(st.sampled_from(["", " "]))))


phones = st.sampled_from(
    ["+49 170 1234567", "+4917012345678", "+44 20 7946 0958", "+1 212-555-0123", "+33 6 12 34 56 78"]
)
social_security = st.sampled_from(["536-90-4399", "536 90 4399", "219-09-9998"])
secrets = st.one_of(emails(), cards(), ibans(), phones, social_security)
pieces = st.lists(secrets | st.text(max_size=8) | st.sampled_from([*PLACEHOLDERS, *BEFORE, *AFTER, *SIGNS]), max_size=8)


def redact(text: str) -> str:
    return REDACTOR.redact(text)[0]


@cache
def presidio() -> list[FindEntities]:
    return [make_pattern_finder(entity) for entity in SHIPPED.redact]


def bare(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


@given(st.text(), st.sampled_from(BEFORE), secrets, st.sampled_from(AFTER), st.text())
@example("", "", "ann@example.org", ".", "Please")
@example("3000", " ", "4111 1111 1111 1111", " ", "2026")
@example("", "", "AT61 1904 3002 3457 3201", " ", "1000 Euro")
def test_redact_secret_is_removed_wherever_it_is(before: str, left: str, secret: str, right: str, after: str) -> None:
    redacted, removed = REDACTOR.redact(f"{before}{left}{secret}{right}{after}")
    assert secret not in redacted and bare(secret) not in bare(redacted)
    assert removed.total() >= 1 and any(f"<{name}>" in redacted for name in removed)


@given(pieces)
def test_redact_twice_is_redact_once(parts: list[str]) -> None:
    text = "".join(parts)
    once = redact(text)
    assert (redact(once) == once and once != "") or text == ""
    assert redact(text) == once


@given(pieces)
def test_redact_removes_all_that_presidio_finds(parts: list[str]) -> None:
    text = "".join(parts)
    assume("<" not in text and not re.search(r"(?<!\d)1(?:[ -]?\d){12}", text))  # cards begin with 2 to 6
    for find in presidio():
        for hit in find(text):
            if hit.score >= SHIPPED.min_score:
                found = text[hit.start : hit.end]
                assert redact(text).count(found) < text.count(found)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("请联系ann@example.org谢谢", "请联系<EMAIL_ADDRESS>谢谢"),
        ("卡号4111111111111111谢谢", "卡号<CREDIT_CARD>谢谢"),
        ("بطاقتي ٤١١١١١١١١١١١١١١١ شكرا", "بطاقتي <CREDIT_CARD> شكرا"),
        ("4111\u20111111\u20111111\u20111111", "<CREDIT_CARD>"),
        ("müller@münchen.de und иван@пример.рф", "<EMAIL_ADDRESS> und <EMAIL_ADDRESS>"),
        ("Überweisung an de89 3704 0044 0532 0130 00 – danke", "Überweisung an <IBAN_CODE> – danke"),
        ("โทร +49 170 1234567 ครับ", "โทร <PHONE_NUMBER> ครับ"),
        ("ann@xn--mnchen-3ya.de, b--b@c.de", "<EMAIL_ADDRESS>, <EMAIL_ADDRESS>"),
        ("ann@bank.internal, bob@host.local", "<EMAIL_ADDRESS>, <EMAIL_ADDRESS>"),
        ("ann@example.com-4111111111111111", "<EMAIL_ADDRESS>-<CREDIT_CARD>"),
        ("DE89370400440532013000AT611904300234573201", "<IBAN_CODE><IBAN_CODE>"),
        ("+49 170 1234567 1000 Euro", "<PHONE_NUMBER> 1000 Euro"),
        ("2223 0031 2200 3222 / 6221 2601 2345 6789 453", "<CREDIT_CARD> / <CREDIT_CARD>"),
        ("Amex 3782 822463 10005.", "Amex <CREDIT_CARD>."),
        ("DE89370400440532013000COBADEFFXXX", "<IBAN_CODE>COBADEFFXXX"),
        ("4111-1111-1111-1111-123 4", "<CREDIT_CARD>-123 4"),
        ("an AT61 1904 3002 3457 3201 1000 Euro", "an <IBAN_CODE> 1000 Euro"),
        ("mailto:ann@example.org?subject=a", "mailto:<EMAIL_ADDRESS>?subject=a"),
        *((f"ann@example.org{sign}", f"<EMAIL_ADDRESS>{sign}") for sign in "¹™①½Ⓐ"),
        *((f"4111 1111 1111 1111{sign}", f"<CREDIT_CARD>{sign}") for sign in "²㎏"),
        *((f"{sign}4111 1111 1111 1111", f"{sign}<CREDIT_CARD>") for sign in ("①", "№", "1\ufe0f\u20e3")),
        ("536-90-4399²", "<US_SSN>²"),
        ("536\u221290\u22124399", "<US_SSN>"),
        ("+81ー90ー1234ー5678, +49∼170∼1234567", "<PHONE_NUMBER>, <PHONE_NUMBER>"),
        *((f"IBAN{last}DE89370400440532013000", f"IBAN{last}<IBAN_CODE>") for last in ("ª", "é", "ы", "٣", "")),
        ("①②③ 4️⃣1️⃣1️⃣1️⃣1111 1111 1111", "①②③ <CREDIT_CARD>"),
    ],
)
def test_redact_every_script_form_and_sign_beside_it(text: str, redacted: str) -> None:
    assert redact(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "Order 4111111111111112, invoice 2026-000-123456, parcel 1Z999AA10123456784",
        "Card ending in 1111, limit 1,234,567,890.12 euros, contract A4111111111111111",
        "DE00 3704 0044 0532 0130 00 is no IBAN, and neither is XX89370400440532013000",
        "1644-1912, 2019 - 2023, 30.06.2026 12:30:45.123456, +3.5 % (+12,345,678 euros)",
        "@home, ann@localhost, a@b, user@@example.org, C++ and 50+ years, 2+2",
        "0170 1234567 is a phone number only where phone_regions says so",
        "978-3-16-148410-0, 192.168.0.1, 00:1a:2b:3c:4d:5e, v1.2.3.4",
        "<EMAIL_ADDRESS> and <CREDIT_CARD>, <IBAN_CODE>",
        "Order 12345678, invoice R-2026-0042, flat 12b, 24/7, 50 % of 1 000",
        "A4111111111111111 4111111111111111B, 4111 1111 1111 1234 5678 9012 3452",
    ],
)
def test_redact_look_alikes_stay(text: str) -> None:
    assert redact(text) is text


def test_redact_obeys_kept_values_regions_entities_and_scores() -> None:
    kept = "help@bank.example.com or +49 170 1234567, help@bank.co.uk, not "
    redactor = Redactor(params(keep=("Help@Bank.example.com ", "+49 170 1234567", "help@bank.co.uk")))
    redacted, _ = redactor.redact(f"{kept}ann@bank.example.com or +49 170 1234568")
    assert redacted == f"{kept}<EMAIL_ADDRESS> or <PHONE_NUMBER>"
    text = "0170 1234567 since 2019, or (020) 7946-0958"
    assert redact(text) == text
    assert Redactor(params(phone_regions=("DE",))).redact(text)[0].startswith("<PHONE_NUMBER> since 2019")
    assert Redactor(params(redact=("IP_ADDRESS",))).redact("a:b 10.0.0.1 x@y.de")[0] == "a:b <IP_ADDRESS> x@y.de"
    weak = params(redact=("US_SSN", "US_SSN"), min_score=0.01)
    assert Redactor(weak).redact("id 536904399")[0] == "id <US_SSN>"
    assert Redactor(params(redact=("URL", "EMAIL_ADDRESS"))).redact("ann@example.org")[0] == "<EMAIL_ADDRESS>"


def test_merge_hits_overlapping_are_one_named_by_the_longest() -> None:
    ranges = [("A", 0, 5, 0.5), ("B", 3, 9, 0.4), ("C", 8, 10, 1.0), ("D", 10, 12, 0.5), ("E", 10, 12, 0.6)]
    hits = [EntityHit(*hit) for hit in ranges]
    assert merge_hits(hits) == [EntityHit("B", 0, 10, 0.4), EntityHit("E", 10, 12, 0.6)]
    assert merge_hits(reversed(hits)) == merge_hits(hits) and merge_hits([]) == []


UNITS = re.split(
    r"\|", "a|@|a@|a@b.c|a.b-|1|1 |123 |1.2.3.|1111 |4111-|3234 |+1|+123456 |DE12 |DE89 |of 12 euros |<URL>"
)
UNITS += ["\u00e9@\u8c22.", "a@b.c\u00b9", "x@y.de ", "4111111111111111 ", "DE89370400440532013000"]


def read(monkeypatch: pytest.MonkeyPatch, text: str) -> list[str]:
    """What recognizers are handed of `text`."""
    with monkeypatch.context() as watched:
        handed = record_handed_texts(watched, "make_pattern_finder")
        Redactor(SHIPPED).redact(text)
    return handed


@pytest.mark.parametrize("unit", UNITS)
def test_redact_work_is_linear_in_length(monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    shorter, longer = (read(monkeypatch, unit * (size // len(unit))) for size in (3_000, 12_000))
    assert len(longer) <= 4.1 * len(shorter) + 12 and max(map(len, longer), default=0) <= WINDOW
    assert sum(map(len, longer)) <= 4.1 * sum(map(len, shorter)) + 2_000
    assert sum(map(len, longer)) <= 10 * 12_000


@pytest.mark.parametrize("unit", UNITS)
def test_redact_secret_in_a_long_text_is_removed(unit: str) -> None:
    secret = "ann@example.org 4111 1111 1111 1111"
    redacted = redact(f"{unit * (6_000 // len(unit))} {secret} {unit * (6_000 // len(unit))}")
    assert "ann@example.org" not in redacted and "4111 1111 1111 1111" not in redacted


@pytest.mark.parametrize("unit", ["123 ", "1", "a@", "1.2.3."])
def test_redact_megabyte_of_one_unit_takes_under_a_second(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    start = time.process_time()
    assert redact(text) is text
    assert time.process_time() - start < 1


NETWORK = """
import json, sys
tried = []
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        tried.append(event)
        raise OSError("there is no network")
sys.addaudithook(watch)
from pathlib import Path
from abstain.ingest.privacy.redaction import Redactor
from abstain.config.params import load_params
redactor = Redactor(load_params(Path(sys.argv[1])).privacy)
before = "presidio_analyzer" in sys.modules
redactor.redact("Nothing to see in 2026, for 1,200 euros.")
needless = "presidio_analyzer" in sys.modules
redacted = redactor.redact("ann@example.org, bob@example.museum, DE89370400440532013000, +49 170 1234567")[0]
ours, heavy = len(tried), [name for name in ("torch", "transformers") if name in sys.modules]
home = [str(path) for path in Path.home().rglob("*")]
print(json.dumps([before, needless, redacted, ours, heavy, home]))
"""


def test_redact_uses_no_network_and_leaves_no_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "always::UserWarning", "-c", NETWORK, str(TEMPLATE / "params.yaml")],
        env={"HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, needless, redacted, ours, heavy, home = json.loads(done.stdout)
    assert redacted == "<EMAIL_ADDRESS>, <EMAIL_ADDRESS>, <IBAN_CODE>, <PHONE_NUMBER>"
    assert (before, needless, ours, heavy, home) == (False, False, 0, [], [])


def test_redact_logs_no_values(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        Redactor(SHIPPED).redact("ann@example.org 4111 1111 1111 1111 DE89370400440532013000 XX00 1111 2222")
    assert not any(part in caplog.text for part in ("example", "1111", "3704"))


NOT_FOUND = ("` @ `", "Cyrillic and Greek look-alikes", "quoted local part", "in pairs")
"""Forms of which docs/privacy.md says so."""


@pytest.mark.parametrize("form", [form for form in benchmark.FORMS if form not in NOT_FOUND])
def test_redact_finds_identifiers_of_a_form(form: str) -> None:
    kinds = [kind for kind in benchmark.FORMS[form][1] if (form, kind) != ("other separators", "US_SSN")]
    assert {kind: share for kind in kinds if (share := benchmark.measure_recall(REDACTOR, form, kind, 24)) < 0.95} == {}


def test_redact_numbers_of_everyday_text_stay() -> None:
    texts = benchmark.make_number_lists(500)
    changed = [text for text in texts if REDACTOR.redact(text)[0] != text]
    assert len(changed) <= 0.001 * len(texts), changed[:10]


def test_redaction_benchmark_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--each", "6", "--numbers", "5"])
    said = capsys.readouterr().out
    assert "| as written | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 |" in said
    assert re.search(r"false positives: 0 of \d{3,} answers of the sample", said)
