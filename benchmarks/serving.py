"""The gate server under load: `python -m benchmarks.serving`.

Notes:

* By given states, at a steady rate: latency as the caller sees it, the log included; the server's own share by
  `Server-Timing`; and the tokens that the base model read, which are none. A file holds the states of the prompt, too,
  as vLLM's does.
* By texts, with many requests in flight: answers a second, in turns with the engine's own on the same answers, in
  batches of as many, in this process.
* Until it is ready: seconds of CPU from the start of the process on, those of loading the weights included.
* The release is of the embedded base model and an untrained LSTM probe: time does not depend on its weights. Server and
  callers share the machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import torch
from safetensors.torch import save

from abstain.config.serve_settings import load_serve_settings
from abstain.config.settings import load_settings
from abstain.core.bundle_format import BUNDLE_FORMAT, FORMAT_KEY, write_digest
from abstain.core.contracts import Interaction
from abstain.data.decision_log.log import DecisionLog
from abstain.learning.estimators.onnx_probe import export_probe
from abstain.llm.engine.loading import find_model
from abstain.llm.engine.prompts import load_layout
from abstain.serving.api.app import make_app
from abstain.serving.api.keys import ApiKeys
from abstain.serving.api.server import LOOPBACK_NAMES, listen, serve_app
from abstain.serving.api.service import GateService
from abstain.serving.api.version_follower import VersionFollower, VersionInfo
from abstain.serving.gate import Gate
from benchmarks.probe import drawn
from benchmarks.question_familiarity import of_sample
from benchmarks.sample.handbook import build_handbook
from benchmarks.sample.write import answered_questions

MODEL, LAYER = "smollm2-135m-instruct", 20
ANSWER_TOKENS, PROMPT_TOKENS = 32, 400
CALLERS = 8
"""Threads that send at a rate: more than are ever busy."""


@dataclass(frozen=True)
class OneRelease:
    """Releases, of which there is one."""

    bundle: Path

    def live(self) -> VersionInfo:
        return VersionInfo("v1.0.0", "", datetime(2026, 1, 1, tzinfo=UTC))

    def folder(self, release: VersionInfo) -> Path:
        return self.bundle

    def fetch(self, release: VersionInfo) -> Path:
        return self.bundle


@dataclass(frozen=True)
class Reply:
    """Seconds as the caller saw them, milliseconds by `Server-Timing` without the log, and tokens that were read."""

    seconds: float
    own_ms: float
    forward_tokens: float


class Caller:
    """Requests over one connection."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)

    def post(self, path: str, body: bytes, media_type: str) -> Reply:
        began = time.perf_counter()
        self._connection.request("POST", path, body, {"Content-Type": media_type})
        response = self._connection.getresponse()
        content = response.read()
        took = time.perf_counter() - began
        assert response.status == 200, content
        own = (response.getheader("Server-Timing") or "").partition("gate;dur=")[2].partition(",")[0]
        return Reply(took, float(own), json.loads(content)["forward_tokens"])


def write_release(folder: Path) -> None:
    """Export an untrained probe. Needs a process of its own (learning/estimators/onnx_probe.py)."""
    ref = find_model(MODEL, load_settings())
    layout = load_layout("rag-chatml-v1")
    metadata = {
        "model": MODEL,
        "model_revision": ref.revision,
        "layout": layout.name,
        "layout_digest": layout.digest,
        "layer": str(LAYER),
        "site": "residual",
        "too_long": "drop_chunks",
        "includes_eos": "false",
        "version": "v1.0.0",
        "threshold": "0.5",
        FORMAT_KEY: BUNDLE_FORMAT,
        "calibration": json.dumps({"method": "none"}),
        "guarantee": json.dumps({"guaranteed": True, "message": "none: the probe is not trained"}),
        "scorer": json.dumps({"name": "probe", "kinds": {"probe": "probe"}, "sha256": {}, "forward_tokens": None}),
    }
    export_probe(drawn("lstm", width_of()), folder / "probe.onnx", metadata)
    write_digest(folder)


