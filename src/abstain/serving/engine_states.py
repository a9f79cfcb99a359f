"""Hidden states that an engine computed while it wrote the answer, checked against what the probe reads.

The format is that of vLLM's connector, a safetensors file of `hidden_states`, (T, L, d), and `token_ids`, (T,). States
are used as they are or rejected with the reason, never cut to fit: an engine that loses a token's states sends fewer of
them, and the remaining ones would pass for another token's. Only what the specification leaves out may be missing: the
end of the answer.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import numpy as np
import torch
from pydantic import Field, StrictBool, model_validator
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.contracts import Row
from abstain.core.errors import AbstainError
from abstain.llm.engine.tokenization import EncodedPrompt
from abstain.llm.features.extraction import UnreadableInteraction
from abstain.serving.feature_spec import FeatureSpec
from abstain.serving.state_files import make_too_large_error, read_and_delete

Engine = Literal["vllm", "sglang", "transformers"]
NonNegative = Annotated[int, Field(strict=True, ge=0)]
NORMALIZED_BY_ENGINE: dict[Engine, bool] = {"vllm": False, "transformers": True}
"""Whether an engine's states of the last layer are those after the final norm; SGLang has both and must be told."""
FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
INTEGER_DTYPES = (torch.int64, torch.int32)
TENSOR_NAMES = {"hidden_states", "token_ids"}
METADATA, REQUEST = "__metadata__", "request"


class StatesDescription(Row):
    """Properties of a states file that the file does not contain."""

    engine: Engine
    layers: tuple[NonNegative, ...] = Field(
        min_length=1, max_length=512, description="of the second axis, as the engine numbers them: 0 is the embedding"
    )
    prompt_tokens: NonNegative = Field(description="tokens before the answer's first")
    finish_reason: Literal["stop", "length"] | None = Field(
        None, description="why the engine ended the answer: after `length`, its last token has no state"
    )
    is_normalized: StrictBool | None = Field(
        None, description="the last layer's states are those after the final norm; default: as the engine does it"
    )


class StatesInput(StatesDescription):
    """States as a part of a request: their bytes in base64, or the path of a file in the states folder."""

    safetensors: str | None = None
    path: str | None = None

    @model_validator(mode="after")
    def _check_source(self) -> StatesInput:
        if (self.safetensors is None) == (self.path is None):
            raise ValueError("give the states as `safetensors` or as `path`")
        return self


def read_states(
    states_input: StatesInput,
    spec: FeatureSpec,
    folder: Path | None,
    limit_bytes: int,
    tokens: EncodedPrompt | UnreadableInteraction | None = None,
) -> Tensor:
    """Read and check the probe's input from a request.

    Args:
        states_input: The states and their description.
        spec: Specification of the states that the probe reads.
        folder: Folder that a path must lie in (`state_files.read_and_delete`); None allows no path.
        limit_bytes: Maximum size of the states in bytes.
        tokens: Tokens that the base model reads if the texts are known (`FeatureSource.encode`).

    Returns:
        float32 (tokens of the answer, d); the states of EOS are included if `spec` includes them.

    Raises:
        AbstainError: The states are not those that `spec` describes or not of these texts, or the base model cannot
            read the texts.
    """
    if states_input.path is not None:
        content = read_and_delete(states_input.path, folder, limit_bytes)
    else:
        assert states_input.safetensors is not None
        content = _decode_base64(states_input.safetensors, limit_bytes)
    return parse_states(content, states_input, spec, tokens)


