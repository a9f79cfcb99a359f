"""Concept guessing (eqs. 2 to 5): the base model explains a concept, and guesses it from the explanation without it.

Every request goes through the feature cache, so a concept is guessed once by a base model with the same prompts and
lengths, and a warm cache needs the model's tokenizer alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp
from typing import Any

from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.engine.prompts import PromptSegments, Segment, load_layout
from abstain.llm.engine.requests import ConstrainedGenerate, Generate, Request
from abstain.llm.engine.tokenization import encode_prompt
from abstain.llm.familiarity.masking import has_content_word, mask_concept
from abstain.llm.features.feature_store import FeatureStore, OnProgress
from abstain.llm.features.shard_job import JobStats

LIST_TOKENS = 64
"""The most tokens of a list of concepts."""


@dataclass(frozen=True)
class GuessedConcept:
    """A concept, what the base model says of it, and how well it guesses the concept from that.

    `explanation`: masked. `guess`: the likeliest answer that contains the concept. `score`: s_i of eq. 5, from 0 to 1;
    0 where the explanation says nothing, None where the concept has more tokens than a guess.
    """

    concept: str
    explanation: str
    guess: str
    score: float | None


@dataclass
class ConceptGuesser:
    """The base model of `store`, asked with the prompts of `template`, "chatml" or "plain" (engine/questions).

    `cost`: what was computed so far; the rest came from the cache.
    """

    store: FeatureStore
    template: str
    explanation: Generate = field(default_factory=lambda: Generate(200))
    search: ConstrainedGenerate = field(default_factory=ConstrainedGenerate)
    cost: JobStats = field(default_factory=lambda: JobStats(0, 0, 0))

    def guess(
        self, concepts: Sequence[str], progress: OnProgress = lambda done, total: None
    ) -> dict[str, GuessedConcept]:
        """Each of `concepts`, guessed. Raises `AbstainError` where the base model's window is too short for it."""
        asked = list(dict.fromkeys(concepts))
        found = {one.concept: one for one in _explained(asked, self._written(self._explanations(asked), progress))}
        meant = [one for one in found.values() if has_content_word(one.explanation)]
        requests = self._guesses(meant)
        self._compute(requests, progress)
        for at, row in self.store.read(requests):
            one = meant[at]
            score = exp(float(row[:, 1].double().mean())) if len(row) else None
            found[one.concept] = GuessedConcept(one.concept, one.explanation, _text(self._tokenizer, row[:, 0]), score)
        return found

    def is_known(self, concepts: Sequence[str]) -> bool:
        """Whether the cache has all that `guess` needs of `concepts`."""
        prompts = self._explanations(concepts)
        if self.store.missing(prompts):
            return False
        written = read_texts(self.store, self._tokenizer, prompts)
        meant = [one for one in _explained(concepts, written) if has_content_word(one.explanation)]
        return not self.store.missing(self._guesses(meant))

    def _explanations(self, concepts: Sequence[str]) -> list[Request]:
        return [self._request("explain", concept, self.explanation, concept) for concept in concepts]

    def _guesses(self, explained: Sequence[GuessedConcept]) -> list[Request]:
        return [self._request("guess", one.explanation, self.search, one.concept) for one in explained]

    def most_tokens(self, concept: str) -> int:
        """The most tokens that the base model runs to guess `concept`: both prompts, l_F twice, and T_B times l_B."""
        prompts = (self._request("explain", concept, self.explanation, concept).prompt, self._prompt("guess", ""))
        read = sum(len(encode_prompt(self._tokenizer, prompt).ids) for prompt in prompts)
        return read + 2 * self.explanation.max_new_tokens + self.search.beams * self.search.max_new_tokens

    def list_concepts(self, instructions: Sequence[str], domain: str, progress: OnProgress) -> list[str]:
        """What the base model writes when asked for the named entities of each instruction."""
        contexts = [f" in {domain} domain"] if domain else []
        layout = load_layout(f"concept-list-{self.template}-v1", "questions")
        requests = [
            Request(layout.render(text, contexts, None), Generate(LIST_TOKENS), f"instruction {text[:40]!r}")
            for text in instructions
        ]
        return self._written(requests, progress)

    def _request(self, question: str, text: str, ask: Generate | ConstrainedGenerate, concept: str) -> Request:
        target = (Segment("target", concept),) if isinstance(ask, ConstrainedGenerate) else ()
        return Request(self._prompt(question, text) + target, ask, f"concept {concept!r}")

    def _prompt(self, question: str, text: str) -> PromptSegments:
        return load_layout(f"concept-{question}-{self.template}-v1", "questions").render(text, (), None)

    def _written(self, requests: Sequence[Request], progress: OnProgress) -> list[str]:
        self._compute(requests, progress)
        return read_texts(self.store, self._tokenizer, requests)

    def _compute(self, requests: Sequence[Request], progress: OnProgress) -> None:
        self.cost += self.store.compute_missing(requests, progress)

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(find_model(self.store.model, self.store.settings))


def _explained(concepts: Sequence[str], written: Sequence[str]) -> list[GuessedConcept]:
    """`concepts` with what was written about each, and not yet guessed."""
    return [
        GuessedConcept(concept, mask_concept(text, concept), "", 0.0)
        for text, concept in zip(written, concepts, strict=True)
    ]


def read_texts(store: FeatureStore, tokenizer: Any, requests: Sequence[Request]) -> list[str]:
    """What the base model wrote for each of `requests`, which are computed already."""
    rows = dict(store.read(requests))
    return [_text(tokenizer, rows[at][:, 0]) for at in range(len(requests))]


def _text(tokenizer: Any, tokens: Any) -> str:
    return str(tokenizer.decode(tokens.int().tolist(), skip_special_tokens=True)).strip()
