"""The client's side: `HttpGate`, and the adapters for NeMo Guardrails, LangChain and LlamaIndex on stand-ins of these.

`make soak` runs the adapters in the real ones.
"""

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

from abstain.config.serve_settings import OnUnavailable
from abstain.serving.decision import Decision
from abstain.serving.gateways.callbacks import AnswerWithheld, langchain_callback, llamaindex_callback
from abstain.serving.gateways.client import HttpGate
from abstain.serving.gateways.nemo import abstain_action
from abstain.serving.service.keys import ApiKeys, create_key
from tests.serving.gateways.conftest import CONTEXTS, QUESTION, WITHHELD, Answers, Connect, make_transport

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
    outcome = SimpleNamespace(
        allow=lambda reason=None, metadata=None: ("allow", reason, metadata),
        block=lambda reason=None, metadata=None: ("block", reason, metadata),
    )
    handler = type("BaseCallbackHandler", (), {"__init__": lambda self, *_: None})
    modules: dict[str, dict[str, Any]] = {
        **{name: {} for name in ("nemoguardrails", "nemoguardrails.actions", "langchain_core", "llama_index")},
        "llama_index.core": {},
        "nemoguardrails.actions.rail_outcome": {"RailOutcome": outcome},
        "langchain_core.callbacks": {"BaseCallbackHandler": handler},
        "llama_index.core.callbacks": {
            "CBEventType": SimpleNamespace(QUERY="query", LLM="llm", SYNTHESIZE="synthesize")
        },
        "llama_index.core.callbacks.base": {"global_stack_trace": STACK},
        "llama_index.core.callbacks.base_handler": {"BaseCallbackHandler": handler},
        "llama_index.core.callbacks.schema": {
            "EventPayload": SimpleNamespace(QUERY_STR="query_str", RESPONSE="response")
        },
    }
    for name, content in modules.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)


# A server


def test_http_gate_returns_the_server_s_decision(connect: Connect, answers: Answers) -> None:
    key, line = create_key("assistant", ["ask"])
    client = connect(ApiKeys(line))
    server = make_transport(client)
    with HttpGate("http://127.0.0.1", key, transport=server, user="anna") as gate:
        shown, withheld = (gate.decide(QUESTION, CONTEXTS, answer) for answer in answers)
    with pytest.raises(RuntimeError, match="closed"):
        gate.decide(QUESTION, CONTEXTS, answers[0])
    assert (shown.show, shown.decision, withheld.show, withheld.decision) == (True, "show", False, "abstain")
    assert shown.confidence is not None and withheld.confidence is not None
    assert client.read_decision(shown.interaction_id).decision.user == "u-anna"
    rejected = HttpGate("http://127.0.0.1", "another", transport=server).decide(QUESTION, CONTEXTS, answers[0])
    assert (rejected.show, rejected.decision) == (False, "unavailable")


def fail(error: Exception) -> httpx.Response:
    raise error


@pytest.mark.parametrize("on_unavailable", ["abstain", "show"])
@pytest.mark.parametrize(
    "respond",
    [
        lambda _: fail(httpx.ConnectError("refused")),
        lambda _: fail(httpx.ReadTimeout("slow")),
        lambda _: httpx.Response(503, json={"code": "A701"}),
        lambda _: httpx.Response(200, text="<html>"),
        lambda _: httpx.Response(200, json=[]),
        lambda _: httpx.Response(200, json={"show": True}),
    ],
)
def test_http_gate_without_a_decision_is_unavailable(
    respond: Callable[[httpx.Request], httpx.Response], on_unavailable: OnUnavailable
) -> None:
    gate = HttpGate("http://gate", on_unavailable=on_unavailable, transport=httpx.MockTransport(respond))
    decided = gate.decide(QUESTION, CONTEXTS, "right")
    assert (decided.decision, decided.show) == ("unavailable", on_unavailable == "show")
    assert decided.reason


@pytest.mark.parametrize("status", [401, 403, 404, 409, 413, 422, 429])
def test_http_gate_rejected_request_is_withheld(status: int) -> None:
    problem = {"code": "A510", "detail": "send a valid key"}
    transport = httpx.MockTransport(lambda _: httpx.Response(status, json=problem))
    decided = HttpGate("http://gate", on_unavailable="show", transport=transport).decide(QUESTION, CONTEXTS, "a")
    assert (decided.decision, decided.show, str(decided.reason)) == ("unavailable", False, "A510: send a valid key")