def parse_states(
    content: bytes,
    description: StatesDescription,
    spec: FeatureSpec,
    tokens: EncodedPrompt | UnreadableInteraction | None = None,
) -> Tensor:
    """Parse and check the probe's input from the bytes of a safetensors file.

    Args:
        content: Bytes of the file.
        description: Engine, layers and prompt length of the states.
        spec: Specification of the states that the probe reads.
        tokens: Tokens that the base model reads if the texts are known.

    Returns:
        float32 (tokens of the answer, d); the states of EOS are included if `spec` includes them.

    Raises:
        AbstainError: As in `read_states`.
    """
    if isinstance(tokens, UnreadableInteraction):
        raise AbstainError(Code.TOO_LONG, tokens.reason)
    layer_index = _get_layer_index(description, spec)
    states, token_ids = _load_tensors(content)
    if len(states) != len(token_ids):
        _raise_mismatch(
            f"hidden_states are of {len(states)} tokens, token_ids are {len(token_ids)}: the engine lost some; "
            "start it without prefix caching and chunked prefill (vLLM: --no-enable-prefix-caching "
            "--no-enable-chunked-prefill)"
        )
    if states.shape[1] != len(description.layers):
        _raise_mismatch(
            f"hidden_states have {states.shape[1]} layers, `layers` names {len(description.layers)}: name each once"
        )
    if states.shape[2] != spec.width:
        _raise_mismatch(
            f"hidden_states are {states.shape[2]} wide, those of {spec.model} are {spec.width}: ask that model"
        )
    start, end = _find_answer_span(token_ids, description, spec, tokens)
    answer_states = states[start:end, layer_index].float().contiguous()
    if not np.isfinite(answer_states.numpy()).all():  # takes a third of the time of torch for few values
        raise AbstainError(
            Code.NOT_FINITE, "hidden_states of the answer are not finite: let the engine compute in another dtype"
        )
    return answer_states


def parse_embedded_request(content: bytes) -> dict[str, Any]:
    """Parse the request in the metadata of a safetensors file that is the body of a request.

    Args:
        content: Bytes of the file; the request is JSON under `request` in its `__metadata__`.

    Returns:
        The JSON object.

    Raises:
        AbstainError: The metadata contain no such object.
    """
    try:
        header_bytes = int.from_bytes(content[:8], "little")
        request = json.loads(json.loads(content[8 : 8 + header_bytes])[METADATA][REQUEST])
    except (ValueError, KeyError, TypeError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise AbstainError(
            Code.WRONG_FORMAT,
            f"the body is no safetensors file whose {METADATA} hold the rest of the request as JSON under `{REQUEST}`",
        )
    return request


def _decode_base64(text: str, limit_bytes: int) -> bytes:
    if len(text) * 3 // 4 > limit_bytes + 2:  # of padding
        raise make_too_large_error("the states", limit_bytes)
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AbstainError(Code.WRONG_FORMAT, "states.safetensors is no base64: encode the file's bytes") from None
    if len(content) > limit_bytes:
        raise make_too_large_error("the states", limit_bytes)
    return content


def _get_layer_index(description: StatesDescription, spec: FeatureSpec) -> int:
    """Return the index, among the layers of the file, of the layer that `spec` reads."""
    layers = description.layers
    layer_list = ", ".join(map(str, layers))
    if spec.site != "residual":
        _raise_mismatch(f"the probe reads the site {spec.site}, which no engine gives: train with llm.site: residual")
    if len(set(layers)) < len(layers) or max(layers) > spec.depth:
        _raise_mismatch(f"layers {layer_list}: {spec.model} has 0 (its embedding) to {spec.depth}, each once")
    if spec.layer not in layers:
        remedy = "SGLang gives the last one alone" if description.engine == "sglang" else "let the engine extract it"
        _raise_mismatch(
            f"the probe reads layer {spec.layer}, given are {layer_list}: {remedy}, or train with that llm.layer"
        )
    if spec.is_normalized:
        is_normalized = description.is_normalized
        if is_normalized is None:
            is_normalized = NORMALIZED_BY_ENGINE.get(description.engine)
        if is_normalized is None:
            _raise_mismatch("SGLang gives its last layer before or after the final norm: say which as `is_normalized`")
        if not is_normalized:
            _raise_mismatch(
                f"layer {spec.layer} is given before the final norm, and the probe reads it after: train with an "
                f"llm.layer below {spec.depth}"
            )
    return layers.index(spec.layer)


def _load_tensors(content: bytes) -> tuple[Tensor, Tensor]:
    """Load `hidden_states`, (T, L, d), and `token_ids`, (T,), as the engine wrote them."""
    try:
        tensors = load(content)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError, OverflowError):
        raise AbstainError(
            Code.WRONG_FORMAT,
            "the states are no whole safetensors file: send what the engine wrote, once it is written",
        ) from None
    if tensors.keys() != TENSOR_NAMES:
        names = ", ".join(map(repr, sorted(tensors))) or "nothing"
        _raise_mismatch(f"the states hold {names[:200]}: write hidden_states and token_ids alone")
    states, token_ids = tensors["hidden_states"], tensors["token_ids"]
    if states.dtype not in FLOAT_DTYPES or token_ids.dtype not in INTEGER_DTYPES:
        _raise_mismatch(
            f"hidden_states are {states.dtype}, token_ids {token_ids.dtype}: give float32, bfloat16 or float16, "
            "and int64"
        )
    if states.dim() != 3 or token_ids.dim() != 1:
        _raise_mismatch(
            f"hidden_states have the shape {tuple(states.shape)}, token_ids {tuple(token_ids.shape)}: give (tokens, "
            "layers, width) and (tokens)"
        )
    return states, token_ids


