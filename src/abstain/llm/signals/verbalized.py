"""Verbalized probability: the base model is asked for a number from 0 to 1 (Tian et al. 2023, in Baak 2024).

A reply without such a number has no score: the leaderboard counts it (`unscored`), and the answer is withheld.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from abstain.core.contracts import Interaction
from abstain.llm.engine.requests import Generate
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import Signal

MAX_NEW_TOKENS = 12
TRUNCATED_NUMBER = re.compile(r"[\d.,]+ *\Z")
"""A number at the cut of a reply may be incomplete: "0." is not 0."""
REQUESTED_RANGE = re.compile(r"\(?\b0(?:\.0)?\s*(?:to|and|or|[-–])\s*1(?:\.0)?\b(?![.,]\d)\)?", re.IGNORECASE)
"""The range that the question names: a reply that repeats it has not answered yet."""
TEXT_AFTER_COUNT = re.compile(r"[.)]?[ \t]+[^\W\d]|:")
"""Text after a whole number that counts things or lines: "1. Yes", "1 year", "1: 0.9"."""
TEXT_BEFORE_COUNT = re.compile(r"\b(?:answer|item|line|number|option|part|question|response|step)\s+\Z", re.IGNORECASE)
"""Text before such a number: "Response 1", "Step 1"."""
_NUMBER = r"0,\d+|\d+(?:\.\d+|,(?!\d{3}(?!\d))\d+)?|\.\d+"
"""With a decimal point or comma; "1,000" has neither."""
PROBABILITY = re.compile(
    rf"(?<![\w.,/−-])(?P<number>{_NUMBER})(?:\s*(?P<percent>%|per ?cent\b)|\s*(?:/|(?:out )?of)\s*"
    rf"(?P<denominator>{_NUMBER}))?(?![\w%/]|[.,]\d)",
    re.IGNORECASE,
)


def make_verbalized_signal(tokenizer: Any) -> Signal:
    """Make the signal.

    Args:
        tokenizer: Tokenizer of the base model, which decodes its reply.

    Returns:
        The signal.
    """

    def score_row(_: Interaction, features: Sequence[Tensor]) -> float:
        tokens = [int(token) for token in features[0][:, 0]]
        reply = tokenizer.decode(tokens, skip_special_tokens=True)
        is_complete = tokens[-1] == tokenizer.eos_token_id
        return parse_probability(reply if is_complete else TRUNCATED_NUMBER.sub("", reply))

    return Signal("verbalized", (FeatureRequest(Generate(MAX_NEW_TOKENS), "probability"),), score_row)


def parse_probability(reply: str) -> float:
    """Parse the first number of a reply: "0.85", "0,85", "85 %", "8/10", "8 out of 10", or the start of a range.

    The requested range, and whole numbers that count something, are skipped.

    Args:
        reply: Text of the base model.

    Returns:
        The probability; nan if no number is left, or it is not from 0 to 1.

    Examples:
        >>> parse_probability("1. Between 0.0 and 1.0, I would say 8 out of 10.")
        0.8
    """
    reply = REQUESTED_RANGE.sub(" ", reply)
    match = next((candidate for candidate in PROBABILITY.finditer(reply) if not _is_enumeration(candidate)), None)
    if match is None:
        return float("nan")
    number, denominator = (float((match[name] or "1").replace(",", ".")) for name in ("number", "denominator"))
    probability = number / (100 if match["percent"] else denominator) if denominator else float("nan")
    return probability if 0 <= probability <= 1 else float("nan")


def _is_enumeration(number: re.Match[str]) -> bool:
    is_whole = number["number"].isdigit() and not number["percent"] and not number["denominator"]
    preceding, text = number.string[: number.start()], number.string
    return is_whole and bool(TEXT_AFTER_COUNT.match(text, number.end()) or TEXT_BEFORE_COUNT.search(preceding))
