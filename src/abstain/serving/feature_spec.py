"""What the live scorer reads, in words that the caller of a service understands: which states, and what else."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Literal

from pydantic import Field

from abstain.config.settings import Settings
from abstain.core.contracts import Row
from abstain.llm.engine.loading import find_model, load_tokenizer, read_layer_count
from abstain.llm.engine.prompts import load_layout
from abstain.llm.engine.requests import EOS, NLL, HiddenStates, Site, get_chosen_layer
from abstain.llm.engine.tokenization import encode_prompt
from abstain.llm.features.feature_request import FeatureRequest
from abstain.serving.live_scorer import LiveScorer


class FeatureSpec(Row):
    """The states that the live scorer's probe reads, and all that the scorer `needs`, by name."""

    model: str = Field(description="the base model, id@revision")
    layout: str = Field(description="the prompt layout; the states are those of a prompt in it")
    layer: int = Field(description="decoder blocks, counted from 1")
    depth: int = Field(description="the number of blocks")
    site: Site
    normed: bool = Field(description="the states are those after the final norm: of the last block's residual stream")
    includes_eos: bool = Field(description="the state of what ends the answer is read, too")
    eos_tokens: tuple[int, ...] = Field(description="the token ids of what ends the answer")
    eos_text: str
    width: int
    dtype: Literal["float32"] = "float32"
    needs: tuple[str, ...]

    @classmethod
    def from_scorer(cls, scorer: LiveScorer, settings: Settings) -> FeatureSpec:
        """The specification of `scorer`. Raises `AbstainError` where its base model is not on this machine."""
        llm, ref = scorer.llm, find_model(scorer.llm.model, settings)
        layer, depth, tokenizer = get_chosen_layer(llm), read_layer_count(ref), load_tokenizer(ref)
        end = tuple(segment for segment in load_layout(llm.layout).render("", [], "") if segment.name == EOS)
        known = end if not any(segment.eos and tokenizer.eos_token_id is None for segment in end) else ()
        return cls(
            model=str(ref),
            layout=llm.layout,
            layer=layer,
            depth=depth,
            site=llm.site,
            normed=layer == depth and llm.site == "residual",
            includes_eos=llm.includes_eos,
            eos_tokens=tuple(encode_prompt(tokenizer, known).ids),
            eos_text="".join(tokenizer.eos_token if segment.eos else segment.text for segment in known),
            width=scorer.probe.width,
            needs=tuple(dict.fromkeys(map(describe_feature_request, scorer.requires))),
        )

    @cached_property
    def digest(self) -> str:
        """12 hex digits that are equal for equal specifications."""
        return hashlib.sha256(self.to_json_line().encode()).hexdigest()[:12]


def describe_feature_request(reading: FeatureRequest) -> str:
    """What `reading` gives, such as "the NLLs of the answer, without context"."""
    ask = reading.operation
    assert isinstance(ask, HiddenStates | NLL)  # no other scorer is served
    if isinstance(ask, HiddenStates):
        what = "the hidden states of the answer" + (" and of EOS" if ask.includes_eos else "")
    elif "answer" in ask.segments:
        what = "the NLLs and entropies of the answer"
    else:
        of = ask.segments[0] if len(ask.segments) == 1 else "prompt"
        what = f"the NLLs and entropies of the {of}"
    return what if reading.chunks is None else f"{what}, {_with(reading.chunks)}"


def _with(chunks: int) -> str:
    return f"with the best {chunks} chunks" if chunks else "without context"
