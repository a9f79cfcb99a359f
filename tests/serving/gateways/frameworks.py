"""The client's adapters inside the real NeMo Guardrails, LangChain and LlamaIndex: run by their interpreter.

The gate shows the answer `right` and withholds others; it withholds what comes without its contexts or question, too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from abstain.serving.decision import Decision
from abstain.serving.gateways.callbacks import AnswerWithheld, langchain_callback, llamaindex_callback
from abstain.serving.gateways.nemo import abstain_action

QUESTION, CHUNKS = "How long?", ["Thirty days.", "Fees are monthly."]
COLANG = """
define bot inform answer withheld
  "Ask a colleague."

define subflow check with abstain
  $outcome = execute abstain_gate
  if $outcome.is_blocked
    bot inform answer withheld
    stop
"""
RAILS = "models: []\nrails:\n  output:\n    flows:\n      - check with abstain\n"


class StandIn:
    on_unavailable = "abstain"

    def decide(self, question: str, contexts: Sequence[str], answer: str) -> Decision:
        show = (question, list(contexts), answer) == (QUESTION, CHUNKS, "right")
        return Decision("i-1", "show" if show else "abstain", 0.5, 0.5, "v1.0.0", None, show=show)


def nemo(answer: str) -> str:
    from nemoguardrails import LLMRails, RailsConfig

    rails = LLMRails(RailsConfig.from_content(COLANG, RAILS))
    rails.register_action(abstain_action(StandIn()), "abstain_gate")  # type: ignore[arg-type]
    context = {"relevant_chunks_sep": CHUNKS, "relevant_chunks": "\n".join(CHUNKS)}
    messages = [
        {"role": "context", "content": context},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": answer},
    ]
    given: Any = rails.generate(messages=messages, options={"rails": ["output"]})
    return str(given.response[0]["content"])


def langchain(answer: str) -> str:
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import RunnableLambda

    class Chunks(BaseRetriever):  # type: ignore[misc]
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Any]:
            return [Document(page_content=text) for text in CHUNKS]

    chain = RunnableLambda(lambda asked: asked["input"]) | Chunks() | RunnableLambda(lambda found: {"answer": answer})
    callback = langchain_callback(StandIn(), withheld_text="Ask a colleague.")  # type: ignore[arg-type]
    try:
        return str(chain.invoke({"input": QUESTION}, config={"callbacks": [callback]})["answer"])
    except AnswerWithheld as withheld:
        return str(withheld)


def llamaindex(answer: str) -> str:
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.llms import MockLLM
    from llama_index.core.query_engine import RetrieverQueryEngine
    from llama_index.core.response_synthesizers import BaseSynthesizer
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, TextNode

    class Chunks(BaseRetriever):  # type: ignore[misc]
        def _retrieve(self, query_bundle: Any) -> list[Any]:
            return [NodeWithScore(node=TextNode(text=text)) for text in CHUNKS]

    class Writer(BaseSynthesizer):  # type: ignore[misc]
        def _get_prompts(self) -> dict[str, Any]:
            return {}

        def _update_prompts(self, prompts: dict[str, Any]) -> None:
            """There are none."""

        def get_response(self, query_str: str, text_chunks: Sequence[str], **_: Any) -> str:
            return answer

        async def aget_response(self, query_str: str, text_chunks: Sequence[str], **_: Any) -> str:
            return answer

    callback = llamaindex_callback(StandIn(), withheld_text="Ask a colleague.")  # type: ignore[arg-type]
    manager = CallbackManager([callback])
    engine = RetrieverQueryEngine(Chunks(), Writer(MockLLM(), manager), callback_manager=manager)
    return str(engine.query(QUESTION))


if __name__ == "__main__":
    frameworks = {"nemo": nemo, "langchain": langchain, "llamaindex": llamaindex}
    json.dump({name: [run("right"), run("wrong")] for name, run in frameworks.items()}, sys.stdout)
