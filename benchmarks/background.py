"""Whether background makes up for unfamiliar questions: `python -m benchmarks.background`.

No model knows the products of the sample. Printed: how many answers are correct with the retrieved chunks and without
any, of questions whose chunks hold the answer. `studies/self_familiarity.yaml` has the familiarity of questions.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from abstain.config.params import LLMParams, load_params
from abstain.config.settings import Settings, load_settings
from abstain.core.contracts import Interaction
from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.engine.prompts import load_layout
from abstain.llm.engine.requests import Generate, Request
from abstain.llm.familiarity.guessing import read_texts
from abstain.llm.features.feature_store import FeatureStore
from benchmarks.sample.handbook import Fact, build_handbook
from benchmarks.sample.judge import review_answer
from benchmarks.sample.write import AnsweredQuestion, read_answered_questions

ANSWER_TOKENS = 48


def make_interactions(answers: Sequence[AnsweredQuestion]) -> list[Interaction]:
    """Return the answers of the sample."""
    return [
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
    parser.add_argument("--model", help="the base model; default: params.yaml")
    options = parser.parse_args(arguments)
    llm, settings = load_params().llm, load_settings()
    if options.model:
        llm = llm.model_copy(update={"model": options.model})
    print_background_effect(list(read_answered_questions(build_handbook())), llm, settings)


if __name__ == "__main__":
    main()
