"""The seven baselines of Self-Familiarity (Luo et al., appendix C): how sure a base model is of an instruction, by what
it replies to it.

Where the appendix leaves something open:

* A reply's probabilities are read back from its text, like those of any answer (signals/likelihood.py), and without
  EOS: a reply that was cut off at its limit has none.
* Perplexity (eq. 9) is that of the reply by itself. With the instruction before it, it would rank as eq. 12 does.
* Significance (eq. 19) is symmetric, over the probabilities of the reply's tokens, as the authors' code has it; an
  instruction has the mean of its concepts.
* The probability of a reply (eq. 27) is normalised by its length, as that of a guessed concept is (eq. 5). Forward
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
    """The base model of `store`, asked with the prompts of `template`, "chatml" or "plain" (engine/questions)."""

    store: FeatureStore
    template: str
    reply_tokens: int = 200
    samples: int = 10
    sample_tokens: int = 60

    def scores(
        self, instructions: Sequence[Instruction], progress: OnProgress = lambda done, total: None
    ) -> dict[str, np.ndarray]:
        """Every baseline's scores, (instructions,), higher is more familiar; nan where it has none."""
        prompts = [self._prompt("instruction", one.text) for one in instructions]
        replies = self._replies(prompts, Generate(self.reply_tokens), progress)
        given = self._log_probs(zip(prompts, replies, strict=True), progress)
        alone = self._log_probs((((), reply) for reply in replies), progress)
        sampled = [
            self._replies(prompts, Generate(self.sample_tokens, temperature=1.0, seed=seed), progress)
            for seed in range(self.samples)
        ]
        of_each = [list(texts) for texts in zip(*sampled, strict=True)]
        return dict(
            zip(
                BASELINES,
                (
                    np.array([-np.exp(-_mean(one)) for one in alone]),
                    np.array([_mean(one) for one in given]),
                    np.array([one.min() if len(one) else np.nan for one in given]),
                    self._significance(instructions, progress),
                    np.array([mean_similarity(texts, "tokens") for texts in of_each]),
                    np.array([mean_similarity(texts, "sentence") for texts in of_each]),
                    self._forward(instructions, progress),
                ),
                strict=True,
            )
        )

    def _significance(self, instructions: Sequence[Instruction], progress: OnProgress) -> np.ndarray:
        concepts = list(dict.fromkeys(concept for one in instructions for concept in one.concepts))
        prompts = [self._prompt("concept-explain", concept) for concept in concepts]
        replies = self._replies(prompts, Generate(self.reply_tokens), progress)
        without = self._prompt("concept-explain", MASK)
        told = self._log_probs(zip(prompts, replies, strict=True), progress)
        masked = self._log_probs(((without, reply) for reply in replies), progress)
        found = {
            concept: float(((np.exp(p) - np.exp(q)) * (p - q)).mean()) if len(p) == len(q) > 0 else np.nan
            for concept, p, q in zip(concepts, told, masked, strict=True)
        }
        return np.array([_mean(np.array([found[concept] for concept in one.concepts])) for one in instructions])

    def _forward(self, instructions: Sequence[Instruction], progress: OnProgress) -> np.ndarray:
        prompts = [self._prompt("concepts-known", one.text, one.domain) for one in instructions]
        replies = self._replies(prompts, Generate(KNOWN_TOKENS), progress)
        log_probs = self._log_probs(zip(prompts, replies, strict=True), progress)
        probabilities = np.array([np.exp(_mean(one)) for one in log_probs])
        yes = np.array(["yes" in reply.casefold() for reply in replies])
        return np.where(yes, probabilities, 1 - probabilities)

    def _prompt(self, question: str, text: str, domain: str = "") -> PromptSegments:
        layout = load_layout(f"{question}-{self.template}-v1", "questions")
        return layout.render(text, [f"{domain} "] if domain else [], None)

    def _replies(self, prompts: Sequence[PromptSegments], ask: Generate, progress: OnProgress) -> list[str]:
        requests = [Request(pass_, ask, f"instruction {at}") for at, pass_ in enumerate(prompts)]
        self.store.compute_missing(requests, progress)
        return read_texts(self.store, self._tokenizer, requests)

    def _log_probs(self, replies: Iterable[tuple[PromptSegments, str]], progress: OnProgress) -> list[np.ndarray]:
        """Of every reply's tokens after its prompt, (tokens,), float64; none where nothing was replied."""
        passes = [(*prompt, Segment("answer", reply)) for prompt, reply in replies]
        asked = {at: pass_ for at, pass_ in enumerate(passes) if pass_[-1].text}
        requests = [Request(pass_, ANSWER, f"reply {at}") for at, pass_ in asked.items()]
        self.store.compute_missing(requests, progress)
        found = {at: row for at, (_, row) in zip(asked, sorted(self.store.read(requests)), strict=True)}
        surprises = [found[at][:, 0].double().numpy() if at in found else np.empty(0) for at in range(len(passes))]
        return [-one[~np.isnan(one)] for one in surprises]  # nothing precedes the first token of a reply by itself

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(find_model(self.store.model, self.store.settings))


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
