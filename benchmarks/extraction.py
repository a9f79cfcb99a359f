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
from benchmarks.measure import flops, in_turns, matrix_peak
from benchmarks.rows import Row, add_options, layout, repeated, unrelated

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
class Measured:
    """One line of the table. `ratio`: the other side's seconds over the engine's, median of the rounds."""

    what: str
    against: str
    other: float
    engine: float
    ratio: float
    note: str

    def __str__(self) -> str:
        seconds = f"{self.other:.1f} | {self.engine:.1f}"
        return f"| {self.what} | {self.against} | {seconds} | **{self.ratio:.2f}** | {self.note} |"


def probe_only(loaded: LoadedModel, rows: Sequence[Row], what: str, repeats: int, batch_tokens: int) -> Measured:
    """Benchmarks 1 and 2: the probe's states."""
    passes = [row.pass_(layout()) for row in rows]
    engine = Engine(loaded, batch_tokens)
    requests = {f"{at}": Request(pass_, HiddenStates(LAYER), f"row {at}") for at, pass_ in enumerate(passes)}
    expected, found = naive.states(loaded, passes, LAYER), dict(engine.run(requests))
    agreement = _agree(expected, [found[f"{at}"] for at in range(len(passes))])  # type: ignore[misc]
    work = copy.deepcopy(engine.stats)
    floor = flops(loaded, work.layer_tokens.total())
    other, own, ratio = in_turns(
        lambda: naive.states(loaded, passes, LAYER), lambda: list(engine.run(requests)), repeats
    )
    share = floor / own / matrix_peak(loaded.model.dtype, loaded.model.device)
    note = f"{work.forward_tokens:,} tokens run of {work.pass_tokens:,}; {share:.0%} of the matrix peak; {agreement}"
    return Measured(what, f"naive loop, {str(loaded.model.dtype).removeprefix('torch.')}", other, own, ratio, note)


def all_asks(
    loaded: LoadedModel, single: LoadedModel, rows: Sequence[Row], repeats: int, batch_tokens: int
) -> Measured:
    """Benchmark 3: what methods 1 to 3 ask for, together, against one method after the other."""
    normal = [row.pass_(layout()) for row in rows]
    bare = [row.pass_(layout(), with_context=False) for row in rows]
    checked = [(*pass_, QUESTION) for pass_ in normal]
    without = tuple(name for name in SEGMENTS if name != "context")

    def one_by_one() -> tuple[Any, ...]:
        return (
            naive.states(loaded, normal, LAYER),
            naive.nll(loaded, normal, SEGMENTS),
            naive.nll(loaded, bare, without),
            naive.choices(loaded, checked, YES_NO),
        )

    def requests() -> dict[str, Request]:
        asked: dict[str, Request] = {}
        for at, (n, b, c) in enumerate(zip(normal, bare, checked, strict=True)):
            asked[f"states {at}"] = Request(n, HiddenStates(LAYER), f"row {at}")
            asked[f"yes {at}"] = Request(c, NextTokenProbs(YES_NO), f"row {at}")
            asked |= {f"N {name} {at}": Request(n, NLL((name,)), f"row {at}") for name in SEGMENTS}
            asked |= {f"B {name} {at}": Request(b, NLL((name,)), f"row {at}") for name in without}
        return asked

    engine = Engine(loaded, batch_tokens)
    found: dict[str, Any] = dict(engine.run(requests()))
    states, normals, *_ = one_by_one()
    agreement = _agree(states, [found[f"states {at}"] for at in range(len(rows))])
    # bfloat16 rounds logits to an eighth: both sides are held against float32, and not against each other.
    exact = naive.nll(single, normal[:EXACT_ROWS], SEGMENTS)
    theirs = _mean_difference(exact, normals)
    ours = _mean_difference(exact, [{name: found[f"N {name} {at}"] for name in SEGMENTS} for at in range(len(exact))])
    assert ours < 1.5 * theirs + 0.01, (ours, theirs)
    work = copy.deepcopy(engine.stats)
    other, own, ratio = in_turns(one_by_one, lambda: list(engine.run(requests())), repeats)
    note = (
        f"{work.forward_tokens:,} tokens run, {work.vocabulary_rows:,} projected; states {agreement}; "
        f"NLLs off from float32 by {ours:.3f} nats on average, the loop's by {theirs:.3f}"
    )
    return Measured("states, NLLs under N_c and B_c, Yes-score", "method by method", other, own, ratio, note)


