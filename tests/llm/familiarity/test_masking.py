import pytest

from abstain.llm.familiarity.masking import has_content_word, mask_concept


@pytest.mark.parametrize(
    ("concept", "explanation", "expected"),
    [
        ("Tuplet", "A tuplet is a group; TUPLETS and the tuplet's notes.", "A ... is a group; ... and the ... notes."),
        ("Genetic Mapping", "Mapping genes: genetic maps, mapped.", "... genes: ... ..., ...."),
        ("economic crisis", "Crises end, an economic one too.", "... end, an ... one too."),
        ("oil painting", "Painted in oils by painters.", "... in ... by painters."),
        ("theory", "Theories differ.", "... differ."),
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
