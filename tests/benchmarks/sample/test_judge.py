import pytest

from benchmarks.sample.catalogue import topics
from benchmarks.sample.handbook import Fact, build_handbook
from benchmarks.sample.judge import is_answerable, is_refusal, review_answer
from benchmarks.sample.values import Value, phrase

pytestmark = pytest.mark.soak(twin="test_sample_command_writes_recorded_data")


def fact(key: str, label: str, written: str, *values: Value, product: str = "Ember Card") -> Fact:
    return Fact(
        doc_id=product,
        key=key,
        product=product,
        topic=topics()[0],
        values=values,
        source=f"| {label} of the {product} | {written} |",
        sentence=f"{label} of the {product}: {written}.",
        asks=(),
        stated=True,
    )


def euros(amount: float) -> Value:
    return Value("euros", amount)


ANNUAL = fact("annual", "Annual fee", "95 euros", euros(95))
ABROAD = fact("abroad", "Withdrawal abroad", "2.5%, at least 4 euros", Value("percent", 2.5), euros(4))
TEAM = fact("team", "Service team", "Falcon", phrase("Falcon"))
KNOWN = [
    ANNUAL,
    ABROAD,
    TEAM,
    fact("replacement", "Replacement", "12 euros", euros(12)),
    fact("annual", "Annual fee", "45 euros", euros(45), product="Raven Card"),
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
        (ANNUAL, "The annual fee of the Ember Card is 95 euros.", "crt"),
        (ANNUAL, "€95", "crt"),
        (ANNUAL, "95", "crt"),
        (ANNUAL, "The annual fee is 45 euros.", ""),  # the sibling's
        (ANNUAL, "The annual fee is 77 euros.", ""),  # nobody's
        (ANNUAL, "The annual fee is 95 dollars.", ""),
        (ANNUAL, "The annual fee is 95 euros or 45 euros.", "c"),
        (ANNUAL, "The annual fee of the Raven Card is 95 euros.", "c"),  # true of the other card, it says
        (ANNUAL, "The annual fee is 95 euros. A replacement costs 12 euros.", "crt"),
        (ANNUAL, "The annual fee is 95 euros. A replacement costs 19 euros.", "c"),
        (ANNUAL, "The annual fee is 95 euros. The annual fee of the Raven Card is 45 euros.", "crt"),
        (ANNUAL, "The annual fee is 95 euros, due within 3 days.", "cr"),  # no other fee, but invented
        (ANNUAL, "The context does not state the annual fee.", "t"),
        (ANNUAL, "The context does not state the fee, perhaps 45 euros.", ""),
        (ANNUAL, "", "t"),
        (ANNUAL, "Ember Card > Fees", ""),
        (ABROAD, "It is 2.5%, at least 4 euros.", "crt"),
        (ABROAD, "At least 4 euros, otherwise 2.5 percent.", "crt"),
        (ABROAD, "It is 2.5%.", "rt"),
        (ABROAD, "It is 2.5%, at least 6 euros.", ""),
        (TEAM, "The Falcon team.", "crt"),
        (TEAM, "The Harbour team.", ""),
        (TEAM, "The Falcon or the Harbour team.", "c"),
    ],
)
def test_review_answer_with_the_fact_in_the_contexts(asked: Fact, answer: str, expected: str) -> None:
    assert verdict(asked, answer, PAGE, SIBLINGS_PAGE) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The context does not state the annual fee of the Ember Card.", "crt"),
        ("I cannot find it.", "crt"),
        ("", "crt"),
        ("The annual fee is 45 euros.", ""),
        ("The annual fee is 95 euros.", ""),  # a lucky guess
        ("The context does not state it, but the Raven Card costs 45 euros.", ""),
        ("The context does not state it, but the fee is 95 euros.", ""),
        ("Ember Card > Fees", ""),
    ],
)
@pytest.mark.parametrize("contexts", [(), (SIBLINGS_PAGE,)])
def test_review_answer_without_the_fact_needs_a_refusal(answer: str, expected: str, contexts: tuple[str, ...]) -> None:
    assert verdict(ANNUAL, answer, *contexts) == expected


def test_is_answerable_from_its_own_section_only() -> None:
    assert is_answerable(ANNUAL, [SIBLINGS_PAGE, PAGE])
    assert not is_answerable(ANNUAL, [SIBLINGS_PAGE])
    assert not is_answerable(ANNUAL, [PAGE.replace("Ember Card > Fees", "Ember Card > Limits")])
    assert not is_answerable(ANNUAL, [PAGE.replace("Ember Card > Fees", "Ember Plus Card > Fees")])
    assert not is_answerable(ANNUAL, [PAGE.replace(ANNUAL.source, "")])


@pytest.mark.parametrize(
    ("answer", "refuses"),
    [
        ("The context doesn't mention the fee.", True),
        ("The fee is not provided.", True),
        ("There is no information about that.", True),
        ("I don't know.", True),
        ("It cannot be determined.", True),
        ("  ", True),
        ("There is no fee.", False),
        ("The card does not expire.", False),
    ],
)
def test_is_refusal_by_wording(answer: str, refuses: bool) -> None:
    assert is_refusal(answer) is refuses


def handbook() -> list[tuple[Fact, list[Fact], list[str]]]:
    """Each stated fact with all facts of its line and the texts of its page's chunks."""
    pages = build_handbook()
    known = {topic.key: [f for page in pages for f in page.facts if f.topic == topic] for topic in topics()}
    chunks = {page.doc_id: [chunk.text for chunk in page.chunks()] for page in pages}
    return [(f, known[f.topic.key], chunks[f.doc_id]) for page in pages for f in page.facts if f.stated]


def test_review_answer_sentence_of_the_handbook_is_right() -> None:
    for f, known, texts in handbook():
        assert review_answer(f.asks[0], f, texts, f.sentence, known).fit_to_show, f.sentence


@pytest.mark.heavy
def test_review_answer_value_of_a_sibling_is_wrong() -> None:
    tried = 0
    for asked, known, texts in handbook():
        for other in known:
            if other.key != asked.key or other.values == asked.values:
                continue
            tried += 1
            answer = other.sentence.replace(other.product, asked.product)
            assert not review_answer(asked.asks[0], asked, texts, answer, known).fit_to_show, answer
    assert tried > 300
