"""Callbacks for LangChain and LlamaIndex: the gate decides about an answer when the chain or the query ends.

LangChain's callbacks may watch an answer but not change it: a withheld one is an error, `AnswerWithheld`. LlamaIndex
passes the response itself, whose text is replaced.

If a callback would not see the answer, it raises the same error: if a model runs outside of a chain or query, or a
chain begins without its question. A chain that streams begins so, and its answer would have been read when it ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn
from uuid import UUID

from abstain.core.codes import Code
from abstain.core.message_text import extract_text
from abstain.core.text import WITHHELD_TEXT
from abstain.serving.decision import Decision, DecisionReason
from abstain.serving.gateways.client import GateLike, decide_if_complete, make_unavailable_decision

_NO_QUESTION = DecisionReason(
    Code.INVALID_ROW,
    "question: none was found where the chain begins: invoke it, since a stream begins without its input",
)


class AnswerWithheld(Exception):
    """An answer must not be shown. The message is the text to show instead.

    Attributes:
        decision: The decision about the answer; a note of the exception says why it is withheld.
    """

    def __init__(self, text: str, decision: Decision) -> None:
        super().__init__(text)
        self.decision = decision
        self.add_note(decision.describe())


@dataclass
class _Chain:
    """A running chain.

    Attributes:
        question: Its question; None if there is none.
        runs: Ids of its own run, which is the first, and of the runs inside it.
        contexts: Documents that its retrievers returned.
    """

    question: str | None
    runs: list[UUID]
    contexts: list[Any] = field(default_factory=list)


def langchain_callback(
    gate: GateLike,
    *,
    question: str = "input",
    answer: str = "answer",
    withheld_text: str = WITHHELD_TEXT,
    withheld_sources: bool = False,
) -> Any:
    """Make a `BaseCallbackHandler` for `config={"callbacks": [...]}`; it raises `AnswerWithheld` out of `invoke`.

    Args:
        gate: The gate.
        question: Key of the chain's input; the input may be a plain text instead.
        answer: Key of the chain's output; the output may be a plain text instead.
        withheld_text: Text to show instead of a withheld answer.
        withheld_sources: Whether the titles of its documents follow that text.

    Returns:
        The callback handler.
    """
    from langchain_core.callbacks import BaseCallbackHandler

    class Callback(BaseCallbackHandler):  # type: ignore[misc]
        raise_error = True  # else LangChain logs what a callback raises, and shows the answer
        run_inline = True

        def __init__(self) -> None:
            self._chains: dict[UUID, _Chain] = {}
            """Run -> the outermost chain that this callback has seen it in."""

        def on_chain_start(
            self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
        ) -> None:
            if self._follow(run_id, parent_run_id):
                return
            chain = _Chain(extract_text(_get_part(inputs, question)), [run_id])
            if chain.question is None:  # before anybody reads a part of the answer
                _require_shown(make_unavailable_decision(gate, _NO_QUESTION), withheld_text)
            self._chains[run_id] = chain

        def on_llm_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None = None, **__: Any) -> None:
            if not self._follow(run_id, parent_run_id):
                _withhold("a run is outside of any chain: give the callback to the chain", withheld_text)

        on_chat_model_start = on_tool_start = on_retriever_start = on_llm_start

        def on_retriever_end(self, documents: Sequence[Any], *, run_id: UUID, **_: Any) -> None:
            if chain := self._chains.get(run_id):
                chain.contexts.extend(documents)

        def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
            self._end(run_id)

        def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
            if chain := self._end(run_id):
                _require_shown(
                    decide_if_complete(gate, chain.question, chain.contexts, _get_part(outputs, answer)),
                    withheld_text,
                    with_sources=withheld_sources,
                )

        def _follow(self, run_id: UUID, parent: UUID | None) -> bool:
            """Return whether a run is inside of a chain that this callback has seen."""
            if chain := self._chains.get(parent) if parent else None:
                chain.runs.append(run_id)
                self._chains[run_id] = chain
            return chain is not None

        def _end(self, run_id: UUID) -> _Chain | None:
            """Remove and return the outermost chain that ends with this run; None if it is no such chain."""
            chain = self._chains.get(run_id)
            if chain is None or chain.runs[0] != run_id:
                return None
            for run in chain.runs:
                self._chains.pop(run, None)
            return chain

    return Callback()


def llamaindex_callback(gate: GateLike, *, withheld_text: str = WITHHELD_TEXT, withheld_sources: bool = False) -> Any:
    """Make a `BaseCallbackHandler` for `CallbackManager([...])` that replaces the text of a withheld response.

    It raises `AnswerWithheld` for a response whose text it cannot replace, such as one that is streamed, and if a
    model, a synthesizer or a chat engine begins outside of a query.

    Args:
        gate: The gate.
        withheld_text: Text to show instead of a withheld answer.
        withheld_sources: Whether the titles of its documents follow that text.

    Returns:
        The callback handler.
    """
    from llama_index.core.callbacks import CBEventType
    from llama_index.core.callbacks.base import global_stack_trace
    from llama_index.core.callbacks.base_handler import BaseCallbackHandler
    from llama_index.core.callbacks.schema import EventPayload

    class Callback(BaseCallbackHandler):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__([], [])
            self._asked: dict[str, str] = {}

        def on_event_start(
            self, event_type: Any, payload: Mapping[str, Any] | None = None, event_id: str = "", *_: Any, **__: Any
        ) -> str:
            if event_type == CBEventType.QUERY:
                self._asked[event_id] = str((payload or {}).get(EventPayload.QUERY_STR) or "")
                return event_id
            in_query = any(event in self._asked for event in global_stack_trace.get())
            if event_type in (CBEventType.LLM, CBEventType.SYNTHESIZE) and not in_query:
                _withhold("a model or synthesizer runs outside of any query: ask a query engine", withheld_text)
            return event_id

        def on_event_end(
            self, event_type: Any, payload: Mapping[str, Any] | None = None, event_id: str = "", **_: Any
        ) -> None:
            if event_type != CBEventType.QUERY or event_id not in self._asked:
                return
            question, response = self._asked.pop(event_id), (payload or {}).get(EventPayload.RESPONSE)
            if response is None:  # the query failed: there is no answer
                return
            text = getattr(response, "response", None)
            contexts = getattr(response, "source_nodes", None) or []
            decision = decide_if_complete(gate, question, contexts, text if isinstance(text, str) else None)
            if not isinstance(text, str):
                _require_shown(decision, withheld_text, with_sources=withheld_sources)
            elif not decision.show:
                response.response = decision.make_withheld_text(withheld_text, with_sources=withheld_sources)
            elif decision.cleaned_answer is not None:
                response.response = decision.cleaned_answer

        def start_trace(self, trace_id: str | None = None) -> None:
            if trace_id == "chat":
                _withhold("a chat engine's answer is in no event: ask a query engine", withheld_text)

        def end_trace(self, trace_id: str | None = None, trace_map: Any = None) -> None:
            """Nothing is traced."""

    return Callback()


def _require_shown(decision: Decision, withheld_text: str, *, with_sources: bool = False) -> None:
    if not decision.show:
        raise AnswerWithheld(decision.make_withheld_text(withheld_text, with_sources=with_sources), decision)


def _withhold(cause: str, withheld_text: str) -> NoReturn:
    reason = DecisionReason(Code.USAGE, f"the gate does not see the answer: {cause}")
    raise AnswerWithheld(withheld_text, Decision.unavailable("", reason))


def _get_part(value: Any, key: str) -> Any:
    """Return the value at `key` of a chain's input or output, else a graph's messages; a plain value is returned."""
    if not isinstance(value, Mapping):
        return value
    part = value.get(key)
    return value.get("messages") if part is None else part
