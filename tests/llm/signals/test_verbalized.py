import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from abstain.llm.engine.requests import Generate
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.verbalized import MAX_NEW_TOKENS, make_verbalized_signal, parse_probability
from tests.llm.builders import byte_tokenizer
from tests.llm.signals.builders import interaction

BEFORE = st.sampled_from(["", "\n", "Probability: ", "p=", "I would say ", "**", "(", "~", "about "])
AFTER = st.sampled_from(["", ".", ")", "**", "\n\nQuestion:", " because", ", I think.", "!", " - it is", ": yes"])
SCALES = ("the answer is correct (0.0 to 1.0) is", "0 to 1", "0.0 - 1.0", "between 0 and 1", "0 or 1", "0.0 and 1.0")
NOT_ANSWERED = (*SCALES, "1. Yes, it is right", "1 year", "0 days", "Response 1")


@given(BEFORE, st.integers(0, 100).map(lambda n: f"{n / 100:.2f}"), AFTER)
def test_parse_probability_number_in_text(before: str, number: str, after: str) -> None:
    assert parse_probability(before + number + after) == float(number)
    assert parse_probability(before + number.replace(".", ",") + after) == float(number)


@given(BEFORE, st.integers(0, 20), st.integers(0, 20), st.sampled_from(["/", " / ", " out of ", " of "]), AFTER)
def test_parse_probability_fraction_is_divided(before: str, part: int, whole: int, sign: str, after: str) -> None:
    found = parse_probability(f"{before}{part}{sign}{whole}{after}")
    if 0 < whole >= part:
        assert found == part / whole
    else:
        assert math.isnan(found)


@given(st.text(st.sampled_from("0123456789.,%/- \nofx٣²")) | st.text())
def test_parse_probability_is_in_range_or_nan(reply: str) -> None:
    found = parse_probability(reply)
    assert math.isnan(found) or 0 <= found <= 1


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("1.0.", 1.0),
        ("10/10", 1.0),
        ("1/10", 0.1),
        (".7", 0.7),
        ("0", 0.0),
        ("1", 1.0),
        ("0.85 (85%)", 0.85),
        ("85% of the time", 0.85),
        ("The 3rd try: 0.4", 0.4),
        ("(0.0 to 1.0): 0.85", 0.85),
        ("the probability that it is correct (0.0 to 1.0) is 0.3.", 0.3),
        ("0-1: 0.7", 0.7),
        ("1. The answer is right: 0.9", 0.9),
        ("In 1 year 80 %", 0.8),
        ("1\n\nQuestion:", 1.0),
        ("1, I think", 1.0),
        ("1: 0.9", 0.9),
        ("Response 1: 0.9", 0.9),
        ("Step 1\n0.8", 0.8),
        ("0 or 1? 0.5", 0.5),
        ("0,850", 0.85),
        ("0-1.5", 0.0),
        *((f"(85{sign}.", 0.85) for sign in ("%", " %", " percent", " per cent", "percent")),
        *((f"0.3{sign}0.5", 0.3) for sign in ("-", "–", " - ", " to ", " or ", "…")),
    ],
)
def test_parse_probability_takes_the_first_number(reply: str, expected: float) -> None:
    assert parse_probability(reply) == expected


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "high",
        "-0.5",
        "p=−0.50",
        "1.01",
        "about 101%",
        "150.00%",
        "1.2.3",
        "0.85x",
        "v1",
        "1e-3",
        "50%%",
        "100",
        "1/2/3",
        "1/0",
        "0,5,7",
        "1,000",
        *NOT_ANSWERED,
    ],
)
def test_parse_probability_other_replies_are_nan(reply: str) -> None:
    assert math.isnan(parse_probability(reply))


def test_verbalized_signal_reads_the_generated_reply() -> None:
    tokenizer = byte_tokenizer()
    signal = make_verbalized_signal(tokenizer)
    (reading,) = signal.requires
    assert (reading.operation, reading.prompt_kind) == (Generate(MAX_NEW_TOKENS), "probability")

    def steps(reply: str, ended: bool) -> torch.Tensor:
        ids = tokenizer.encode(reply) + [tokenizer.eos_token_id] * ended
        return torch.tensor(ids, dtype=torch.float32)[:, None]

    replies = {
        " 0.25\n": (False, 0.25),
        "0.5": (True, 0.5),
        "sure": (True, math.nan),
        "It is 0.": (False, math.nan),  # what would have come next decides
        "It is 85 ": (False, math.nan),
        "8/1": (False, math.nan),
        "0.5-0.": (False, 0.5),
        "1.": (True, 1.0),
    }
    rows = [interaction(name=reply) for reply in ("unread", *replies)]
    results = [None, *(steps(reply, ended) for reply, (ended, _) in replies.items())]
    found = signal.score(FeatureBatch(rows, {reading: results}))
    assert found.tolist() == pytest.approx([math.nan, *(expected for _, expected in replies.values())], nan_ok=True)