def serve(folder: Path) -> None:
    """The server's process. Prints its address and the seconds of CPU until it was ready."""
    settings, serving = load_settings(), load_serve_settings()
    live = VersionFollower(OneRelease(folder), lambda bundle: Gate.open(bundle, settings))
    log = DecisionLog.open(
        f"sqlite:///{folder.parent / 'log.sqlite'}", redact=lambda row: row, pseudonym=str, key=b"digests"
    )
    with listen("127.0.0.1", 0) as listening:
        service = GateService(live, log, serving)
        live.refresh()
        assert live.current is not None, live.last_error
        ready = sum(os.times()[:4])
        print(f"http://127.0.0.1:{listening.getsockname()[1]} {ready}", flush=True)
        serve_app(make_app(service, ApiKeys(), LOOPBACK_NAMES), listening)


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, float, int]]:
    """A server of the release in `folder`: its address, the seconds of CPU until it was ready, and its process."""
    command = [sys.executable, "-m", "benchmarks.serving", "--serve", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address, ready = process.stdout.readline().split()
        yield address, float(ready), process.pid
    finally:
        process.terminate()
        process.wait()


def width_of() -> int:
    """d, by the base model's configuration."""
    return int(json.loads((Path(find_model(MODEL, load_settings()).path) / "config.json").read_text())["hidden_size"])


def states_file(width: int, number: int) -> bytes:
    """What an engine gives of an answer, with the request in its metadata."""
    tokens = PROMPT_TOKENS + ANSWER_TOKENS
    described = {"engine": "vllm", "layers": [LAYER], "prompt_tokens": PROMPT_TOKENS, "finish_reason": "stop"}
    request = {"interaction_id": f"{time.time_ns()}-{number}", "product": "card", "states": described}
    drawn_states = torch.randn(tokens, 1, width, generator=torch.Generator().manual_seed(number))
    tensors = {"hidden_states": drawn_states, "token_ids": torch.arange(1000, 1000 + tokens)}
    return save(tensors, {"request": json.dumps(request)})


def at_rate(address: str, rate: float, seconds: float) -> list[Reply]:
    """Replies to requests by states, one every 1 / `rate` seconds, whether or not the last one is answered."""
    callers = [Caller(address) for _ in range(CALLERS)]
    width = width_of()
    bodies = [states_file(width, number) for number in range(int(rate * seconds))]
    began = time.perf_counter() + 0.1

    def send(caller: Caller, mine: Sequence[int]) -> list[Reply]:
        replies = []
        for number in mine:
            time.sleep(max(0.0, began + number / rate - time.perf_counter()))
            replies.append(caller.post("/v1/gate/states", bodies[number], "application/octet-stream"))
        return replies

    with ThreadPoolExecutor(CALLERS) as pool:
        shares = [range(at, len(bodies), CALLERS) for at in range(CALLERS)]
        return [reply for replies in pool.map(send, callers, shares) for reply in replies]


def in_flight(address: str, rows: Sequence[Interaction], flying: int) -> float:
    """Answers a second, with `flying` requests by texts at once."""

    def send(mine: Sequence[Interaction]) -> None:
        caller = Caller(address)
        for row in mine:
            asked = {"question": row.question, "answer": row.answer}
            contexts = [one.model_dump() for one in row.contexts]
            caller.post("/v1/gate", json.dumps({**asked, "contexts": contexts}).encode(), "application/json")

    began = time.perf_counter()
    with ThreadPoolExecutor(flying) as pool:
        list(pool.map(send, [rows[at::flying] for at in range(flying)]))
    return len(rows) / (time.perf_counter() - began)


def engine_alone(gate: Gate, rows: Sequence[Interaction], together: int) -> float:
    """Answers a second of the engine itself, so many in a batch."""
    began = time.perf_counter()
    for at in range(0, len(rows), together):
        gate.predictor.reader.read(rows[at : at + together])
    return len(rows) / (time.perf_counter() - began)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second by states")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run at that rate")
    parser.add_argument("--in-flight", type=int, default=32, help="requests by texts at once")
    parser.add_argument("--answers", type=int, default=256, help="of the sample, in each run by texts")
    parser.add_argument("--repeats", type=int, default=3, help="runs, of which the median is printed")
    chosen = parser.parse_args(arguments)
    if chosen.export or chosen.serve:
        write_release(chosen.export) if chosen.export else serve(chosen.serve)
        return
    os.environ.setdefault("ABSTAIN_SERVE_CALLER__ROWS_A_MINUTE", "100000")  # all that ask are one caller here
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "bundle"
        folder.mkdir()
        subprocess.run([sys.executable, "-m", "benchmarks.serving", "--export", str(folder)], check=True)
        rows = of_sample(list(answered_questions(build_handbook()))).interactions[: chosen.answers]
        gate = Gate.open(folder)
        gate.warm_up()
        runs, served, alone, ready = [], [], [], []
        for _ in range(chosen.repeats):
            with server(folder) as (address, started, _):
                ready.append(started)
                at_rate(address, chosen.rate, 2.0)
                runs.append(at_rate(address, chosen.rate, chosen.seconds))
                served.append(in_flight(address, rows, chosen.in_flight))
            alone.append(engine_alone(gate, rows, chosen.in_flight))
    print(f"by states, {chosen.rate:g} requests a second, {chosen.repeats} runs of {chosen.seconds:g} s:")
    print(f"  {_percentiles([[1000 * one.seconds for one in of] for of in runs])}, log included")
    print(f"  {_percentiles([[one.own_ms for one in of] for of in runs])}, ours by Server-Timing")
    print(f"  {sum(one.forward_tokens for of in runs for one in of):g} tokens read by the base model")
    ratio = statistics.median(one / other for one, other in zip(served, alone, strict=True))
    print(
        f"by texts, {chosen.in_flight} in flight, {len(rows)} answers: {statistics.median(served):.1f} answers/s, the "
        f"engine's own batches {statistics.median(alone):.1f}: {ratio:.0%}"
    )
    print(f"ready after {statistics.median(ready):.1f} s of CPU beyond the weights")


def _percentiles(runs: Sequence[Sequence[float]]) -> str:
    medians = [statistics.median(float(np.quantile(of, at)) for of in runs) for at in (0.5, 0.99)]
    return "p50 {:.2f} ms, p99 {:.2f} ms".format(*medians)


if __name__ == "__main__":
    main()
