import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from abstain.serving.gate import make_interaction
from tests.learning.thresholds.builders import make_guarantee
from tests.serving.clients import ASKED, GateClient
from tests.serving.conftest import Connect, MadeUpReleases
from tests.serving.engine_files import PlainModel, plain_prompt

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions


@pytest.fixture
def client(connect: Connect, states_folder: Path) -> GateClient:
    return connect(metadata={"includes_eos": "false"}, states_folder=states_folder)


def compute_states(plain: PlainModel, answer: str = "5") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What an engine gives of an answer: its tensors, and their description."""
    prompt = plain.ids(plain_prompt(make_interaction(ASKED["question"], ASKED["contexts"], answer)))
    ids = [*prompt, *plain.ids(answer)]
    tensors = {"hidden_states": plain.states(ids)[2][:, None].contiguous(), "token_ids": torch.tensor(ids)}
    return tensors, {"engine": "vllm", "layers": [2], "prompt_tokens": len(prompt), "finish_reason": "stop"}


def encode(tensors: dict[str, Tensor]) -> str:
    return base64.b64encode(save(tensors)).decode()


def test_states_at_every_door_score_as_texts(client: GateClient, plain: PlainModel, states_folder: Path) -> None:
    expected = client.decide()["confidence"]
    engine = client.service.follower.current.gate.predictor.source.load_engine()
    tensors, description = compute_states(plain)
    before = engine.stats.pass_tokens
    (states_folder / "r.safetensors").write_bytes(save(tensors))
    texts = client.decide(states={**description, "safetensors": encode(tensors)})
    alone = client.post("/v1/gate", json={"states": {**description, "safetensors": encode(tensors)}}).json()
    by_path = client.post("/v1/gate", json={"states": {**description, "path": "r.safetensors"}}).json()
    body = save(tensors, {"request": json.dumps({"interaction_id": "i-raw", "states": description})})
    kind = {"Content-Type": "application/octet-stream"}
    raw = client.post("/v1/gate/states", content=body, headers=kind).json()
    for decision in (texts, alone, by_path, raw):
        assert decision["confidence"] == pytest.approx(expected, abs=1e-5) and decision["forward_tokens"] == 0
    assert engine.stats.pass_tokens == before and raw["interaction_id"] == "i-raw"
    assert list(states_folder.iterdir()) == []
    assert client.read_decision("i-raw").decision.interaction is None


def test_states_of_another_answer_or_shape_are_rejected(client: GateClient, plain: PlainModel) -> None:
    tensors, description = compute_states(plain)
    not_finite = {**tensors, "hidden_states": tensors["hidden_states"] * float("nan")}
    for changed in (not_finite, compute_states(plain, "something else")[0]):
        asked = {**ASKED, "states": {**description, "safetensors": encode(changed)}}
        response = client.post("/v1/gate", json=asked)
        assert response.status_code == 422 and response.json()["code"].startswith("A20")
    states = {**description, "safetensors": encode(tensors)}
    for part in ({"answer": "5"}, {"question": "?"}, {"contexts": ["c"]}, {"answer": "5", "call_id": "forgotten"}):
        response = client.post("/v1/gate", json={"states": states, **part})
        assert response.status_code == 422 and "missing" in response.json()["detail"], part
    assert client.count_decisions() == {}


def test_version_describes_its_scorer_and_features(client: GateClient) -> None:
    version = client.read_version()
    spec, scorer = version["feature_spec"], version["scorer"]
    assert spec["layer"] == 2 and spec["includes_eos"] is False and spec["requires"]
    assert (scorer["name"], scorer["components"]) == ("probe", ["probe"])
    assert version["guarantee"] == make_guarantee().model_dump(mode="json")
    assert scorer["base_model"].endswith(spec["model"].partition("@")[0]) and version["notices"] == []
    assert client.decide()["feature_spec"] == client.service.follower.current.gate.spec.digest


def test_states_file_is_kept_while_all_are_busy(
    client: GateClient,
    connect: Connect,
    plain: PlainModel,
    releases: MadeUpReleases,
    states_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors, description = compute_states(plain)
    file, asked = states_folder / "r.safetensors", {"states": {**description, "path": "r.safetensors"}}
    file.write_bytes(save(tensors))
    assert connect().post("/v1/gate", json=asked).status_code == 403, "it has no folder of states"
    monkeypatch.setattr(client.service._batcher, "_max_queued", 0)
    assert client.post("/v1/gate", json=asked).status_code == 429 and file.exists()
    releases.now = None
    client.service.follower.refresh()
    assert client.post("/v1/gate", json=asked).json()["decision"] == "unavailable" and not file.exists()
