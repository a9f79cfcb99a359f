"""Concept guessing (eqs. 2 to 5): the base model explains a concept, and guesses it from the masked explanation.

Every request goes through the feature cache, so a concept is guessed once by a base model with the same prompts and
lengths, and a warm cache only needs the model's tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp
from typing import Any

from abstain.llm.engine.loading import ModelRef, find_model, load_tokenizer
from abstain.llm.engine.prompts import PromptSegments, Segment
from abstain.llm.engine.requests import ConstrainedGenerate, Generate, Request
from abstain.llm.engine.tokenization import encode_prompt, load_model_layout
from abstain.llm.familiarity.masking import has_content_word, mask_concept
from abstain.llm.features.feature_store import FeatureStore, OnProgress
from abstain.llm.features.shard_job import JobStats

LIST_TOKENS = 64
"""Limit of the tokens of a list of concepts."""


@dataclass(frozen=True)
class GuessedConcept:
    """A concept, the base model's explanation of it, and how well the model guesses the concept from that.

    Attributes:
        concept: The concept.
        explanation: Its explanation, with the concept masked.
        guess: The likeliest answer that contains the concept.
        score: s_i of eq. 5, from 0 to 1; 0 if the explanation says nothing, None if the concept has more tokens than a
            guess.
    """

    concept: str
    explanation: str
    guess: str
    score: float | None


@dataclass
class ConceptGuesser:
    """A base model that guesses concepts.

    Attributes:
        store: Feature store of the base model.
        template: Prompts to use, "chatml", "plain" or "auto" (engine/questions).
        explanation: Operation that explains a concept.
        search: Operation that guesses a concept.
        cost: Work of the base model so far; other results came from the cache.
    """

    store: FeatureStore
    template: str
    explanation: Generate = field(default_factory=lambda: Generate(200))
    search: ConstrainedGenerate = field(default_factory=ConstrainedGenerate)
    cost: JobStats = field(default_factory=lambda: JobStats(0, 0, 0))

    def guess(
        self, concepts: Sequence[str], progress: OnProgress = lambda done, total: None
    ) -> dict[str, GuessedConcept]:
        """Guess concepts from the base model's own explanations of them.

        Args:
            concepts: The concepts.
            progress: Called with (done, total) requests.

        Returns:
            Concept -> its guess.

        Raises:
            AbstainError: The base model's context length is too short for a prompt.
        """
        unique_concepts = list(dict.fromkeys(concepts))
        texts = self._generate_texts(self._make_explanation_requests(unique_concepts), progress)
        guesses = {guess.concept: guess for guess in _mask_explanations(unique_concepts, texts)}
        guessable = [guess for guess in guesses.values() if has_content_word(guess.explanation)]
        requests = self._make_guess_requests(guessable)
        self._compute(requests, progress)
        for index, row in self.store.read(requests):
            guess = guessable[index]
            score = exp(float(row[:, 1].double().mean())) if len(row) else None
            text = _decode_text(self._tokenizer, row[:, 0])
            guesses[guess.concept] = GuessedConcept(guess.concept, guess.explanation, text, score)
        return guesses

    def is_cached(self, concepts: Sequence[str]) -> bool:
        """Return whether the cache has all results that `guess` needs.

        Args:
            concepts: The concepts.

        Returns:
            Whether nothing must be computed.
        """
        prompts = self._make_explanation_requests(concepts)
        if self.store.count_missing(prompts):
            return False
        texts = read_texts(self.store, self._tokenizer, prompts)
        guessable = [guess for guess in _mask_explanations(concepts, texts) if has_content_word(guess.explanation)]
        return not self.store.count_missing(self._make_guess_requests(guessable))

    def _make_explanation_requests(self, concepts: Sequence[str]) -> list[Request]:
        return [self._make_request("explain", concept, self.explanation, concept) for concept in concepts]

    def _make_guess_requests(self, guesses: Sequence[GuessedConcept]) -> list[Request]:
        return [self._make_request("guess", guess.explanation, self.search, guess.concept) for guess in guesses]

    def count_max_tokens(self, concept: str) -> int:
        """Return the most tokens that are run to guess a concept: both prompts, l_F twice, and T_B times l_B.

        Args:
            concept: The concept.

        Returns:
            The number of tokens.
        """
        prompts = (
            self._make_request("explain", concept, self.explanation, concept).prompt,
            self._render_prompt("guess", ""),
        )
        prompt_tokens = sum(len(encode_prompt(self._tokenizer, prompt).ids) for prompt in prompts)
        return prompt_tokens + 2 * self.explanation.max_new_tokens + self.search.beams * self.search.max_new_tokens

    def list_concepts(self, instructions: Sequence[str], domain: str, progress: OnProgress) -> list[str]:
        """Let the base model list the named entities of instructions.

        Args:
            instructions: The instructions.
            domain: Domain of the entities; empty for any.
            progress: Called with (done, total) requests.

        Returns:
            The model's answer to each instruction.
        """
        contexts = [f" in {domain} domain"] if domain else []
        layout = load_model_layout(self._ref, f"concept-list-{self.template}-v1", "questions")
        requests = [
            Request(layout.render(text, contexts, None), Generate(LIST_TOKENS), f"instruction {text[:40]!r}")
            for text in instructions
        ]
        return self._generate_texts(requests, progress)

    def _make_request(
        self, question: str, text: str, operation: Generate | ConstrainedGenerate, concept: str
    ) -> Request:
        target = (Segment("target", concept),) if isinstance(operation, ConstrainedGenerate) else ()
        return Request(self._render_prompt(question, text) + target, operation, f"concept {concept!r}")

    def _render_prompt(self, question: str, text: str) -> PromptSegments:
        layout = load_model_layout(self._ref, f"concept-{question}-{self.template}-v1", "questions")
        return layout.render(text, (), None)

    def _generate_texts(self, requests: Sequence[Request], progress: OnProgress) -> list[str]:
        self._compute(requests, progress)
        return read_texts(self.store, self._tokenizer, requests)

    def _compute(self, requests: Sequence[Request], progress: OnProgress) -> None:
        self.cost += self.store.compute_missing(requests, progress)

    @cached_property
    def _ref(self) -> ModelRef:
        return find_model(self.store.model, self.store.settings)

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self._ref)


def _mask_explanations(concepts: Sequence[str], texts: Sequence[str]) -> list[GuessedConcept]:
    """Return `concepts` with their masked explanations, not yet guessed."""
    return [
        GuessedConcept(concept, mask_concept(text, concept), "", 0.0)
        for text, concept in zip(texts, concepts, strict=True)
    ]


def read_texts(store: FeatureStore, tokenizer: Any, requests: Sequence[Request]) -> list[str]:
    """Read generated texts from the cache.

    Args:
        store: Feature store of the base model.
        tokenizer: Its tokenizer.
        requests: Requests whose results are already computed.

    Returns:
        The text generated for each request.
    """
    rows = dict(store.read(requests))
    return [_decode_text(tokenizer, rows[index][:, 0]) for index in range(len(requests))]


def _decode_text(tokenizer: Any, tokens: Any) -> str:
    return str(tokenizer.decode(tokens.int().tolist(), skip_special_tokens=True)).strip()
