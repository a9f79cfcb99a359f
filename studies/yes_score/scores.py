"""Scores of all responses: the results of the study's parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Context, Interaction, Question
from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.features.feature_store import OnProgress
from abstain.llm.features.shard_job import ShardRunner
from abstain.llm.signals.base import FeatureBatch, Signal
from abstain.llm.signals.compute_features import collect_feature_requests, compute_missing, read_features
from abstain.llm.signals.extractive_qa import make_extractive_scorer
from abstain.llm.signals.verbalized import make_verbalized_signal
from abstain.llm.signals.yes_no import count_neither_replies, make_yes_no_signals
from studies.answers import generate_answers
from studies.yes_score.declared import YesScoreDeclaration
from studies.yes_score.responses import (
    KINDS,
    AnsweredQuestions,
    contains_answer,
    make_interaction,
    make_responses,
)

Scores = dict[str, list[float]]
"""A score of each response, nan without one, by name of the scorer; a stored nan is null."""


@dataclass(frozen=True)
class ResponseScorer:
    """The study's models, and how they are run."""

    declared: YesScoreDeclaration
    settings: Settings
    runner: ShardRunner | None = None

    def score_kinds(self, data: AnsweredQuestions, progress: OnProgress) -> dict[str, Any]:
        """Return the Yes-scores of every kind of response.

        Returns:
            By kind of `KINDS` the `rows` that have such a response, their `scores` by variant, and the count of
            `replies` that are `neither` yes nor no; `correct` of the model's answers, 0 or 1.
        """
        responses, correct = self._respond(data, progress)
        interactions = [answer for _, kind in responses.values() for answer in kind]
        signals = self._make_signals(data.llm)
        work = [(interactions, collect_feature_requests(signals))]
        compute_missing(data.llm, self.settings, work, progress, self.runner)
        kinds = {}
        for name, (rows, answers) in responses.items():
            batch = read_features(data.llm, self.settings, answers, collect_feature_requests(signals))
            counts = count_neither_replies(self._load_tokenizer(data.llm), batch)
            kinds[name] = {"rows": rows, "scores": _score(signals, batch), **(counts or {})}
        return {"kinds": kinds, "correct": correct}

    def score_extractive(self, data: AnsweredQuestions, model: str, progress: OnProgress) -> dict[str, Any]:
        """Return the scores of every kind of response by the extractive QA model, shaped as those of `score_kinds`.

        Raises:
            AbstainError: the model is not found, or answers no questions.
        """
        scorer = make_extractive_scorer(model, self.settings)
        responses, correct = self._respond(data, progress)
        kinds = {
            name: {"rows": rows, "scores": {scorer.name: scorer.score(FeatureBatch(answers, {})).tolist()}}
            for name, (rows, answers) in responses.items()
        }
        return {"kinds": kinds, "correct": correct}

    def score_example(self, llm: LLMParams, progress: OnProgress) -> dict[str, Any]:
        """Return the `scores` of the responses of the example by variant."""
        example = self.declared.example
        question = Question(
            interaction_id="example",
            question=example.question,
            contexts=(Context(chunk_id="example#0", text=example.context),),
        )
        answers = [make_interaction(question, row.response, llm.model) for row in example.responses]
        signals = self._make_signals(llm)
        compute_missing(llm, self.settings, [(answers, collect_feature_requests(signals))], progress, self.runner)
        batch = read_features(llm, self.settings, answers, collect_feature_requests(signals))
        return {"scores": _score(signals, batch)}

    def _respond(
        self, data: AnsweredQuestions, progress: OnProgress
    ) -> tuple[Mapping[str, tuple[list[int], list[Interaction]]], list[int | None]]:
        """Return rows and responses by kind, and whether the model's answers are correct; None if nobody can say."""
        answers: Sequence[Interaction] = data.answers
        correct: list[int | None] = list(data.correct)
        if not answers:
            tokens = self.declared.answer_tokens
            answers, _ = generate_answers(data.llm, self.settings, data.questions, tokens, progress, self.runner)
            pairs = zip(answers, data.marked, strict=True)
            correct = [int(contains_answer(answer.answer, marked)) if marked else None for answer, marked in pairs]
        interactions = {}
        for kind, texts in make_responses(data, answers, self.declared.seed).items():
            rows = [row for row, text in enumerate(texts) if text is not None and text.strip()]
            interactions[kind] = (
                rows,
                [make_interaction(data.questions[row], texts[row] or "", answers[row].model) for row in rows],
            )
        return {kind: interactions[kind] for kind in KINDS}, correct

    def _make_signals(self, llm: LLMParams) -> list[Signal]:
        tokenizer = self._load_tokenizer(llm)
        signals = (*make_yes_no_signals(tokenizer), make_verbalized_signal(tokenizer))
        return [signal for signal in signals if signal.name in self.declared.variants]

    def _load_tokenizer(self, llm: LLMParams) -> Any:
        return load_tokenizer(find_model(llm.model, self.settings))


def _score(signals: Sequence[Signal], batch: FeatureBatch) -> Scores:
    return {signal.name: signal.score(batch).tolist() for signal in signals}
