"""The client's side: `HttpGate`, and the adapters for NeMo Guardrails, LangChain and LlamaIndex on stand-ins of these.

`make soak` runs the adapters in the real ones.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import httpx
import pytest
from pydantic import ValidationError

from abstain.config.serve_settings import GatewayPaths, KgatewayPaths, OnUnavailable, load_serve_settings
from abstain.core.contracts import Context
from abstain.core.errors import AbstainError
from abstain.serving.decision import Decision
from abstain.serving.gateways.callbacks import AnswerWithheld, langchain_callback, llamaindex_callback
from abstain.serving.gateways.client import HttpGate
from abstain.serving.gateways.core import GatewayFieldParser, GatewayFields
from abstain.serving.gateways.nemo import abstain_action
from abstain.serving.service.keys import ApiKeys, create_key
from abstain.serving.service.schemas import GateRequest
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
    events = SimpleNamespace(QUERY="query", LLM="llm", SYNTHESIZE="synthesize")
    payload = SimpleNamespace(QUERY_STR="query_str", RESPONSE="response")
    modules: dict[str, dict[str, Any]] = {
        "nemoguardrails.actions.rail_outcome": {"RailOutcome": outcome},
        "langchain_core.callbacks": {"BaseCallbackHandler": handler},
        "llama_index.core.callbacks": {"CBEventType": events},
        "llama_index.core.callbacks.base": {"global_stack_trace": STACK},
        "llama_index.core.callbacks.base_handler": {"BaseCallbackHandler": handler},
        "llama_index.core.callbacks.schema": {"EventPayload": payload},
    }
    for name, content in modules.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**content))


def test_http_gate_returns_the_server_s_decision(connect: Connect, answers: Answers) -> None:
    key, line = create_key("assistant", ["ask"])
    client = connect(ApiKeys(line))
    server = make_transport(client)
    with HttpGate("http://127.0.0.1", key, transport=server, user="anna") as gate:
        shown, withheld = (gate.decide(QUESTION, CONTEXTS, answer) for answer in answers)
    with pytest.raises(RuntimeError, match="closed"):
        gate.decide(QUESTION, CONTEXTS, answers[0])
    assert (shown.show, shown.decision, withheld.show, withheld.decision) == (True, "show", False, "abstain")
    assert client.read_decision(shown.interaction_id).decision.user == "u-anna"
    rejected = HttpGate("http://127.0.0.1", "another", transport=server).decide(QUESTION, CONTEXTS, answers[0])
    assert (rejected.show, rejected.decision) == (False, "unavailable")


@pytest.mark.parametrize("on_unavailable", ["abstain", "show"])
def test_http_gate_without_a_decision_is_unavailable(on_unavailable: OnUnavailable) -> None:
    replies = [httpx.Response(503, json={"code": "A701"}), httpx.Response(200, text="<html>")]
    replies += [httpx.Response(200, json=content) for content in ([], {"show": True})]
    for reply in (httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), *replies):
        transport = httpx.MockTransport(Mock(side_effect=[reply]))
        gate = HttpGate("http://gate", on_unavailable=on_unavailable, transport=transport)
        decided = gate.decide(QUESTION, CONTEXTS, "a")
        assert (decided.decision, decided.show) == ("unavailable", on_unavailable == "show")
        assert decided.reason


@pytest.mark.parametrize("status", [401, 409, 422, 429])
def test_http_gate_rejected_request_is_withheld(status: int) -> None:
    problem = {"code": "A510", "detail": "send a valid key"}
    transport = httpx.MockTransport(lambda _: httpx.Response(status, json=problem))
    decided = HttpGate("http://gate", on_unavailable="show", transport=transport).decide(QUESTION, CONTEXTS, "a")
    assert (decided.decision, decided.show, str(decided.reason)) == ("unavailable", False, "A510: send a valid key")


def test_http_gate_without_contexts_sends_entitlements() -> None:
    respond = Mock(return_value=httpx.Response(500))
    HttpGate("http://gate", transport=httpx.MockTransport(respond), entitlements=["bank"]).decide(QUESTION, [], "a")
    ((request,), _) = respond.call_args
    assert json.loads(request.content) == {"entitlements": ["bank"], "question": QUESTION, "answer": "a"}


@pytest.mark.heavy
def test_http_gate_imports_no_base_model() -> None:
    code = "import sys; from abstain import HttpGate; from abstain.serving.gateways import callbacks, nemo; "
    code += "print(sorted({'torch', 'onnxruntime', 'pandas', 'fastapi', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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


def test_abstain_action_without_question_or_answer_blocks(frameworks: None) -> None:
    parts = {"last_user_message": [{"type": "text", "text": QUESTION}], "bot_message": [{"text": "right"}]}
    assert run_rail(StandIn(), relevant_chunks_sep=[{"content": text} for text in CONTEXTS], **parts)[0] == "allow"
    for chunks in ([{"title": "Accounts"}], [*CONTEXTS, 3]):
        kind, reason, _ = run_rail(StandIn("show"), relevant_chunks_sep=chunks, **parts)
        assert kind == "block" and "context" in reason
    for context in ({}, {"last_user_message": QUESTION}, {"bot_message": "right"}):
        kind, reason, metadata = run_rail(StandIn(), relevant_chunks_sep=CONTEXTS, **context)
        assert (kind, metadata["decision"]) == ("block", "unavailable") and reason
        assert run_rail(StandIn("show"), relevant_chunks_sep=CONTEXTS, **context)[0] == "allow"


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


def test_langchain_shown_answer_is_returned(frameworks: None) -> None:
    for answer, question in (
        ({"answer": "right"}, None),
        ("right", QUESTION),
        (SimpleNamespace(content=[{"type": "text", "text": "ri"}, {"type": "text", "text": "ght"}]), None),
        ({"messages": [{"role": "ai", "content": "right"}]}, {"messages": [{"role": "human", "content": QUESTION}]}),
    ):
        gate = StandIn()
        callback = langchain_callback(gate)
        assert callback.raise_error, "else LangChain logs the exception and returns the answer"
        run_chain(callback, answer, question)
        assert gate.asked == [(QUESTION, CONTEXTS, "right")]


def test_langchain_withheld_answer_raises(frameworks: None) -> None:
    for answer, chunks, decision in (
        ({"answer": "wrong"}, CONTEXTS, "abstain"),
        ({"answer": "right"}, (), "abstain"),
        ({"output": "right"}, CONTEXTS, "unavailable"),
        (None, CONTEXTS, "unavailable"),
        ({"answer": [{"type": "thinking", "thinking": "right"}]}, CONTEXTS, "unavailable"),
    ):
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
    start = {"run_id": uuid4(), "serialized": {}, "inputs": {"input": ""}}  # without a question, as of a stream
    with pytest.raises(AnswerWithheld, match=WITHHELD) as withheld:
        langchain_callback(StandIn(), withheld_text=WITHHELD).on_chain_start(**start)
    assert withheld.value.decision.decision == "unavailable"
    langchain_callback(StandIn("show")).on_chain_start(**start)


@pytest.mark.parametrize("parent", [None, uuid4()], ids=["root", "inner"])
def test_langchain_run_outside_of_a_chain_raises(frameworks: None, parent: UUID | None) -> None:
    callback = langchain_callback(StandIn("show"), withheld_text=WITHHELD)
    for kind in ("llm", "chat_model", "tool", "retriever"):
        with pytest.raises(AnswerWithheld, match=WITHHELD) as withheld:
            getattr(callback, f"on_{kind}_start")({}, "", run_id=uuid4(), parent_run_id=parent)
        assert withheld.value.__notes__ and not callback._chains


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
    nodes = [SimpleNamespace(text=text) for text in CONTEXTS]
    shown, withheld = (SimpleNamespace(response=text, source_nodes=nodes) for text in ("right", "wrong"))
    for response in (shown, withheld, None):  # None: it has failed
        run_query(callback, response)
    assert (shown.response, withheld.response) == ("right", WITHHELD)
    assert gate.asked == [(QUESTION, CONTEXTS, "right"), (QUESTION, CONTEXTS, "wrong")]
    with pytest.raises(AnswerWithheld):
        run_query(callback, SimpleNamespace(response_gen=iter(["right"]), source_nodes=[]))
    assert len(gate.asked) == 2


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


def parse(request: dict[str, Any], **paths: str) -> GatewayFields:
    return GatewayFieldParser("made-up", GatewayPaths(**paths)).parse(request)


@pytest.mark.parametrize(
    ("value", "contexts"),
    [
        (["a", "b"], ("a", "b")),
        ("a", ("a",)),
        ([{"chunk_id": "c1", "text": "a"}], (Context(chunk_id="c1", text="a"),)),
        ([{"id": "c1", "page_content": "a"}, {"content": "b"}], (Context(chunk_id="c1", text="a"), "b")),
        ([{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], ("a\nb",)),
        ([], None),
        (None, None),
    ],
)
def test_parse_contexts_of_texts_and_objects(value: Any, contexts: tuple[Any, ...] | None) -> None:
    fields = parse({"metadata": {"chunks": value}}, contexts="metadata.chunks")
    assert GateRequest(contexts=fields.contexts).contexts == contexts


def test_parse_field_without_text_is_an_error() -> None:
    assert parse({"groups": "staff"}, entitlements="groups").entitlements == ("staff",)
    for value in ([1], [{"title": "a"}], [[2]], 3, [""], {"text": ""}):
        with pytest.raises(ValidationError, match="contexts"):
            GateRequest(contexts=parse({"key": value}, contexts="key").contexts)
    with pytest.raises(AbstainError, match="entitlements"):
        parse({"key": [{"name": "staff"}]}, entitlements="key")
    unpointed = parse({"question": "Why?", "contexts": ["a"]})
    assert set(vars(unpointed).values()) == {None}, "without a path nothing is looked for"


def test_parse_question_of_message_parts() -> None:
    parts = [{"type": "text", "text": "Look at this."}, {"type": "image_url", "image_url": {"url": "data:"}}]
    messages = [{"role": "user", "content": "Before."}, {"role": "user", "content": parts}]
    assert GatewayFieldParser("made-up", KgatewayPaths()).parse({"messages": messages}).question == "Look at this."


def test_settings_variable_changes_one_path_or_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_SERVE_LITELLM__CONTEXTS", "structured_messages[?role=='tool'].content")
    paths = load_serve_settings().litellm
    assert (paths.contexts, paths.call_id) == ("structured_messages[?role=='tool'].content", "litellm_call_id")
    monkeypatch.setenv("ABSTAIN_SERVE_PORTKEY__CHUNKS", "metadata")
    with pytest.raises(AbstainError, match="ABSTAIN_SERVE_PORTKEY__CHUNKS"):
        load_serve_settings()
    with pytest.raises(AbstainError, match=r"ABSTAIN_SERVE_LITELLM__CONTEXTS.*JMESPath"):
        GatewayFieldParser("litellm", GatewayPaths(contexts="metadata["))
