"""The sample's expert: an answer against the known fact and the chunks that were retrieved. Pure.

Three decisions:

* What is true is known from the fact, never from the answer. A question is answerable when the fact's own line
  stands in a retrieved chunk; where it is not, only a refusal is right, however lucky a guess.
* An answer may be a chatty sentence: values are compared in a normal form (`values.says`), but a second value
  of the same kind, a sibling's for instance, makes it wrong.
* Truthful is grounded: every value that the answer states stands in the question or in what was retrieved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from abstain.sample.handbook import Fact
from abstain.sample.values import agree, quantities, says

_REFUSAL = re.compile(
    r"\b(?:not (?:stated|mentioned|specified|provided|given|included|contain\w*|available|listed|say)|"
    r"(?:does|do|did)(?: not|n't) (?:mention|state|specify|say|provide|contain|include|list|give)|"
    r"no (?:information|mention|answer)|cannot (?:be )?(?:answer|determin|find|say)\w*|"
    r"unable to|(?:don't|do not) (?:know|have)|isn't (?:stated|mentioned|specified|provided))\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Judgement:
    """An expert's three verdicts, and whether the retrieved chunks held the answer at all."""

    complete: bool
    correct: bool
    truthful: bool
    answerable: bool

    @property
    def right(self) -> bool:
        return self.complete and self.correct and self.truthful


def judge(question: str, fact: Fact, contexts: Sequence[str], answer: str) -> Judgement:
    """Judge `answer` to `question`, which asks for `fact`, as written by a model that saw `contexts`."""
    answerable = is_answerable(fact, contexts)
    refused = is_refusal(answer)
    if not answerable:
        return Judgement(complete=refused, correct=refused, truthful=refused or _grounded(question, contexts, answer),
                         answerable=False)  # fmt: skip
    complete = all(says(answer, value) for value in fact.values)
    return Judgement(
        complete=complete,
        correct=complete and not _contradicts(question, fact, answer),
        truthful=_grounded(question, contexts, answer),
        answerable=True,
    )


def is_answerable(fact: Fact, contexts: Sequence[str]) -> bool:
    """Whether a chunk of the product's own page that holds the fact's line is among `contexts`."""
    return fact.stated and any(fact.product in text.split("\n")[0] and fact.source in text for text in contexts)


def is_refusal(answer: str) -> bool:
    """Whether `answer` says that it cannot be answered."""
    return not answer.strip() or _REFUSAL.search(answer) is not None


def _contradicts(question: str, fact: Fact, answer: str) -> bool:
    """Whether `answer` states another value of the fact's own kind, one that the question did not bring in."""
    units = {value.unit for value in fact.values} - {"words"}
    allowed = [*fact.values, *quantities(question)]
    stated = [value for value in quantities(answer) if value.unit in units]
    return any(not any(agree(known, value) for known in allowed) for value in stated)


def _grounded(question: str, contexts: Sequence[str], answer: str) -> bool:
    known = [*quantities(question), *(value for text in contexts for value in quantities(text))]
    return all(any(agree(source, value) or agree(value, source) for source in known) for value in quantities(answer))
