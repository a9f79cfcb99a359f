"""A LiteLLM proxy as it is published, in an environment of its own."""

import itertools
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from abstain.serving.api.app import make_app
from tests.ports import free_port
from tests.serving.clients import GateClient, bearer, make_keys
from tests.serving.conftest import MakeService
from tests.serving.gateways.conftest import QUESTION, WITHHELD, Answers, make_registration
from tests.serving.status_page.builders import listening

STARTS_WITHIN_S = 180


def make_environment(folder: Path, *packages: str) -> Path:
    """The `bin` of a new virtual environment with these packages, which are no dependencies of this project."""
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([uv, "venv", "-q", folder, "--python", sys.executable], check=True)
    python = folder / "bin" / "python"
    subprocess.run([uv, "pip", "install", "-q", "--python", python, *packages], check=True, timeout=900)
    return folder / "bin"


@contextmanager
def proxying(folder: Path, answers: Answers, addresses: dict[str, str], key: dict[str, str]) -> Iterator[httpx.Client]:
    """A client of a proxy whose models `shown` and `withheld` give a fixed answer, with a guardrail for each server."""
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
    (folder / "litellm.yaml").write_text(yaml.safe_dump(content))
    command, port = make_environment(folder / "litellm", "litellm[proxy]") / "litellm", free_port()
    started = subprocess.Popen(
        [command, "--config", folder / "litellm.yaml", "--host", "127.0.0.1", "--port", str(port)],
        env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdout=(folder / "litellm.log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=bearer(master), timeout=60) as client:
            for _ in range(STARTS_WITHIN_S):
                with suppress(httpx.TransportError):
                    if client.get("/health/liveliness").status_code == 200:
                        break
                assert started.poll() is None, (folder / "litellm.log").read_text()[-3000:]
                time.sleep(1)
            yield client
    finally:
        started.terminate()
        started.wait(30)


def read_answer(answer: httpx.Response) -> str:
    """The text that a client of the proxy gets."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
        return "".join(choice["delta"].get("content") or "" for line in lines for choice in json.loads(line)["choices"])
    content = answer.json()
    return content["error"]["message"] if "error" in content else content["choices"][0]["message"]["content"]


@pytest.mark.soak(twin="test_litellm_call_is_joined_across_two_workers")
def test_litellm_proxy_shows_and_withholds(make_worker: MakeService, answers: Answers, tmp_path: Path) -> None:
    keys, headers = make_keys(litellm=["ask"])
    key, services = headers["litellm"], {kind: make_worker(litellm_withheld=kind) for kind in ("block", "replace")}
    with ExitStack() as stack:
        addresses = {kind: stack.enter_context(listening(make_app(one, keys))) for kind, one in services.items()}
        proxy = stack.enter_context(proxying(tmp_path, answers, addresses, key))
        for stream, kind, model in itertools.product((False, True), services, ("shown", "withheld")):
            call_id = f"{model}-{kind}-{stream}"
            registration = make_registration(call_id)
            assert httpx.post(f"{addresses[kind]}/v1/contexts", json=registration, headers=key).status_code == 204
            body = {"model": model, "stream": stream, "guardrails": [kind]}
            body["messages"] = [{"role": "user", "content": QUESTION}]
            sent = proxy.post("/v1/chat/completions", json=body, headers={"x-litellm-call-id": call_id})
            expected = (200, answers[0]) if model == "shown" else (400 if kind == "block" else 200, WITHHELD)
            assert (sent.status_code, read_answer(sent)) == expected, call_id
    log = GateClient(services["block"])
    assert log.count_decisions() == {"show": 4, "abstain": 4}
    assert log.read_decision("withheld-block-True").decision.source == "litellm"
