"""`python -m abstain.sample.generate` makes the sample's answers anew: real retrieval, real greedy decoding.

Writes `answers.jsonl` (question, retrieved chunks, answer) and `answers.meta.json` (how they came about) beside
this file. Takes about ten minutes on two cores, in float32, which gives the same answers wherever it is exact.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import torch
import transformers

from abstain import paths
from abstain.files import write_atomically
from abstain.knowledge.retrieval import DenseIndex, SentenceEncoder
from abstain.llm.generate import generate_answers
from abstain.llm.layout import load_layout
from abstain.llm.loading import load, resolve
from abstain.params import load_params
from abstain.sample.handbook import SEED, build_handbook
from abstain.sample.questions import build_questions
from abstain.settings import load_settings

RETRIEVED = 3
MAX_NEW_TOKENS = 48


def main() -> None:
    params, settings = load_params(paths.PARAMS), load_settings()
    pages = build_handbook()
    questions = build_questions(pages)
    index = DenseIndex([chunk for page in pages for chunk in page.chunks()], SentenceEncoder())
    found = [[hit.chunk for hit in index.search(q.text, RETRIEVED, q.entitlements)] for q in questions]
    layout, ref = load_layout(params.llm.layout), resolve(params.llm.model, settings)
    prompts = [
        layout.render(q.text, [c.text for c in chunks], None) for q, chunks in zip(questions, found, strict=True)
    ]
    answers = generate_answers(
        load(ref, torch.device("cpu"), torch.float32),
        prompts,
        MAX_NEW_TOKENS,
        progress=lambda done: print(f"progress {done}/{len(prompts)}", flush=True),
    )
    rows = [
        {"question_id": q.question_id, "chunk_ids": [c.chunk_id for c in chunks], "answer": answer}
        for q, chunks, answer in zip(questions, found, answers, strict=True)
        if answer  # an empty answer is no interaction: there is nothing to show or to withhold
    ]
    here = Path(__file__).parent
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_atomically(here / "answers.jsonl", lines.encode())
    meta = {
        "command": "python -m abstain.sample.generate",
        "model": str(ref),
        "layout": layout.name,
        "layout_digest": layout.digest,
        "decoding": f"greedy, float32, at most {MAX_NEW_TOKENS} tokens",
        "retrieved": RETRIEVED,
        "seed": SEED,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
    }
    write_atomically(here / "answers.meta.json", (json.dumps(meta, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
