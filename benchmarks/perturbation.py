"""Cost of perturbing contexts, against the step-by-step procedure: score all, fill, score all ...

python -m benchmarks.perturbation [--contexts 32] [--tokens 15] [--timed 3] [--squad FILE]

Notes:

* The measure is the engine's count of tokens run through the model, not seconds. The step-by-step procedure reads the
  whole text to score it and all tokens to the left of a position to fill it, K times if it is iterative.
* The replacements of both sides are compared in float32 on the timed texts before any time is reported. Both sides run
  in turns.
* One run has a context for each question; the other has five questions a context, which the engine perturbs once.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from abstain.config.params import LLMParams, PerturbationParams
from abstain.config.settings import load_settings
from abstain.llm.engine.device import choose_device, choose_dtype
from abstain.llm.engine.loading import LoadedModel, find_model, load_model
from abstain.llm.engine.prompts import Segment, load_layout
from abstain.llm.engine.requests import Perturb, Request
from abstain.llm.engine.tokenization import encode_prompt
from abstain.llm.features.shard_job import row_key
from abstain.llm.perturbation.engines import CausalEngine
from abstain.llm.perturbation.loop import EncodedText, encode_text, make_allowed_mask
from abstain.llm.perturbation.text import TokenTexts, to_steps
from abstain.llm.signals.context_conditions import ContextConditions
from benchmarks.measure import seconds, time_in_turns
from benchmarks.rows import LAYOUT, Row, add_options, read_repeated, read_unrelated
from benchmarks.scaling import make_interactions, make_settings

WHERE: tuple[Literal["entropy", "random"], ...] = ("entropy", "random")
WHEN: tuple[Literal["single_shot", "iterative"], ...] = ("single_shot", "iterative")
HOW = list(itertools.product(WHERE, WHEN))


def make_requests(contexts: Sequence[str], operation: Perturb) -> dict[str, Request]:
    """Return one request for each context, as in the feature cache: equal contexts share one."""
    requests = [Request((Segment("chunk", text),), operation, "context") for text in contexts]
    return {row_key(request): request for request in requests}


def find_positions(
    loaded: LoadedModel, contexts: Sequence[str], operation: Perturb, results: Mapping[str, Any]
) -> list[list[int]]:
    """Return the replaced positions of each context, in order, from the engine's `results`."""
    positions = []
    for text in contexts:
        (key,) = make_requests([text], operation)
        spans = encode_chunk(loaded, text).spans
        positions.append([spans.index((step.segment, step.start, step.end)) for step in to_steps(results[key])])
    return positions


def count_procedure_tokens(tokens: int, positions: Sequence[int], operation: Perturb) -> int:
    """Return the tokens that the step-by-step procedure runs for a text of `tokens` tokens after a start token."""
    n_scored = (len(positions) if operation.schedule == "iterative" else 1) if operation.selection == "entropy" else 0
    return n_scored * tokens + sum(position + 1 for position in positions)


def run_procedure(
    loaded: LoadedModel, text: str, operation: Perturb, random_positions: Sequence[int]
) -> list[tuple[int, int]]:
    """Return (position, new token) of every step, one plain forward pass at a time.

    `random_positions` are the positions if they are drawn at random.
    """
    chunk, allowed = encode_chunk(loaded, text), make_allowed_mask(loaded.tokenizer, loaded.model.config.vocab_size)
    ids, remaining, steps = (
        list(chunk.ids),
        {index for index, is_replaceable in enumerate(chunk.replaceable) if is_replaceable},
        [],
    )
    at_once = operation.tokens if operation.schedule == "single_shot" else 1
    for first in range(0, min(operation.tokens, len(remaining)), at_once):
        positions = list(random_positions[first : first + at_once])
        if operation.selection == "entropy":
            likely = _log_p(loaded, ids[:-1]).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
            positions = sorted(sorted(remaining, key=lambda index: likely[index])[:at_once])
        new_tokens = []
        for position in positions:
            row = _log_p(loaded, ids[:position])[-1].masked_fill(~allowed, float("-inf"))
            row[ids[position]] = float("-inf")
            new_tokens.append(int(row.argmax()))
        for position, token in zip(positions, new_tokens, strict=True):
            ids[position] = token
            remaining.remove(position)
        steps += zip(positions, new_tokens, strict=True)
    return steps


