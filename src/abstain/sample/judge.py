"""The sample's expert: an answer against the known fact and the contexts that were retrieved. Pure.

* answerable: the fact's own line stands in a retrieved chunk of its product's page. Where it does not, the only
  right answer is to say so; a lucky guess is wrong.
* correct: the answer states a value of the asked-for fact, and no other value in its place.
* complete: it states all of the fact's values (a fee may be "2.5%, at least 4 euros").
* truthful: it states nothing that is not so: no sibling product's value, no invented number.

A chatty sentence may tell more of the truth: a value in a clause that states another known fact is no error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from abstain.sample.handbook import Fact
from abstain.sample.values import Value, agree, quantities, says

_REFUSAL = re.compile(
    r"\b(?:(?:does|do|is|are|was|were|has|have) ?(?:not|n[o']t|n't) (?:been )?"
    r"(?:state|mention|say|specif|provid|contain|includ|given|give|list|clear|available|known|indicat)"
    r"|not (?:stated|mentioned|specified|provided|given)|no (?:information|mention|indication|answer)"
    r"|(?:cannot|can't|can not|unable to) (?:be )?(?:answer|find|found|determin|say|tell|know)|don't know|do not know)",
    re.IGNORECASE,
)
_LONG_WORD = re.compile(r"[a-z]{4,}")
_CLAUSE_END = re.compile(r"(?:[.;!?](?=\s|$)|\n|, (?:and|but|while|which|so)\b|\b(?:and|but|while) the\b)")


@dataclass(frozen=True)
class Judgement:
    """An expert's three verdicts, and whether the retrieved contexts held the answer at all."""

    complete: bool
    correct: bool
    truthful: bool
    answerable: bool

    @property
    def right(self) -> bool:
        """Fit to be shown: all three."""
        return self.complete and self.correct and self.truthful


def judge(question: str, fact: Fact, contexts: Sequence[str], answer: str, known: Sequence[Fact]) -> Judgement:
    """Judge `answer` to `question`, which asks for `fact`, as written by a model that saw `contexts`.

    `known`: the facts of the asked-about product and of its siblings.
    """
    claims = _claims(answer, question, fact, known)
    refused = is_refusal(answer)
    if not is_answerable(fact, contexts):
        silent = refused and not claims and not any(says(answer, value) for value in fact.values)
        return Judgement(complete=silent, correct=silent, truthful=silent, answerable=False)
    stated = [value for value in fact.values if says(answer, value)]
    if refused and not stated:
        return Judgement(complete=False, correct=False, truthful=not claims, answerable=True)
    wrong = [value for value in claims if not _explained(value, answer, fact, known)]
    replaced = any(_comparable(value, part) for value in wrong for part in fact.values)
    own = _about_own_product(answer, fact, known)
    return Judgement(
        complete=len(stated) == len(fact.values),
        correct=bool(stated) and own and not replaced,
        truthful=bool(stated) and own and not wrong,
        answerable=True,
    )


def is_answerable(fact: Fact, contexts: Sequence[str]) -> bool:
    """Whether a chunk of the product's own page that holds the fact's line is among `contexts`."""
    return fact.stated and any(
        text.startswith(f"{fact.product} > {fact.section}\n") and fact.source in text for text in contexts
    )


def is_refusal(answer: str) -> bool:
    """Whether `answer` says that it cannot be answered."""
    return not answer.strip() or _REFUSAL.search(answer) is not None


def _claims(answer: str, question: str, fact: Fact, known: Sequence[Fact]) -> list[Value]:
    """What the answer states beyond the fact's values and the numbers of the question and of the fact's own line."""
    given = (*quantities(question), *quantities(fact.sentence))  # "from 25 to 60 months" is no claim
    numbers = [value for value in quantities(answer) if not any(agree(old, value) for old in (*given, *fact.values))]
    vocabulary = {v for other in known if other.key == fact.key for v in other.values if v.unit == "words"}
    rest = answer.lower()
    for value in fact.values:
        rest = rest.replace(value.words, " ") if value.words else rest
    return [*numbers, *sorted(value for value in vocabulary if value not in fact.values and says(rest, value))]


def _comparable(value: Value, part: Value) -> bool:
    """Whether `value` could stand where `part` should: the same unit, or a bare number for a number."""
    return value.unit == part.unit or (value.unit in ("number", "foreign") and part.unit != "words")


def _explained(value: Value, answer: str, fact: Fact, known: Sequence[Fact]) -> bool:
    """Whether each clause that states `value` states another fact rightly: its product, its value, its words."""
    clauses = [clause for clause in _CLAUSE_END.split(answer) if says(clause, value)]
    return bool(clauses) and all(any(_states(clause, value, other, fact) for other in known) for clause in clauses)


def _states(clause: str, value: Value, other: Fact, fact: Fact) -> bool:
    if other is fact or not any(agree(own, value) if own.unit != "words" else own == value for own in other.values):
        return False
    if other.product != fact.product and other.product not in clause:
        return False
    telling = _stems(other) - (_stems(fact) if other.key != fact.key else set())
    return any(word[:5] in telling for word in _LONG_WORD.findall(clause.lower()))


def _stems(fact: Fact) -> set[str]:
    """The first five letters of the longer words of a fact's line, its product's name left out."""
    return {word[:5] for word in _LONG_WORD.findall(fact.source.replace(fact.product, " ").lower())}


def _about_own_product(answer: str, fact: Fact, known: Sequence[Fact]) -> bool:
    """Whether some clause states the fact without naming a sibling product in place of its own."""
    siblings = {other.product for other in known} - {fact.product}
    return any(
        fact.product in clause or not any(product in clause for product in siblings)
        for clause in _CLAUSE_END.split(answer)
        if any(says(clause, value) for value in fact.values)
    )
