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
from abstain.llm.familiarity.words import log_frequency
from abstain.llm.features.feature_store import FeatureStore, OnProgress
from abstain.llm.features.shard_job import JobStats

Extraction = Literal["ner", "llm"]
MAX_CONCEPTS = 20
"""Of an instruction with more, the rarest are guessed: by eq. 7 the next would have a weight of one millionth."""


@dataclass(frozen=True)
class FamiliarityConfig:
    """How concepts are found, guessed and weighed; the defaults are the paper's, but for `extraction`.

    `domain`: what the base model is told to look for, with `extraction="llm"`, such as "medical". `explanation_tokens`
    is l_F, `beams` T_B and `guess_tokens` l_B.
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
    """An instruction's concepts, guessed, in its order, and its score s_f, from 0 to 1.

    None where no concept was found, or none that has a score. `left_out`: concepts beyond `MAX_CONCEPTS`.
    """

    concepts: tuple[GuessedConcept, ...]
    score: float | None
    left_out: int = 0

    def unfamiliar(self, threshold: float) -> list[str]:
        """The concepts whose own familiarity is below `threshold`, the least familiar first."""
        known = sorted((one.score, one.concept) for one in self.concepts if one.score is not None)
        return [concept for score, concept in known if score < threshold]


class SelfFamiliarity:
    """The base model `model`, as `llm.model` names it, prompted as `layout` is: with ChatML or in plain text."""

    def __init__(self, model: str, layout: str, settings: Settings, method: FamiliarityConfig | None = None) -> None:
        self.method = method or FamiliarityConfig()
        self.guesser = ConceptGuesser(
            FeatureStore(model, settings),
            "chatml" if "chatml" in layout else "plain",
            Generate(self.method.explanation_tokens),
            ConstrainedGenerate(self.method.beams, self.method.guess_tokens),
        )

    @property
    def cost(self) -> JobStats:
        """What the base model read and wrote so far; the rest came from the cache."""
        return self.guesser.cost

    def score(self, instructions: Sequence[str], progress: OnProgress = lambda done, total: None) -> list[Familiarity]:
        """The familiarity of each instruction. A concept that several name is guessed once.

        Raises `AbstainError` where a package of the extra `familiarity` is missing, and where an instruction or an
        explanation does not fit the base model's window.
        """
        of_each = [self._rarest(concepts) for concepts in self.concepts(instructions, progress)]
        guessed = self.guesser.guess([concept for kept, _ in of_each for concept in kept], progress)
        return [self._aggregate([guessed[concept] for concept in kept], left_out) for kept, left_out in of_each]

    def forward_tokens(self, instructions: Sequence[str]) -> float:
        """The most tokens that the base model runs for an instruction, in the mean, if it knows none of its concepts
        from before."""
        most = [sum(map(self.guesser.most_tokens, self._rarest(of)[0])) for of in self.concepts(instructions)]
        return sum(most) / max(len(most), 1)

    def concepts(self, instructions: Sequence[str], progress: OnProgress = lambda done, total: None) -> list[list[str]]:
        """The concepts of each instruction, in its order."""
        how = self.method
        spans: list[list[Span]]
        if how.extraction == "ner":
            spans = recognize_concepts(instructions)
        else:
            answers = self.guesser.list_concepts(instructions, how.domain, progress)
            spans = [parse_listed_concepts(text, answer) for text, answer in zip(instructions, answers, strict=True)]
        return [
            select_concepts(text, found, grouping=how.grouping, filtering=how.filtering)
            for text, found in zip(instructions, spans, strict=True)
        ]

    def threshold(self, progress: OnProgress = lambda done, total: None) -> float:
        """h: below it, an instruction is less familiar than what everybody knows (`basic_concepts`)."""
        guessed = self.guesser.guess(basic_concepts(), progress).values()
        return compute_threshold([one.score for one in guessed if one.score is not None])

    def known_threshold(self) -> float | None:
        """`threshold`, where the cache has every basic concept: computing it anew takes minutes."""
        return self.threshold() if self.guesser.is_known(basic_concepts()) else None

    def _rarest(self, concepts: Sequence[str]) -> tuple[list[str], int]:
        """At most `MAX_CONCEPTS` of `concepts`, in their order, and the number of those left out."""
        rarest = set(sorted(concepts, key=log_frequency)[:MAX_CONCEPTS])
        kept = [concept for concept in concepts if concept in rarest]
        return kept, len(concepts) - len(kept)

    def _aggregate(self, guessed: Sequence[GuessedConcept], left_out: int) -> Familiarity:
        scored = [(one.concept, one.score) for one in guessed if one.score is not None]
        if not scored:
            return Familiarity(tuple(guessed), None, left_out)
        concepts, scores = zip(*scored, strict=True)
        how = self.method
        score = aggregate(concepts, scores, how.aggregation, ranking=how.ranking)
        return Familiarity(tuple(guessed), score, left_out)


def basic_concepts() -> list[str]:
    """Things that every base model is taken to know; an instruction about one alone has its score."""
    file = resources.files("abstain.llm.familiarity") / "basic_concepts.txt"
    return file.read_text(encoding="utf-8").splitlines()
