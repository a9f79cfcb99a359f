import json
import re
from functools import cache
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
from abstain.sample.files import FOLDER, HANDBOOK, HISTORY
from benchmarks.sample import generate
from benchmarks.sample.catalogue import topics
from benchmarks.sample.feedback import REVIEW_BY_LINE, REVIEW_BY_THUMB
from benchmarks.sample.handbook import SEED, build_handbook
from benchmarks.sample.judge import is_answerable
from benchmarks.sample.questions import DAYS, FIRST_DAY, build_questions, source_digest
from benchmarks.sample.write import AnsweredQuestion, read_answered_questions, write_sample
from tests.checkout import shipped_params
from tests.conftest import MODELS
from tests.factories import bytes_of

pytestmark = pytest.mark.soak(twin="test_sample_command_writes_recorded_data")

PARAMS = shipped_params()
PAGES = build_handbook()
ASKED = build_questions(PAGES)
META: dict[str, Any] = json.loads((generate.FOLDER / generate.META).read_text(encoding="utf-8"))


@cache
def list_answered() -> list[AnsweredQuestion]:
    return list(read_answered_questions(PAGES))


def fit_to_show(answered: list[AnsweredQuestion]) -> float:
    return sum(one.review.fit_to_show for one in answered) / len(answered)


def rows(file: Path) -> list[ImportedInteraction]:
    return [ImportedInteraction.model_validate_json(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_handbook_pages_state_all_facts_but_the_gaps() -> None:
    """A page per product; each topic has one gap, which a twin page states, and no twin has the same value."""
    documents = [page.document() for page in PAGES]
    assert [found.title for found in documents] == [f"{name} {one.noun}" for one in topics() for name in one.names]
    assert len({page.doc_id for page in PAGES}) == len(PAGES)
    assert max(found.updated_at for found in documents) < FIRST_DAY
    for page in PAGES:
        texts = [chunk.text for chunk in page.chunks()]
        assert all(is_answerable(fact, texts) is fact.stated is (fact.source in page.markdown) for fact in page.facts)
    for topic in topics():
        twins = [page.facts for page in PAGES if page.facts[0].topic == topic]
        assert len(twins) == len(topic.names) >= 2
        assert sum(not fact.stated for facts in twins for fact in facts) == 1
        for same in zip(*twins, strict=True):
            assert len({fact.key for fact in same}) == 1 and len({fact.values for fact in same}) == len(twins)


def test_handbook_closed_pages_need_an_entitlement() -> None:
    needed = {f"{name} {topic.noun}": (needs,) for topic in topics() for name, needs in topic.closed.items()}
    closed = {}
    for page in PAGES:
        expected = needed.get(page.document().title, ())
        assert {page.document().entitlements, *(chunk.entitlements for chunk in page.chunks())} == {expected}
        closed |= {page.doc_id: expected} if expected else {}
    allowed = [{*closed[one.fact.doc_id]} <= {*one.entitlements} for one in ASKED if one.fact.doc_id in closed]
    assert len(needed) >= 5 and 0.8 < sum(allowed) / len(allowed) < 1, "some who ask may not read the page"


def test_questions_are_unique_and_in_order_of_time() -> None:
    expected = sum(len(fact.asks) for page in PAGES for fact in page.facts)
    assert len({one.question_id for one in ASKED}) == len({one.text for one in ASKED}) == expected
    moments = [one.asked_at for one in ASKED]
    assert moments == sorted(moments) and moments[0] >= FIRST_DAY and (moments[-1] - FIRST_DAY).days < DAYS
    assert all(re.search(rf"\b{re.escape(one.fact.product)}\b", one.text) for one in ASKED)
    assert all(one.group == one.fact.topic.key for one in ASKED)
    masked = {mask_names_and_numbers(one.text, one.fact.product) for one in ASKED}
    assert len(masked) < len(ASKED), "the twin pages of a topic are asked about in the same words"


def test_masked_texts_belong_to_one_topic() -> None:
    texts = [(one.answer, one.question) for one in list_answered()] + [(one.text, one) for one in ASKED]
    topics_of: dict[str, set[str]] = {}
    for text, question in texts:
        topics_of.setdefault(mask_names_and_numbers(text, question.fact.product), set()).add(question.group)
    assert [text for text, keys in topics_of.items() if len(keys) > 1] == []


def test_sample_answers_are_right_wrong_and_unanswerable() -> None:
    assert len(list_answered()) >= 600
    assert 0.40 <= fit_to_show(list_answered()) <= 0.80
    assert sum(not one.review.answerable for one in list_answered()) / len(list_answered()) >= 0.10
    words = [one for one in list_answered() if one.question.fact.values[0].unit == "words"]
    tables = [one for one in list_answered() if one not in words and one.question.fact.topic.kind == "table"]
    assert min(len(words), len(tables)) >= 100 and fit_to_show(tables) < fit_to_show(words) - 0.2
    for line in {one.question.fact.topic.line for one in list_answered()}:
        assert 0.3 < fit_to_show([one for one in list_answered() if one.question.fact.topic.line == line]) < 0.9


def test_sample_contexts_respect_entitlements() -> None:
    needed = {chunk.chunk_id: set(chunk.entitlements) for page in PAGES for chunk in page.chunks()}
    for one in list_answered():
        assert 1 <= len(one.contexts) <= generate.K
        assert all(needed[context.chunk_id] <= set(one.question.entitlements) for context in one.contexts)
    assert any(needed[context.chunk_id] for one in list_answered() for context in one.contexts)


def test_sample_shipped_files_are_those_of_the_generator(tmp_path: Path) -> None:
    write_sample(tmp_path)
    made = bytes_of(tmp_path)
    assert made == {name: content for name, content in bytes_of(FOLDER).items() if name in made}
    assert len(made) == len(PAGES) + 2 == len(list(HANDBOOK.iterdir())) + 2


def test_sample_reviews_are_true_and_one_thumb_in_six_is_wrong() -> None:
    history = rows(HISTORY)
    judged = {one.question.question_id: one.review for one in list_answered()}
    thumbs = [(row.thumb.thumb, judged[row.interaction_id].fit_to_show) for row in history if row.thumb]
    assert len(thumbs) / len(list_answered()) > 0.5
    assert 0.12 < sum((thumb == "up") != right for thumb, right in thumbs) / len(thumbs) < 0.20
    for row in (row for row in history if row.review):
        for criterion in ("complete", "correct", "truthful"):
            assert getattr(row.review, criterion) == getattr(judged[row.interaction_id], criterion)
        share = REVIEW_BY_THUMB[row.thumb.thumb if row.thumb else None]
        assert row.review.inclusion_probability == pytest.approx(share * REVIEW_BY_LINE.get(row.product, 1))
    inclusion = [row.review.inclusion_probability for row in history if row.review]
    assert sum(1 / p for p in inclusion if p) == pytest.approx(len(history), rel=0.05)  # Horvitz-Thompson


def test_sample_metadata_describes_the_generation() -> None:
    assert META["model"].partition("@")[0] == PARAMS.llm.model
    assert META["layout_digest"] == load_layout(PARAMS.llm.layout).digest
    assert (META["k"], META["max_gap"], META["seed"]) == (generate.K, generate.MAX_GAP, SEED)
    assert META["source_digest"] == source_digest(PAGES, build_questions(PAGES))
    assert META["answers"] == len(list_answered()) <= META["questions"]
    assert {row.model for row in rows(HISTORY)} == {META["model"]}
    with pytest.raises(AbstainError, match="another handbook: run python -m benchmarks.sample.generate"):
        list(read_answered_questions(build_handbook(seed=1)))


def test_sample_answers_are_those_of_the_embedded_model() -> None:
    torch.set_num_threads(1)  # a small model: more threads only wait for each other
    committed = {one.question.question_id: one for one in list_answered()}
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
    # Another CPU rounds float32 differently and may flip a near-tie.
    same = sum(answer == one.answer for answer, one in zip(answers, expected, strict=True))
    assert same >= 5, list(zip(answers, [one.answer for one in expected], strict=True))
