"""Benchmark 4, the other side: lm-polygraph reads answers that already exist, on the rows our engine reads.

It runs in an environment of its own and imports nothing of Abstain:

    uv venv --python 3.11 polygraph-venv
    uv pip install --python polygraph-venv --no-deps -r benchmarks/polygraph/requirements.txt
    polygraph-venv/bin/python benchmarks/polygraph/run.py --model DIR --rows ROWS.jsonl --layer 16 \
        --dtype bfloat16 --batch 16 --out OUT.npz

Notes:

* No calculator of lm-polygraph returns log-probabilities and states of a given answer: those that return both call
  `generate`. The work is done by its own `InferCausalLMCalculator`, `get_embeddings_from_output` and `Perplexity`; the
  model adapter, which is its extension point, passes them the given answer from one teacher-forced pass.
* It receives every free advantage: token ids instead of texts, rows ordered by length, logits of the answer's positions
  only (which is all that `generate` would have computed).
* Only the extraction is timed: the model is loaded and one batch is run before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_polygraph.estimators import Perplexity
from lm_polygraph.stat_calculators import InferCausalLMCalculator
from lm_polygraph.stat_calculators.embeddings import get_embeddings_from_output
from lm_polygraph.utils.model import WhiteboxModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation import GenerateDecoderOnlyOutput


class GivenAnswers(WhiteboxModel):
    """lm-polygraph's white-box model whose `generate` reads the given answer in one forward pass."""

    def generate(self, **args: Any) -> GenerateDecoderOnlyOutput:
        answers, prompt = args["answer_ids"], args["input_ids"].shape[1]
        sequences = torch.cat([args["input_ids"], answers], dim=1)
        mask = torch.cat([args["attention_mask"], torch.ones_like(answers)], dim=1)
        with torch.no_grad():
            out = self(
                input_ids=sequences,
                attention_mask=mask,
                output_hidden_states=True,
                logits_to_keep=answers.shape[1] + 1,
                use_cache=False,
            )
        scores = out.logits[:, :-1].float().log_softmax(-1)
        # As `generate` has it: the prompt's states first, then those of one token after the other.
        widths = [prompt] + [1] * answers.shape[1]
        steps = zip(*(states.split(widths, dim=1) for states in out.hidden_states), strict=True)
        return GenerateDecoderOnlyOutput(sequences=sequences, scores=scores.unbind(1), hidden_states=tuple(steps))


def pad(rows: list[list[int]], left: bool, value: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask, both (rows, longest row)."""
    width = max(map(len, rows))
    padded = [[value] * (width - len(r)) + r if left else r + [value] * (width - len(r)) for r in rows]
    mask = [[0] * (width - len(r)) + [1] * len(r) if left else [1] * len(r) + [0] * (width - len(r)) for r in rows]
    return torch.tensor(padded), torch.tensor(mask)


def extract(model: WhiteboxModel, calculator: InferCausalLMCalculator, rows: list[dict], layer: int) -> list[tuple]:
    """Return for each row of a batch the answer's mean log-probability, and the mean and last of its states."""
    eos = model.tokenizer.eos_token_id
    prompts, mask = pad([row["prompt_ids"] for row in rows], left=True, value=eos)
    answers, _ = pad([row["answer_ids"] for row in rows], left=False, value=eos)
    inputs = {"input_ids": prompts, "attention_mask": mask, "answer_ids": answers}
    stats = calculator({"model_inputs": inputs}, None, model, max_new_tokens=answers.shape[1])
    lengths = [len(row["answer_ids"]) for row in rows]
    likelihoods = [ll[:n] for ll, n in zip(stats["greedy_log_likelihoods"], lengths, strict=True)]
    means = -Perplexity()({"greedy_log_likelihoods": likelihoods})
    _, states = get_embeddings_from_output(stats["out"], inputs, "CausalLM", level="token", hidden_layer=layer)
    tokens = [states[i, 1 : 1 + n].float().numpy() for i, n in enumerate(lengths)]  # the first is the prompt's last
    return [(mean, t.mean(axis=0), t[-1]) for mean, t in zip(means, tokens, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, kind in {"model": str, "rows": Path, "out": str, "layer": int, "batch": int}.items():
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.rows.read_text().splitlines()]
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]["prompt_ids"]) - len(rows[i]["answer_ids"]))
    batches = [order[i : i + args.batch] for i in range(0, len(order), args.batch)]

    base = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=getattr(torch, args.dtype), use_safetensors=True, trust_remote_code=False
    ).eval()
    base.generation_config.eos_token_id = None  # a given answer ends where it ends
    model = GivenAnswers(base, AutoTokenizer.from_pretrained(args.model, trust_remote_code=False), args.model)
    calculator = InferCausalLMCalculator(return_embeddings=False)
    extract(model, calculator, [rows[i] for i in batches[0]], args.layer)
    start, cpu = time.perf_counter(), time.process_time()
    results = {}
    for batch in batches:
        results |= zip(batch, extract(model, calculator, [rows[i] for i in batch], args.layer), strict=True)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu

    columns = zip(*(results[i] for i in range(len(rows))), strict=True)
    names = ("logprob", "mean", "last")
    arrays = {name: np.stack(column).astype(np.float32) for name, column in zip(names, columns, strict=True)}
    np.savez(args.out, ids=np.array([row["id"] for row in rows]), **arrays)
    tokens = sum(len(row["prompt_ids"]) + len(row["answer_ids"]) for row in rows)
    spent = {"seconds": round(seconds, 3), "cpu_seconds": round(cpu, 3)}  # the latter, where others use the machine
    print(json.dumps({**spent, "rows": len(rows), "tokens": tokens}))


if __name__ == "__main__":
    main()