def against_polygraph(
    python: Path, loaded: LoadedModel, rows: Sequence[Row], repeats: int, batch_tokens: int
) -> Measured:
    """Benchmark 4: mean token log-probability and states of existing answers, lm-polygraph at its best batch size."""
    passes = [row.pass_(layout())[:-1] for row in rows]
    encoded = [encode_prompt(loaded.tokenizer, pass_) for pass_ in passes]
    requests = {
        f"{kind} {at}": Request(pass_, ask, f"row {at}")
        for at, pass_ in enumerate(passes)
        for kind, ask in (("states", HiddenStates(LAYER, segments=("answer",))), ("nll", NLL(("answer",))))
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = []
        for at, one in enumerate(encoded):
            first, last = one.span("answer")
            lines.append(json.dumps({"id": f"{at}", "prompt_ids": one.ids[:first], "answer_ids": one.ids[first:last]}))
        (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")

        def polygraph(batch: int) -> float:
            command = [str(python), str(Path(__file__).parent / "polygraph/run.py"), "--model", loaded.ref.path]
            command += ["--rows", str(folder / "rows.jsonl"), "--layer", str(LAYER), "--batch", str(batch)]
            command += ["--dtype", str(loaded.model.dtype).removeprefix("torch."), "--out", str(folder / "out.npz")]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            return float(json.loads(done.stdout.splitlines()[-1])["seconds"])

        best = min(POLYGRAPH_BATCHES, key=polygraph)
        took = []
        for _ in range(repeats):
            theirs = polygraph(best)
            start = time.perf_counter()
            found: dict[str, Any] = dict(Engine(loaded, batch_tokens).run(requests))
            took.append((theirs, time.perf_counter() - start))
        off = _difference_to(folder / "out.npz", found)
        assert off < 0.5, off  # bfloat16 rounds a logit to an eighth, and answers are a few tokens long
    ratio = statistics.median(a / b for a, b in took)
    other, own = (statistics.median(pair[side] for pair in took) for side in (0, 1))
    note = f"its best batch size, {best}; log-probabilities within {off:.3f} nats"
    return Measured("mean log-probability and states of given answers", "lm-polygraph", other, own, ratio, note)


def _difference_to(file: Path, found: dict[str, Any]) -> float:
    """Largest difference of the rows' mean log-probabilities."""
    import numpy as np

    theirs = np.load(file)
    own = [-float(found[f"nll {key}"][:, 0].mean()) for key in theirs["ids"]]
    return float(np.abs(theirs["logprob"] - np.array(own)).max())


def _mean_difference(exact: Sequence[dict[str, Tensor]], found: Sequence[dict[str, Tensor]]) -> float:
    """Mean absolute difference of all NLLs of the rows of `exact`, in nats."""
    pairs = [(row[name][:, 0], found[at][name][:, 0]) for at, row in enumerate(exact) for name in row]
    return float(torch.cat([one - other for one, other in pairs]).abs().nanmean())


def _agree(expected: Sequence[Tensor], found: Sequence[Tensor]) -> str:
    """How equal two lists of states are; AssertionError where they are not equal enough to compare times."""
    if expected[0].dtype == torch.float32:
        off = max(float(((a - b).norm(dim=-1) / a.norm(dim=-1)).max()) for a, b in zip(expected, found, strict=True))
        assert off <= 1e-4, off
        return f"equal within {off:.0e}"
    pairs = zip(expected, found, strict=True)
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
    asked = parser.parse_args(arguments)
    settings = load_settings()
    device, tokens = choose_device(settings), settings.batch_tokens
    dtypes = choose_dtype(settings, device), torch.float32
    half, single = (load_model(find_model(asked.model, settings), device, dtype) for dtype in dtypes)
    apart, shared = unrelated(asked.squad, asked.rows), repeated(asked.squad, asked.rows)
    depth, threads = half.model.config.num_hidden_layers, torch.get_num_threads()
    print(f"{asked.model}, layer {LAYER} of {depth}, {asked.rows} rows, {threads} threads\n")
    print("| what | against | it took, s | engine, s | times | |\n| --- | --- | --: | --: | --: | --- |", flush=True)
    for measured in (
        lambda: probe_only(half, apart, "states, unrelated prompts", asked.repeats, tokens),
        lambda: probe_only(half, shared, "states, five questions a context", asked.repeats, tokens),
        lambda: all_asks(half, single, apart[: max(asked.rows // 2, 1)], asked.repeats, tokens),
        lambda: probe_only(single, apart, "states, unrelated prompts", 1, tokens),
        lambda: across_dtypes(half, single, apart, tokens),
        *([lambda: against_polygraph(asked.polygraph, half, apart, asked.repeats, tokens)] if asked.polygraph else []),
    ):
        print(measured(), flush=True)


def across_dtypes(half: LoadedModel, single: LoadedModel, rows: Sequence[Row], batch_tokens: int) -> Measured:
    """The engine in the dtype that suits the hardware against the naive loop in float32, as the papers' code has it."""
    passes = [row.pass_(layout()) for row in rows]
    requests = {f"{at}": Request(pass_, HiddenStates(LAYER), f"row {at}") for at, pass_ in enumerate(passes)}
    engine = Engine(half, batch_tokens)
    other, own, ratio = in_turns(lambda: naive.states(single, passes, LAYER), lambda: list(engine.run(requests)), 1)
    note = f"engine in {half.model.dtype}"
    return Measured("states, unrelated prompts", "naive loop, float32", other, own, ratio, note)


if __name__ == "__main__":
    main()
