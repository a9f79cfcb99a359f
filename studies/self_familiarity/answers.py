"""Whether the familiarity of a question predicts its answer: a project's reviewed answers.

Beside it, the familiarity of the question if its first chunk stands in the prompt that asks for an explanation, and a
fusion of the answer's log-probabilities, out of fold, with and without the familiarity.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.llm.engine.prompts import PromptSegments, Segment
from abstain.llm.engine.requests import Request
from abstain.llm.familiarity.familiarity import FamiliarityConfig, SelfFamiliarity
from abstain.llm.familiarity.guessing import ConceptGuesser
from abstain.llm.features.feature_store import OnProgress
from abstain.llm.features.shard_job import ShardRunner
from abstain.llm.signals.compute_features import collect_feature_requests, compute_missing, read_features
from abstain.llm.signals.familiarity import get_question_score
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS
from studies.project_answers import ProjectAnswers
from studies.rows import hash_order
from studies.self_familiarity.declared import FamiliarityDeclaration


@dataclass(frozen=True)
class AnswerBatch:
    """Reviewed answers whose results are kept together; all but `interactions` are (rows,)."""

    first: int
    interactions: tuple[Interaction, ...]
    correct: np.ndarray
    groups: np.ndarray
    weights: np.ndarray

    @property
    def title(self) -> str:
        """The batch in words."""
        return f"answers {self.first + 1} to {self.first + len(self.interactions)}"


def cut_answers(project: ProjectAnswers, declared: FamiliarityDeclaration) -> list[AnswerBatch]:
    """Return a sample of the answers in batches; a smaller sample is the beginning of a larger one."""
    table, size = project.table, declared.part
    rows = hash_order(range(len(table)), list(table["interaction_id"]), declared.seed)[: declared.sizes["answers"][0]]
    weights = row_weights(table["inclusion_probability"].to_numpy(float))
    batches = []
    for first in range(0, len(rows), size):
        places = rows[first : first + size]
        part = table.iloc[places]
        batches.append(
            AnswerBatch(
                first,
                tuple(project.interactions[row] for row in places),
                part["correct"].to_numpy(int),
                part["group"].to_numpy(str),
                weights[places],
            )
        )
    return batches


@dataclass(frozen=True)
class AnswerMeter:
    """The project's base model, and the lengths of the study."""

    llm: LLMParams
    declared: FamiliarityDeclaration
    settings: Settings
    runner: ShardRunner | None = None

    def measure_threshold(self, progress: OnProgress) -> dict[str, Any]:
        """Return the `threshold` h, from the basic concepts."""
        return {"threshold": self._make_method().estimate_threshold(progress)}

    def measure_familiarity(self, interactions: Sequence[Interaction], progress: OnProgress) -> dict[str, Any]:
        """Return the `familiarity` of each question, (rows,), and the `log_probs` signals of its answer by name."""
        requests = collect_feature_requests(LIKELIHOOD_SIGNALS)
        compute_missing(self.llm, self.settings, [(interactions, requests)], progress, self.runner)
        batch = read_features(self.llm, self.settings, interactions, requests)
        familiarities = self._make_method().score([interaction.question for interaction in interactions], progress)
        return {
            "familiarity": [get_question_score(familiarity) for familiarity in familiarities],
            "log_probs": {signal.name: signal.score(batch).tolist() for signal in LIKELIHOOD_SIGNALS},
        }

    def measure_with_chunks(self, interactions: Sequence[Interaction], progress: OnProgress) -> dict[str, Any]:
        """Return the `familiarity` of each question with its first chunk at hand, (rows,); nan without a chunk."""
        scores = np.full(len(interactions), np.nan)
        method = self._make_method()
        guesser, informed = method.guesser, copy(method)
        for index, interaction in enumerate(interactions):
            if interaction.contexts:
                informed.guesser = InformedGuesser(
                    guesser.store,
                    guesser.template,
                    guesser.explanation,
                    guesser.search,
                    chunk=interaction.contexts[0].text,
                )
                (familiarity,) = informed.score([interaction.question])
                scores[index] = get_question_score(familiarity)
            progress(index + 1, len(interactions))
        return {"familiarity": scores.tolist()}

    def _make_method(self) -> SelfFamiliarity:
        config = FamiliarityConfig(**self.declared.familiarity.model_dump())
        return SelfFamiliarity(self.llm.model, self.llm.layout, self.settings, config)


@dataclass
class InformedGuesser(ConceptGuesser):
    """Explains concepts with a chunk at hand; they are guessed from the explanation alone."""

    chunk: str = ""

    def _make_explanation_requests(self, concepts: Sequence[str]) -> list[Request]:
        return [
            replace(request, prompt=self._insert_chunk(request.prompt))
            for request in super()._make_explanation_requests(concepts)
        ]

    def _insert_chunk(self, prompt: PromptSegments) -> PromptSegments:
        head, verb, tail = prompt[0].text.partition("Explain")
        start = (Segment("turn", head, literal=True), Segment("context", f"{self.chunk}\n\n"))
        return (*start, Segment("instruction", verb + tail, literal=True), *prompt[1:])
