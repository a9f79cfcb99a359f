"""The familiarity of instructions: their concepts, each guessed by the base model, and one score of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from abstain.config.settings import Settings
from abstain.llm.engine.requests import ConstrainedGenerate, Generate
from abstain.llm.familiarity.aggregation import Aggregation, aggregate, compute_threshold
from abstain.llm.familiarity.concepts import Span, parse_listed_concepts, recognize_concepts, select_concepts
from abstain.llm.familiarity.guessing import ConceptGuesser, GuessedConcept
from abstain.llm.familiarity.words import compute_log_frequency
from abstain.llm.features.feature_store import FeatureStore, OnProgress
from abstain.llm.features.shard_job import JobStats

Extraction = Literal["ner", "llm"]
MAX_CONCEPTS = 20
"""Of an instruction with more, the rarest are guessed: by eq. 7 the next would have a weight of one millionth."""


@dataclass(frozen=True)
class FamiliarityConfig:
    """Options of concept extraction, guessing and aggregation. The defaults, but `extraction`, are those of Luo et al.

    Attributes:
        extraction: `ner` finds concepts with spaCy, `llm` lets the base model list them.
        domain: Domain of the entities that the base model lists, such as "medical"; for `llm` only.
        grouping: Whether to merge adjacent concepts.
        filtering: Whether to drop concepts of common words only.
        ranking: Whether to rank concepts by frequency score.
        aggregation: How the scores of concepts are combined.
        explanation_tokens: l_F, the limit of the tokens of an explanation.
        beams: T_B, the number of beams of a guess.
        guess_tokens: l_B, the limit of the tokens of a guess.
    """

    extraction: Extraction = "ner"
    domain: str = ""
    grouping: bool = True
    filtering: bool = True
    ranking: bool = True
    aggregation: Aggregation = "weighted"
    explanation_tokens: int = 200
    beams: int = 30
    guess_tokens: int = 15


@dataclass(frozen=True)
class Familiarity:
    """The familiarity of an instruction.

    Attributes:
        concepts: The guessed concepts, in the order of the instruction.
        score: s_f, from 0 to 1; None if no concept has a score.
        left_out: Number of concepts beyond `MAX_CONCEPTS`.
    """

    concepts: tuple[GuessedConcept, ...]
    score: float | None
    left_out: int = 0

    def find_unfamiliar(self, threshold: float) -> list[str]:
        """Return the concepts whose own familiarity is below a threshold, the least familiar first.

        Args:
            threshold: The threshold, such as h.

        Returns:
            The concepts.
        """
        scored = sorted((guess.score, guess.concept) for guess in self.concepts if guess.score is not None)
        return [concept for score, concept in scored if score < threshold]


class SelfFamiliarity:
    """Self-Familiarity with one base model.

    Args:
        model: Name of the base model, as in `llm.model`.
        layout: Name of the prompt layout. Prompts are in its chat template, or in plain text if it has none.
        settings: Settings of the model and the feature cache.
        config: Options; None for the defaults.
    """

    def __init__(self, model: str, layout: str, settings: Settings, config: FamiliarityConfig | None = None) -> None:
        self.config = config or FamiliarityConfig()
        self.guesser = ConceptGuesser(
            FeatureStore(model, settings),
            next((template for template in ("auto", "chatml") if template in layout.split("-")), "plain"),
            Generate(self.config.explanation_tokens),
            ConstrainedGenerate(self.config.beams, self.config.guess_tokens),
        )

    @property
    def cost(self) -> JobStats:
        """The work of the base model so far; other results came from the cache."""
        return self.guesser.cost

    def score(self, instructions: Sequence[str], progress: OnProgress = lambda done, total: None) -> list[Familiarity]:
        """Score the familiarity of instructions. A concept of several instructions is guessed once.

        Args:
            instructions: The instructions.
            progress: Called with (done, total) requests.

        Returns:
            The familiarity of each instruction.

        Raises:
            AbstainError: A package of the extra `familiarity` is missing, or an instruction or an explanation exceeds
                the context length.
        """
        return self.score_concepts(self.extract_concepts(instructions, progress), progress)

    def score_concepts(
        self, concepts: Sequence[Sequence[str]], progress: OnProgress = lambda done, total: None
    ) -> list[Familiarity]:
        """Score the familiarity of instructions by their concepts.

        Args:
            concepts: The concepts of each instruction, in its order.
            progress: Called with (done, total) requests.

        Returns:
            The familiarity of each instruction.

        Raises:
            AbstainError: An explanation exceeds the context length.
        """
        selections = [self._select_rarest(instruction_concepts) for instruction_concepts in concepts]
        guesses = self.guesser.guess([concept for selected, _ in selections for concept in selected], progress)
        return [
            self._aggregate([guesses[concept] for concept in selected], left_out) for selected, left_out in selections
        ]

    def estimate_forward_tokens(self, instructions: Sequence[str]) -> float:
        """Return the mean over instructions of the most tokens that are run for one, if none of its concepts is cached.

        Args:
            instructions: The instructions.

        Returns:
            The number of tokens per instruction.
        """
        max_tokens = [
            sum(map(self.guesser.count_max_tokens, self._select_rarest(concepts)[0]))
            for concepts in self.extract_concepts(instructions)
        ]
        return sum(max_tokens) / max(len(max_tokens), 1)

    def extract_concepts(
        self, instructions: Sequence[str], progress: OnProgress = lambda done, total: None
    ) -> list[list[str]]:
        """Extract the concepts of instructions.

        Args:
            instructions: The instructions.
            progress: Called with (done, total) requests, with `extraction="llm"`.

        Returns:
            The concepts of each instruction, in its order.
        """
        config = self.config
        spans: list[list[Span]]
        if config.extraction == "ner":
            spans = recognize_concepts(instructions)
        else:
            answers = self.guesser.list_concepts(instructions, config.domain, progress)
            spans = [parse_listed_concepts(text, answer) for text, answer in zip(instructions, answers, strict=True)]
        return [
            select_concepts(text, text_spans, grouping=config.grouping, filtering=config.filtering)
            for text, text_spans in zip(instructions, spans, strict=True)
        ]

    def estimate_threshold(self, progress: OnProgress = lambda done, total: None) -> float:
        """Estimate the threshold h, below which an instruction is less familiar than what everybody knows.

        Args:
            progress: Called with (done, total) requests.

        Returns:
            h, from the scores of `load_basic_concepts`.
        """
        guesses = self.guesser.guess(load_basic_concepts(), progress).values()
        return compute_threshold([guess.score for guess in guesses if guess.score is not None])

    def get_cached_threshold(self) -> float | None:
        """Return the threshold h if the cache has every basic concept, else None: computing it anew takes minutes."""
        return self.estimate_threshold() if self.guesser.is_cached(load_basic_concepts()) else None

    def _select_rarest(self, concepts: Sequence[str]) -> tuple[list[str], int]:
        """Return the `MAX_CONCEPTS` rarest of `concepts`, in their order, and the number of those left out."""
        rarest = set(sorted(concepts, key=compute_log_frequency)[:MAX_CONCEPTS])
        selected = [concept for concept in concepts if concept in rarest]
        return selected, len(concepts) - len(selected)

    def _aggregate(self, guesses: Sequence[GuessedConcept], left_out: int) -> Familiarity:
        scored = [(guess.concept, guess.score) for guess in guesses if guess.score is not None]
        if not scored:
            return Familiarity(tuple(guesses), None, left_out)
        concepts, scores = zip(*scored, strict=True)
        config = self.config
        score = aggregate(concepts, scores, config.aggregation, ranking=config.ranking)
        return Familiarity(tuple(guesses), score, left_out)


def load_basic_concepts() -> list[str]:
    """Load the names of things that every base model is assumed to know.

    An instruction about one of them has its score.

    Returns:
        The concepts.
    """
    file = resources.files("abstain.llm.familiarity") / "basic_concepts.txt"
    return file.read_text(encoding="utf-8").splitlines()
