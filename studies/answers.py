"""Answers of a base model to an experiment's questions, greedily, from the feature cache."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Question
from abstain.core.errors import AbstainError
from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.engine.requests import Generate, Request
from abstain.llm.engine.tokenization import load_model_layout
from abstain.llm.features.extraction import FeatureSource, PreparedRequest
from abstain.llm.features.feature_store import FeatureStore, OnProgress
from abstain.llm.features.shard_job import JobStats, ShardRunner

ASKED_AT = datetime(2018, 6, 11, tzinfo=UTC)
"""A study has no time; the contract of an interaction wants one."""
NO_ANSWER = "(no answer)"
"""What stands for an answer of no tokens: it is judged like any other, and is wrong."""


def generate_answers(
    llm: LLMParams,
    settings: Settings,
    questions: Sequence[Question],
    tokens: int,
    progress: OnProgress = lambda done, total: None,
    runner: ShardRunner | None = None,
) -> tuple[list[Interaction], JobStats]:
    """Answer each of `questions` with the base model.

    Args:
        llm: The base model and how it is prompted.
        settings: Settings of this machine.
        questions: Questions with their contexts.
        tokens: Most tokens of an answer.
        progress: Called with the number of finished answers and their total.
        runner: Runs the forward passes; by default this process.

    Returns:
        The answered questions in order, and the cost of those that the cache lacked.

    Raises:
        AbstainError: a question does not fit the context length.
    """
    source, rows = FeatureSource(llm, settings), FeatureStore(llm.model, settings)
    ref = find_model(llm.model, settings)
    layout, tokenizer = load_model_layout(ref, llm.layout), load_tokenizer(ref)
    requests = [_request(source, question, Generate(tokens)) for question in questions]
    stats = rows.compute_missing(requests, progress, runner)
    answers = [""] * len(questions)
    for index, steps in rows.read(requests):
        answers[index] = tokenizer.decode([int(token) for token in steps[:, 0]], skip_special_tokens=True)
    interactions = [
        Interaction(
            interaction_id=question.interaction_id,
            asked_at=ASKED_AT,
            question=question.question,
            answer=layout.extract_answer(answer).strip() or NO_ANSWER,
            contexts=question.contexts,
            model=str(ref),
        )
        for question, answer in zip(questions, answers, strict=True)
    ]
    return interactions, stats


def _request(source: FeatureSource, question: Question, ask: Generate) -> Request:
    prepared = source.prepare_question(question, ask)
    if not isinstance(prepared, PreparedRequest):
        raise AbstainError(
            Code.TOO_LONG, f"question {question.interaction_id}: {prepared.reason}: take it out of the study's files"
        )
    return prepared.request
