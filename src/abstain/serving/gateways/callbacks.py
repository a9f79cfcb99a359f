"""Callbacks for LangChain and LlamaIndex: the gate decides about an answer when the chain or the query ends.

LangChain's callbacks may watch an answer but not change it: a withheld one is an error, `AnswerWithheld`. LlamaIndex
hands over the response itself, whose text is replaced. An answer that is streamed has been read when its callback runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from abstain.core.text import WITHHELD_TEXT
from abstain.serving.decision import Decision
from abstain.serving.gateways.client import AsksGate, ask


class AnswerWithheld(Exception):
    """An answer is not to be shown. Its text is what to show in its place; `decision`: why."""

    def __init__(self, text: str, decision: Decision) -> None:
        super().__init__(text)
        self.decision = decision


def langchain_callback(
    gate: AsksGate, *, question: str = "input", answer: str = "answer", withheld_text: str = WITHHELD_TEXT
) -> Any:
    """A `BaseCallbackHandler` to pass in `config={"callbacks": [...]}`. It raises `AnswerWithheld` out of `invoke`.

    Args:
        question, answer: the keys of the chain's input and output; either may be a plain text instead.
    """
    from langchain_core.callbacks import BaseCallbackHandler

    class Callback(BaseCallbackHandler):  # type: ignore[misc]
        raise_error = True  # else LangChain logs what a callback raises, and shows the answer
        run_inline = True

        def __init__(self) -> None:
            self._runs: dict[UUID, UUID] = {}
            """Run -> the outermost run that it belongs to."""
            self._asked: dict[UUID, tuple[str | None, list[str]]] = {}

        def on_chain_start(
            self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
        ) -> None:
            self._follow(run_id, parent_run_id)
            if parent_run_id is None:
                self._asked[run_id] = (_of(inputs, question), [])

        def on_tool_start(
            self, serialized: Any, input_str: str, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
        ) -> None:
            self._follow(run_id, parent_run_id)

        def on_retriever_start(
            self, serialized: Any, query: str, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
        ) -> None:
            self._follow(run_id, parent_run_id)

        def on_retriever_end(self, documents: Sequence[Any], *, run_id: UUID, **_: Any) -> None:
            if asked := self._asked.get(self._runs.get(run_id, run_id)):
                asked[1].extend(document.page_content for document in documents)

        def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
            self._forget(run_id)

        def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
            if run_id not in self._asked:
                return
            asked, contexts = self._asked[run_id]
            self._forget(run_id)
            decision = ask(gate, asked, contexts, _of(outputs, answer))
            if not decision.show:
                raise AnswerWithheld(withheld_text, decision)

        def _follow(self, run_id: UUID, parent: UUID | None) -> None:
            self._runs[run_id] = self._runs.get(parent, parent) if parent else run_id

        def _forget(self, root: UUID) -> None:
            if self._asked.pop(root, None) is not None:
                self._runs = {run: its_root for run, its_root in self._runs.items() if its_root != root}

    return Callback()


def llamaindex_callback(gate: AsksGate, *, withheld_text: str = WITHHELD_TEXT) -> Any:
    """A `BaseCallbackHandler` for `CallbackManager([...])`: the text of a withheld response is replaced.

    It raises `AnswerWithheld` for a response whose text it cannot replace, such as one that is streamed.
    """
    from llama_index.core.callbacks import CBEventType
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

        def on_event_end(
            self, event_type: Any, payload: Mapping[str, Any] | None = None, event_id: str = "", **_: Any
        ) -> None:
            if event_type != CBEventType.QUERY or event_id not in self._asked:
                return
            question, response = self._asked.pop(event_id), (payload or {}).get(EventPayload.RESPONSE)
            if response is None:  # the query failed: there is no answer
                return
            text = getattr(response, "response", None)
            contexts = [node.get_content() for node in getattr(response, "source_nodes", None) or []]
            decision = ask(gate, question, contexts, text if isinstance(text, str) else None)
            if decision.show:
                return
            if not isinstance(text, str):
                raise AnswerWithheld(withheld_text, decision)
            response.response = withheld_text

        def start_trace(self, trace_id: str | None = None) -> None:
            """Nothing is traced."""

        def end_trace(self, trace_id: str | None = None, trace_map: Any = None) -> None:
            """Nothing is traced."""

    return Callback()


def _of(value: Any, key: str) -> str | None:
    """The text of a chain's input or output: itself, that of a message, or that at `key`."""
    if isinstance(value, Mapping):
        value = value.get(key)
    value = getattr(value, "content", value)
    return value if isinstance(value, str) else None
