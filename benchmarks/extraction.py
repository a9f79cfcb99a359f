"""What reading a base model costs, against the naive loop and lm-polygraph: `make bench`.

python -m benchmarks.extraction [--rows 64] [--repeats 3] [--squad FILE] [--polygraph PYTHON]

Notes:

* The figures are ratios, not seconds: both sides run in turns in one process, on the same rows, in the same dtype, and
  the median ratio of neighbouring runs is reported. A busy machine slows both sides alike.
* The states or log-probabilities of both sides are compared before any time is reported; bfloat16 probabilities are
  compared with float32.
* Each ratio is reported with the work that explains it: tokens run through the model, and layers that they passed.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from abstain.config.settings import load_settings
from abstain.llm.engine.device import choose_device, choose_dtype
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.loading import LoadedModel, find_model, load_model
from abstain.llm.engine.prompts import Segment
from abstain.llm.engine.requests import NLL, HiddenStates, NextTokenProbs, Request
from abstain.llm.engine.tokenization import encode_prompt
from benchmarks import naive
from benchmarks.measure import flops, matrix_peak, time_in_turns
from benchmarks.rows import Row, add_options, layout, read_repeated, read_unrelated

LAYER = 16
SEGMENTS = ("instruction", "context", "question", "answer")
QUESTION = Segment(
    "check",
    "\n<|im_start|>user\nIs the provided Response correct? Answer only Yes or No.<|im_end|>\n<|im_start|>assistant\n",
    literal=True,
)
EXACT_ROWS = 4
YES_NO = ("Yes", "No")
POLYGRAPH_BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Measurement:
    """One line of the table.

    Attributes:
        label: What is computed.
        baseline: What the engine is compared with.
        baseline_s: Seconds of the baseline.
        engine_s: Seconds of the engine.
        ratio: Seconds of the baseline over those of the engine, the median over the rounds.
        note: The work that explains the ratio.
    """

    label: str
    baseline: str
    baseline_s: float
    engine_s: float
    ratio: float
    note: str

    def __str__(self) -> str:
        seconds = f"{self.baseline_s:.1f} | {self.engine_s:.1f}"
        return f"| {self.label} | {self.baseline} | {seconds} | **{self.ratio:.2f}** | {self.note} |"


def measure_states(
    loaded: LoadedModel, rows: Sequence[Row], label: str, repeats: int, batch_tokens: int
) -> Measurement:
    """Measure benchmarks 1 and 2: the states that the probe reads."""
    prompts = [row.render_prompt(layout()) for row in rows]
    engine = Engine(loaded, batch_tokens)
    requests = {f"{i}": Request(prompt, HiddenStates(LAYER), f"row {i}") for i, prompt in enumerate(prompts)}
    expected, results = naive.states(loaded, prompts, LAYER), dict(engine.run(requests))
    agreement = _check_agreement(expected, [results[f"{i}"] for i in range(len(prompts))])  # type: ignore[misc]
    work = copy.deepcopy(engine.stats)
    floor = flops(loaded, work.layer_tokens.total())
    baseline_s, engine_s, ratio = time_in_turns(
        lambda: naive.states(loaded, prompts, LAYER), lambda: list(engine.run(requests)), repeats
    )
    share = floor / engine_s / matrix_peak(loaded.model.dtype, loaded.model.device)
    note = f"{work.forward_tokens:,} tokens run of {work.pass_tokens:,}; {share:.0%} of the matrix peak; {agreement}"
    return Measurement(
        label, f"naive loop, {str(loaded.model.dtype).removeprefix('torch.')}", baseline_s, engine_s, ratio, note
    )


def measure_all_operations(
    loaded: LoadedModel, single: LoadedModel, rows: Sequence[Row], repeats: int, batch_tokens: int
) -> Measurement:
    """Measure benchmark 3: the operations of methods 1 to 3 together, against one method after the other."""
    normal = [row.render_prompt(layout()) for row in rows]
    bare = [row.render_prompt(layout(), with_context=False) for row in rows]
    with_question = [(*prompt, QUESTION) for prompt in normal]
    bare_segments = tuple(name for name in SEGMENTS if name != "context")

    def run_naively() -> tuple[Any, ...]:
        return (
            naive.states(loaded, normal, LAYER),
            naive.nll(loaded, normal, SEGMENTS),
            naive.nll(loaded, bare, bare_segments),
            naive.choices(loaded, with_question, YES_NO),
        )

    def make_requests() -> dict[str, Request]:
        requests_by_key: dict[str, Request] = {}
        for i, (n, b, c) in enumerate(zip(normal, bare, with_question, strict=True)):
            requests_by_key[f"states {i}"] = Request(n, HiddenStates(LAYER), f"row {i}")
            requests_by_key[f"yes {i}"] = Request(c, NextTokenProbs(YES_NO), f"row {i}")
            requests_by_key |= {f"N {name} {i}": Request(n, NLL((name,)), f"row {i}") for name in SEGMENTS}
            requests_by_key |= {f"B {name} {i}": Request(b, NLL((name,)), f"row {i}") for name in bare_segments}
        return requests_by_key

    engine = Engine(loaded, batch_tokens)
    results: dict[str, Any] = dict(engine.run(make_requests()))
    states, normals, *_ = run_naively()
    agreement = _check_agreement(states, [results[f"states {i}"] for i in range(len(rows))])
    # bfloat16 rounds logits to an eighth: both sides are held against float32, and not against each other.
    exact = naive.nll(single, normal[:EXACT_ROWS], SEGMENTS)
    baseline_error = _mean_difference(exact, normals)
    engine_error = _mean_difference(
        exact, [{name: results[f"N {name} {i}"] for name in SEGMENTS} for i in range(len(exact))]
    )
    assert engine_error < 1.5 * baseline_error + 0.01, (engine_error, baseline_error)
    work = copy.deepcopy(engine.stats)
    baseline_s, engine_s, ratio = time_in_turns(run_naively, lambda: list(engine.run(make_requests())), repeats)
    note = (
        f"{work.forward_tokens:,} tokens run, {work.vocabulary_rows:,} projected; states {agreement}; "
        f"NLLs off from float32 by {engine_error:.3f} nats on average, the loop's by {baseline_error:.3f}"
    )
    return Measurement(
        "states, NLLs under N_c and B_c, Yes-score", "method by method", baseline_s, engine_s, ratio, note
    )


def compare_with_polygraph(
    python: Path, loaded: LoadedModel, rows: Sequence[Row], repeats: int, batch_tokens: int
) -> Measurement:
    """Measure benchmark 4: log-probabilities and states of existing answers, against lm-polygraph.

    The batch size of lm-polygraph is its best one.
    """
    prompts = [row.render_prompt(layout())[:-1] for row in rows]
    encoded = [encode_prompt(loaded.tokenizer, prompt) for prompt in prompts]
    requests = {
        f"{kind} {i}": Request(prompt, operation, f"row {i}")
        for i, prompt in enumerate(prompts)
        for kind, operation in (("states", HiddenStates(LAYER, segments=("answer",))), ("nll", NLL(("answer",))))
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = []
        for i, tokens in enumerate(encoded):
            first, last = tokens.span("answer")
            lines.append(
                json.dumps({"id": f"{i}", "prompt_ids": tokens.ids[:first], "answer_ids": tokens.ids[first:last]})
            )
        (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")

        def polygraph(batch: int) -> float:
            command = [str(python), str(Path(__file__).parent / "polygraph/run.py"), "--model", loaded.ref.path]
            command += ["--rows", str(folder / "rows.jsonl"), "--layer", str(LAYER), "--batch", str(batch)]
            command += ["--dtype", str(loaded.model.dtype).removeprefix("torch."), "--out", str(folder / "out.npz")]
            process = subprocess.run(command, capture_output=True, text=True, check=True)
            return float(json.loads(process.stdout.splitlines()[-1])["seconds"])

        best = min(POLYGRAPH_BATCHES, key=polygraph)
        durations = []
        for _ in range(repeats):
            baseline_duration = polygraph(best)
            start = time.perf_counter()
            results: dict[str, Any] = dict(Engine(loaded, batch_tokens).run(requests))
            durations.append((baseline_duration, time.perf_counter() - start))
        difference = _max_difference(folder / "out.npz", results)
        assert difference < 0.5, difference  # bfloat16 rounds a logit to an eighth, and answers are a few tokens long
    ratio = statistics.median(a / b for a, b in durations)
    baseline_s, engine_s = (statistics.median(pair[side] for pair in durations) for side in (0, 1))
    note = f"its best batch size, {best}; log-probabilities within {difference:.3f} nats"
    return Measurement(
        "mean log-probability and states of given answers", "lm-polygraph", baseline_s, engine_s, ratio, note
    )


def _max_difference(file: Path, results: dict[str, Any]) -> float:
    """Return the largest difference of the mean log-probabilities of rows."""
    import numpy as np

    baseline = np.load(file)
    log_probs = [-float(results[f"nll {key}"][:, 0].mean()) for key in baseline["ids"]]
    return float(np.abs(baseline["logprob"] - np.array(log_probs)).max())


def _mean_difference(exact: Sequence[dict[str, Tensor]], measured: Sequence[dict[str, Tensor]]) -> float:
    """Return the mean absolute difference of all NLLs of the rows of `exact`, in nats."""
    pairs = [(row[name][:, 0], measured[i][name][:, 0]) for i, row in enumerate(exact) for name in row]
    return float(torch.cat([expected - actual for expected, actual in pairs]).abs().nanmean())


def _check_agreement(expected: Sequence[Tensor], measured: Sequence[Tensor]) -> str:
    """Return how far two lists of states agree.

    Raises:
        AssertionError: they differ too much for a comparison of times.
    """
    if expected[0].dtype == torch.float32:
        difference = max(
            float(((a - b).norm(dim=-1) / a.norm(dim=-1)).max()) for a, b in zip(expected, measured, strict=True)
        )
        assert difference <= 1e-4, difference
        return f"equal within {difference:.0e}"
    pairs = zip(expected, measured, strict=True)
    cosine = min(float(torch.cosine_similarity(a.float(), b.float(), dim=-1).min()) for a, b in pairs)
    assert cosine >= 0.999, cosine
    return f"cosine at least {cosine:.5f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.extraction", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    add_options(parser)
    parser.add_argument(
        "--polygraph", type=Path, help="python of an environment with benchmarks/polygraph/requirements.txt"
    )
    options = parser.parse_args(arguments)
    settings = load_settings()
    device, tokens = choose_device(settings), settings.batch_tokens
    dtypes = choose_dtype(settings, device), torch.float32
    half, single = (load_model(find_model(options.model, settings), device, dtype) for dtype in dtypes)
    distinct, shared = read_unrelated(options.squad, options.rows), read_repeated(options.squad, options.rows)
    depth, threads = half.model.config.num_hidden_layers, torch.get_num_threads()
    print(f"{options.model}, layer {LAYER} of {depth}, {options.rows} rows, {threads} threads\n")
    print("| what | against | it took, s | engine, s | times | |\n| --- | --- | --: | --: | --: | --- |", flush=True)
    for measure in (
        lambda: measure_states(half, distinct, "states, unrelated prompts", options.repeats, tokens),
        lambda: measure_states(half, shared, "states, five questions a context", options.repeats, tokens),
        lambda: measure_all_operations(half, single, distinct[: max(options.rows // 2, 1)], options.repeats, tokens),
        lambda: measure_states(single, distinct, "states, unrelated prompts", 1, tokens),
        lambda: compare_dtypes(half, single, distinct, tokens),
        *(
            [lambda: compare_with_polygraph(options.polygraph, half, distinct, options.repeats, tokens)]
            if options.polygraph
            else []
        ),
    ):
        print(measure(), flush=True)


def compare_dtypes(half: LoadedModel, single: LoadedModel, rows: Sequence[Row], batch_tokens: int) -> Measurement:
    """Compare the engine in the dtype that suits the hardware with the naive loop in float32, as in the papers."""
    prompts = [row.render_prompt(layout()) for row in rows]
    requests = {f"{i}": Request(prompt, HiddenStates(LAYER), f"row {i}") for i, prompt in enumerate(prompts)}
    engine = Engine(half, batch_tokens)
    baseline_s, engine_s, ratio = time_in_turns(
        lambda: naive.states(single, prompts, LAYER), lambda: list(engine.run(requests)), 1
    )
    note = f"engine in {half.model.dtype}"
    return Measurement("states, unrelated prompts", "naive loop, float32", baseline_s, engine_s, ratio, note)


if __name__ == "__main__":
    main()
