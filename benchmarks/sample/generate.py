"""`python -m benchmarks.sample.generate`: answer the sample's questions with the embedded model.

Writes `answers.jsonl` (question id, ids of the retrieved chunks, answer) and `answers.meta.json` (how they were
generated) beside this module. Both are committed, so that `write_sample` needs no model. The answers belong to one
handbook and one list of questions: after a change of either, run this again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from abstain.config.params import load_params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.contracts import Chunk
from abstain.core.files import write_atomically
from abstain.data.labels.near_duplicates import mask_names_and_numbers
from abstain.knowledge.retrieval.embeddings import Embeddings
from abstain.knowledge.retrieval.encoder import EMBEDDED_ENCODER, SentenceEncoder
from abstain.knowledge.retrieval.faiss_index import FaissIndex
from abstain.knowledge.retrieval.retriever import Retriever
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.loading import LoadedModel, find_model, load_model
from abstain.llm.engine.prompts import PromptSegments, load_layout
from abstain.llm.engine.requests import Generate, Request
from abstain.llm.engine.tokenization import encode_prompt
from benchmarks.sample.handbook import SEED, Page, build_handbook
from benchmarks.sample.questions import SampleQuestion, build_questions, source_digest

K = 3
MAX_GAP = 0.08  # cosine similarity that a chunk may lie below the best one
MAX_NEW_TOKENS = 48
FOLDER = Path(__file__).parent
ANSWERS = "answers.jsonl"
META = "answers.meta.json"


def retrieve(pages: Sequence[Page], questions: Sequence[SampleQuestion]) -> list[list[Chunk]]:
    """Return for each question at most `K` chunks that its user may read, best first."""
    retriever = Retriever(FaissIndex(), Embeddings(SentenceEncoder()))
    retriever.sync(chunk for page in pages for chunk in page.chunks())
    hits = (retriever.search(question.text, K, question.entitlements, MAX_GAP) for question in questions)
    return [[hit.chunk for hit in question_hits] for question_hits in hits]


def generate_answers(
    loaded: LoadedModel,
    prompts: Sequence[PromptSegments],
    batch_tokens: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[str]:
    """Return the base model's greedy answer to each prompt; `progress` is called with the number of answers."""
    requests = {str(n): Request(prompt, Generate(MAX_NEW_TOKENS), f"prompt {n}") for n, prompt in enumerate(prompts)}
    answers = [""] * len(prompts)
    for done, (key, generated) in enumerate(Engine(loaded, batch_tokens).run(requests), start=1):
        assert isinstance(generated, list)
        answers[int(key)] = generated[0].text
        progress(done)
    return answers


def find_unshared(questions: Sequence[SampleQuestion], answers: Sequence[str]) -> list[bool]:
    """Return whether each answer is kept: not empty, and not in words of an earlier topic but for names and numbers."""
    topics: dict[str, str] = {}
    is_kept = []
    for question, answer in zip(questions, answers, strict=True):
        topic = topics.setdefault(mask_names_and_numbers(answer, question.fact.product), question.fact.topic.key)
        is_kept.append(bool(answer) and topic == question.fact.topic.key)
    return is_kept


def main() -> None:
    started = time.monotonic()
    pages = build_handbook()
    questions = build_questions(pages)
    contexts = retrieve(pages, questions)
    params, settings = load_params(paths.PARAMS), load_settings()
    layout = load_layout(params.llm.layout)
    loaded = load_model(find_model(params.llm.model, settings), torch.device("cpu"), torch.float32)
    prompts = [
        layout.render(question.text, [chunk.text for chunk in chunks], answer=None)
        for question, chunks in zip(questions, contexts, strict=True)
    ]
    tokens = [len(encode_prompt(loaded.tokenizer, prompt).ids) for prompt in prompts]
    answers = generate_answers(
        loaded,
        prompts,
        settings.batch_tokens,
        lambda done: print(f"{done}/{len(prompts)} after {time.monotonic() - started:.0f} s", flush=True),
    )
    lines = [
        json.dumps({"question_id": q.question_id, "chunk_ids": [c.chunk_id for c in chunks], "answer": text})
        for q, chunks, text, is_kept in zip(
            questions, contexts, answers, find_unshared(questions, answers), strict=True
        )
        if is_kept
    ]
    write_atomically(FOLDER / ANSWERS, ("\n".join(lines) + "\n").encode())
    meta = {
        "command": "python -m benchmarks.sample.generate",
        "date": datetime.now(UTC).date().isoformat(),
        "model": str(loaded.ref),
        "dtype": "float32",
        "decoding": f"greedy, at most {MAX_NEW_TOKENS} new tokens",
        "layout": layout.name,
        "layout_digest": layout.digest,
        "encoder": EMBEDDED_ENCODER,
        "k": K,
        "max_gap": MAX_GAP,
        "seed": SEED,
        "source_digest": source_digest(pages, questions),
        "questions": len(questions),
        "answers": len(lines),
        "mean_prompt_tokens": round(sum(tokens) / len(tokens), 1),
        "seconds": round(time.monotonic() - started),
        "versions": {name: version(name) for name in ("torch", "transformers", "sentence-transformers")},
    }
    write_atomically(FOLDER / META, (json.dumps(meta, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
