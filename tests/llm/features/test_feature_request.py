import pytest

from abstain.llm.engine.prompts import Segment
from abstain.llm.engine.requests import Generate, HiddenStates, NextTokenProbs, Request
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.features.feature_store import ConcatRequests
from tests.llm.signals.builders import interaction

ONE = interaction(contexts=("first", "second", "third"))


@pytest.mark.parametrize(("chunks", "expected"), [(None, 3), (2, 2), (0, 0), (9, 3)])
def test_select_contexts_takes_the_first_chunks(chunks: int | None, expected: int) -> None:
    texts = FeatureRequest(HiddenStates(1), chunks=chunks).select_contexts(ONE)
    assert texts == ["first", "second", "third"][:expected]


def test_render_asked_after_continues_the_answer_pass() -> None:
    answered = FeatureRequest(HiddenStates(1)).render("rag-chatml-v1", "Why?", ["text"], "Because.")
    asked = FeatureRequest(NextTokenProbs(("Yes", "No")), "asked_after").render(
        "rag-chatml-v1", "Why?", ["text"], "Because."
    )
    assert asked[: len(answered)] == answered
    (question,) = asked[len(answered) :]
    assert question.literal and "Is the provided Response correct? Answer only Yes or No." in question.text


def test_render_yes_score_is_the_published_prompt() -> None:
    pass_ = FeatureRequest(Generate(5), "yes_score").render("rag-chatml-v1", "Q?", ["C"], "R")
    assert "".join(segment.text for segment in pass_) == (
        "Context: C\n\nQuestion: Q?\n\nResponse: R\n\nBased on the given Context and Question, answer this question:\n\n"
        "Is the provided Response correct? Answer only Yes or No.\n\nAnswer:\n"
    )
    assert [segment.text for segment in pass_ if not segment.literal] == [" C", " Q?", " R"]


def test_render_yes_score_and_probability_share_a_prefix() -> None:
    yes, probability = (
        FeatureRequest(Generate(5), kind).render("rag-plain-v1", "Q?", ["C"], "R")
        for kind in ("yes_score", "probability")
    )
    assert yes[:-1] == probability[:-1] and "(0.0 to 1.0)" in probability[-1].text


def test_concat_requests_keeps_order() -> None:
    requests = [Request((Segment("answer", str(at)),), HiddenStates(1), str(at)) for at in range(5)]
    together = ConcatRequests([requests[:2], [], requests[2:]])
    assert [together[at] for at in range(len(together))] == requests
    assert len(ConcatRequests([])) == 0
    with pytest.raises(IndexError):
        together[5]