def encode_chunk(loaded: LoadedModel, text: str) -> EncodedText:
    """Tokenize a chunk as the engine does."""
    allowed = make_allowed_mask(loaded.tokenizer, loaded.model.config.vocab_size)
    return encode_text(TokenTexts.from_tokenizer(loaded.tokenizer), (Segment("chunk", text),), allowed)


def _log_p(loaded: LoadedModel, ids: list[int]) -> Tensor:
    with torch.inference_mode():
        row = torch.tensor([[loaded.tokenizer.bos_token_id, *ids]], device=loaded.model.device)
        return loaded.model(row).logits[0].float().log_softmax(-1).cpu()


def compare_tokens(
    loaded: LoadedModel, rows: Sequence[Row], label: str, tokens: int, batch_tokens: int
) -> Iterator[str]:
    """Yield a line for each selection x schedule: tokens of the engine and of the procedure."""
    contexts = [row.contexts[0] for row in rows]
    for selection, schedule in HOW:
        operation, engine = Perturb(selection, schedule, tokens), CausalEngine(loaded, batch_tokens)
        results: dict[str, Any] = {}
        elapsed = seconds(lambda e=engine, a=operation, f=results: f.update(e.run(make_requests(contexts, a))))  # type: ignore[misc]
        engine_total, positions = engine.stats.forward_tokens, find_positions(loaded, contexts, operation, results)
        procedure_total = sum(
            count_procedure_tokens(len(encode_chunk(loaded, text).ids), text_positions, operation)
            for text, text_positions in zip(contexts, positions, strict=True)
        )
        ms_per_context = f"{1000 * elapsed / len(contexts):.0f}"
        totals = f"{engine_total:,} | {procedure_total:,} | **{procedure_total / engine_total:.2f}**"
        yield f"| {label} | {selection} | {schedule} | {totals} | {ms_per_context} |"


def compare_times(loaded: LoadedModel, rows: Sequence[Row], tokens: int, batch_tokens: int) -> Iterator[str]:
    """Yield a line for each selection x schedule: seconds of both, once their replacements are known to be equal."""
    contexts, engine = [row.contexts[0] for row in rows], CausalEngine(loaded, batch_tokens)
    for selection, schedule in HOW:
        operation = Perturb(selection, schedule, tokens)
        requests = make_requests(contexts, operation)
        results: dict[str, Any] = dict(engine.run(requests))
        positions = find_positions(loaded, contexts, operation, results)
        equal = total = 0
        for (key, *_), text, text_positions in zip(
            (make_requests([context], operation) for context in contexts), contexts, positions, strict=True
        ):
            engine_steps = list(zip(text_positions, (step.new for step in to_steps(results[key])), strict=True))
            procedure_steps = run_procedure(loaded, text, operation, text_positions)
            equal += sum(
                engine_step == procedure_step
                for engine_step, procedure_step in zip(engine_steps, procedure_steps, strict=True)
            )
            total += len(procedure_steps)
        assert equal >= 0.95 * total, (selection, schedule, equal, total)  # a tie broken otherwise changes the rest
        procedure_s, engine_s, ratio = time_in_turns(
            lambda a=operation, p=positions: [run_procedure(loaded, t, a, o) for t, o in zip(contexts, p, strict=True)],  # type: ignore[misc]
            lambda r=requests: list(engine.run(r)),  # type: ignore[misc]
            1,
        )
        times = f"{procedure_s:.1f} | {engine_s:.1f} | **{ratio:.1f}**"
        yield f"| {selection} | {schedule} | {equal} of {total} | {times} |"


