"""Hidden states that an engine computed while it wrote the answer, checked against what the probe reads.

The format is that of vLLM's connector, a safetensors file of `hidden_states`, (T, L, d), and `token_ids`, (T,). States
are used as they are or refused with the reason, never cut to fit: an engine that loses a token's states gives fewer of
them, and those that are left would pass for another token's. What may be left out is what the specification leaves out,
the end of the answer.
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
NORMED: dict[Engine, bool] = {"vllm": False, "transformers": True}
"""Whether an engine's states of the last layer are those after the final norm. SGLang has both: it has to be said."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32)
TENSORS = {"hidden_states", "token_ids"}
METADATA, REQUEST = "__metadata__", "request"


class StatesDescription(Row):
    """What a file of states does not say itself."""

    engine: Engine
    layers: tuple[NonNegative, ...] = Field(
        min_length=1, max_length=512, description="of the second axis, as the engine numbers them: 0 is the embedding"
    )
    prompt_tokens: NonNegative = Field(description="tokens before the answer's first")
    finish_reason: Literal["stop", "length"] | None = Field(
        None, description="why the engine ended the answer: after `length`, its last token has no state"
    )
    normed: StrictBool | None = Field(
        None, description="the last layer's states are those after the final norm; default: as the engine does it"
    )


class StatesInput(StatesDescription):
    """States as a part of a request: their bytes in base64, or the path of a file in the folder of states."""

    safetensors: str | None = None
    path: str | None = None

    @model_validator(mode="after")
    def _check_source(self) -> StatesInput:
        if (self.safetensors is None) == (self.path is None):
            raise ValueError("give the states as `safetensors` or as `path`")
        return self


def read_states(
    given: StatesInput,
    spec: FeatureSpec,
    folder: Path | None,
    limit_bytes: int,
    tokens: EncodedPrompt | UnreadableInteraction | None = None,
) -> Tensor:
    """The probe's input, float32 (tokens of the answer, d), with those of EOS where `spec` includes it.

    `folder`: where a path may lie (`state_files.take_file`). `tokens`: what the base model reads where the texts are
    known (`FeatureSource.tokens`). Raises `AbstainError` for states that are not those that `spec` asks for, or not of
    these texts, and for texts that the base model cannot read.
    """
    if given.path is not None:
        content = read_and_delete(given.path, folder, limit_bytes)
    else:
        assert given.safetensors is not None
        content = _decoded(given.safetensors, limit_bytes)
    return parse_states(content, given, spec, tokens)


def parse_states(
    content: bytes,
    described: StatesDescription,
    spec: FeatureSpec,
    tokens: EncodedPrompt | UnreadableInteraction | None = None,
) -> Tensor:
    """As `read_states`, of the bytes of a safetensors file."""
    if isinstance(tokens, UnreadableInteraction):
        raise AbstainError(Code.TOO_LONG, tokens.reason)
    at = _get_layer_index(described, spec)
    states, ids = _tensors(content)
    if len(states) != len(ids):
        _refuse(
            f"hidden_states are of {len(states)} tokens, token_ids are {len(ids)}: the engine lost some; start it "
            "without prefix caching and chunked prefill (vLLM: --no-enable-prefix-caching --no-enable-chunked-prefill)"
        )
    if states.shape[1] != len(described.layers):
        _refuse(f"hidden_states have {states.shape[1]} layers, `layers` names {len(described.layers)}: name each once")
    if states.shape[2] != spec.width:
        _refuse(f"hidden_states are {states.shape[2]} wide, those of {spec.model} are {spec.width}: ask that model")
    start, end = _answer(ids, described, spec, tokens)
    found = states[start:end, at].float().contiguous()
    if not np.isfinite(found.numpy()).all():  # a third of the time that torch takes for so few
        raise AbstainError(
            Code.NOT_FINITE, "hidden_states of the answer are not finite: let the engine compute in another dtype"
        )
    return found


def parse_embedded_request(content: bytes) -> dict[str, Any]:
    """The JSON object under `request` in the `__metadata__` of a safetensors file that is the body of a request.

    Raises `AbstainError` where there is none.
    """
    try:
        size = int.from_bytes(content[:8], "little")
        found = json.loads(json.loads(content[8 : 8 + size])[METADATA][REQUEST])
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise AbstainError(
            Code.WRONG_FORMAT,
            f"the body is no safetensors file whose {METADATA} hold the rest of the request as JSON under `{REQUEST}`",
        )
    return found


def _decoded(text: str, limit_bytes: int) -> bytes:
    if len(text) * 3 // 4 > limit_bytes + 2:  # of padding
        raise make_too_large_error("the states", limit_bytes)
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AbstainError(Code.WRONG_FORMAT, "states.safetensors is no base64: encode the file's bytes") from None
    if len(content) > limit_bytes:
        raise make_too_large_error("the states", limit_bytes)
    return content


