"""The reviewer of the sample; that every wording of the recorded answers is read as before, the shipped rows show."""

import pytest

from benchmarks.sample.catalogue import topics
from benchmarks.sample.handbook import Fact, build_handbook
from benchmarks.sample.judge import is_answerable, review_answer
from benchmarks.sample.values import Value, phrase

pytestmark = pytest.mark.soak(twin="test_sample_command_writes_recorded_data")


def fact(key: str, label: str, written: str, *values: Value, product: str = "Ember Card") -> Fact:
    source = f"| {label} of the {product} | {written} |"
    return Fact(product, key, product, topics()[0], values, source, f"{label} of the {product}: {written}.", (), True)


ANNUAL = fact("annual", "Annual fee", "95 euros", Value("euros", 95))
ABROAD = fact("abroad", "Withdrawal abroad", "2.5%, at least 4 euros", Value("percent", 2.5), Value("euros", 4))
TEAM = fact("team", "Service team", "Falcon", phrase("Falcon"))
KNOWN = [
    ANNUAL,
    ABROAD,
    TEAM,
    fact("replacement", "Replacement", "12 euros", Value("euros", 12)),
    fact("annual", "Annual fee", "45 euros", Value("euros", 45), product="Raven Card"),
    fact("team", "Service team", "Harbour", phrase("Harbour"), product="Raven Card"),
]
PAGE = "Ember Card > Fees\n| Fee | Amount |\n|---|---|\n" + "\n".join(known.source for known in KNOWN[:4])
SIBLINGS_PAGE = "Raven Card > Fees\n| Fee | Amount |\n|---|---|\n" + "\n".join(known.source for known in KNOWN[4:])


def verdict(asked: Fact, answer: str, *contexts: str) -> str:
    """Return letters for c(omplete), (co)r(rect) and t(ruthful)."""
    found = review_answer(f"What is the {asked.key} of the Ember Card?", asked, contexts, answer, KNOWN)
    assert found.fit_to_show == (found.complete and found.correct and found.truthful)
    return "c" * found.complete + "r" * found.correct + "t" * found.truthful


@pytest.mark.parametrize(
    ("asked", "answer", "expected"),
    [
        (ANNUAL, "€95", "crt"),
        (ANNUAL, "95", "crt"),
        (ANNUAL, "The annual fee is 95 dollars.", ""),
        (ANNUAL, "The annual fee is 45 euros.", ""),  # the sibling's
        (ANNUAL, "The annual fee is 95 euros or 45 euros.", "c"),
        (ANNUAL, "The annual fee of the Raven Card is 95 euros.", "c"),  # true of the other card, it says
        (ANNUAL, "The annual fee is 95 euros. A replacement costs 12 euros.", "crt"),
        (ANNUAL, "The annual fee is 95 euros. A replacement costs 19 euros.", "c"),
        (ANNUAL, "The annual fee is 95 euros. The annual fee of the Raven Card is 45 euros.", "crt"),
        (ANNUAL, "The annual fee is 95 euros, due within 3 days.", "cr"),  # no other fee, but invented
        (ANNUAL, "The context does not state the annual fee.", "t"),
        (ANNUAL, "The context does not state the fee, perhaps 45 euros.", ""),
        (ABROAD, "At least 4 euros, otherwise 2.5 percent.", "crt"),
        (ABROAD, "It is 2.5%.", "rt"),
        (ABROAD, "It is 2.5%, at least 6 euros.", ""),
        (TEAM, "The Falcon or the Harbour team.", "c"),
    ],
)
def test_review_answer_with_the_fact_in_the_contexts(asked: Fact, answer: str, expected: str) -> None:
    assert verdict(asked, answer, PAGE, SIBLINGS_PAGE) == expected


@pytest.mark.parametrize("contexts", [(), (SIBLINGS_PAGE,)])
def test_review_answer_without_the_fact_needs_a_refusal(contexts: tuple[str, ...]) -> None:
    for refusal in ("The context does not state the annual fee of the Ember Card.", "I cannot find it.", ""):
        assert verdict(ANNUAL, refusal, *contexts) == "crt"
    for claim in ("The annual fee is 95 euros.", "The context does not state it, but the Raven Card costs 45 euros."):
        assert verdict(ANNUAL, claim, *contexts) == "", "a lucky guess is none"


def test_is_answerable_from_its_own_section_only() -> None:
    assert is_answerable(ANNUAL, [SIBLINGS_PAGE, PAGE])
    for old, new in (("> Fees", "> Limits"), ("Ember Card >", "Ember Plus Card >"), (ANNUAL.source, "")):
        assert not is_answerable(ANNUAL, [SIBLINGS_PAGE, PAGE.replace(old, new)])


@pytest.mark.heavy
def test_review_answer_sentences_of_the_handbook() -> None:
    """Each fact's own sentence is fit to show, and none with the value of a sibling."""
    pages, tried = build_handbook(), 0
    for page in pages:
        texts = [chunk.text for chunk in page.chunks()]
        for asked in (one for one in page.facts if one.stated):
            known = [one for other in pages for one in other.facts if one.topic == asked.topic]
            assert review_answer(asked.asks[0], asked, texts, asked.sentence, known).fit_to_show, asked.sentence
            for other in known:
                if other.key == asked.key and other.values != asked.values:
                    tried += 1
                    answer = other.sentence.replace(other.product, asked.product)
                    assert not review_answer(asked.asks[0], asked, texts, answer, known).fit_to_show, answer
    assert tried > 300
