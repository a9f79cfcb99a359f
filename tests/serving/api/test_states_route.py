"""States that an engine has computed: nothing is read again, and what is not the scorer's is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import save
from torch import Tensor

from abstain.data.decision_log import queries
from abstain.llm.engine.requests import HiddenStates, Request
from abstain.serving.api.app import make_app
from abstain.serving.gate import make_interaction
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys
from tests.serving.api.conftest import BASE, MadeUpReleases
from tests.serving.api.test_gate_route import ASKED, ask

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions


@pytest.fixture
def states_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "states"
    folder.mkdir()
    return folder


@pytest.fixture
def without_eos(
    make_service: Callable[..., GateService],
    releases: MadeUpReleases,
    make_release: Callable[..., Path],
    states_folder: Path,
) -> GateService:
    releases.promote("v1.0.0", make_release(includes_eos="false"))
    return make_service(states_folder=states_folder)


@pytest.fixture
def engine_client(without_eos: GateService) -> Any:
    with TestClient(make_app(without_eos, ApiKeys()), BASE) as client:
        yield client


def written(service: GateService, answer: str = "5") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What an engine gives of an answer: its tensors, and their description."""
    assert service.follower.current is not None
    gate = service.follower.current.gate
    row = make_interaction(ASKED["question"], ASKED["contexts"], answer)
    tokens = gate.encode(row)
    start, end = tokens.span("answer")
    source = gate.predictor.source
    prepared = source.prepare(row)
    layer = gate.spec.layer
    pass_ = prepared.request.prompt  # type: ignore[union-attr]
    names = tuple(dict.fromkeys(segment.name for segment in pass_))
    whole = Request(pass_, HiddenStates(layer, segments=names[: names.index("answer") + 1]), "all")
    ((_, states),) = source.load_engine().run({"all": whole})
    assert isinstance(states, Tensor) and len(states) == end
    tensors = {"hidden_states": states[:, None], "token_ids": torch.tensor(tokens.ids[:end])}
    described = {"engine": "vllm", "layers": [layer], "prompt_tokens": start, "finish_reason": "stop"}
    return tensors, described


def encoded(tensors: dict[str, Tensor]) -> str:
    return base64.b64encode(save(tensors)).decode()


def test_states_of_every_door_give_the_confidence_of_the_texts(
    engine_client: TestClient, without_eos: GateService, states_folder: Path
) -> None:
    expected = ask(engine_client)["confidence"]
    assert without_eos.follower.current is not None
    engine = without_eos.follower.current.gate.predictor.source.load_engine()
    tensors, described = written(without_eos)
    before = engine.stats.pass_tokens
    (states_folder / "r.safetensors").write_bytes(save(tensors))
    texts = ask(engine_client, states={**described, "safetensors": encoded(tensors)})
    alone = engine_client.post("/v1/gate", json={"states": {**described, "safetensors": encoded(tensors)}}).json()
    by_path = engine_client.post("/v1/gate", json={"states": {**described, "path": "r.safetensors"}}).json()
    body = save(tensors, {"request": json.dumps({"interaction_id": "i-raw", "states": described})})
    raw = engine_client.post(
        "/v1/gate/states", content=body, headers={"Content-Type": "application/octet-stream"}
    ).json()
    for found in (texts, alone, by_path, raw):
        assert "confidence" in found, found
        assert found["confidence"] == pytest.approx(expected, abs=1e-5) and found["forward_tokens"] == 0
    assert engine.stats.pass_tokens == before and raw["interaction_id"] == "i-raw"
    assert list(states_folder.iterdir()) == []
    logged = queries.get_decision(without_eos.log.database, "i-raw")
    assert logged is not None and logged.decision.interaction is None


def test_states_of_another_answer_or_shape_are_refused_and_not_logged(
    engine_client: TestClient, without_eos: GateService
) -> None:
    tensors, described = written(without_eos)
    cases: dict[str, dict[str, Any]] = {
        "shape": {**tensors, "token_ids": tensors["token_ids"][:-1]},
        "width": {**tensors, "hidden_states": tensors["hidden_states"][..., :-1].contiguous()},
        "nan": {**tensors, "hidden_states": tensors["hidden_states"] * float("nan")},
        "other": written(without_eos, "something else")[0],
    }
    for name, changed in cases.items():
        asked = {**ASKED, "states": {**described, "safetensors": encoded(changed)}}
        response = engine_client.post("/v1/gate", json=asked)
        assert response.status_code == 422 and response.json()["code"].startswith("A20"), name
    outside = engine_client.post("/v1/gate", json={"states": {**described, "path": "/etc/passwd"}})
    assert outside.status_code == 422
    assert engine_client.post("/v1/gate/states", content=b"no states").status_code == 422
    assert sum(queries.count_decisions(without_eos.log.database).values()) == 0


def test_no_file_is_read_where_no_folder_is_allowed(client: TestClient) -> None:
    states = {"engine": "vllm", "layers": [2], "prompt_tokens": 1, "path": "x.safetensors"}
    assert client.post("/v1/gate", json={"states": states}).status_code == 403


def test_what_the_scorer_needs_besides_is_named(
    engine_client: TestClient, without_eos: GateService, make_release: Callable[..., Path]
) -> None:
    content = [{"token": "5", "logprob": -0.1, "top_logprobs": []}]
    response = {"choices": [{"logprobs": {"content": content}}]}
    found = engine_client.post("/v1/gate", json={"response": response}).json()
    assert (found["decision"], found["show"]) == ("unavailable", False)
    assert "the hidden states of the answer" in found["reason"]["message"]


def test_the_version_says_what_its_scorer_reads(engine_client: TestClient, without_eos: GateService) -> None:
    version = engine_client.get("/v1/version").json()
    spec, scorer = version["feature_spec"], version["scorer"]
    assert spec["layer"] == 2 and spec["includes_eos"] is False and spec["requires"]
    assert (scorer["name"], scorer["kind"], scorer["components"]) == ("probe", "probe", ["probe"])
    assert scorer["base_model"].endswith(spec["model"].partition("@")[0]) and version["notices"] == []
    assert without_eos.follower.current is not None
    assert ask(engine_client)["feature_spec"] == without_eos.follower.current.gate.spec.digest


def test_texts_beside_states_are_whole_or_not_there(engine_client: TestClient, without_eos: GateService) -> None:
    tensors, described = written(without_eos)
    states = {**described, "safetensors": encoded(tensors)}
    for part in ({"answer": "5"}, {"question": "?"}, {"contexts": ["c"]}, {"answer": "5", "call_id": "forgotten"}):
        response = engine_client.post("/v1/gate", json={"states": states, **part})
        assert response.status_code == 422 and "missing" in response.json()["detail"], part


def test_a_file_is_deleted_where_nothing_is_live_and_kept_where_all_are_busy(
    engine_client: TestClient,
    without_eos: GateService,
    releases: MadeUpReleases,
    states_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors, described = written(without_eos)
    file, asked = states_folder / "r.safetensors", {"states": {**described, "path": "r.safetensors"}}
    file.write_bytes(save(tensors))
    monkeypatch.setattr(without_eos._batcher, "_max_queued", 0)
    assert engine_client.post("/v1/gate", json=asked).status_code == 429 and file.exists()
    releases.now = None
    without_eos.follower.refresh()
    assert engine_client.post("/v1/gate", json=asked).json()["decision"] == "unavailable" and not file.exists()
