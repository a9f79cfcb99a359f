"""The engine on a GPU at the size of Llama 3.1 8B, with random weights: `python -m benchmarks.gpu_extract`.

Tokens a second and the share of the chip's measured matrix rate, for the probe's states at layers 16 and 32
and for all asks, against the naive loop and the arithmetic floor; and the latency table of the probe's paper (layer
32 / 16, the best 7 / 5 / 3 / 1 chunks). `--small` takes the same way with a small model, so that it runs on a CPU.
Weights and tokens are random, which costs the same; that results are right is for the tests to say.
"""

from __future__ import annotations

import argparse
import copy
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from abstain.config.settings import load_settings
from abstain.llm.engine.device import choose_dtype
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.loading import LoadedModel, ModelRef
from abstain.llm.engine.prompts import Pass, Segment
from abstain.llm.engine.requests import NLL, HiddenStates, NextTokenProbs, Request
from benchmarks import naive
from benchmarks.measure import flops, in_turns, matrix_peak, seconds

LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
}
SMALL = LLAMA_8B | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
ANSWER, CHUNK, TOP_K = 32, 500, (7, 5, 3, 1)


class Numbers:
    """A tokenizer of numbers: "17 4" is two tokens."""

    eos_token_id = 1

    def encode(self, text: str, **_: Any) -> list[int]:
        return [int(number) for number in text.split()]


def prompt(tokens: int, vocabulary: int, draw: random.Random) -> Pass:
    """A pass of `tokens` random tokens of context, a question, an answer and EOS."""
    lengths = {"context": tokens - ANSWER - 17, "question": 16, "answer": ANSWER}
    texts = {name: " ".join(str(draw.randrange(2, vocabulary)) for _ in range(n)) for name, n in lengths.items()}
    return (*(Segment(name, text) for name, text in texts.items()), Segment("eos", eos=True))


def throughput(loaded: LoadedModel, passes: Sequence[Pass], layer: int, everything: bool, batch_tokens: int) -> str:
    """One line: tokens a second, share of the peak, against naive loop and floor."""
    asks: list[Any] = [HiddenStates(layer)]
    if everything:
        asks += [NLL(("context", "question", "answer")), NextTokenProbs(("2", "3"))]
    requests = {f"{at} {n}": Request(p, ask, f"row {at}") for at, p in enumerate(passes) for n, ask in enumerate(asks)}
    engine = Engine(loaded, batch_tokens)
    list(engine.run(requests))
    work = copy.deepcopy(engine.work)
    head = 2.0 * work.vocabulary_rows * loaded.model.config.vocab_size * loaded.model.config.hidden_size
    operations = flops(loaded, work.token_layers) + head

    def one_by_one() -> None:
        naive.states(loaded, passes, layer)
        if everything:
            naive.nll(loaded, passes, ("context", "question", "answer"))
            naive.choices(loaded, passes, ("2", "3"))

    _, own, ratio = in_turns(one_by_one, lambda: list(engine.run(requests)), 3)
    peak = matrix_peak(loaded.model.dtype, loaded.model.device)
    what = "all asks" if everything else f"states, layer {layer}"
    return (
        f"| {what} | {work.forward_tokens // len(passes)} | {work.forward_tokens / own:,.0f} | "
        f"{operations / own / peak:.0%} | {ratio:.2f} | {own / (operations / peak):.2f} |"
    )


def latency(loaded: LoadedModel, layer: int, k: int, chunk: int, runs: int, draw: random.Random) -> str:
    """One line of the paper's latency table: an answered question with `k` chunks of context, in ms."""
    engine = Engine(loaded, 1 << 16)
    took = []
    for at in range(runs + 1):
        pass_ = prompt(k * chunk + ANSWER + 17, loaded.model.config.vocab_size, draw)
        request = {"a": Request(pass_, HiddenStates(layer), "a")}
        took.append(1000 * seconds(lambda request=request: list(engine.run(request))))  # type: ignore[misc]
        if at == 0:
            took.clear()  # what is only paid once
    return f"| {layer} | {k} | {np.mean(took):.1f} | {np.quantile(took, 0.99):.1f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_extract")
    parser.add_argument("--small", action="store_true", help="a small model, to be run anywhere")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--runs", type=int, default=50, help="prompts a line of the latency table")
    asked = parser.parse_args(arguments)
    if not asked.small and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device: run it on a GPU, or with --small")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    with device:
        config = LlamaConfig(**(SMALL if asked.small else LLAMA_8B))
        dtype = choose_dtype(load_settings(), device)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)
    loaded = LoadedModel(ModelRef("llama-3.1-8b-random", "0", ""), model, Numbers())
    draw = random.Random(0)
    lengths, chunk = ((100, 400), 50) if asked.small else ((1000, 4000), CHUNK)
    half, deepest = config.num_hidden_layers // 2, config.num_hidden_layers
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {asked.rows} prompts, {dtype}, random weights\n")
    print("| what | tokens a prompt | tokens/s | of the matrix peak | times the naive loop | times the floor |")
    print("| --- | --: | --: | --: | --: | --: |", flush=True)
    for tokens in lengths:
        passes = [prompt(tokens, config.vocab_size, draw) for _ in range(asked.rows)]
        for layer, everything in ((half, False), (deepest, False), (half, True)):
            print(throughput(loaded, passes, layer, everything, max(tokens, 8192)), flush=True)
    print("\n| layer | chunks | mean, ms | p99, ms |\n| --: | --: | --: | --: |", flush=True)
    for layer in (deepest, half):
        for k in TOP_K:
            print(latency(loaded, layer, k, chunk, asked.runs, draw), flush=True)


if __name__ == "__main__":
    main()
