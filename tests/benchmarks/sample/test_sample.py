"""What the generator of the sample guarantees, held against the committed answers; one test loads a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from abstain.config.settings import Settings
from abstain.core.contracts import ImportedInteraction
from abstain.core.errors import AbstainError
from abstain.data.labels.near_duplicates import mask_names_and_numbers
from abstain.llm.engine.loading import find_model, load_model
from abstain.llm.engine.prompts import load_layout
from abstain.sample.files import EXPORTED, FOLDER, HANDBOOK, HISTORY, INCOMING, INCOMING_FROM
from benchmarks.sample import generate
from benchmarks.sample.feedback import REVIEW_BY_LINE, REVIEW_BY_THUMB
from benchmarks.sample.handbook import SEED, build_handbook
from benchmarks.sample.questions import build_questions, source_digest
from benchmarks.sample.write import AnsweredQuestion, read_answered_questions, write_sample
from tests.checkout import shipped_params
from tests.conftest import MODELS
from tests.data.builders import bytes_of

pytestmark = pytest.mark.soak(twin="test_sample_command_writes_recorded_data")

PARAMS = shipped_params()
PAGES = build_handbook()
ANSWERED = list(read_answered_questions(PAGES))
META: dict[str, Any] = json.loads((generate.FOLDER / generate.META).read_text(encoding="utf-8"))


def fit_to_show(answered: list[AnsweredQuestion]) -> float:
    """The share of `answered` that is fit to be shown."""
    return sum(one.review.fit_to_show for one in answered) / len(answered)


def rows(file: Path) -> list[ImportedInteraction]:
    return [ImportedInteraction.model_validate_json(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_there_are_enough_answers_right_and_wrong() -> None:
    assert len(ANSWERED) >= 600
    assert 0.40 <= fit_to_show(ANSWERED) <= 0.80


def test_at_least_a_tenth_cannot_be_answered_from_what_was_retrieved() -> None:
    assert sum(not one.review.answerable for one in ANSWERED) / len(ANSWERED) >= 0.10


def kind_of(answered: AnsweredQuestion) -> str:
    fact = answered.question.fact
    if fact.values[0].unit == "words":
        return "words"
    return "numbers in sentences" if fact.topic.kind == "text" else fact.topic.kind


def test_tables_are_harder_than_lists_and_numbers_harder_than_words() -> None:
    kinds = ("table", "list", "numbers in sentences", "words")
    by_kind = {kind: [one for one in ANSWERED if kind_of(one) == kind] for kind in kinds}
    assert min(map(len, by_kind.values())) >= 100  # so that the shares below mean something
    shares = [fit_to_show(by_kind[kind]) for kind in kinds]
    assert shares == sorted(shares)
    assert fit_to_show(by_kind["table"]) < fit_to_show(by_kind["words"]) - 0.2


def test_masked_answer_belongs_to_one_topic() -> None:
    topics_of: dict[str, set[str]] = {}
    for one in ANSWERED:
        topics_of.setdefault(mask_names_and_numbers(one.answer, one.question.fact.product), set()).add(
            one.question.group
        )
    assert [text for text, keys in topics_of.items() if len(keys) > 1] == []


def test_every_product_line_has_right_and_wrong_answers() -> None:
    for line in {one.question.fact.topic.line for one in ANSWERED}:
        assert 0.3 < fit_to_show([one for one in ANSWERED if one.question.fact.topic.line == line]) < 0.9


def test_nobody_is_shown_what_they_may_not_read() -> None:
    needed = {chunk.chunk_id: set(chunk.entitlements) for page in PAGES for chunk in page.chunks()}
    for one in ANSWERED:
        assert 1 <= len(one.contexts) <= generate.K
        assert all(needed[context.chunk_id] <= set(one.question.entitlements) for context in one.contexts)
    # It is not for want of pages that are closed to some.
    assert any(needed[context.chunk_id] for one in ANSWERED for context in one.contexts)


def test_what_is_shipped_is_what_the_generator_writes(tmp_path: Path) -> None:
    write_sample(tmp_path)
    made = bytes_of(tmp_path)
    assert made == {name: content for name, content in bytes_of(FOLDER).items() if name in made}
    assert len(made) == len(PAGES) + 2 == len(list(HANDBOOK.iterdir())) + 2


def test_history_ends_where_the_incoming_week_begins() -> None:
    history = rows(HISTORY)
    incoming = [json.loads(line) for line in INCOMING.read_text().splitlines()[:-7]]
    assert len(history) + len(incoming) == len(ANSWERED)
    assert history[-1].asked_at.date() == date(2026, 11, 7)
    asked = [datetime.fromisoformat(row["asked_at"]) for row in incoming]
    assert INCOMING_FROM <= min(asked) <= max(asked) < EXPORTED[1]
    assert (EXPORTED[1] - INCOMING_FROM).days == 7
    given = [row.thumb.given_at for row in history if row.thumb]
    reviewed = [row.review.reviewed_at for row in history if row.review]
    assert max(*given, *reviewed) < EXPORTED[0]  # nobody knows in the export what comes after it


def test_about_one_thumb_in_six_is_wrong() -> None:
    truth = {one.question.question_id: one.review.fit_to_show for one in ANSWERED}
    thumbs = [(row.thumb.thumb, truth[row.interaction_id]) for row in rows(HISTORY) if row.thumb]
    assert len(thumbs) / len(ANSWERED) > 0.5
    assert 0.12 < sum((thumb == "up") != right for thumb, right in thumbs) / len(thumbs) < 0.20


def test_reviews_are_true_and_drawn_with_the_probability_that_they_record() -> None:
    history = rows(HISTORY)
    judged = {one.question.question_id: one.review for one in ANSWERED}
    for row in history:
        if row.review:
            verdict = judged[row.interaction_id]
            assert (row.review.complete, row.review.correct) == (verdict.complete, verdict.correct)
            assert row.review.truthful == verdict.truthful
            share = REVIEW_BY_THUMB[row.thumb.thumb if row.thumb else None]
            assert row.product
            assert row.review.inclusion_probability == pytest.approx(share * REVIEW_BY_LINE.get(row.product, 1))
    weights = [
        1 / row.review.inclusion_probability for row in history if row.review and row.review.inclusion_probability
    ]
    assert sum(weights) == pytest.approx(len(history), rel=0.05)  # Horvitz-Thompson counts the rows


def test_the_answers_say_how_they_came_about() -> None:
    assert META["command"] == "python -m benchmarks.sample.generate"
    assert date.fromisoformat(META["date"]) <= datetime.now(UTC).date()
    assert META["model"].partition("@")[0] == PARAMS.llm.model
    assert META["layout_digest"] == load_layout(PARAMS.llm.layout).digest
    assert (META["k"], META["max_gap"], META["seed"]) == (generate.K, generate.MAX_GAP, SEED)
    assert META["source_digest"] == source_digest(PAGES, build_questions(PAGES))
    assert META["answers"] == len(ANSWERED) <= META["questions"]
    assert {row.model for row in rows(HISTORY)} == {META["model"]}


def test_answers_to_another_handbook_are_refused_with_the_remedy() -> None:
    with pytest.raises(AbstainError, match=r"another handbook: run python -m benchmarks.sample.generate$"):
        list(read_answered_questions(build_handbook(seed=1)))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A small model: more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_embedded_model_gives_the_committed_answers(one_thread: None) -> None:
    committed = {one.question.question_id: one for one in ANSWERED}
    questions = [question for question in build_questions(PAGES)[::113] if question.question_id in committed]
    expected = [committed[question.question_id] for question in questions]
    contexts = generate.retrieve(PAGES, questions)
    assert [[chunk.chunk_id for chunk in chunks] for chunks in contexts] == [
        [context.chunk_id for context in one.contexts] for one in expected
    ]
    model = load_model(find_model(PARAMS.llm.model, Settings(home=MODELS.parent)), torch.device("cpu"), torch.float32)
    assert str(model.ref) == META["model"]
    layout = load_layout(PARAMS.llm.layout)
    prompts = [
        layout.render(question.text, [chunk.text for chunk in chunks], answer=None)
        for question, chunks in zip(questions, contexts, strict=True)
    ]
    answers = generate.generate_answers(model, prompts, batch_tokens=2048)
    assert len(answers) == len(expected) == 6
    # Another CPU, or another batch, rounds float32's last bits differently and may flip a near-tie: one may differ.
    same = sum(answer == one.answer for answer, one in zip(answers, expected, strict=True))
    assert same >= 5, list(zip(answers, [one.answer for one in expected], strict=True))