def compare_regressor_features(
    folder: Path, model: str, loaded: LoadedModel, rows: Sequence[Row], label: str, tokens: int, batch_tokens: int
) -> str:
    """Compare all features of the regressors: contexts perturbed, NLLs under B_c, N_c and P_c."""
    llm = LLMParams(model=model, layout=LAYOUT, layer=1, site="residual", too_long="refuse", includes_eos=True)
    how: dict[str, Any] = {"selection": "entropy", "schedule": "iterative", "tokens": tokens, "n_copies": 1}
    params = PerturbationParams(model=None, **how, seed=0)
    conditions = ContextConditions(llm, params, make_settings(folder))
    answers, stats = make_interactions(rows), []
    elapsed = seconds(lambda: stats.append(conditions.compute_missing(answers)))
    ((perturbing, reading),) = stats
    operation, (copy,) = conditions.perturber.operations[0], conditions.perturber.perturb(answers)
    contexts = [row.contexts[0] for row in rows]
    results = dict(CausalEngine(loaded, batch_tokens).run(make_requests(contexts, operation)))
    positions = find_positions(loaded, contexts, operation, results)
    procedure_total = 0
    for row, perturbed, text_positions in zip(answers, copy, positions, strict=True):
        texts = [context.text for context in row.contexts]
        procedure_total += count_procedure_tokens(len(encode_chunk(loaded, texts[0]).ids), text_positions, operation)
        for texts_read in (texts, [], [context.text for context in perturbed.contexts]):
            procedure_total += len(
                encode_prompt(loaded.tokenizer, load_layout(LAYOUT).render(row.question, texts_read, row.answer)).ids
            )
    engine_total = perturbing.forward_tokens + reading.forward_tokens
    totals = f"{engine_total:,} | {procedure_total:,} | **{procedure_total / engine_total:.2f}**"
    return f"| {label} | {len(rows)} | {totals} | {1000 * elapsed / len(rows):.0f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.perturbation")
    parser.add_argument("--contexts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=15, help="K")
    parser.add_argument("--timed", type=int, default=3, help="contexts that the procedure really perturbs")
    add_options(parser)
    options = parser.parse_args(arguments)
    settings = load_settings()
    device, batch_tokens = choose_device(settings), settings.batch_tokens
    dtypes = choose_dtype(settings, device), torch.float32
    half, single = (load_model(find_model(options.model, settings), device, dtype) for dtype in dtypes)
    distinct = [
        Row(row.contexts[:1], row.question, row.answer) for row in read_unrelated(options.squad, options.contexts)
    ]
    shared = read_repeated(options.squad, options.contexts)
    kinds = ("one question a context", distinct), ("five questions a context", shared)
    print(f"{options.model}, K = {options.tokens}, {options.contexts} questions, {torch.get_num_threads()} threads\n")
    print("| | selection | schedule | tokens run | step by step | times fewer | ms a question |")
    print("| --- | --- | --- | --: | --: | --: | --: |", flush=True)
    for label, rows in kinds:
        for line in compare_tokens(half, rows, label, options.tokens, batch_tokens):
            print(line, flush=True)
    print("\n| selection | schedule | equal, float32 | step by step, s | engine, s | times as fast |")
    print("| --- | --- | --- | --: | --: | --: |", flush=True)
    for line in compare_times(single, distinct[: options.timed], options.tokens, batch_tokens):
        print(line, flush=True)
    print(
        "\n| perturbed, and NLLs under B_c, N_c, P_c | questions | tokens run | step by step | times fewer | ms each |"
    )
    print("| --- | --: | --: | --: | --: | --: |", flush=True)
    with tempfile.TemporaryDirectory() as name:
        for index, (label, rows) in enumerate(kinds):
            print(
                compare_regressor_features(
                    Path(name) / str(index), options.model, half, rows, label, options.tokens, batch_tokens
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
