"""The client's side: `HttpGate`, and the adapters for NeMo Guardrails, LangChain and LlamaIndex on stand-ins of these.

`make soak` runs the adapters in the real ones.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from fastapi.testclient import TestClient

from abstain.config.serve_settings import OnUnavailable
from abstain.data.decision_log import queries
from abstain.serving.decision import Decision
from abstain.serving.gateways.callbacks import AnswerWithheld, langchain_callback, llamaindex_callback
from abstain.serving.gateways.client import HttpGate
from abstain.serving.gateways.nemo import abstain_action
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys, create_key
from tests.serving.gateways.conftest import CONTEXTS, QUESTION, WITHHELD, through

Worker = Callable[..., GateService]
Connect = Callable[..., TestClient]
STACK: ContextVar[Sequence[str]] = ContextVar("stack", default=())
"""The ids of LlamaIndex's events that have begun."""


class StandIn:
    """A gate that shows the answer `right` to a question with the contexts, and remembers what it was asked."""

    def __init__(self, on_unavailable: OnUnavailable = "abstain") -> None:
        self.on_unavailable: OnUnavailable = on_unavailable
        self.asked: list[tuple[str, list[str], str]] = []

    def decide(self, question: str, contexts: Sequence[str], answer: str) -> Decision:
        self.asked.append((question, list(contexts), answer))
        show = bool(contexts) and answer == "right"
        return Decision("i-1", "show" if show else "abstain", 0.7, 0.5, "v1.0.0", None, show=show)


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The few names of the frameworks that the adapters import."""

    def module(name: str, **content: Any) -> None:
        made = ModuleType(name)
        made.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, made)

    outcome = SimpleNamespace(
        allow=lambda reason=None, metadata=None: ("allow", reason, metadata),
        block=lambda reason=None, metadata=None: ("block", reason, metadata),
    )
    handler = type("BaseCallbackHandler", (), {"__init__": lambda self, *_: None})
    events = SimpleNamespace(QUERY="query", LLM="llm", SYNTHESIZE="synthesize")
    payload = SimpleNamespace(QUERY_STR="query_str", RESPONSE="response")
    for package in ("nemoguardrails", "nemoguardrails.actions", "langchain_core", "llama_index", "llama_index.core"):
        module(package)
    module("nemoguardrails.actions.rail_outcome", RailOutcome=outcome)
    module("langchain_core.callbacks", BaseCallbackHandler=handler)
    module("llama_index.core.callbacks", CBEventType=events)
    module("llama_index.core.callbacks.base", global_stack_trace=STACK)
    module("llama_index.core.callbacks.base_handler", BaseCallbackHandler=handler)
    module("llama_index.core.callbacks.schema", EventPayload=payload)


# A server, asked


def test_a_server_is_asked_with_a_key_and_its_decision_comes_back(
    make_worker: Worker, connect: Connect, answers: tuple[str, str]
) -> None:
    key, line = create_key("assistant", ["ask"])
    worker = make_worker()
    server = through(connect(worker, ApiKeys(line)))
    with HttpGate("http://127.0.0.1", key, transport=server, user="anna") as gate:
        shown, withheld = (gate.decide(QUESTION, CONTEXTS, answer) for answer in answers)
    with pytest.raises(RuntimeError, match="closed"):
        gate.decide(QUESTION, CONTEXTS, answers[0])
    assert (shown.show, shown.decision) == (True, "show")
    assert (withheld.show, withheld.decision) == (False, "abstain")
    assert shown.confidence is not None and withheld.confidence is not None
    logged = queries.get_decision(worker.log.database, shown.interaction_id)
    assert logged is not None and logged.decision.user == "u-anna"
    refused = HttpGate("http://127.0.0.1", "another", transport=server).decide(QUESTION, CONTEXTS, answers[0])
    assert (refused.show, refused.decision) == (False, "unavailable")


def _raise(error: Exception) -> httpx.Response:
    raise error


@pytest.mark.parametrize("on_unavailable", ["abstain", "show"])
@pytest.mark.parametrize(
    "respond",
    [
        lambda _: _raise(httpx.ConnectError("refused")),
        lambda _: _raise(httpx.ReadTimeout("slow")),
        lambda _: httpx.Response(503, json={"code": "A701"}),
        lambda _: httpx.Response(200, text="<html>"),
        lambda _: httpx.Response(200, json=[]),
        lambda _: httpx.Response(200, json={"show": True}),
    ],
)
def test_a_server_that_gives_no_decision_is_unavailable(
    respond: Callable[[httpx.Request], httpx.Response], on_unavailable: OnUnavailable
) -> None:
    gate = HttpGate("http://gate", on_unavailable=on_unavailable, transport=httpx.MockTransport(respond))
    decided = gate.decide(QUESTION, CONTEXTS, "right")
    assert (decided.decision, decided.show) == ("unavailable", on_unavailable == "show")
    assert decided.reason


def test_without_contexts_the_entitlements_are_sent_alone() -> None:
    sent = []

    def respond(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(500)

    HttpGate("http://gate", transport=httpx.MockTransport(respond), entitlements=["bank"]).decide(QUESTION, [], "a")
    assert sent == [{"entitlements": ["bank"], "question": QUESTION, "answer": "a"}]


def test_importing_the_client_imports_nothing_of_the_base_model() -> None:
    code = (
        "import sys; from abstain import HttpGate; from abstain.serving.gateways import callbacks, nemo; "
        "print(sorted({'torch', 'onnxruntime', 'pandas', 'fastapi', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# NeMo Guardrails


def rail(gate: StandIn, **context: Any) -> Any:
    return asyncio.run(abstain_action(gate, withheld_text=WITHHELD)(context=context))  # type: ignore[arg-type]


def test_a_rail_allows_what_is_shown_and_blocks_what_is_withheld(frameworks: None) -> None:
    gate = StandIn()
    given = {"last_user_message": QUESTION, "relevant_chunks_sep": CONTEXTS, "relevant_chunks": "\n".join(CONTEXTS)}
    assert rail(gate, **given, bot_message="right")[0] == "allow"
    kind, _, metadata = rail(gate, **given, bot_message="wrong")
    assert (kind, metadata["refusal_message"], metadata["decision"]) == ("block", WITHHELD, "abstain")
    assert gate.asked[0] == (QUESTION, CONTEXTS, "right")


def test_a_rail_without_separate_chunks_reads_their_one_text(frameworks: None) -> None:
    gate = StandIn()
    assert rail(gate, last_user_message=QUESTION, relevant_chunks="Thirty days.\n", bot_message="right")[0] == "allow"
    assert gate.asked == [(QUESTION, ["Thirty days.\n"], "right")]


@pytest.mark.parametrize("context", [{}, {"last_user_message": QUESTION}, {"bot_message": "right"}])
def test_a_rail_without_question_or_answer_blocks(frameworks: None, context: dict[str, str]) -> None:
    kind, reason, metadata = rail(StandIn(), relevant_chunks_sep=CONTEXTS, **context)
    assert (kind, metadata["decision"]) == ("block", "unavailable")
    assert "none was found" in reason
    assert rail(StandIn("show"), relevant_chunks_sep=CONTEXTS, **context)[0] == "allow"


# LangChain


def run_chain(callback: Any, answer: Any, question: Any = None, *, chunks: Sequence[str] = CONTEXTS) -> None:
    """The calls that LangChain makes for a chain, whose tool has a retriever inside, beside another chain."""
    root, inner, tool, retriever, other = (uuid4() for _ in range(5))
    documents = [SimpleNamespace(page_content=text) for text in chunks]
    callback.on_chain_start({}, {"input": QUESTION} if question is None else question, run_id=root)
    callback.on_chain_start({}, {"input": "Other?"}, run_id=other)
    callback.on_chain_start({}, {}, run_id=inner, parent_run_id=root)
    callback.on_chat_model_start({}, [], run_id=uuid4(), parent_run_id=inner)
    callback.on_tool_start({}, "", run_id=tool, parent_run_id=inner)
    callback.on_retriever_start({}, QUESTION, run_id=retriever, parent_run_id=tool)
    callback.on_retriever_end(documents, run_id=retriever)
    callback.on_chain_end({"answer": "wrong"}, run_id=inner)
    callback.on_chain_error(RuntimeError(), run_id=other)
    callback.on_chain_end(answer, run_id=root)


def test_a_chain_returns_what_is_shown_and_raises_for_what_is_withheld(frameworks: None) -> None:
    gate = StandIn()
    callback = langchain_callback(gate, withheld_text=WITHHELD)  # type: ignore[arg-type]
    assert callback.raise_error, "else LangChain logs the exception and returns the answer"
    run_chain(callback, {"answer": "right"})
    assert gate.asked == [(QUESTION, CONTEXTS, "right")]
    with pytest.raises(AnswerWithheld, match=WITHHELD) as withheld:
        run_chain(callback, {"answer": "wrong"})
    assert withheld.value.decision.decision == "abstain"
    assert not callback._chains, "nothing is kept of runs that have ended"


def test_a_chain_may_have_plain_texts_and_messages(frameworks: None) -> None:
    gate = StandIn()
    callback = langchain_callback(gate)  # type: ignore[arg-type]
    run_chain(callback, "right", QUESTION)
    run_chain(callback, SimpleNamespace(content="right"))
    assert gate.asked == [(QUESTION, CONTEXTS, "right")] * 2


@pytest.mark.parametrize("answer", [{"output": "right"}, None, {"answer": ["right"]}])
def test_a_chain_whose_answer_is_not_found_raises(frameworks: None, answer: Any) -> None:
    callback = langchain_callback(StandIn())  # type: ignore[arg-type]
    with pytest.raises(AnswerWithheld) as withheld:
        run_chain(callback, answer)
    assert withheld.value.decision.decision == "unavailable"


def test_a_chain_that_retrieved_nothing_is_judged_without_contexts(frameworks: None) -> None:
    with pytest.raises(AnswerWithheld):
        run_chain(langchain_callback(StandIn()), {"answer": "right"}, chunks=())  # type: ignore[arg-type]


def test_a_chain_inside_of_another_is_decided_about(frameworks: None) -> None:
    gate, run = StandIn(), uuid4()
    callback = langchain_callback(gate)  # type: ignore[arg-type]
    callback.on_chain_start({}, {"input": QUESTION}, run_id=run, parent_run_id=uuid4())
    with pytest.raises(AnswerWithheld):
        callback.on_chain_end({"answer": "wrong"}, run_id=run)
    assert gate.asked == [(QUESTION, [], "wrong")] and not callback._chains


@pytest.mark.parametrize("start", ["on_llm_start", "on_chat_model_start", "on_tool_start", "on_retriever_start"])
@pytest.mark.parametrize("parent", [None, uuid4()])
def test_what_runs_outside_of_a_chain_is_refused(frameworks: None, start: str, parent: UUID | None) -> None:
    callback = langchain_callback(StandIn("show"), withheld_text=WITHHELD)  # type: ignore[arg-type]
    with pytest.raises(AnswerWithheld, match=WITHHELD) as refused:
        getattr(callback, start)({}, "", run_id=uuid4(), parent_run_id=parent)
    assert "give the callback to the chain" in refused.value.__notes__[0] and not callback._chains


def test_a_chain_without_a_question_is_refused_when_it_begins(frameworks: None) -> None:
    start = {"run_id": uuid4(), "serialized": {}, "inputs": {"input": ""}}  # as that of a stream
    with pytest.raises(AnswerWithheld, match=WITHHELD) as withheld:
        langchain_callback(StandIn(), withheld_text=WITHHELD).on_chain_start(**start)  # type: ignore[arg-type]
    assert withheld.value.decision.decision == "unavailable"
    langchain_callback(StandIn("show")).on_chain_start(**start)  # type: ignore[arg-type]


# LlamaIndex


def run_query(callback: Any, response: Any) -> None:
    callback.on_event_start("query", {"query_str": QUESTION}, event_id="q")
    STACK.set(["root", "q"])
    callback.on_event_start("retrieve", {"query_str": QUESTION}, event_id="r")
    callback.on_event_start("synthesize", {}, event_id="s")
    callback.on_event_start("llm", {}, event_id="l")
    STACK.set(["root"])
    callback.on_event_end("retrieve", {}, event_id="r")
    callback.on_event_end("query", {"response": response}, event_id="q")


def written(text: Any) -> SimpleNamespace:
    nodes = [SimpleNamespace(get_content=lambda text=text: text) for text in CONTEXTS]
    return SimpleNamespace(response=text, source_nodes=nodes)


def test_the_text_of_a_withheld_response_is_replaced(frameworks: None) -> None:
    gate = StandIn()
    callback = llamaindex_callback(gate, withheld_text=WITHHELD)  # type: ignore[arg-type]
    shown, withheld = written("right"), written("wrong")
    run_query(callback, shown)
    run_query(callback, withheld)
    assert (shown.response, withheld.response) == ("right", WITHHELD)
    assert gate.asked[0] == (QUESTION, CONTEXTS, "right")


def test_a_streamed_response_raises(frameworks: None) -> None:
    callback = llamaindex_callback(StandIn())  # type: ignore[arg-type]
    with pytest.raises(AnswerWithheld):
        run_query(callback, SimpleNamespace(response_gen=iter(["right"]), source_nodes=[]))


def test_a_query_that_failed_has_no_answer_to_judge(frameworks: None) -> None:
    gate = StandIn()
    run_query(llamaindex_callback(gate), None)  # type: ignore[arg-type]
    assert gate.asked == []


@pytest.mark.parametrize("kind", ["llm", "synthesize"])
def test_a_model_outside_of_a_query_is_refused(frameworks: None, kind: str) -> None:
    callback = llamaindex_callback(StandIn("show"))  # type: ignore[arg-type]
    callback.on_event_start("query", {"query_str": QUESTION}, event_id="of another task")
    with pytest.raises(AnswerWithheld) as refused:
        callback.on_event_start(kind, {}, event_id="l")
    assert "ask a query engine" in refused.value.__notes__[0]


def test_a_chat_engine_is_refused(frameworks: None) -> None:
    callback = llamaindex_callback(StandIn("show"))  # type: ignore[arg-type]
    callback.start_trace("query")
    with pytest.raises(AnswerWithheld):
        callback.start_trace("chat")


@pytest.mark.parametrize("status", [401, 403, 404, 409, 413, 422, 429])
def test_a_server_that_refuses_is_no_outage(status: int) -> None:
    problem = {"code": "A510", "detail": "send a valid key"}
    transport = httpx.MockTransport(lambda _: httpx.Response(status, json=problem))
    decided = HttpGate("http://gate", on_unavailable="show", transport=transport).decide(QUESTION, CONTEXTS, "a")
    assert (decided.decision, decided.show, str(decided.reason)) == ("unavailable", False, "A510: send a valid key")
