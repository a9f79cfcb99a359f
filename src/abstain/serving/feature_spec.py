"""Description of the live scorer's input for callers of a service: which states it reads, and which other features."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Literal

from pydantic import Field

from abstain.config.params import Site
from abstain.config.settings import Settings
from abstain.core.contracts import Row
from abstain.llm.engine.loading import find_model, load_tokenizer, read_layer_count
from abstain.llm.engine.requests import EOS, NLL, Generate, HiddenStates, NextTokenProbs, get_chosen_layer
from abstain.llm.engine.tokenization import encode_segments, load_model_layout
from abstain.llm.features.feature_request import FeatureRequest
from abstain.serving.live_scorer import LiveScorer


class FeatureSpec(Row):
    """The states that the live scorer's probe reads, and the names of all features that the scorer `requires`."""

    model: str = Field(description="the base model, id@revision")
    layout: str = Field(description="the prompt layout; the states are those of a prompt in it")
    layer: int = Field(description="decoder blocks, counted from 1")
    depth: int = Field(description="the number of blocks")
    site: Site
    is_normalized: bool = Field(
        description="the states are those after the final norm: of the last block's residual stream"
    )
    includes_eos: bool = Field(description="the state of what ends the answer is read, too")
    eos_tokens: tuple[int, ...] = Field(description="the token ids of what ends the answer")
    eos_text: str
    width: int
    dtype: Literal["float32"] = "float32"
    requires: tuple[str, ...]

    @classmethod
    def from_scorer(cls, scorer: LiveScorer, settings: Settings) -> FeatureSpec:
        """Return the specification of a scorer.

        Args:
            scorer: The live scorer.
            settings: Settings with the place of the base model.

        Returns:
            The specification.

        Raises:
            AbstainError: The base model is not on this machine.
        """
        llm, ref = scorer.llm, find_model(scorer.llm.model, settings)
        layer, depth, tokenizer = get_chosen_layer(llm), read_layer_count(ref), load_tokenizer(ref)
        prompt = load_model_layout(ref, llm.layout).render("", [], "")
        eos_segments = tuple(segment for segment in prompt if segment.name == EOS)
        encodable_segments = (
            eos_segments if not any(segment.eos and tokenizer.eos_token_id is None for segment in eos_segments) else ()
        )
        return cls(
            model=str(ref),
            layout=llm.layout,
            layer=layer,
            depth=depth,
            site=llm.site,
            is_normalized=layer == depth and llm.site == "residual",
            includes_eos=llm.includes_eos,
            eos_tokens=tuple(encode_segments(tokenizer, encodable_segments).ids),
            eos_text="".join(tokenizer.eos_token if segment.eos else segment.text for segment in encodable_segments),
            width=scorer.probe.width,
            requires=tuple(dict.fromkeys(map(describe_feature_request, scorer.requires))),
        )

    @cached_property
    def digest(self) -> str:
        """12 hex digits that are equal for equal specifications."""
        return hashlib.sha256(self.to_json_line().encode()).hexdigest()[:12]


def describe_feature_request(request: FeatureRequest) -> str:
    """Return what `request` computes in words, such as "the NLLs of the answer, without context"."""
    operation = request.operation
    if isinstance(operation, Generate | NextTokenProbs):
        return f"what the base model replies to the question of {request.prompt_kind}"
    assert isinstance(operation, HiddenStates | NLL)  # no scorer requires anything else
    if isinstance(operation, HiddenStates):
        description = "the hidden states of the answer" + (" and of EOS" if operation.includes_eos else "")
    elif "answer" in operation.segments:
        description = "the NLLs and entropies of the answer"
    else:
        segment_name = operation.segments[0] if len(operation.segments) == 1 else "prompt"
        description = f"the NLLs and entropies of the {segment_name}"
    return description if request.chunks is None else f"{description}, {_describe_chunks(request.chunks)}"


def _describe_chunks(chunks: int) -> str:
    return f"with the best {chunks} chunks" if chunks else "without context"
