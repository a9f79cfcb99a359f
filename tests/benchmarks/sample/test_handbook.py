import re
from collections import Counter

import pytest

from abstain.data.labels.near_duplicates import mask_names_and_numbers
from benchmarks.sample.catalogue import topics
from benchmarks.sample.handbook import build_handbook
from benchmarks.sample.judge import is_answerable
from benchmarks.sample.questions import DAYS, FIRST_DAY, build_questions, source_digest

pytestmark = pytest.mark.soak(twin="test_sample_command_writes_recorded_data")

PAGES = build_handbook()
ASKED = build_questions(PAGES)
TEXTS = {page.doc_id: [chunk.text for chunk in page.chunks()] for page in PAGES}


def test_handbook_has_a_readable_page_per_product() -> None:
    documents = [page.document() for page in PAGES]
    assert [found.doc_id for found in documents] == [page.doc_id for page in PAGES]
    titles = [f"{name} {topic.noun}" for topic in topics() for name in topic.names]
    assert [found.title for found in documents] == titles
    assert len({found.doc_id for found in documents}) == len(documents)
    assert max(found.updated_at for found in documents) < FIRST_DAY


def test_handbook_closed_pages_need_an_entitlement() -> None:
    needed = {f"{name} {topic.noun}": (needs,) for topic in topics() for name, needs in topic.closed.items()}
    for page in PAGES:
        expected = needed.get(page.document().title, ())
        assert {page.document().entitlements, *(chunk.entitlements for chunk in page.chunks())} == {expected}
    assert len(needed) >= 5


def test_handbook_states_every_fact_but_the_gaps() -> None:
    for page in PAGES:
        answerable = [fact for fact in page.facts if is_answerable(fact, TEXTS[page.doc_id])]
        assert answerable == [fact for fact in page.facts if fact.stated]
        assert [fact.source for fact in page.facts if not fact.stated and fact.source in page.markdown] == []


def test_handbook_topic_has_one_gap_that_a_twin_states() -> None:
    facts = [fact for page in PAGES for fact in page.facts]
    stated = Counter((fact.topic.key, fact.key) for fact in facts if fact.stated)
    gaps = [fact for fact in facts if not fact.stated]
    assert Counter(gap.topic.key for gap in gaps) == Counter(topic.key for topic in topics())
    assert all(stated[gap.topic.key, gap.key] for gap in gaps)


def test_handbook_twin_pages_differ_in_values() -> None:
    for topic in topics():
        twins = [page for page in PAGES if page.facts[0].topic == topic]
        assert len(twins) == len(topic.names) >= 2
        for same in zip(*(page.facts for page in twins), strict=True):
            assert len({fact.key for fact in same}) == 1
            assert len({fact.values for fact in same}) == len(twins)


def test_questions_masked_text_belongs_to_one_topic() -> None:
    topics_of: dict[str, set[str]] = {}
    for question in ASKED:
        topics_of.setdefault(mask_names_and_numbers(question.text, question.fact.product), set()).add(question.group)
    assert len(topics_of) < len(ASKED)  # the twin pages of a topic are asked about in the same words
    assert [text for text, keys in topics_of.items() if len(keys) > 1] == []


def test_questions_are_unique_and_in_order_of_time() -> None:
    expected = sum(len(fact.asks) for page in PAGES for fact in page.facts)
    assert len({question.question_id for question in ASKED}) == len({question.text for question in ASKED}) == expected
    moments = [question.asked_at for question in ASKED]
    assert moments == sorted(moments)
    assert moments[0] >= FIRST_DAY
    assert (moments[-1] - FIRST_DAY).days < DAYS


def test_questions_name_their_product_and_topic() -> None:
    for question in ASKED:
        assert re.search(rf"\b{re.escape(question.fact.product)}\b", question.text)
        assert question.group == question.fact.topic.key


def test_source_digest_depends_on_pages_and_questions() -> None:
    assert build_questions(PAGES, seed=1) != ASKED
    assert source_digest(PAGES, ASKED) == source_digest(build_handbook(), build_questions(PAGES))
    assert source_digest(PAGES, ASKED) != source_digest(PAGES, ASKED[1:])
    assert source_digest(PAGES, ASKED) != source_digest(PAGES[1:], ASKED)


def test_questions_about_closed_pages_include_unentitled_users() -> None:
    closed = {page.doc_id: page.document().entitlements for page in PAGES if page.document().entitlements}
    asked = [question for question in ASKED if question.fact.doc_id in closed]
    allowed = sum(set(closed[question.fact.doc_id]) <= set(question.entitlements) for question in asked)
    assert 0.8 < allowed / len(asked) < 1
