from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from abstain.llm.engine import self_check
from abstain.llm.engine.decoder import Decoder
from abstain.llm.engine.loading import LoadedModel
from tests.llm.builders import tiny_model


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedModel:
    return replace(tiny_model(), self_check_folder=tmp_path / "checks")


def forwards(loaded: LoadedModel) -> tuple[int, Decoder]:
    """The forward passes that the start of a decoder takes, and the decoder."""
    seen: list[Any] = []
    hook = loaded.model.base_model.register_forward_pre_hook(lambda *call: seen.append(call))
    decoder = Decoder(loaded)
    hook.remove()
    return len(seen), decoder


def test_self_check_of_a_known_model_runs_no_pass(loaded: LoadedModel) -> None:
    first, decoder = forwards(loaded)
    again, known = forwards(loaded)
    assert (first, again) == (4, 0)
    assert (known.can_pack, known._can_project) == (decoder.can_pack, decoder._can_project) == (True, True)


def test_self_check_without_folder_runs_every_time() -> None:
    assert [forwards(tiny_model())[0] for _ in range(2)] == [4, 4]


@pytest.mark.parametrize("changed", ["weights", "dtype", "code", "processor"])
def test_self_check_runs_again_after_a_change(
    loaded: LoadedModel, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forwards(loaded)
    match changed:
        case "weights":
            loaded = replace(loaded, ref=replace(loaded.ref, revision="other"))
        case "dtype":
            loaded.model.double()
        case "code":
            monkeypatch.setattr(self_check, "_code_digest", lambda: "other")
        case "processor":
            monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "other")
    assert forwards(loaded)[0] == 4
