"""The kinds of requests to the base model about a pass. A new method is a new declaration here, not a new loop.

A request kind (`Operation`) names segments of its pass. Text after the last of them cannot change the result under
causal attention, so it is cut off (`cut_to_operation`): two methods that share the beginning of a pass share its
computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from abstain.config.params import LLMParams
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.prompts import PromptSegments

Site = Literal["residual", "mlp"]
EOS = "eos"
"""The segment of what ends an answer."""


def get_chosen_layer(llm: LLMParams) -> int:
    """`llm.layer`. Raises `AbstainError` where it is not chosen yet."""
    if llm.layer == "auto":
        raise AbstainError(
            Code.BAD_SETTING,
            "llm.layer: auto: no layer is chosen yet: run `abstain retrain`, which chooses one and commits it to "
            "params.yaml",
        )
    return llm.layer


@dataclass(frozen=True)
class HiddenStates:
    """Hidden states of the tokens of adjacent `segments` at `layer` (decoder blocks counted from 1).

    `site="residual"` is the residual stream after the block, equal to Hugging Face's `hidden_states[layer]`
    (for the last layer that is after the final norm); `"mlp"` is the output of the block's feed-forward part.
    Result: (tokens, d), the model's dtype.
    """

    layer: int
    site: Site = "residual"
    segments: tuple[str, ...] = ("answer", EOS)

    @property
    def includes_eos(self) -> bool:
        """Whether the states of what ends the answer are among them."""
        return EOS in self.segments


def make_probe_operation(llm: LLMParams, layer: int | None = None, site: Site | None = None) -> HiddenStates:
    """The states that a probe reads: of the answer, and of EOS where `llm.includes_eos`, by default at `llm`'s place.

    Raises `AbstainError` where `llm.layer` is wanted and not chosen yet.
    """
    segments = ("answer", EOS) if llm.includes_eos else ("answer",)
    return HiddenStates(get_chosen_layer(llm) if layer is None else layer, site or llm.site, segments)


@dataclass(frozen=True)
class NLL:
    """Per-token surprise of adjacent `segments`: -log p(token | all before it), and the entropy of that p, in nats.

    Result: (tokens, 2), float32. The first token of a pass has nothing before it: nan.
    """

    segments: tuple[str, ...]


@dataclass(frozen=True)
class NextTokenProbs:
    """Next-token probabilities of `tokens` at the end of the pass; each is one token of the tokenizer, e.g. "Yes".

    Result: (len(tokens), 1), float32.
    """

    tokens: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError("a choice needs tokens to choose from")


@dataclass(frozen=True)
class Generate:
    """An answer that continues the pass, ended by EOS or by `max_new_tokens`.

    Greedy by default. With `temperature` > 0 sampled: `temperature` and `top_p` shape the distribution, `samples`
    answers are drawn for a pass, under `seed`. With `states`, the hidden states of the answer's tokens, and of the EOS
    after it where `states` includes it, are kept on the way. With `tracked_tokens`, the probability of each of these
    tokens is kept at every step, before temperature and `top_p`; each is one token of the tokenizer.
    Result: a list of at most `samples` `GeneratedText`.
    """

    max_new_tokens: int = 48
    temperature: float = 0.0
    top_p: float = 1.0
    samples: int = 1
    seed: int = 0
    states: HiddenStates | None = None
    tracked_tokens: tuple[str, ...] = ()

    @property
    def reads_eos(self) -> bool:
        """Whether the EOS after the answer is read for its state."""
        return self.states is not None and self.states.includes_eos

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.samples < 1:
            raise ValueError("an answer has at least one token, and there is at least one")
        if not 0 < self.top_p <= 1 or not (self.temperature == 0 or self.temperature >= 0.01):
            raise ValueError("top_p is above 0 and at most 1; a temperature is 0 or at least 0.01")
        if not 0 <= self.seed < 2**31:
            raise ValueError("a seed is from 0 to 2**31 - 1")
        if self.samples > 1 and not self.temperature:
            raise ValueError("several answers need a `temperature`")


@dataclass(frozen=True)
class ConstrainedGenerate:
    """The likeliest answer that contains a text: that of the pass's last segment, which the model does not read.

    Found by a search with `beams` beams (beams.py), ended by EOS or by `max_new_tokens`; likeliest is the highest mean
    log-probability of a token. The text may be in lower or upper case, or capitalised.
    Result: (steps, 2), float32: token and log-probability of every step, EOS included where it ended so; no steps
    where the text has more than `max_new_tokens` tokens in every form.
    """

    beams: int = 30
    max_new_tokens: int = 15

    def __post_init__(self) -> None:
        if self.beams < 1 or self.max_new_tokens < 1:
            raise ValueError("a beam search has at least one beam and one token")


@dataclass(frozen=True)
class Perturb:
    """Replace `tokens` tokens of a text by what the model would have written there instead (llm/perturbation).

    `where`: `entropy`, the tokens that it finds least likely, or `random`, under `seed`. `when`: `single_shot`, all in
    the text as it was, or `iterative`, each in a text where those before it are changed. Literals of the pass stay.
    Result: (replacements, 7), float32: the fields of `perturbation.text.Step`. There are fewer than `tokens` where the
    text has fewer that may be replaced.
    """

    where: Literal["entropy", "random"]
    when: Literal["single_shot", "iterative"]
    tokens: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError("a perturbation replaces at least one token")


Operation = HiddenStates | NLL | NextTokenProbs | Generate | ConstrainedGenerate | Perturb


@dataclass(frozen=True)
class Request:
    """One request: a kind and its pass. `name` identifies the row in error messages."""

    prompt: PromptSegments
    operation: Operation
    name: str


def cut_to_operation(pass_: PromptSegments, ask: Operation) -> PromptSegments:
    """`pass_` up to the last segment that `ask` needs. Raises `AbstainError` for a segment the pass does not have."""
    if isinstance(ask, NextTokenProbs | Generate | ConstrainedGenerate | Perturb):
        return pass_
    names = [segment.name for segment in pass_]
    for wanted in ask.segments:
        if wanted not in names:
            raise AbstainError(
                Code.MODEL_UNSUITABLE,
                f"no segment '{wanted}' in the prompt layout: it has {', '.join(dict.fromkeys(names))}",
            )
    start = names.index(ask.segments[0])
    if tuple(names[start : start + len(ask.segments)]) != ask.segments:
        raise AbstainError(
            Code.MODEL_UNSUITABLE,
            f"{', '.join(ask.segments)} are not adjacent in the prompt layout: request one by one",
        )
    return pass_[: names.index(ask.segments[-1]) + 1]


def get_prompt_segments(request: Request) -> PromptSegments:
    """What the model reads of the request's pass: all that is `cut_to_operation` but the text that is to be guessed."""
    pass_ = cut_to_operation(request.prompt, request.operation)
    return pass_[:-1] if isinstance(request.operation, ConstrainedGenerate) else pass_
