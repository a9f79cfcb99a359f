import numpy as np
import pytest

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.llm.familiarity import concepts
from abstain.llm.familiarity.familiarity import Familiarity, FamiliarityConfig, SelfFamiliarity
from abstain.llm.familiarity.guessing import GuessedConcept
from abstain.llm.signals.base import FeatureBatch, ScorerUnavailable
from abstain.llm.signals.familiarity import QuestionFamiliarity, make_familiarity_scorer
from tests.llm.signals.builders import interaction, labels

SHORT = FamiliarityConfig(explanation_tokens=6, beams=3, guess_tokens=9)


def test_question_familiarity_is_that_of_its_concepts(tiny_params: LLMParams, settings: Settings) -> None:
    scorer = QuestionFamiliarity(SelfFamiliarity(tiny_params.model, tiny_params.layout, settings, SHORT))
    asked = ["Who may join Nash?", "What is that?"]
    answers = FeatureBatch([interaction(question=question) for question in asked], {})
    named, plain = scorer.fit(answers, labels([1, 0])).score(answers)
    (found,) = scorer.familiarity.score(asked[:1])
    assert [one.concept for one in found.concepts] == ["Nash"] and named == found.score
    assert plain == 1.0, "it names nothing that the model could not know"
    assert scorer.familiarity.cost.forward_tokens <= 2 * scorer.familiarity.estimate_forward_tokens(asked)
    assert scorer.familiarity.estimate_forward_tokens(asked[1:]) == 0


def test_question_familiarity_too_long_concepts_are_nan(
    tiny_params: LLMParams, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = make_familiarity_scorer(tiny_params, settings)
    too_long = Familiarity((GuessedConcept("Nash", "", "", None),), None)
    monkeypatch.setattr(SelfFamiliarity, "score", lambda self, instructions: [too_long] * len(instructions))
    assert np.isnan(scorer.score(FeatureBatch([interaction()], {}))).all()


def test_question_familiarity_without_packages_is_unavailable(
    tiny_params: LLMParams, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concepts, "find_spec", lambda name: None)
    with pytest.raises(ScorerUnavailable, match=r"pip install 'abstain\[familiarity\]'"):
        make_familiarity_scorer(tiny_params, settings)
