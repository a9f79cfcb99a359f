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
from abstain.core.bundle_format import write_digest
from abstain.core.contracts import Interaction
from abstain.core.scorer_names import PROBE
from abstain.data.decision_log.log import DecisionLog
from abstain.learning.estimators.onnx_probe import export_probe
from abstain.learning.thresholds.risk_control import ReviewedAnswers, control_risk
from abstain.llm.engine.loading import find_model
from abstain.serving.api.app import make_app
from abstain.serving.api.server import LOOPBACK_NAMES, listen, serve_app
from abstain.serving.gate import Gate
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys
from abstain.serving.service.version_follower import VersionFollower, VersionInfo
from abstain.stages.export_onnx.metadata import make_metadata
from benchmarks.background import make_interactions
from benchmarks.full_params import full_params
from benchmarks.probe import make_untrained_probe
from benchmarks.sample.handbook import build_handbook
from benchmarks.sample.write import read_answered_questions

MODEL, LAYER = "smollm2-135m-instruct", 20
ANSWER_TOKENS, PROMPT_TOKENS = 32, 400
CALLERS = 8
"""Threads that send at a rate: more than are ever busy."""


@dataclass(frozen=True)
class OneRelease:
    """A source with a single version."""

    bundle: Path

    def get_production(self) -> VersionInfo:
        return VersionInfo("v1.0.0", "", datetime(2026, 1, 1, tzinfo=UTC))

    def get_folder(self, version_info: VersionInfo) -> Path:
        return self.bundle

    def fetch_bundle(self, version_info: VersionInfo) -> Path:
        return self.bundle


@dataclass(frozen=True)
class Reply:
    """Seconds as the caller saw them, milliseconds by `Server-Timing` without the log, and forward tokens."""

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
        """Send a request and time it."""
        started = time.perf_counter()
        self._connection.request("POST", path, body, {"Content-Type": media_type})
        response = self._connection.getresponse()
        content = response.read()
        elapsed = time.perf_counter() - started
        assert response.status == 200, content
        own_duration = (response.getheader("Server-Timing") or "").partition("gate;dur=")[2].partition(",")[0]
        return Reply(elapsed, float(own_duration), json.loads(content)["forward_tokens"])


def write_bundle(folder: Path) -> None:
    """Export an untrained probe. It needs a process of its own (learning/estimators/onnx_probe.py)."""
    params = full_params()
    llm = params.llm.model_copy(update={"model": MODEL, "layer": LAYER, "includes_eos": False})
    correct = ReviewedAnswers(np.full(100, 0.9), np.ones(100))  # made up, so that the untrained probe decides
    guarantee = control_risk(correct, correct, metric="precision", target=0.5, confidence_level=0.9).to_guarantee()
    metadata = make_metadata(
        params.model_copy(update={"llm": llm}),
        model_revision=find_model(MODEL, load_settings()).revision,
        scorer={"name": PROBE, "sha256": {}, "models": {}, "forward_tokens": None},
        threshold=0.5,
        guarantee=guarantee.model_copy(update={"status": "active"}).model_dump(mode="json"),
        calibration={"method": "none"},
    )
    metadata["version"] = "v1.0.0"
    export_probe(make_untrained_probe("lstm", read_width()), folder / "probe.onnx", metadata)
    write_digest(folder)


