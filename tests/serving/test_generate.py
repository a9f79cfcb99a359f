from collections.abc import Callable
from pathlib import Path

import pytest

from abstain.core.codes import Code
from abstain.core.contracts import Context, Question
from abstain.core.errors import AbstainError
from abstain.llm.engine.requests import Generate
from abstain.serving import generate
from abstain.serving.gate import NO_CONTEXT_REASON, Gate
from abstain.serving.generate import EMPTY_ANSWER_REASON, explain_no_room, generate_answers
from abstain.serving.request_files import make_interaction_from_texts, make_question_from_texts, read_questions
from tests.factories import write_lines
from tests.serving.conftest import OpenGate

ASK = Generate(max_new_tokens=8)


def questions() -> list[Question]:
    return [
        Question(interaction_id=f"q-{n}", question=f"What is {n}?", contexts=(Context(chunk_id="d#1", text="c" * n),))
        for n in range(1, 5)
    ]


def score_afterwards(gate: Gate, question: Question, text: str) -> float | None:
    """The confidence of an answer that is read once it is there."""
    row = make_interaction_from_texts(question.question, text, [c.text for c in question.contexts])
    (decision,) = gate.predictor.decide_interactions([row])
    return decision.confidence


@pytest.mark.parametrize("values", [("true", "false"), ("false", "true")])
def test_generate_answers_scores_without_another_pass(open_gate: OpenGate, values: tuple[str, str]) -> None:
    gate, other = (open_gate(includes_eos=value) for value in values)
    engine = gate.predictor.source.load_engine()
    found = generate_answers(gate, questions(), ASK)
    before = engine.stats.pass_tokens
    assert [one.decision.interaction_id for one in found] == ["q-1", "q-2", "q-3", "q-4"]
    for question, one in zip(questions(), found, strict=True):
        assert one.decision.confidence == pytest.approx(score_afterwards(gate, question, one.text), abs=1e-6)
        assert one.decision.confidence != pytest.approx(score_afterwards(other, question, one.text), abs=1e-6)
        shown = (one.decision.confidence or 0) >= one.decision.threshold
        assert one.decision.decision == ("show" if shown else "abstain")
    assert engine.stats.pass_tokens > before  # scoring afterwards is what reads them a second time


@pytest.mark.parametrize("written_as_read", [True, False])
def test_generate_answers_reads_again_where_tokens_differ(
    gate: Gate, spoil: Callable[..., None], monkeypatch: pytest.MonkeyPatch, written_as_read: bool
) -> None:
    (honest,) = generate_answers(gate, questions()[:1], ASK)
    spoil(lambda answer: {"states": answer.states + 5})
    monkeypatch.setattr(generate, "_retokenizes_equally", lambda *_: written_as_read)
    (spoilt,) = generate_answers(gate, questions()[:1], ASK)
    same = spoilt.decision.confidence == pytest.approx(honest.decision.confidence, abs=1e-6)
    assert same == (not written_as_read)


def test_generate_answers_abstains_from_an_empty_answer(gate: Gate, spoil: Callable[..., None]) -> None:
    spoil(lambda answer: {"text": ""}, "1")
    answers = generate_answers(gate, questions()[:3], ASK)
    assert [answer.decision.reason for answer in answers] == [None, EMPTY_ANSWER_REASON, None]
    assert (answers[1].text, answers[1].decision.decision, answers[1].decision.confidence) == ("", "abstain", None)
    spoil(lambda answer: {"states": answer.states * float("inf")})
    with pytest.raises(AbstainError, match="interaction q-1: "):
        generate_answers(gate, questions()[:1], ASK)


def test_generate_answers_without_context_where_allowed(gate: Gate) -> None:
    bare = Question(interaction_id="bare", question="Why?", contexts=())
    long = questions()[2].model_copy(update={"question": "x" * 600})
    asked = [questions()[0], bare, questions()[1], long]
    found = generate_answers(gate, asked, ASK)
    assert [one.decision.decision == "unavailable" for one in found] == [False, True, False, False]
    assert (found[1].text, found[1].decision.confidence) == ("", None)
    assert found[1].decision.reason == NO_CONTEXT_REASON
    assert (found[3].text, found[3].decision.decision, found[3].decision.reason.code) == ("", "abstain", Code.TOO_LONG)
    meant = generate_answers(gate, asked, ASK, allow_no_context=True)
    assert meant[1].text and meant[1].decision.decision in ("show", "abstain")
    for at in (0, 2):  # in another batch, so to the last bits only nearly
        (one, other), (first, second) = (meant[at].decision, found[at].decision), (meant[at].text, found[at].text)
        assert first == second and one.decision == other.decision
        assert one.confidence == pytest.approx(other.confidence, rel=1e-5)
    assert explain_no_room(gate.predictor, ASK) == "" and generate_answers(gate, [], ASK) == []
    assert "512" in explain_no_room(gate.predictor, Generate(max_new_tokens=512))


def test_read_questions_of_lines_and_flags(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "questions.jsonl", *(one.model_dump_json() for one in questions()))
    assert read_questions(file) == questions()
    assert make_question_from_texts("Why?", ["one"]).contexts[0].text == "one"
    with pytest.raises(AbstainError, match="question: "):
        make_question_from_texts("", [])
    for field, more in (("question", ', "question": "c", "contexts": []'), ("contexts", "")):
        write_lines(file, f'{{"interaction_id": "a", "question": "b"{more}}}')
        with pytest.raises(AbstainError, match=rf"questions.jsonl line 1: {field}: "):
            read_questions(file)


def test_generate_answers_reports_text_while_writing(gate: Gate) -> None:
    told: list[str] = []
    (one,) = generate_answers(gate, questions()[:1], ASK, on_text=told.append)
    assert len(told) == ASK.max_new_tokens and told[-1] == one.text.rstrip("\ufffd")
    assert len(told[0]) < len(told[-1]) and not any(text.endswith("\ufffd") for text in told)
