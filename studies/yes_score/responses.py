"""The four kinds of responses whose Yes-scores the post compares.

Notes:

* A random span has as many words as the marked answer, and shares no word with it where the passage has such a span.
* An answer to another passage is the marked answer to a question of another group.
* Each depends only on the seed and the question's id; the other passage also on which questions there are.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from abstain.config.params import LLMParams
from abstain.core.contracts import Interaction, Question
from studies.answers import ASKED_AT

KINDS = {
    "other_passage": "answer to another passage",
    "span": "random span of the passage",
    "marked": "marked answer",
    "generated": "the model's answer",
}
WORD = re.compile(r"\w+")
ARTICLE = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True)
class AnsweredQuestions:
    """Questions with what people marked, and with answers if these are not to be generated.

    Attributes:
        llm: The base model and how it is prompted.
        questions: Questions with their contexts.
        marked: The marked answer of each; None without one.
        groups: The paragraph or group of each.
        weights: Sampling weights > 0.
        answers: A project's answers; empty if the base model has yet to answer.
        correct: Whether each of `answers` is correct, 0 or 1.
    """

    llm: LLMParams
    questions: tuple[Question, ...]
    marked: tuple[str | None, ...]
    groups: tuple[str, ...]
    weights: tuple[float, ...]
    answers: tuple[Interaction, ...] = ()
    correct: tuple[int, ...] = ()

    def get_digest(self) -> str:
        """Return a digest of everything that responses depend on."""
        content = (self.llm, self.questions, self.marked, self.groups, self.weights, self.answers, self.correct)
        return hashlib.sha256(repr(content).encode()).hexdigest()


def make_responses(data: AnsweredQuestions, answers: Sequence[Interaction], seed: int) -> dict[str, list[str | None]]:
    """Return the responses to each question by kind of `KINDS`; None where there is none of that kind."""
    responses: dict[str, list[str | None]] = {kind: [] for kind in KINDS}
    for index, (question, marked, answer) in enumerate(zip(data.questions, data.marked, answers, strict=True)):
        random = make_random(seed, question.interaction_id)
        passages = [context.text for context in question.contexts]
        responses["span"].append(draw_span(" ".join(passages), marked, random) if marked else None)
        responses["other_passage"].append(_draw_other(data, index, random) if marked else None)
        responses["marked"].append(marked)
        responses["generated"].append(answer.answer)
    return responses


def make_random(seed: int, name: str) -> np.random.Generator:
    """Return random numbers that depend on `seed` and `name` alone."""
    digest = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def draw_span(passage: str, marked: str, random: np.random.Generator) -> str | None:
    """Draw a span with as many words as `marked`, if possible without a word of it; None without a candidate."""
    words, length = passage.split(), len(marked.split())
    spans = [" ".join(words[start : start + length]) for start in range(len(words) - length + 1)]
    marked_words = set(WORD.findall(marked.casefold()))
    candidates = [span for span in spans if not marked_words & set(WORD.findall(span.casefold()))]
    candidates = candidates or [span for span in spans if not contains_answer(span, marked)]
    return str(random.choice(candidates)) if candidates else None


def contains_answer(text: str, answer: str) -> bool:
    """Return whether `answer` stands in `text`, ignoring case, punctuation and articles as SQuAD's evaluation does."""
    return f" {_normalize(answer)} " in f" {_normalize(text)} "


def make_interaction(question: Question, response: str, model: str) -> Interaction:
    """Return `question` as answered by `response`."""
    return Interaction(
        interaction_id=question.interaction_id,
        asked_at=ASKED_AT,
        question=question.question,
        answer=response,
        contexts=question.contexts,
        model=model,
    )


def _draw_other(data: AnsweredQuestions, index: int, random: np.random.Generator) -> str | None:
    candidates = [
        marked
        for marked, group in zip(data.marked, data.groups, strict=True)
        if marked and group != data.groups[index] and not contains_answer(marked, data.marked[index] or "")
    ]
    return str(random.choice(candidates)) if candidates else None


def _normalize(text: str) -> str:
    text = text.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(ARTICLE.sub(" ", text).split())
