"""The seven baselines of Self-Familiarity (Luo et al., appendix C): familiarity by the replies of a base model.

Where the appendix leaves something open:

* A reply's probabilities are read back from its text, like those of any answer (signals/likelihood.py), and without
  EOS: a reply that was cut off at its limit has none.
* Perplexity (eq. 9) is that of the reply by itself. With the instruction before it, it would rank as eq. 12 does.
* Significance (eq. 19) is symmetric, and over the probabilities of the reply's tokens that are neither of the concept
  nor a stop word, as in the authors' code. There the concept is masked in the prompt and in the reply that is forced.
  An instruction has the mean of its concepts. The stop words are spaCy's, the authors' are NLTK's.
* The probability of a reply (eq. 27) is normalized by its length, as that of a guessed concept is (eq. 5). Forward
  inference asks of an instruction; the paper's shorter question about a single concept is not asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from abstain.llm.engine.loading import ModelRef, find_model, load_tokenizer
from abstain.llm.engine.prompts import PromptSegments, Segment
from abstain.llm.engine.requests import NLL, Generate, Request
from abstain.llm.engine.tokenization import encode_segments, load_model_layout
from abstain.llm.familiarity.guessing import read_texts
from abstain.llm.familiarity.masking import MASK
from abstain.llm.features.feature_store import FeatureStore, OnProgress
from studies.self_familiarity.similarity import mean_similarity

BASELINES = (
    "greedy_perplexity",
    "greedy_mean_log_prob",
    "greedy_min_log_prob",
    "greedy_significance",
    "sampled_bert_score",
    "sampled_sentence_similarity",
    "forward_inference",
)
ANSWER = NLL(("answer",))
KNOWN_TOKENS = 10
"""The most tokens of the reply to the question whether the concepts are known."""


MENTION = "mention"
"""Beginning of the names of the segments of a reply that mention the concept."""


@dataclass(frozen=True)
class Instruction:
    """An instruction, its concepts, and the domain that forward inference names, such as "medical"; it may be empty."""

    text: str
    concepts: tuple[str, ...]
    domain: str = ""


@dataclass(frozen=True)
class FamiliarityBaselines:
    """Baselines by the base model of `store`, prompted by `template`, as a `ConceptGuesser` (engine/questions)."""

    store: FeatureStore
    template: str
    reply_tokens: int = 200
    samples: int = 10
    sample_tokens: int = 60

    def score(
        self, instructions: Sequence[Instruction], progress: OnProgress = lambda done, total: None
    ) -> dict[str, np.ndarray]:
        """Return the scores of every baseline, (instructions,), higher is more familiar; nan without a score."""
        prompts = [self._prompt("instruction", instruction.text) for instruction in instructions]
        replies = self._replies(prompts, Generate(self.reply_tokens), progress)
        log_probs = self._log_probs(zip(prompts, replies, strict=True), progress)
        unprompted_log_probs = self._log_probs((((), reply) for reply in replies), progress)
        sampled = [
            self._replies(prompts, Generate(self.sample_tokens, temperature=1.0, seed=seed), progress)
            for seed in range(self.samples)
        ]
        samples_by_instruction = [list(texts) for texts in zip(*sampled, strict=True)]
        return dict(
            zip(
                BASELINES,
                (
                    np.array([-np.exp(-_mean(reply_log_probs)) for reply_log_probs in unprompted_log_probs]),
                    np.array([_mean(reply_log_probs) for reply_log_probs in log_probs]),
                    np.array(
                        [reply_log_probs.min() if len(reply_log_probs) else np.nan for reply_log_probs in log_probs]
                    ),
                    self._significance(instructions, progress),
                    np.array([mean_similarity(texts, "tokens") for texts in samples_by_instruction]),
                    np.array([mean_similarity(texts, "sentence") for texts in samples_by_instruction]),
                    self._forward(instructions, progress),
                ),
                strict=True,
            )
        )

    def explain(self, concepts: Sequence[str], progress: OnProgress = lambda done, total: None) -> list[str]:
        """Return the model's greedy explanation of each concept."""
        prompts = [self._prompt("concept-explain", concept) for concept in concepts]
        return self._replies(prompts, Generate(self.reply_tokens), progress)

    def _significance(self, instructions: Sequence[Instruction], progress: OnProgress) -> np.ndarray:
        concepts = list(dict.fromkeys(concept for instruction in instructions for concept in instruction.concepts))
        prompts = [self._prompt("concept-explain", concept) for concept in concepts]
        replies = self.explain(concepts, progress)
        masked_prompts = [self._prompt("concept-explain", MASK)] * len(concepts)
        split = [split_at_concept(reply, concept) for reply, concept in zip(replies, concepts, strict=True)]
        masked = [[self._mask(segment) for segment in reply] for reply in split]
        log_probs, masked_log_probs = (
            self._content_log_probs(asked_prompts, texts, progress)
            for asked_prompts, texts in ((prompts, split), (masked_prompts, masked))
        )
        significance_by_concept = {
            concept: _mean((np.exp(p) - np.exp(q)) * (p - q))
            for concept, p, q in zip(concepts, log_probs, masked_log_probs, strict=True)
        }
        return np.array(
            [
                _mean(np.array([significance_by_concept[concept] for concept in instruction.concepts]))
                for instruction in instructions
            ]
        )

    def _mask(self, segment: Segment) -> Segment:
        """Return a mention of the concept as one mask a token, any other segment as it is."""
        if not segment.name.startswith(MENTION):
            return segment
        return Segment(segment.name, f" {MASK}" * len(encode_segments(self._tokenizer, (segment,)).ids))

    def _content_log_probs(
        self, prompts: Sequence[PromptSegments], replies: Sequence[Sequence[Segment]], progress: OnProgress
    ) -> list[np.ndarray]:
        """Return log-probabilities of each reply's tokens but mentions and stop words, (tokens,), float64."""
        requests = [
            Request((*prompt, *reply), NLL(tuple(segment.name for segment in reply)), f"reply {index}")
            if reply
            else None
            for index, (prompt, reply) in enumerate(zip(prompts, replies, strict=True))
        ]
        self.store.compute_missing(requests, progress)
        rows_by_index = dict(self.store.read(requests))
        log_probs: list[np.ndarray] = []
        for index, reply in enumerate(replies):
            encoded = encode_segments(self._tokenizer, tuple(reply))
            content_places = [
                place
                for name, (first, end) in encoded.spans.items()
                if not name.startswith(MENTION)
                for place in range(first, end)
                if not is_stop_word(self._tokenizer.decode([encoded.ids[place]]))
            ]
            log_probs.append(
                -rows_by_index[index][content_places, 0].double().numpy() if content_places else np.empty(0)
            )
        return log_probs

    def _forward(self, instructions: Sequence[Instruction], progress: OnProgress) -> np.ndarray:
        prompts = [self._prompt("concepts-known", instruction.text, instruction.domain) for instruction in instructions]
        replies = self._replies(prompts, Generate(KNOWN_TOKENS), progress)
        log_probs = self._log_probs(zip(prompts, replies, strict=True), progress)
        probabilities = np.array([np.exp(_mean(reply_log_probs)) for reply_log_probs in log_probs])
        yes = np.array(["yes" in reply.casefold() for reply in replies])
        return np.where(yes, probabilities, 1 - probabilities)

    def _prompt(self, question: str, text: str, domain: str = "") -> PromptSegments:
        layout = load_model_layout(self._ref, f"{question}-{self.template}-v1", "questions")
        return layout.render(text, [f"{domain} "] if domain else [], None)

    def _replies(self, prompts: Sequence[PromptSegments], operation: Generate, progress: OnProgress) -> list[str]:
        requests = [Request(prompt, operation, f"instruction {index}") for index, prompt in enumerate(prompts)]
        self.store.compute_missing(requests, progress)
        return read_texts(self.store, self._tokenizer, requests)

    def _log_probs(self, replies: Iterable[tuple[PromptSegments, str]], progress: OnProgress) -> list[np.ndarray]:
        """Return log-probabilities of each reply's tokens after its prompt, (tokens,), float64; may be empty."""
        prompts = [(*prompt, Segment("answer", reply)) for prompt, reply in replies]
        prompts_by_index = {
            index: answered_prompt for index, answered_prompt in enumerate(prompts) if answered_prompt[-1].text
        }
        requests = [
            Request(answered_prompt, ANSWER, f"reply {index}") for index, answered_prompt in prompts_by_index.items()
        ]
        self.store.compute_missing(requests, progress)
        rows_by_index = {
            index: row for index, (_, row) in zip(prompts_by_index, sorted(self.store.read(requests)), strict=True)
        }
        surprises = [
            rows_by_index[index][:, 0].double().numpy() if index in rows_by_index else np.empty(0)
            for index in range(len(prompts))
        ]
        return [
            -values[~np.isnan(values)] for values in surprises
        ]  # nothing precedes the first token of a reply by itself

    @cached_property
    def _ref(self) -> ModelRef:
        return find_model(self.store.model, self.store.settings)

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self._ref)


def split_at_concept(reply: str, concept: str) -> list[Segment]:
    """Split a reply into segments, of which those named `mention...` are the concept, in any case."""
    pieces = re.split(rf"(\s*{re.escape(concept)})", reply, flags=re.IGNORECASE)
    return [
        Segment(f"{MENTION if place % 2 else 'text'}_{place}", piece) for place, piece in enumerate(pieces) if piece
    ]


def is_stop_word(token: str) -> bool:
    """Return whether a token is a stop word, or has neither a letter nor a digit."""
    from spacy.lang.en.stop_words import STOP_WORDS

    word = "".join(filter(str.isalnum, token)).lower()
    return not word or word in STOP_WORDS


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