def _find_answer_span(
    token_ids: Tensor, description: StatesDescription, spec: FeatureSpec, tokens: EncodedPrompt | None
) -> tuple[int, int]:
    """Return the first and past the last index of the tokens whose states the probe reads."""
    ids, start, end_ids = token_ids.tolist(), description.prompt_tokens, list(spec.eos_tokens)
    if start >= len(ids):
        _raise_mismatch(
            f"of {len(ids)} tokens {start} are the prompt, so the answer has no states: ask the engine for those "
            "of its output (vLLM: kv_transfer_params.include_output_tokens)"
        )
    ends_with_eos = bool(end_ids) and ids[start:][-len(end_ids) :] == end_ids
    end = len(ids) - len(end_ids) if ends_with_eos else len(ids)
    if end <= start:
        _raise_mismatch("the answer is empty: there is nothing to decide about")
    if spec.includes_eos and not ends_with_eos:
        _raise_mismatch(
            "the probe reads the state of EOS, and the tokens do not end with it: no engine runs the token that it "
            "samples last; train with llm.includes_eos: false"
        )
    if tokens is not None:
        _require_same_tokens(ids[:start], ids[start:end], spec, tokens)
    elif _contains_sequence(ids[start:end], end_ids):
        _raise_mismatch(f"what ends an answer stands within it: of {len(ids)} tokens more than {start} are the prompt")
    elif not ends_with_eos and description.finish_reason != "stop":
        _raise_mismatch(
            "the answer's last token may be missing, as after finish_reason: length; give the finish_reason: stop, or "
            "the texts that were read"
        )
    return start, len(ids) if spec.includes_eos else end


def _require_same_tokens(
    prompt: Sequence[int], answer: Sequence[int], spec: FeatureSpec, tokens: EncodedPrompt
) -> None:
    """Raise `AbstainError` if the engine read other tokens than the base model reads in the request's texts."""
    start, end = tokens.span("answer")
    expected = tokens.ids[start:end]
    if list(prompt) != tokens.ids[:start]:
        id_pairs = zip(prompt, tokens.ids, strict=False)
        difference_index = next(
            (index for index, (token_id, expected_id) in enumerate(id_pairs) if token_id != expected_id),
            min(len(prompt), start),
        )
        _raise_mismatch(
            f"the engine read another prompt, of {len(prompt)} tokens, than layout {spec.layout} makes of these texts, "
            f"of {start}; they differ at token {difference_index}: let both read the same, or leave the states out"
        )
    if list(answer) == expected[:-1]:
        _raise_mismatch(
            "the state of the answer's last token is missing, as after finish_reason: length: leave the states out"
        )
    if list(answer) != expected:
        _raise_mismatch(
            "the states are of other tokens than those of this answer: of another request, or the answer was changed "
            "or is read in other tokens than it was written in; leave the states out"
        )


def _contains_sequence(ids: Sequence[int], part: Sequence[int]) -> bool:
    return bool(part) and any(list(ids[start : start + len(part)]) == list(part) for start in range(len(ids)))


def _raise_mismatch(message: str) -> NoReturn:
    raise AbstainError(Code.STATES_MISMATCH, message)
