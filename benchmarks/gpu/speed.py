"""Throughput, latency and memory of the engine at the size of Llama 3.1 8B, with random weights."""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from abstain.llm.engine.engine import Engine
from abstain.llm.engine.loading import LoadedModel
from abstain.llm.engine.prompts import PromptSegments
from abstain.llm.engine.requests import NLL, HiddenStates, NextTokenProbs, Operation, Request
from benchmarks import naive
from benchmarks.gpu.models import random_prompt
from benchmarks.measure import flops, matrix_peak, seconds, time_in_turns

BATCH_TOKENS = 8192
QUESTION_AND_ANSWER = 16 + 32 + 1
CHUNKS = (7, 5, 3, 1)
SCORED = ("context", "question", "answer")
CHOICES = ("2", "3")


def measure_throughput(loaded: LoadedModel, lengths: Sequence[int], count: int, repeats: int) -> Iterator[str]:
    """Yield the lines of a table: states of the middle and the last layer, and all requests, for `count` prompts.

    Args:
        loaded: The model.
        lengths: Tokens of a prompt; the table has a row for each length and kind of request.
        count: Prompts in a run; they share nothing.
        repeats: Runs of engine and naive loop in turns; the table shows their medians.

    Yields:
        Lines of Markdown.
    """
    config = loaded.model.config
    peak = matrix_peak(loaded.model.dtype, loaded.model.device)
    yield f"Matrix peak, measured: {peak / 1e12:,.1f} TFLOP/s\n"
    yield "| requests | tokens a prompt | tokens/s | of the matrix peak | times the naive loop |"
    yield "| --- | --: | --: | --: | --: |"
    draw = random.Random(0)
    middle, deepest = config.num_hidden_layers // 2, config.num_hidden_layers
    for length in lengths:
        context = length - QUESTION_AND_ANSWER
        prompts = [random_prompt(config.vocab_size, draw, context=context) for _ in range(count)]
        for layer, everything in ((middle, False), (deepest, False), (middle, True)):
            operations: list[Operation] = [HiddenStates(layer)]
            operations += [NLL(SCORED), NextTokenProbs(CHOICES)] if everything else []
            requests = {
                f"{i} {n}": Request(p, operation, f"{i}")
                for i, p in enumerate(prompts)
                for n, operation in enumerate(operations)
            }
            engine = Engine(loaded, max(length, BATCH_TOKENS))
            _run(engine, requests)
            work = copy.deepcopy(engine.stats)
            projection = 2.0 * work.vocabulary_rows * config.vocab_size * config.hidden_size
            n_flops = flops(loaded, work.layer_tokens.total()) + projection

            def run_naively(
                prompts: list[PromptSegments] = prompts, layer: int = layer, everything: bool = everything
            ) -> None:
                naive.states(loaded, prompts, layer)
                if everything:
                    naive.nll(loaded, prompts, SCORED)
                    naive.choices(loaded, prompts, CHOICES)

            _, elapsed, ratio = time_in_turns(run_naively, partial(_run, engine, requests), repeats)
            label = "states, NLLs, choices" if everything else f"states of layer {layer}"
            share = n_flops / elapsed / peak
            yield f"| {label} | {length:,} | {work.forward_tokens / elapsed:,.0f} | {share:.0%} | {ratio:.2f} |"


def measure_latency(loaded: LoadedModel, chunk: int, runs: int) -> Iterator[str]:
    """Yield the lines of the probe paper's latency table: one answered question, its best chunks, two layers.

    Args:
        loaded: The model.
        chunk: Tokens of a chunk.
        runs: Answers behind mean and P99, each with its own prompt.

    Yields:
        Lines of Markdown.
    """
    yield "| layer | chunks | tokens | mean, ms | P99, ms |"
    yield "| --: | --: | --: | --: | --: |"
    draw, config = random.Random(1), loaded.model.config
    for layer in (config.num_hidden_layers, config.num_hidden_layers // 2):
        for chunks in CHUNKS:
            engine = Engine(loaded, chunks * chunk + QUESTION_AND_ANSWER)
            milliseconds = []
            for _ in range(runs + 1):
                prompt = random_prompt(config.vocab_size, draw, context=chunks * chunk)
                request = {"answer": Request(prompt, HiddenStates(layer), "answer")}
                milliseconds.append(1000 * seconds(partial(_run, engine, request)))
            timed = milliseconds[1:]  # the first one also pays what is paid once
            tokens = chunks * chunk + QUESTION_AND_ANSWER
            yield f"| {layer} | {chunks} | {tokens:,} | {np.mean(timed):.1f} | {np.quantile(timed, 0.99):.1f} |"


def measure_memory(loaded: LoadedModel, length: int, max_tokens: int) -> Iterator[str]:
    """Yield the lines of a table: peak of allocated memory by tokens of a batch, doubled until it does not fit.

    Args:
        loaded: The model, on CUDA; on other devices memory is unknown and the column is empty.
        length: Tokens of a prompt.
        max_tokens: The largest batch that is tried, in tokens.

    Yields:
        Lines of Markdown.
    """
    yield "| tokens of a batch | peak, GiB | beyond the weights, GiB | tokens/s |"
    yield "| --: | --: | --: | --: |"
    device, config = loaded.model.device, loaded.model.config
    on_cuda = device.type == "cuda"
    weights = sum(parameter.numel() * parameter.element_size() for parameter in loaded.model.parameters())
    draw, tokens = random.Random(2), length
    while tokens <= max_tokens:
        context = length - QUESTION_AND_ANSWER
        prompts = [random_prompt(config.vocab_size, draw, context=context) for _ in range(tokens // length)]
        operation = HiddenStates(config.num_hidden_layers // 2)
        requests = {str(i): Request(prompt, operation, str(i)) for i, prompt in enumerate(prompts)}
        engine = Engine(loaded, tokens)
        gc.collect()
        if on_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            _run(engine, requests)
            peak = torch.cuda.max_memory_allocated() if on_cuda else weights
            elapsed = seconds(partial(_run, engine, requests))
        except torch.OutOfMemoryError:
            yield f"| {tokens:,} | does not fit | | |"
            return
        memory = f"{peak / 2**30:.1f} | {(peak - weights) / 2**30:.1f}" if on_cuda else " | "
        yield f"| {tokens:,} | {memory} | {tokens / elapsed:,.0f} |"
        tokens *= 2


def _run(engine: Engine, requests: Mapping[str, Request]) -> None:
    for _ in engine.run(requests):
        pass