def serve(folder: Path) -> None:
    """Run the server; print its address and the seconds of CPU until it was ready."""
    settings, serving = load_settings(), load_serve_settings()
    follower = VersionFollower(OneRelease(folder), lambda bundle: Gate.open(bundle, settings))
    log = DecisionLog.open(
        f"sqlite:///{folder.parent / 'log.sqlite'}", redact=lambda row: row, pseudonym=str, key=b"digests"
    )
    with listen("127.0.0.1", 0) as listener:
        service = GateService(follower, log, serving)
        follower.refresh()
        assert follower.current is not None, follower.last_error
        ready_cpu_s = sum(os.times()[:4])
        print(f"http://127.0.0.1:{listener.getsockname()[1]} {ready_cpu_s}", flush=True)
        serve_app(make_app(service, ApiKeys(), LOOPBACK_NAMES), listener)


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, float, int]]:
    """Run a server of the bundle in `folder`; yield its address, the seconds of CPU until it was ready, and its pid."""
    command = [sys.executable, "-m", "benchmarks.serving", "--serve", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address, ready_cpu_s = process.stdout.readline().split()
        yield address, float(ready_cpu_s), process.pid
    finally:
        process.terminate()
        process.wait()


def read_width() -> int:
    """Return d from the base model's configuration."""
    return int(json.loads((Path(find_model(MODEL, load_settings()).path) / "config.json").read_text())["hidden_size"])


def make_states_file(width: int, number: int) -> bytes:
    """Return a file of states as an engine writes it, with the request in its metadata."""
    tokens = PROMPT_TOKENS + ANSWER_TOKENS
    description = {"engine": "vllm", "layers": [LAYER], "prompt_tokens": PROMPT_TOKENS, "finish_reason": "stop"}
    request = {"interaction_id": f"{time.time_ns()}-{number}", "product": "card", "states": description}
    drawn_states = torch.randn(tokens, 1, width, generator=torch.Generator().manual_seed(number))
    tensors = {"hidden_states": drawn_states, "token_ids": torch.arange(1000, 1000 + tokens)}
    return save(tensors, {"request": json.dumps(request)})


def send_at_rate(address: str, rate: float, seconds: float) -> list[Reply]:
    """Return replies to requests by states, one every 1 / `rate` seconds, whether or not the last one is answered."""
    callers = [Caller(address) for _ in range(CALLERS)]
    width = read_width()
    bodies = [make_states_file(width, number) for number in range(int(rate * seconds))]
    started = time.perf_counter() + 0.1

    def send(caller: Caller, numbers: Sequence[int]) -> list[Reply]:
        replies = []
        for number in numbers:
            time.sleep(max(0.0, started + number / rate - time.perf_counter()))
            replies.append(caller.post("/v1/gate/states", bodies[number], "application/octet-stream"))
        return replies

    with ThreadPoolExecutor(CALLERS) as pool:
        number_ranges = [range(offset, len(bodies), CALLERS) for offset in range(CALLERS)]
        return [reply for replies in pool.map(send, callers, number_ranges) for reply in replies]


def send_in_flight(address: str, rows: Sequence[Interaction], n_in_flight: int) -> float:
    """Return the answers per second with `n_in_flight` requests by texts at once."""

    def send(caller_rows: Sequence[Interaction]) -> None:
        caller = Caller(address)
        for row in caller_rows:
            body = {"question": row.question, "answer": row.answer}
            contexts = [context.model_dump() for context in row.contexts]
            caller.post("/v1/gate", json.dumps({**body, "contexts": contexts}).encode(), "application/json")

    started = time.perf_counter()
    with ThreadPoolExecutor(n_in_flight) as pool:
        list(pool.map(send, [rows[offset::n_in_flight] for offset in range(n_in_flight)]))
    return len(rows) / (time.perf_counter() - started)


def measure_engine(gate: Gate, rows: Sequence[Interaction], batch_rows: int) -> float:
    """Return the answers per second of the engine itself in batches of `batch_rows`."""
    started = time.perf_counter()
    for start in range(0, len(rows), batch_rows):
        gate.predictor.reader.read(rows[start : start + batch_rows])
    return len(rows) / (time.perf_counter() - started)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second by states")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run at that rate")
    parser.add_argument("--in-flight", type=int, default=32, help="requests by texts at once")
    parser.add_argument("--answers", type=int, default=256, help="of the sample, in each run by texts")
    parser.add_argument("--repeats", type=int, default=3, help="runs, of which the median is printed")
    options = parser.parse_args(arguments)
    if options.export or options.serve:
        write_bundle(options.export) if options.export else serve(options.serve)
        return
    os.environ.setdefault("ABSTAIN_SERVE_CALLER__ROWS_PER_MINUTE", "100000")  # all that ask are one caller here
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "bundle"
        folder.mkdir()
        subprocess.run([sys.executable, "-m", "benchmarks.serving", "--export", str(folder)], check=True)
        rows = make_interactions(list(read_answered_questions(build_handbook())))[: options.answers]
        gate = Gate.open(folder)
        gate.warm_up()
        runs, server_rates, engine_rates, ready_cpu_s = [], [], [], []
        for _ in range(options.repeats):
            with server(folder) as (address, server_ready_cpu_s, _):
                ready_cpu_s.append(server_ready_cpu_s)
                send_at_rate(address, options.rate, 2.0)
                runs.append(send_at_rate(address, options.rate, options.seconds))
                server_rates.append(send_in_flight(address, rows, options.in_flight))
            engine_rates.append(measure_engine(gate, rows, options.in_flight))
    print(f"by states, {options.rate:g} requests a second, {options.repeats} runs of {options.seconds:g} s:")
    print(f"  {_format_percentiles([[1000 * reply.seconds for reply in replies] for replies in runs])}, log included")
    print(f"  {_format_percentiles([[reply.own_ms for reply in replies] for replies in runs])}, ours by Server-Timing")
    print(f"  {sum(reply.forward_tokens for replies in runs for reply in replies):g} tokens read by the base model")
    ratio = statistics.median(
        server_rate / engine_rate for server_rate, engine_rate in zip(server_rates, engine_rates, strict=True)
    )
    print(
        f"by texts, {options.in_flight} in flight, {len(rows)} answers: {statistics.median(server_rates):.1f} "
        f"answers/s, the "
        f"engine's own batches {statistics.median(engine_rates):.1f}: {ratio:.0%}"
    )
    print(f"ready after {statistics.median(ready_cpu_s):.1f} s of CPU beyond the weights")


def _format_percentiles(runs: Sequence[Sequence[float]]) -> str:
    medians = [statistics.median(float(np.quantile(run, quantile)) for run in runs) for quantile in (0.5, 0.99)]
    return "p50 {:.2f} ms, p99 {:.2f} ms".format(*medians)


if __name__ == "__main__":
    main()
