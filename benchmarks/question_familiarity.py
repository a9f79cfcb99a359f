"""Whether the familiarity of a question predicts its answer: `python -m benchmarks.question_familiarity`.

On the sample, whose products no model knows, or with `--verdicts FILE --rows N` on a seeded part of people's reviews
(*Continually Improving Extractive QA via Human Feedback*, Gao et al., EMNLP 2023).

Printed: the share of questions below the threshold h, the AUROC of the familiarity for the answer's correctness, and
that of a fusion of the answer's log-probabilities out of fold, with and without the familiarity, with 95 % intervals by
group. With `--with-chunk` also that of the familiarity if the first chunk stands in the prompt that asks for an
explanation, and of how much it rises. On the sample also whether background makes up for unfamiliar questions: how many
answers are correct with the retrieved chunks and without any, of questions whose chunks hold the answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from abstain.config.params import LLMParams, load_params
from abstain.config.settings import Settings, load_settings
from abstain.core.contracts import Interaction
from abstain.core.labels import Labels
from abstain.learning.estimators.fusion import fit_fusion
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import bootstrap, paired_difference
from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.engine.prompts import PromptSegments, Segment, load_layout
from abstain.llm.engine.requests import Generate, Request
from abstain.llm.familiarity.familiarity import FamiliarityConfig, SelfFamiliarity
from abstain.llm.familiarity.guessing import ConceptGuesser, read_texts
from abstain.llm.features.feature_store import FeatureStore
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.compute_features import collect_feature_requests, read_features
from abstain.llm.signals.familiarity import QuestionFamiliarity
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS
from benchmarks.familiarity import format_estimate
from benchmarks.sample.handbook import Fact, build_handbook
from benchmarks.sample.judge import review_answer
from benchmarks.sample.write import AnsweredQuestion, read_answered_questions
from benchmarks.scorers import FILE, read_labelled_answers

N_RESAMPLES, SEED = 1000, 3
ANSWER_TOKENS = 48


@dataclass(frozen=True)
class Rows:
    """Answered questions with labels: `correct` of 0/1 and `groups`, each (rows,)."""

    interactions: Sequence[Interaction]
    correct: np.ndarray
    groups: np.ndarray


def make_sample_rows(answers: Sequence[AnsweredQuestion]) -> Rows:
    """Return the answers of the sample with their labels."""
    interactions = [
        Interaction(
            interaction_id=answer.question.question_id,
            asked_at=answer.question.asked_at,
            question=answer.question.text,
            answer=answer.answer,
            contexts=answer.contexts,
            model="sample",
        )
        for answer in answers
    ]
    correct = np.array([int(answer.review.fit_to_show) for answer in answers])
    return Rows(interactions, correct, np.array([answer.question.group for answer in answers]))


def read_labelled_rows(file: Path, rows: int) -> Rows:
    """Read at most `rows` labelled answers of `file`, drawn by a seed."""
    dataset = read_labelled_answers(file)
    count = min(rows, len(dataset.correct))
    indices = np.sort(np.random.default_rng(SEED).choice(len(dataset.correct), count, replace=False))
    return Rows(dataset.take(indices), dataset.correct[indices], dataset.topic[indices])


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


def score_with_chunks(method: SelfFamiliarity, interactions: Sequence[Interaction]) -> np.ndarray:
    """Return the familiarity of each question with its first chunk at hand, (rows,); nan without a chunk."""
    scores = np.full(len(interactions), np.nan)
    guesser, informed = method.guesser, copy(method)
    for index, interaction in enumerate(interactions):
        if interaction.contexts:
            informed.guesser = InformedGuesser(
                guesser.store,
                guesser.template,
                guesser.explanation,
                guesser.search,
                guesser.cost,
                interaction.contexts[0].text,
            )
            scores[index] = QuestionFamiliarity(informed).score(FeatureBatch([interaction], {}))[0]
            guesser.cost = informed.guesser.cost
    return scores


def print_comparison(rows: Rows, llm: LLMParams, settings: Settings, with_chunk: bool) -> None:
    """Print how well the familiarity predicts the answers, by itself and with log-probabilities."""
    answers = read_features(llm, settings, rows.interactions, collect_feature_requests(LIKELIHOOD_SIGNALS))
    scores = pd.DataFrame({signal.name: signal.score(answers) for signal in LIKELIHOOD_SIGNALS})
    method = SelfFamiliarity(llm.model, llm.layout, settings, FamiliarityConfig())
    familiarity = QuestionFamiliarity(method).score(answers)
    h = method.estimate_threshold()
    labels = Labels(rows.correct, np.ones(len(rows.correct)), rows.groups)
    scores_by_name = {
        "familiarity": familiarity,
        "log-probabilities": fit_fusion(scores, labels).out_of_fold,
        "log-probabilities and familiarity": fit_fusion(scores.assign(familiarity=familiarity), labels).out_of_fold,
    }
    if with_chunk:
        informed = score_with_chunks(method, rows.interactions)
        scores_by_name |= {"familiarity with the chunk": informed, "rise with the chunk": informed - familiarity}
    metrics_by_name = {name: partial(metrics.auroc, rows.correct, values) for name, values in scores_by_name.items()}
    estimates = bootstrap(metrics_by_name, rows.groups, n_resamples=N_RESAMPLES, seed=SEED)
    print(f"{len(rows.correct)} answers in {len(set(rows.groups))} groups, {rows.correct.mean():.1%} correct")
    print(f"below h = {h:.3f}: {np.mean(familiarity < h):.1%} of the questions; mean {np.nanmean(familiarity):.3f}")
    for name, estimate in estimates.items():
        print(f"AUROC of {name}: {format_estimate(estimate, '.3f')}")
    gain = paired_difference(estimates["log-probabilities and familiarity"], estimates["log-probabilities"])
    print(f"what the familiarity adds: {format_estimate(gain, '+.3f')}")
    print(f"tokens that were run for it: {method.cost.forward_tokens:,}")


def print_background_effect(answers: Sequence[AnsweredQuestion], llm: LLMParams, settings: Settings) -> None:
    """Print how many answers are correct with the retrieved chunks and without any."""
    questions = [answer for answer in answers if answer.review.answerable]
    layout, store = load_layout(llm.layout), FeatureStore(llm.model, settings)
    requests = [
        Request(layout.render(answer.question.text, [], None), Generate(ANSWER_TOKENS), answer.question.question_id)
        for answer in questions
    ]
    store.compute_missing(requests)
    texts = read_texts(store, load_tokenizer(find_model(llm.model, settings)), requests)
    facts_by_topic: dict[str, list[Fact]] = {}
    for page in build_handbook():
        for fact in page.facts:
            facts_by_topic.setdefault(fact.topic.key, []).append(fact)
    n_correct = 0
    for answer, text in zip(questions, texts, strict=True):
        contexts = [context.text for context in answer.contexts]
        n_correct += review_answer(
            answer.question.text, answer.question.fact, contexts, text, facts_by_topic[answer.question.group]
        ).correct
    with_chunks = sum(answer.review.correct for answer in questions)
    print(
        f"of {len(questions)} questions whose chunks hold the answer, {with_chunks / len(questions):.1%} are answered "
        "right"
    )
    print(f"with the chunks, {n_correct / len(questions):.1%} without any")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verdicts", type=Path, nargs="?", const=FILE, help="people's verdicts instead of the sample")
    parser.add_argument("--rows", type=int, default=200, help="of the verdicts, at most")
    parser.add_argument("--model", help="the base model; default: params.yaml")
    parser.add_argument("--with-chunk", action="store_true", help="also the familiarity given the first chunk")
    options = parser.parse_args(arguments)
    if options.verdicts and not options.verdicts.is_file():
        parser.error(f"--verdicts: no file {options.verdicts}")
    llm, settings = load_params().llm, load_settings()
    if options.model:
        llm = llm.model_copy(update={"model": options.model})
    if options.verdicts:
        print_comparison(read_labelled_rows(options.verdicts, options.rows), llm, settings, options.with_chunk)
        return
    answers = list(read_answered_questions(build_handbook()))
    print_comparison(make_sample_rows(answers), llm, settings, options.with_chunk)
    print_background_effect(answers, llm, settings)


if __name__ == "__main__":
    main()
