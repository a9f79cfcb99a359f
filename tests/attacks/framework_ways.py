"""Ways of calling LangChain, LlamaIndex and NeMo Guardrails, with a gate that withholds everything: run by their python.

Prints what each way gives to its reader: it must not be `WRONG`, but for the controls, whose gate shows it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import tool
from llama_index.core import Settings
from llama_index.core.callbacks import CallbackManager
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from nemoguardrails import LLMRails, RailsConfig

from abstain.serving.decision import Decision
from abstain.serving.gateways.callbacks import AnswerWithheld, langchain_callback, llamaindex_callback
from abstain.serving.gateways.nemo import abstain_action
from tests.serving.gateways.frameworks import COLANG, RAILS

WRONG, ASKED = "the wrong answer", {"input": "q"}


class Withholding:
    on_unavailable = "abstain"

    def decide(self, *_: Any) -> Decision:
        return Decision("i-1", "abstain", 0.1, 0.5, "v1.0.0", None)


class Showing(Withholding):
    def decide(self, *_: Any) -> Decision:
        return Decision("i-1", "show", 0.9, 0.5, "v1.0.0", None, show=True)


def given(show: Callable[[], Any]) -> str:
    """What a reader gets."""
    try:
        return str(show())
    except AnswerWithheld as withheld:
        return str(withheld)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# LangChain


def bound(gate: Any = Withholding) -> dict[str, Any]:
    return {"callbacks": [langchain_callback(gate())]}


def model(**more: Any) -> Any:
    return FakeListChatModel(responses=[WRONG] * 10, **more)


def rag(writer: Any = None) -> Any:
    return ChatPromptTemplate.from_messages([("user", "{input}")]) | (writer or model()) | StrOutputParser()


def giving(output: Any) -> Any:
    return RunnableLambda(lambda _: output)


def read_until_the_end(chain: Any) -> str:
    read = ""
    try:
        for piece in chain.stream(ASKED, config=bound()):
            read += piece
    except AnswerWithheld:
        pass
    return read


async def events() -> str:
    found = rag().astream_events(ASKED, version="v2", config=bound())
    return "".join([str(event["data"]) async for event in found])


def at_once(chain: Any) -> list[str]:
    config = bound()
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda _: given(lambda: chain.invoke(ASKED, config=config)), range(8)))


@tool
def say(text: str) -> str:
    """Say it."""
    return WRONG


def kept_runs() -> str:
    """What a callback keeps of runs that it refused, as an answer: it must keep none."""
    callback = bound()["callbacks"][0]
    for run in (model().invoke, lambda _, config: say.invoke({"text": "q"}, config=config)):
        given(lambda run=run: run("q", config={"callbacks": [callback]}))  # type: ignore[misc]
    return WRONG if callback._chains else "none"


LANGCHAIN: dict[str, Callable[[], Any]] = {
    "invoke, a dict": lambda: giving({"answer": WRONG}).invoke(ASKED, config=bound()),
    "invoke, a text": lambda: rag().invoke(ASKED, config=bound()),
    "ainvoke": lambda: asyncio.run(rag().ainvoke(ASKED, config=bound())),
    "batch": lambda: rag().batch([ASKED] * 2, config=bound()),
    "batch, errors returned": lambda: rag().batch([ASKED] * 2, config=bound(), return_exceptions=True),
    "stream": lambda: "".join(rag().stream(ASKED, config=bound())),
    "stream, read until the error": lambda: read_until_the_end(rag()),
    "astream_events": lambda: asyncio.run(events()),
    "model.invoke": lambda: model().invoke("q", config=bound()),
    "model.ainvoke": lambda: asyncio.run(model().ainvoke("q", config=bound())),
    "model.stream": lambda: read_until_the_end(RunnableLambda(lambda _: "q") | model()),
    "tool.invoke": lambda: say.invoke({"text": "q"}, config=bound()),
    "bound to a chain": lambda: rag().with_config(**bound()).invoke(ASKED),
    "bound to a chain in a chain": lambda: (giving(ASKED) | rag().with_config(**bound())).invoke(ASKED),
    "bound to a chain in a parallel one": lambda: RunnableParallel(answer=rag().with_config(**bound())).invoke(ASKED),
    "bound to a chain in a function": lambda: RunnableLambda(lambda x: rag().with_config(**bound()).invoke(x)).invoke(
        ASKED
    ),
    "bound to the model": lambda: rag(model(**bound())).invoke(ASKED),
    "fallbacks around it": lambda: rag().with_fallbacks([giving(WRONG)]).invoke(ASKED, config=bound()),
    "retries around it": lambda: rag().with_retry(stop_after_attempt=2).invoke(ASKED, config=bound()),
    "another key": lambda: giving({"result": WRONG}).invoke(ASKED, config=bound()),
    "parts of a message": lambda: giving(AIMessage(content=[{"type": "text", "text": WRONG}])).invoke(
        ASKED, config=bound()
    ),
    "a list of texts": lambda: giving([WRONG]).invoke(ASKED, config=bound()),
    "no answer, a text beside it": lambda: giving({"answer": None, "text": WRONG}).invoke(ASKED, config=bound()),
    "threads with one callback": lambda: at_once(rag()),
    "runs that are kept": kept_runs,
}


# LlamaIndex


class Writer(CustomLLM):  # type: ignore[misc]
    @property
    def metadata(self) -> Any:
        return LLMMetadata()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> Any:
        return CompletionResponse(text=WRONG)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **_: Any) -> Any:
        yield CompletionResponse(text=WRONG, delta=WRONG)


class Chunks(BaseRetriever):  # type: ignore[misc]
    def _retrieve(self, query_bundle: Any) -> list[Any]:
        return [NodeWithScore(node=TextNode(text="chunk"), score=1.0)]


class Custom(CustomQueryEngine):  # type: ignore[misc]
    def custom_query(self, query_str: str) -> str:
        return WRONG


def set_callback(gate: Any = Withholding) -> CallbackManager:
    Settings.llm, Settings.embed_model = Writer(), MockEmbedding(embed_dim=3)
    Settings.callback_manager = CallbackManager([llamaindex_callback(gate())])
    return Settings.callback_manager


def engine(gate: Any = Withholding, **more: Any) -> Any:
    manager = set_callback(gate)
    return RetrieverQueryEngine.from_args(
        Chunks(callback_manager=manager), llm=Writer(callback_manager=manager), **more
    )


def after_setting(make: Callable[[], Any]) -> Callable[[], Any]:
    def show() -> Any:
        set_callback()
        return make()

    return show


def set_after_the_engine() -> str:
    Settings.callback_manager = CallbackManager([])
    Settings.llm = Writer()
    made = RetrieverQueryEngine.from_args(Chunks(), llm=Writer())
    set_callback()
    return str(made.query("q"))


def replaced_after_the_engine() -> str:
    made = engine()
    Settings.callback_manager = CallbackManager([])
    return str(made.query("q"))


LLAMAINDEX: dict[str, Callable[[], Any]] = {
    "query": lambda: engine().query("q"),
    "aquery": lambda: asyncio.run(engine().aquery("q")),
    "query, streamed": lambda: "".join(engine(streaming=True).query("q").response_gen),
    "query, all fields": lambda: engine().query("q").__dict__,
    "condense question": lambda: CondenseQuestionChatEngine.from_defaults(engine(), llm=Writer()).chat("q"),
    "context": after_setting(lambda: ContextChatEngine.from_defaults(Chunks(), llm=Writer()).chat("q")),
    "simple": after_setting(lambda: SimpleChatEngine.from_defaults(llm=Writer()).chat("q")),
    "simple, streamed": after_setting(
        lambda: "".join(SimpleChatEngine.from_defaults(llm=Writer()).stream_chat("q").response_gen)
    ),
    "condense and context": after_setting(
        lambda: CondensePlusContextChatEngine.from_defaults(Chunks(), llm=Writer()).chat("q")
    ),
    "synthesizer alone": after_setting(
        lambda: get_response_synthesizer(llm=Writer()).synthesize("q", nodes=Chunks()._retrieve(None))
    ),
    "the model of the settings": after_setting(lambda: Settings.llm.complete("q")),
    "a model without the callback": after_setting(lambda: Writer().complete("q")),
    "CustomQueryEngine": after_setting(lambda: Custom().query("q")),
    "callback set after the engine": set_after_the_engine,
    "callback replaced after the engine": replaced_after_the_engine,
}


# NeMo Guardrails


class Failing(Withholding):
    def decide(self, *_: Any) -> Decision:
        raise RuntimeError("a defect")


class Slow(Withholding):
    def decide(self, *_: Any) -> Decision:
        time.sleep(1)
        return super().decide()


async def nothing(context: Any = None) -> None:
    """An action without an outcome."""


def railed(gate: Any = None, *, answer: Any = WRONG, more: Any = (), user: str | None = "q", **options: Any) -> Any:
    """What the rails give for an answer; `gate`: one, an action, or None for no action."""
    rails = LLMRails(RailsConfig.from_content(COLANG, RAILS))
    if gate is not None:
        rails.register_action(gate if callable(gate) else abstain_action(gate), "abstain_gate")
    asked = [{"role": "user", "content": user}] if user else []
    messages = [*more, *asked, {"role": "assistant", "content": answer}]
    found: Any = rails.generate(messages=messages, options={"rails": ["output"], **options})
    return found.response[0]["content"] if isinstance(found.response, list) else found


CHUNKS = {"role": "context", "content": {"relevant_chunks_sep": ["Thirty days."], "relevant_chunks": "Thirty days."}}
NEMO: dict[str, Callable[[], Any]] = {
    "withheld": lambda: railed(Withholding(), more=[CHUNKS]),
    "the gate fails": lambda: railed(Failing(), more=[CHUNKS]),
    "the gate is slow": lambda: railed(Slow(), more=[CHUNKS]),
    "no action": lambda: railed(more=[CHUNKS]),
    "an action without an outcome": lambda: railed(nothing, more=[CHUNKS]),
    "no chunks": lambda: railed(Withholding()),
    "no question": lambda: railed(Withholding(), more=[CHUNKS], user=None),
    "a list": lambda: railed(Withholding(), more=[CHUNKS], answer=[{"type": "text", "text": WRONG}]),
    "a dict": lambda: railed(Withholding(), more=[CHUNKS], answer={"text": WRONG}),
    "blank": lambda: railed(Withholding(), more=[CHUNKS], answer=" "),
    "all rails": lambda: railed(Withholding(), more=[CHUNKS], rails=["input", "output"]),
}

CONTROLS: dict[str, Callable[[], Any]] = {
    "a chain": lambda: rag().invoke(ASKED, config=bound(Showing)),
    "a chain in a chain": lambda: (giving(ASKED) | rag().with_config(**bound(Showing))).invoke(ASKED),
    "a query": lambda: engine(Showing).query("q"),
    "a rail": lambda: railed(Showing(), more=[CHUNKS]),
}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    ways = {"LangChain": LANGCHAIN, "LlamaIndex": LLAMAINDEX, "NeMo Guardrails": NEMO, "controls": CONTROLS}
    shown = {name: {way: given(show) for way, show in of.items()} for name, of in ways.items()}
    json.dump(shown, sys.stdout)
