"""The seven baselines of Self-Familiarity (Luo et al., appendix C): familiarity by the replies of a base model.

Where the appendix leaves something open:

* A reply's probabilities are read back from its text, like those of any answer (signals/likelihood.py), and without
  EOS: a reply that was cut off at its limit has none.
* Perplexity (eq. 9) is that of the reply by itself. With the instruction before it, it would rank as eq. 12 does.
* Significance (eq. 19) is symmetric, over the probabilities of the reply's tokens, as the authors' code has it; an
  instruction has the mean of its concepts.
* The probability of a reply (eq. 27) is normalized by its length, as that of a guessed concept is (eq. 5). Forward
  inference asks of an instruction; the paper's shorter question about a single concept is not asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.engine.prompts import PromptSegments, Segment, load_layout
from abstain.llm.engine.requests import NLL, Generate, Request
from abstain.llm.familiarity.guessing import read_texts
from abstain.llm.familiarity.masking import MASK
from abstain.llm.features.feature_store import FeatureStore, OnProgress
from studies.similarity import mean_similarity

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


@dataclass(frozen=True)
class Instruction:
    """An instruction, its concepts, and the domain that forward inference names, such as "medical"; it may be empty."""

    text: str
    concepts: tuple[str, ...]
    domain: str = ""


@dataclass(frozen=True)
class FamiliarityBaselines:
    """Baselines by the base model of `store`, prompted by `template`, "chatml" or "plain" (engine/questions)."""

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

    def _significance(self, instructions: Sequence[Instruction], progress: OnProgress) -> np.ndarray:
        concepts = list(dict.fromkeys(concept for instruction in instructions for concept in instruction.concepts))
        prompts = [self._prompt("concept-explain", concept) for concept in concepts]
        replies = self._replies(prompts, Generate(self.reply_tokens), progress)
        masked_prompt = self._prompt("concept-explain", MASK)
        log_probs = self._log_probs(zip(prompts, replies, strict=True), progress)
        masked_log_probs = self._log_probs(((masked_prompt, reply) for reply in replies), progress)
        significance_by_concept = {
            concept: float(((np.exp(p) - np.exp(q)) * (p - q)).mean()) if len(p) == len(q) > 0 else np.nan
            for concept, p, q in zip(concepts, log_probs, masked_log_probs, strict=True)
        }
        return np.array(
            [
                _mean(np.array([significance_by_concept[concept] for concept in instruction.concepts]))
                for instruction in instructions
            ]
        )

    def _forward(self, instructions: Sequence[Instruction], progress: OnProgress) -> np.ndarray:
        prompts = [self._prompt("concepts-known", instruction.text, instruction.domain) for instruction in instructions]
        replies = self._replies(prompts, Generate(KNOWN_TOKENS), progress)
        log_probs = self._log_probs(zip(prompts, replies, strict=True), progress)
        probabilities = np.array([np.exp(_mean(reply_log_probs)) for reply_log_probs in log_probs])
        yes = np.array(["yes" in reply.casefold() for reply in replies])
        return np.where(yes, probabilities, 1 - probabilities)

    def _prompt(self, question: str, text: str, domain: str = "") -> PromptSegments:
        layout = load_layout(f"{question}-{self.template}-v1", "questions")
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
    def _tokenizer(self) -> Any:
        return load_tokenizer(find_model(self.store.model, self.store.settings))


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
