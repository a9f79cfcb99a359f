import re
from collections import Counter

from abstain.sample.catalogue import LINES
from abstain.sample.handbook import GAPS_PER_PAGE, build_handbook
from abstain.sample.judge import is_answerable
from abstain.sample.questions import DAYS, FIRST_DAY, QUESTIONS, build_questions, source_digest

PAGES = build_handbook()
ASKED = build_questions(PAGES)
TEXTS = {page.doc_id: [chunk.text for chunk in page.chunks()] for page in PAGES}


def test_the_same_seed_gives_the_same_bytes_and_another_one_other_facts() -> None:
    assert build_handbook() == PAGES
    others = build_handbook(seed=1)
    assert [page.doc_id for page in others] == [page.doc_id for page in PAGES]
    assert all(one.markdown != other.markdown for one, other in zip(PAGES, others, strict=True))


def test_there_is_a_page_for_each_product_that_can_be_read_back() -> None:
    documents = [page.document() for page in PAGES]
    assert [found.doc_id for found in documents] == [page.doc_id for page in PAGES]
    assert [found.title for found in documents] == [f"{name} {line.noun}" for line in LINES for name in line.names]
    assert len({found.doc_id for found in documents}) == len(documents)
    assert max(found.updated_at for found in documents) < FIRST_DAY


def test_closed_pages_need_an_entitlement_and_so_does_each_of_their_chunks() -> None:
    needed = {f"{name} {line.noun}": (needs,) for line in LINES for name, needs in line.closed.items()}
    for page in PAGES:
        expected = needed.get(page.document().title, ())
        assert {page.document().entitlements, *(chunk.entitlements for chunk in page.chunks())} == {expected}
    assert len(needed) >= 5


def test_every_stated_fact_can_be_retrieved_and_a_gap_stands_nowhere() -> None:
    for page in PAGES:
        answerable = [fact for fact in page.facts if is_answerable(fact, TEXTS[page.doc_id])]
        assert answerable == [fact for fact in page.facts if fact.stated]
        gaps = [fact for fact in page.facts if not fact.stated]
        assert len(gaps) == GAPS_PER_PAGE
        assert [gap.source for gap in gaps if gap.source in page.markdown] == []


def test_the_siblings_pages_state_what_a_page_leaves_out() -> None:
    facts = [fact for page in PAGES for fact in page.facts]
    stated = Counter((fact.line.key, fact.section, fact.key) for fact in facts if fact.stated)
    assert all(stated[gap.line.key, gap.section, gap.key] for gap in facts if not gap.stated)


def test_the_pages_of_a_line_share_its_sections_and_differ_in_their_values() -> None:
    for line in LINES:
        pages = [page for page in PAGES if page.doc_id.startswith(f"{line.key}-")]
        for section in line.sections:
            assert all(f"## {section.title}\n" in page.markdown for page in pages)
            for key in (attribute.key for attribute in section.attributes if len(attribute.ranges) == 1):
                drawn = [f.values for page in pages for f in page.facts if (f.section, f.key) == (section.title, key)]
                assert len(drawn) == len(pages)
                assert len(set(drawn)) > len(drawn) // 2  # all of them, but where there are few choices


def test_tables_lists_and_sentences_are_all_there() -> None:
    kinds = Counter(chunk.kind for page in PAGES for chunk in page.chunks())
    assert set(kinds) == {"text", "table", "list"}
    assert all(number >= len(PAGES) for number in kinds.values())


def test_questions_differ_and_come_in_the_order_of_asking() -> None:
    assert len(ASKED) == QUESTIONS
    assert len({question.question_id for question in ASKED}) == len({question.text for question in ASKED}) == QUESTIONS
    moments = [question.asked_at for question in ASKED]
    assert moments == sorted(moments)
    assert moments[0] >= FIRST_DAY
    assert (moments[-1] - FIRST_DAY).days < DAYS


def test_a_question_names_its_product_and_belongs_to_the_group_of_its_page() -> None:
    for question in ASKED:
        assert re.search(rf"\b{re.escape(question.fact.product)}\b", question.text)
        assert question.group in TEXTS
    per_page = Counter(question.group for question in ASKED)
    assert max(per_page.values()) - min(per_page.values()) <= 1


def test_the_questions_are_the_same_each_time_and_the_digest_sees_a_change() -> None:
    assert build_questions(PAGES) == ASKED
    assert build_questions(PAGES, seed=1) != ASKED
    assert source_digest(PAGES, ASKED) == source_digest(build_handbook(), build_questions(PAGES))
    assert source_digest(PAGES, ASKED) != source_digest(PAGES, ASKED[1:])
    assert source_digest(PAGES, ASKED) != source_digest(PAGES[1:], ASKED)


def test_some_who_ask_about_a_closed_page_may_not_read_it() -> None:
    closed = {page.doc_id: page.document().entitlements for page in PAGES if page.document().entitlements}
    asked = [question for question in ASKED if question.group in closed]
    allowed = sum(set(closed[question.group]) <= set(question.entitlements) for question in asked)
    assert 0.8 < allowed / len(asked) < 1
