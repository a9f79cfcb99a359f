"""Does the familiarity of a question tell whether its answer is right? `python -m benchmarks.question_familiarity`.

On the sample, whose products no model knows, or with `--verdicts FILE --rows N` on a seeded part of people's verdicts
(*Continually Improving Extractive QA via Human Feedback*, Gao et al., EMNLP 2023).

Printed: the share of questions below the threshold h, the AUROC of the familiarity for the answer's correctness, and
that of a fusion of the answer's log-probabilities out of fold, with the familiarity and without, with 95 % intervals by
group. On the sample also whether background repairs what is unfamiliar: how many answers are right with the retrieved
chunks and without any, of questions whose chunks hold the answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
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
from abstain.llm.engine.prompts import load_layout
from abstain.llm.engine.requests import Generate, Request
from abstain.llm.familiarity.familiarity import FamiliarityConfig, SelfFamiliarity
from abstain.llm.familiarity.guessing import read_texts
from abstain.llm.features.feature_store import FeatureStore
from abstain.llm.signals.compute_features import collect_feature_requests, read_features
from abstain.llm.signals.familiarity import QuestionFamiliarity
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS
from benchmarks.familiarity import shown
from benchmarks.sample.handbook import Fact, build_handbook
from benchmarks.sample.judge import judge
from benchmarks.sample.write import AnsweredQuestion, answered_questions
from benchmarks.scorers import FILE, read_judged

DRAWS, SEED = 1000, 3
ANSWER_TOKENS = 48


@dataclass(frozen=True)
class Rows:
    """Answered questions with verdicts: `correct` of 0/1 and `groups`, each (rows,)."""

    interactions: Sequence[Interaction]
    correct: np.ndarray
    groups: np.ndarray


def of_sample(answered: Sequence[AnsweredQuestion]) -> Rows:
    interactions = [
        Interaction(
            interaction_id=one.question.question_id,
            asked_at=one.question.asked_at,
            question=one.question.text,
            answer=one.answer,
            contexts=one.contexts,
            model="sample",
        )
        for one in answered
    ]
    correct = np.array([int(one.judgement.fit_to_show) for one in answered])
    return Rows(interactions, correct, np.array([one.question.group for one in answered]))


def of_verdicts(file: Path, rows: int) -> Rows:
    judged = read_judged(file)
    count = min(rows, len(judged.correct))
    picked = np.sort(np.random.default_rng(SEED).choice(len(judged.correct), count, replace=False))
    return Rows(judged.take(picked), judged.correct[picked], judged.topic[picked])


def compare(rows: Rows, llm: LLMParams, settings: Settings) -> None:
    """Print what the familiarity says of the answers, alone and beside log-probabilities."""
    answers = read_features(llm, settings, rows.interactions, collect_feature_requests(LIKELIHOOD_SIGNALS))
    scores = pd.DataFrame({one.name: one.score(answers) for one in LIKELIHOOD_SIGNALS})
    own = SelfFamiliarity(llm.model, llm.layout, settings, FamiliarityConfig())
    familiarity = QuestionFamiliarity(own).score(answers)
    h = own.threshold()
    labels = Labels(rows.correct, np.ones(len(rows.correct)), rows.groups)
    scored = {
        "familiarity": familiarity,
        "log-probabilities": fit_fusion(scores, labels).out_of_fold,
        "log-probabilities and familiarity": fit_fusion(scores.assign(familiarity=familiarity), labels).out_of_fold,
    }
    figures = {name: partial(metrics.auroc, rows.correct, of) for name, of in scored.items()}
    found = bootstrap(figures, rows.groups, DRAWS, SEED)
    print(f"{len(rows.correct)} answers in {len(set(rows.groups))} groups, {rows.correct.mean():.1%} correct")
    print(f"below h = {h:.3f}: {np.mean(familiarity < h):.1%} of the questions; mean {np.nanmean(familiarity):.3f}")
    for name, one in found.items():
        print(f"AUROC of {name}: {shown(one, '.3f')}")
    gain = paired_difference(found["log-probabilities and familiarity"], found["log-probabilities"])
    print(f"what the familiarity adds: {shown(gain, '+.3f')}")
    print(f"tokens that were run for it: {own.cost.forward_tokens:,}")


def background(answered: Sequence[AnsweredQuestion], llm: LLMParams, settings: Settings) -> None:
    """Print how many answers are right with the retrieved chunks and without any."""
    asked = [one for one in answered if one.judgement.answerable]
    layout, store = load_layout(llm.layout), FeatureStore(llm.model, settings)
    requests = [
        Request(layout.render(one.question.text, [], None), Generate(ANSWER_TOKENS), one.question.question_id)
        for one in asked
    ]
    store.compute_missing(requests)
    texts = read_texts(store, load_tokenizer(find_model(llm.model, settings)), requests)
    known: dict[str, list[Fact]] = {}
    for page in build_handbook():
        for fact in page.facts:
            known.setdefault(fact.topic.key, []).append(fact)
    right = 0
    for one, text in zip(asked, texts, strict=True):
        contexts = [context.text for context in one.contexts]
        right += judge(one.question.text, one.question.fact, contexts, text, known[one.question.group]).correct
    with_chunks = sum(one.judgement.correct for one in asked)
    print(f"of {len(asked)} questions whose chunks hold the answer, {with_chunks / len(asked):.1%} are answered right")
    print(f"with the chunks, {right / len(asked):.1%} without any")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verdicts", type=Path, nargs="?", const=FILE, help="people's verdicts instead of the sample")
    parser.add_argument("--rows", type=int, default=200, help="of the verdicts, at most")
    parser.add_argument("--model", help="the base model; default: params.yaml")
    chosen = parser.parse_args(arguments)
    if chosen.verdicts and not chosen.verdicts.is_file():
        parser.error(f"--verdicts: no file {chosen.verdicts}")
    llm, settings = load_params().llm, load_settings()
    if chosen.model:
        llm = llm.model_copy(update={"model": chosen.model})
    if chosen.verdicts:
        compare(of_verdicts(chosen.verdicts, chosen.rows), llm, settings)
        return
    answered = list(answered_questions(build_handbook()))
    compare(of_sample(answered), llm, settings)
    background(answered, llm, settings)


if __name__ == "__main__":
    main()
