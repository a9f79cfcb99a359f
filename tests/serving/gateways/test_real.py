"""A LiteLLM proxy, NeMo Guardrails, LangChain and LlamaIndex as they are published, each in an environment of its own."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
import yaml

from abstain.data.decision_log import queries
from abstain.serving.api.app import make_app
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys, create_key
from tests.conftest import ROOT
from tests.ports import free_port
from tests.serving.gateways.conftest import QUESTION, WITHHELD, counted, registered

STARTS_WITHIN_S = 180
FRAMEWORKS = ("nemoguardrails", "langchain-core", "llama-index-core", "pydantic-settings")
"""What an environment of the client's adapters needs; the last is a dependency of this project."""
Worker = Callable[..., GateService]


def environment(folder: Path, *packages: str) -> Path:
    """The `bin` of a new virtual environment with these packages, which are no dependencies of this project."""
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([uv, "venv", "-q", folder, "--python", sys.executable], check=True)
    python = folder / "bin" / "python"
    subprocess.run([uv, "pip", "install", "-q", "--python", python, *packages], check=True, timeout=900)
    return folder / "bin"


def run_in(python: Path, script: str) -> Any:
    """What a script of the tests prints as JSON, run by another interpreter."""
    run = subprocess.run(
        [python, ROOT / "tests" / script],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def serve(worker: GateService, keys: ApiKeys) -> tuple[str, uvicorn.Server, threading.Thread]:
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(make_app(worker, keys), port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    return f"http://127.0.0.1:{port}", server, thread


@pytest.fixture
def gates(make_worker: Worker) -> Iterator[tuple[dict[str, str], str, GateService]]:
    """Two servers, one of which replaces what it withholds, and the key of both."""
    key, line = create_key("litellm", ["ask"])
    workers = {kind: make_worker(litellm_withheld=kind) for kind in ("block", "replace")}
    running = {kind: serve(worker, ApiKeys(line)) for kind, worker in workers.items()}
    yield {kind: address for kind, (address, _, _) in running.items()}, key, workers["block"]
    for _, server, thread in running.values():
        server.should_exit = True
        thread.join()


@pytest.fixture
def proxy(
    gates: tuple[dict[str, str], str, GateService], answers: tuple[str, str], tmp_path: Path
) -> Iterator[httpx.Client]:
    """A client of a proxy whose models `shown` and `withheld` give a fixed answer, with a guardrail for each server."""
    addresses, key, _ = gates
    models = [
        {"model_name": name, "litellm_params": {"model": "openai/none", "api_key": "none", "mock_response": answer}}
        for name, answer in zip(("shown", "withheld"), answers, strict=True)
    ]
    streams: dict[str, dict[str, Any]] = {
        "block": {"streaming_buffer_until_moderated": True},
        "replace": {"streaming_transform_mode": "incremental_diff", "streaming_end_of_stream_only": True},
    }
    guardrails = [
        {
            "guardrail_name": kind,
            "litellm_params": {
                "guardrail": "generic_guardrail_api",
                "mode": ["pre_call", "post_call"],
                "api_base": address,
                "headers": {"Authorization": f"Bearer {key}"},
                **streams[kind],
            },
        }
        for kind, address in addresses.items()
    ]
    master = f"sk-{secrets.token_hex(16)}"
    content = {"model_list": models, "guardrails": guardrails, "general_settings": {"master_key": master}}
    config = tmp_path / "litellm.yaml"
    config.write_text(yaml.safe_dump(content))
    bin_folder, port = environment(tmp_path / "litellm", "litellm[proxy]"), free_port()
    started = subprocess.Popen(
        [bin_folder / "litellm", "--config", config, "--host", "127.0.0.1", "--port", str(port)],
        env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdout=(tmp_path / "litellm.log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    headers = {"Authorization": f"Bearer {master}"}
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
            _await(client, started, tmp_path / "litellm.log")
            yield client
    finally:
        started.terminate()
        started.wait(30)


def _await(client: httpx.Client, started: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline and started.poll() is None:
        try:
            if client.get("/health/liveliness").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(1)
    raise AssertionError(log.read_text()[-3000:])


def chat(
    proxy: httpx.Client, gates: tuple[dict[str, str], str, GateService], model: str, kind: str, *, stream: bool
) -> tuple[int, str]:
    """The status and the text that a client of the proxy gets, after its assistant registered the contexts."""
    addresses, key, _ = gates
    call_id = f"{model}-{kind}-{stream}"
    sent = httpx.post(
        f"{addresses[kind]}/v1/contexts", json=registered(call_id), headers={"Authorization": f"Bearer {key}"}
    )
    assert sent.status_code == 204
    body = {"model": model, "stream": stream, "guardrails": [kind], "messages": [{"role": "user", "content": QUESTION}]}
    answer = proxy.post("/v1/chat/completions", json=body, headers={"x-litellm-call-id": call_id})
    if answer.status_code != 200 or not stream:
        found = answer.json()
        return answer.status_code, found["error"]["message"] if "error" in found else (
            found["choices"][0]["message"]["content"]
        )
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"].get("content") or "" for line in lines for choice in json.loads(line)["choices"]]
    return answer.status_code, "".join(deltas)


@pytest.mark.soak(twin="test_two_workers_join_the_question_and_the_answer_of_a_call")
def test_a_litellm_proxy_shows_and_withholds_plain_and_streamed(
    gates: tuple[dict[str, str], str, GateService], proxy: httpx.Client, answers: tuple[str, str]
) -> None:
    for stream in (False, True):
        for kind, status in (("block", 400), ("replace", 200)):
            assert chat(proxy, gates, "shown", kind, stream=stream) == (200, answers[0])
            assert chat(proxy, gates, "withheld", kind, stream=stream) == (status, WITHHELD)
    _, _, worker = gates
    assert counted(worker) == {"show": 4, "abstain": 4}
    decided = queries.get_decision(worker.log.database, "withheld-block-True")
    assert decided is not None and decided.decision.source == "litellm"


@pytest.mark.soak(twin="test_a_rail_allows_what_is_shown_and_blocks_what_is_withheld")
def test_nemo_langchain_and_llamaindex_show_and_withhold(tmp_path: Path) -> None:
    python = environment(tmp_path / "frameworks", *FRAMEWORKS) / "python"
    found = run_in(python, "serving/gateways/frameworks.py")
    assert found == {name: ["right", "Ask a colleague."] for name in ("nemo", "langchain", "llamaindex")}
