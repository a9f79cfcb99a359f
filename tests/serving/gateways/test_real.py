"""A LiteLLM proxy as it is published, in an environment of its own."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from abstain.serving.api.app import make_app
from abstain.serving.service.gate_service import GateService
from tests.ports import free_port
from tests.serving.api.conftest import MakeService
from tests.serving.clients import GateClient, make_keys
from tests.serving.gateways.conftest import QUESTION, WITHHELD, Answers, make_registration
from tests.serving.status_page.builders import listening

STARTS_WITHIN_S = 180
Gates = tuple[dict[str, str], dict[str, str], GateService]


def make_environment(folder: Path, *packages: str) -> Path:
    """The `bin` of a new virtual environment with these packages, which are no dependencies of this project."""
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([uv, "venv", "-q", folder, "--python", sys.executable], check=True)
    python = folder / "bin" / "python"
    subprocess.run([uv, "pip", "install", "-q", "--python", python, *packages], check=True, timeout=900)
    return folder / "bin"


@pytest.fixture
def gates(make_worker: MakeService) -> Iterator[Gates]:
    """Two servers, one of which replaces what it withholds, the header of both their keys, and the first's service."""
    keys, headers = make_keys(litellm=["ask"])
    services = {kind: make_worker(litellm_withheld=kind) for kind in ("block", "replace")}
    with ExitStack() as stack:
        addresses = {
            kind: stack.enter_context(listening(make_app(service, keys))) for kind, service in services.items()
        }
        yield addresses, headers["litellm"], services["block"]


@pytest.fixture
def proxy(gates: Gates, answers: Answers, tmp_path: Path) -> Iterator[httpx.Client]:
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
    shared = {"guardrail": "generic_guardrail_api", "mode": ["pre_call", "post_call"], "headers": key}
    guardrails = [
        {"guardrail_name": kind, "litellm_params": {**shared, "api_base": address, **streams[kind]}}
        for kind, address in addresses.items()
    ]
    master = f"sk-{secrets.token_hex(16)}"
    content = {"model_list": models, "guardrails": guardrails, "general_settings": {"master_key": master}}
    (tmp_path / "litellm.yaml").write_text(yaml.safe_dump(content))
    command, port = make_environment(tmp_path / "litellm", "litellm[proxy]") / "litellm", free_port()
    started = subprocess.Popen(
        [command, "--config", tmp_path / "litellm.yaml", "--host", "127.0.0.1", "--port", str(port)],
        env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdout=(tmp_path / "litellm.log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    headers = {"Authorization": f"Bearer {master}"}
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
            wait_for(client, started, tmp_path / "litellm.log")
            yield client
    finally:
        started.terminate()
        started.wait(30)


def wait_for(client: httpx.Client, started: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline and started.poll() is None:
        try:
            if client.get("/health/liveliness").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(1)
    raise AssertionError(log.read_text()[-3000:])


def chat(proxy: httpx.Client, gates: Gates, model: str, kind: str, *, stream: bool) -> tuple[int, str]:
    """The status and the text that a client of the proxy gets, after its assistant registered the contexts."""
    addresses, key, _ = gates
    call_id = f"{model}-{kind}-{stream}"
    sent = httpx.post(f"{addresses[kind]}/v1/contexts", json=make_registration(call_id), headers=key)
    assert sent.status_code == 204
    body = {"model": model, "stream": stream, "guardrails": [kind], "messages": [{"role": "user", "content": QUESTION}]}
    answer = proxy.post("/v1/chat/completions", json=body, headers={"x-litellm-call-id": call_id})
    if answer.status_code == 200 and stream:
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
        deltas = [choice["delta"].get("content") or "" for line in lines for choice in json.loads(line)["choices"]]
        return answer.status_code, "".join(deltas)
    content = answer.json()
    text = content["error"]["message"] if "error" in content else content["choices"][0]["message"]["content"]
    return answer.status_code, text


@pytest.mark.soak(twin="test_litellm_call_is_joined_across_two_workers")
def test_litellm_proxy_shows_and_withholds(gates: Gates, proxy: httpx.Client, answers: Answers) -> None:
    for stream in (False, True):
        for kind, status in (("block", 400), ("replace", 200)):
            assert chat(proxy, gates, "shown", kind, stream=stream) == (200, answers[0])
            assert chat(proxy, gates, "withheld", kind, stream=stream) == (status, WITHHELD)
    log = GateClient(gates[2])
    assert log.count_decisions() == {"show": 4, "abstain": 4}
    assert log.read_decision("withheld-block-True").decision.source == "litellm"