def test_http_gate_without_contexts_sends_entitlements() -> None:
    sent = []

    def respond(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(500)

    HttpGate("http://gate", transport=httpx.MockTransport(respond), entitlements=["bank"]).decide(QUESTION, [], "a")
    assert sent == [{"entitlements": ["bank"], "question": QUESTION, "answer": "a"}]


def test_http_gate_imports_no_base_model() -> None:
    code = (
        "import sys; from abstain import HttpGate; from abstain.serving.gateways import callbacks, nemo; "
        "print(sorted({'torch', 'onnxruntime', 'pandas', 'fastapi', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# NeMo Guardrails


def run_rail(gate: StandIn, **context: Any) -> Any:
    return asyncio.run(abstain_action(gate, withheld_text=WITHHELD)(context=context))


def test_abstain_action_allows_shown_and_blocks_withheld(frameworks: None) -> None:
    gate = StandIn()
    context = {"last_user_message": QUESTION, "relevant_chunks_sep": CONTEXTS, "relevant_chunks": "\n".join(CONTEXTS)}
    assert run_rail(gate, **context, bot_message="right")[0] == "allow"
    kind, _, metadata = run_rail(gate, **context, bot_message="wrong")
    assert (kind, metadata["refusal_message"], metadata["decision"]) == ("block", WITHHELD, "abstain")
    del context["relevant_chunks_sep"]
    assert run_rail(gate, **context, bot_message="right")[0] == "allow"
    asked = [(contexts, answer) for _, contexts, answer in gate.asked]
    assert asked == [(CONTEXTS, "right"), (CONTEXTS, "wrong"), (["\n".join(CONTEXTS)], "right")]
    assert {question for question, _, _ in gate.asked} == {QUESTION}


@pytest.mark.parametrize("context", [{}, {"last_user_message": QUESTION}, {"bot_message": "right"}])
def test_abstain_action_without_question_or_answer_blocks(frameworks: None, context: dict[str, str]) -> None:
    kind, reason, metadata = run_rail(StandIn(), relevant_chunks_sep=CONTEXTS, **context)
    assert (kind, metadata["decision"]) == ("block", "unavailable") and reason
    assert run_rail(StandIn("show"), relevant_chunks_sep=CONTEXTS, **context)[0] == "allow"


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


@pytest.mark.parametrize(
    ("answer", "question"),
    [({"answer": "right"}, None), ("right", QUESTION), (SimpleNamespace(content="right"), None)],
    ids=["dict", "text", "message"],
)
def test_langchain_shown_answer_is_returned(frameworks: None, answer: Any, question: Any) -> None:
    gate = StandIn()
    callback = langchain_callback(gate)
    assert callback.raise_error, "else LangChain logs the exception and returns the answer"
    run_chain(callback, answer, question)
    assert gate.asked == [(QUESTION, CONTEXTS, "right")]


@pytest.mark.parametrize(
    ("answer", "chunks", "decision"),
    [
        ({"answer": "wrong"}, CONTEXTS, "abstain"),
        ({"answer": "right"}, (), "abstain"),
        ({"output": "right"}, CONTEXTS, "unavailable"),
        (None, CONTEXTS, "unavailable"),
        ({"answer": ["right"]}, CONTEXTS, "unavailable"),
    ],
    ids=["wrong", "without contexts", "another key", "none", "list"],
)
def test_langchain_withheld_answer_raises(frameworks: None, answer: Any, chunks: Sequence[str], decision: str) -> None:
    callback = langchain_callback(StandIn(), withheld_text=WITHHELD)
    with pytest.raises(AnswerWithheld, match=WITHHELD) as withheld:
        run_chain(callback, answer, chunks=chunks)
    assert withheld.value.decision.decision == decision
    assert not callback._chains, "nothing is kept of runs that have ended"


def test_langchain_chain_inside_of_another_is_decided(frameworks: None) -> None:
    gate, run = StandIn(), uuid4()
    callback = langchain_callback(gate)
    callback.on_chain_start({}, {"input": QUESTION}, run_id=run, parent_run_id=uuid4())
    with pytest.raises(AnswerWithheld):
        callback.on_chain_end({"answer": "wrong"}, run_id=run)
    assert gate.asked == [(QUESTION, [], "wrong")] and not callback._chains


@pytest.mark.parametrize("start", ["on_llm_start", "on_chat_model_start", "on_tool_start", "on_retriever_start"])
@pytest.mark.parametrize("parent", [None, uuid4()])
def test_langchain_run_outside_of_a_chain_raises(frameworks: None, start: str, parent: UUID | None) -> None:
    callback = langchain_callback(StandIn("show"), withheld_text=WITHHELD)
    with pytest.raises(AnswerWithheld, match=WITHHELD) as withheld:
        getattr(callback, start)({}, "", run_id=uuid4(), parent_run_id=parent)
    assert withheld.value.__notes__ and not callback._chains


def test_langchain_chain_without_question_raises_at_start(frameworks: None) -> None:
    start = {"run_id": uuid4(), "serialized": {}, "inputs": {"input": ""}}  # as that of a stream
    with pytest.raises(AnswerWithheld, match=WITHHELD) as withheld:
        langchain_callback(StandIn(), withheld_text=WITHHELD).on_chain_start(**start)
    assert withheld.value.decision.decision == "unavailable"
    langchain_callback(StandIn("show")).on_chain_start(**start)


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


def test_llamaindex_withheld_response_is_replaced(frameworks: None) -> None:
    gate = StandIn()
    callback = llamaindex_callback(gate, withheld_text=WITHHELD)
    nodes = [SimpleNamespace(get_content=lambda text=text: text) for text in CONTEXTS]
    shown, withheld = (SimpleNamespace(response=text, source_nodes=nodes) for text in ("right", "wrong"))
    run_query(callback, shown)
    run_query(callback, withheld)
    assert (shown.response, withheld.response) == ("right", WITHHELD)
    assert gate.asked[0] == (QUESTION, CONTEXTS, "right")


def test_llamaindex_streamed_response_raises_and_failed_passes(frameworks: None) -> None:
    gate = StandIn()
    run_query(llamaindex_callback(gate), None)
    with pytest.raises(AnswerWithheld):
        run_query(llamaindex_callback(gate), SimpleNamespace(response_gen=iter(["right"]), source_nodes=[]))
    assert gate.asked == []


def test_llamaindex_chat_or_model_outside_of_a_query_raises(frameworks: None) -> None:
    callback = llamaindex_callback(StandIn("show"))
    callback.start_trace("query")
    with pytest.raises(AnswerWithheld):
        callback.start_trace("chat")
    callback.on_event_start("query", {"query_str": QUESTION}, event_id="of another task")
    for kind in ("llm", "synthesize"):
        with pytest.raises(AnswerWithheld) as withheld:
            callback.on_event_start(kind, {}, event_id="l")
        assert withheld.value.__notes__
