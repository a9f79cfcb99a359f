"""Ways of calling LangChain, LlamaIndex and NeMo Guardrails, with a gate that withholds everything: run by their python.

Prints what each way gives to its reader: it must not be `WRONG`, but for the controls, whose gate shows it.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever as LangChainRetriever
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

WRONG, QUESTION, CHUNK = "the wrong answer", "q", "Thirty days."
ASKED = {"input": QUESTION}
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
Way = Callable[[], Any]
WITHHELD = Decision("i-1", "abstain", 0.1, 0.5, "v1.0.0", None)


class Gate:
    on_unavailable = "abstain"

    def __init__(self, decide: Callable[..., Decision] = lambda *_: WITHHELD) -> None:
        self.decide = decide


def show(*contexts: str) -> Gate:
    """A gate that shows the answer to the question with these contexts alone."""
    shown = Decision("i-1", "show", 0.9, 0.5, "v1.0.0", None, show=True)
    right = (QUESTION, list(contexts), WRONG)
    return Gate(lambda question, given, answer: shown if (question, list(given), answer) == right else WITHHELD)


def read(way: Way) -> str:
    """What a reader gets."""
    try:
        return str(way())
    except AnswerWithheld as withheld:
        return str(withheld)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# LangChain


class LangChainChunks(LangChainRetriever):  # type: ignore[misc]
    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Any]:
        return [Document(page_content=CHUNK)]


def bind(gate: Any = None) -> dict[str, Any]:
    return {"callbacks": [langchain_callback(gate or Gate())]}


def make_model(**more: Any) -> Any:
    return FakeListChatModel(responses=[WRONG] * 10, **more)


def make_rag(writer: Any = None) -> Any:
    return ChatPromptTemplate.from_messages([("user", "{input}")]) | (writer or make_model()) | StrOutputParser()


def give(output: Any) -> Any:
    return RunnableLambda(lambda _: output)


def invoke(chain: Any, gate: Any = None) -> Way:
    return lambda: chain.invoke(ASKED, config=bind(gate))


def invoke_bound(make_chain: Callable[[Any], Any], gate: Any = None) -> Way:
    """Invoke, without a callback, what is made of a chain that has one."""
    return lambda: make_chain(make_rag().with_config(**bind(gate))).invoke(ASKED)


def stream_until_error(chain: Any) -> str:
    text = ""
    try:
        for piece in chain.stream(ASKED, config=bind()):
            text += piece
    except AnswerWithheld:
        pass
    return text


async def read_events() -> str:
    events = make_rag().astream_events(ASKED, version="v2", config=bind())
    return "".join([str(event["data"]) async for event in events])


def invoke_in_threads(chain: Any) -> list[str]:
    config = bind()
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda _: read(lambda: chain.invoke(ASKED, config=config)), range(8)))


@tool
def say(text: str) -> str:
    """Say it."""
    return WRONG


def read_kept_runs() -> str:
    """What a callback keeps of runs that it refused, as an answer: it must keep none."""
    callback = bind()["callbacks"][0]
    for run in (make_model().invoke, lambda _, config: say.invoke({"text": "q"}, config=config)):
        read(lambda run=run: run("q", config={"callbacks": [callback]}))  # type: ignore[misc]
    return WRONG if callback._chains else "none"


LANGCHAIN: dict[str, Way] = {
    "invoke, a dict": invoke(give({"answer": WRONG})),
    "invoke, a text": invoke(make_rag()),
    "ainvoke": lambda: asyncio.run(make_rag().ainvoke(ASKED, config=bind())),
    "batch": lambda: make_rag().batch([ASKED] * 2, config=bind()),
    "batch, errors returned": lambda: make_rag().batch([ASKED] * 2, config=bind(), return_exceptions=True),
    "stream": lambda: "".join(make_rag().stream(ASKED, config=bind())),
    "stream, read until the error": lambda: stream_until_error(make_rag()),
    "astream_events": lambda: asyncio.run(read_events()),
    "model.invoke": lambda: make_model().invoke("q", config=bind()),
    "model.ainvoke": lambda: asyncio.run(make_model().ainvoke("q", config=bind())),
    "model.stream": lambda: stream_until_error(RunnableLambda(lambda _: "q") | make_model()),
    "tool.invoke": lambda: say.invoke({"text": "q"}, config=bind()),
    "bound to a chain": invoke_bound(lambda chain: chain),
    "bound to a chain in a chain": invoke_bound(lambda chain: give(ASKED) | chain),
    "bound to a chain in a parallel one": invoke_bound(lambda chain: RunnableParallel(answer=chain)),
    "bound to a chain in a function": invoke_bound(lambda chain: RunnableLambda(lambda x: chain.invoke(x))),
    "bound to the model": lambda: make_rag(make_model(**bind())).invoke(ASKED),
    "fallbacks around it": invoke(make_rag().with_fallbacks([give(WRONG)])),
    "retries around it": invoke(make_rag().with_retry(stop_after_attempt=2)),
    "another key": invoke(give({"result": WRONG})),
    "parts of a message": invoke(give(AIMessage(content=[{"type": "text", "text": WRONG}]))),
    "a list of texts": invoke(give([WRONG])),
    "no answer, a text beside it": invoke(give({"answer": None, "text": WRONG})),
    "threads with one callback": lambda: invoke_in_threads(make_rag()),
    "runs that are kept": read_kept_runs,
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
        return [NodeWithScore(node=TextNode(text=CHUNK), score=1.0)]


class Custom(CustomQueryEngine):  # type: ignore[misc]
    def custom_query(self, query_str: str) -> str:
        return WRONG


def set_callback(gate: Any = None) -> CallbackManager:
    Settings.llm, Settings.embed_model = Writer(), MockEmbedding(embed_dim=3)
    Settings.callback_manager = CallbackManager([llamaindex_callback(gate or Gate())])
    return Settings.callback_manager


def make_engine(gate: Any = None, **more: Any) -> Any:
    manager = set_callback(gate)
    return RetrieverQueryEngine.from_args(
        Chunks(callback_manager=manager), llm=Writer(callback_manager=manager), **more
    )


def after_setting(way: Way) -> Way:
    return lambda: (set_callback(), way())[1]


def set_after_the_engine() -> str:
    Settings.callback_manager = CallbackManager([])
    Settings.llm = Writer()
    engine = RetrieverQueryEngine.from_args(Chunks(), llm=Writer())
    set_callback()
    return str(engine.query("q"))


def replaced_after_the_engine() -> str:
    engine = make_engine()
    Settings.callback_manager = CallbackManager([])
    return str(engine.query("q"))


LLAMAINDEX: dict[str, Way] = {
    "query": lambda: make_engine().query("q"),
    "aquery": lambda: asyncio.run(make_engine().aquery("q")),
    "query, streamed": lambda: "".join(make_engine(streaming=True).query("q").response_gen),
    "query, all fields": lambda: make_engine().query("q").__dict__,
    "condense question": lambda: CondenseQuestionChatEngine.from_defaults(make_engine(), llm=Writer()).chat("q"),
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

CHUNKS = {"role": "context", "content": {"relevant_chunks_sep": [CHUNK], "relevant_chunks": CHUNK}}


async def do_nothing(context: Any = None) -> None:
    """An action without an outcome."""


def rail(action: Any = None, *, answer: Any = WRONG, chunks: Any = (CHUNKS,), user: str = "q", **options: Any) -> Way:
    """Ask the rails about an answer; `action`: a gate, an action, or None for no action."""

    def generate() -> Any:
        rails = LLMRails(RailsConfig.from_content(COLANG, RAILS))
        if action is not None:
            rails.register_action(action if callable(action) else abstain_action(action), "abstain_gate")
        asked = [{"role": "user", "content": user}] if user else []
        messages = [*chunks, *asked, {"role": "assistant", "content": answer}]
        response: Any = rails.generate(messages=messages, options={"rails": ["output"], **options}).response
        return response[0]["content"] if isinstance(response, list) else response

    return generate


NEMO: dict[str, Way] = {
    "withheld": rail(Gate()),
    "the gate fails": rail(Gate(lambda *_: 1 / 0)),
    "the gate is slow": rail(Gate(lambda *_: time.sleep(1) or WITHHELD)),
    "no action": rail(),
    "an action without an outcome": rail(do_nothing),
    "no chunks": rail(Gate(), chunks=()),
    "no question": rail(Gate(), user=""),
    "a list": rail(Gate(), answer=[{"type": "text", "text": WRONG}]),
    "a dict": rail(Gate(), answer={"text": WRONG}),
    "blank": rail(Gate(), answer=" "),
    "all rails": rail(Gate(), rails=["input", "output"]),
}

CONTROLS: dict[str, Way] = {
    "a chain": invoke(make_rag(), show()),
    "a chain in a chain": invoke_bound(lambda chain: give(ASKED) | chain, show()),
    "a chain with a retriever": invoke(
        RunnableLambda(lambda asked: asked["input"]) | LangChainChunks() | give({"answer": WRONG}), show(CHUNK)
    ),
    "a query": lambda: make_engine(show(CHUNK)).query("q"),
    "a rail": rail(show(CHUNK)),
}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    tables = {"LangChain": LANGCHAIN, "LlamaIndex": LLAMAINDEX, "NeMo Guardrails": NEMO, "controls": CONTROLS}
    json.dump({name: {way: read(call) for way, call in ways.items()} for name, ways in tables.items()}, sys.stdout)