def _get_layer_index(described: StatesDescription, spec: FeatureSpec) -> int:
    """The index of the layer that `spec` reads among those that were given."""
    layers = described.layers
    listed = ", ".join(map(str, layers))
    if spec.site == "mlp":
        _refuse(
            "the probe reads the output of a feed-forward block, which no engine gives: train with llm.site: residual"
        )
    if len(set(layers)) < len(layers) or max(layers) > spec.depth:
        _refuse(f"layers {listed}: {spec.model} has 0 (its embedding) to {spec.depth}, each once")
    if spec.layer not in layers:
        remedy = "SGLang gives the last one alone" if described.engine == "sglang" else "let the engine extract it"
        _refuse(f"the probe reads layer {spec.layer}, given are {listed}: {remedy}, or train with that llm.layer")
    if spec.normed:
        normed = NORMED.get(described.engine) if described.normed is None else described.normed
        if normed is None:
            _refuse("SGLang gives its last layer before or after the final norm: say which as `normed`")
        if not normed:
            _refuse(
                f"layer {spec.layer} is given before the final norm, and the probe reads it after: train with an "
                f"llm.layer below {spec.depth}"
            )
    return layers.index(spec.layer)


def _tensors(content: bytes) -> tuple[Tensor, Tensor]:
    """`hidden_states`, (T, L, d), and `token_ids`, (T,), as they were written."""
    try:
        found = load(content)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError, OverflowError):
        raise AbstainError(
            Code.WRONG_FORMAT,
            "the states are no whole safetensors file: send what the engine wrote, once it is written",
        ) from None
    if found.keys() != TENSORS:
        has = ", ".join(map(repr, sorted(found))) or "nothing"
        _refuse(f"the states hold {has[:200]}: write hidden_states and token_ids alone")
    states, ids = found["hidden_states"], found["token_ids"]
    if states.dtype not in FLOATS or ids.dtype not in INTEGERS:
        _refuse(
            f"hidden_states are {states.dtype}, token_ids {ids.dtype}: give float32, bfloat16 or float16, and int64"
        )
    if states.dim() != 3 or ids.dim() != 1:
        _refuse(
            f"hidden_states have the shape {tuple(states.shape)}, token_ids {tuple(ids.shape)}: give (tokens, layers, "
            "width) and (tokens)"
        )
    return states, ids


def _answer(
    token_ids: Tensor, described: StatesDescription, spec: FeatureSpec, tokens: EncodedPrompt | None
) -> tuple[int, int]:
    """The first and past the last token whose states the probe reads."""
    ids, start, end_ids = token_ids.tolist(), described.prompt_tokens, list(spec.eos_tokens)
    if start >= len(ids):
        _refuse(
            f"of {len(ids)} tokens {start} are the prompt, so the answer has no states: ask the engine for those "
            "of its output (vLLM: kv_transfer_params.include_output_tokens)"
        )
    ended = bool(end_ids) and ids[start:][-len(end_ids) :] == end_ids
    end = len(ids) - len(end_ids) if ended else len(ids)
    if end <= start:
        _refuse("the answer is empty: there is nothing to decide about")
    if spec.includes_eos and not ended:
        _refuse(
            "the probe reads the state of EOS, and the tokens do not end with it: no engine runs the token that it "
            "samples last; train with llm.includes_eos: false"
        )
    if tokens is not None:
        _compare(ids[:start], ids[start:end], spec, tokens)
    elif _contains_sequence(ids[start:end], end_ids):
        _refuse(f"what ends an answer stands within it: of {len(ids)} tokens more than {start} are the prompt")
    elif not ended and described.finish_reason != "stop":
        _refuse(
            "the answer's last token may be missing, as after finish_reason: length; give the finish_reason: stop, or "
            "the texts that were read"
        )
    return start, len(ids) if spec.includes_eos else end


def _compare(prompt: Sequence[int], answer: Sequence[int], spec: FeatureSpec, tokens: EncodedPrompt) -> None:
    """Raise `AbstainError` where the engine read other tokens than the base model reads in the request's texts."""
    start, end = tokens.span("answer")
    expected = tokens.ids[start:end]
    if list(prompt) != tokens.ids[:start]:
        both = zip(prompt, tokens.ids, strict=False)
        at = next((at for at, (one, other) in enumerate(both) if one != other), min(len(prompt), start))
        _refuse(
            f"the engine read another prompt, of {len(prompt)} tokens, than layout {spec.layout} makes of these texts, "
            f"of {start}; they differ at token {at}: let both read the same, or leave the states out"
        )
    if list(answer) == expected[:-1]:
        _refuse("the state of the answer's last token is missing, as after finish_reason: length: leave the states out")
    if list(answer) != expected:
        _refuse(
            "the states are of other tokens than those of this answer: of another request, or the answer was changed "
            "or is read in other tokens than it was written in; leave the states out"
        )


def _contains_sequence(ids: Sequence[int], part: Sequence[int]) -> bool:
    return bool(part) and any(list(ids[at : at + len(part)]) == list(part) for at in range(len(ids)))


def _refuse(message: str) -> NoReturn:
    raise AbstainError(Code.STATES_MISMATCH, message)
