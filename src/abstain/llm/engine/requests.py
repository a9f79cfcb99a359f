"""The operations that a request to the base model may ask for. A new method is a new declaration here, not a new loop.

An operation names segments of its prompt. Under causal attention, text after the last of them cannot change the
result, so it is cut off (`cut_to_operation`): two methods that share the beginning of a prompt share its computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from abstain.config.params import LLMParams, Site
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.prompts import PromptSegments

EOS = "eos"
"""Name of the segment that ends an answer."""


def get_chosen_layer(llm: LLMParams) -> int:
    """Return `llm.layer`.

    Args:
        llm: Parameters of the base model.

    Returns:
        The layer, counted from 1.

    Raises:
        AbstainError: The layer is `auto`, so none is chosen yet.
    """
    if llm.layer == "auto":
        raise AbstainError(
            Code.BAD_SETTING,
            "llm.layer: auto: no layer is chosen yet: run `abstain retrain`, which chooses one and commits it to "
            "params.yaml",
        )
    return llm.layer


@dataclass(frozen=True)
class HiddenStates:
    """Hidden states of the tokens of adjacent segments. Result: (tokens, d) in the model's dtype.

    Attributes:
        layer: Decoder block, counted from 1.
        site: "residual" is the residual stream after the block, equal to Hugging Face's `hidden_states[layer]` (after
            the final norm for the last block); "mlp" is the output of the block's feed-forward part; "neurons" are that
            part's knowledge neurons (Dai et al. 2022), the input of its down projection, and d is then their number.
        segments: Names of the adjacent prompt segments.
    """

    layer: int
    site: Site = "residual"
    segments: tuple[str, ...] = ("answer", EOS)

    @property
    def includes_eos(self) -> bool:
        """Whether the states of the segment that ends the answer are included."""
        return EOS in self.segments


def make_probe_operation(llm: LLMParams, layer: int | None = None, site: Site | None = None) -> HiddenStates:
    """Make the operation for the states that a probe reads: of the answer, and of EOS if `llm.includes_eos`.

    Args:
        llm: Parameters of the base model.
        layer: Layer, counted from 1; None for `llm.layer`.
        site: Site; None for `llm.site`.

    Returns:
        The operation.

    Raises:
        AbstainError: `llm.layer` is needed and not chosen yet.
    """
    segments = ("answer", EOS) if llm.includes_eos else ("answer",)
    return HiddenStates(get_chosen_layer(llm) if layer is None else layer, site or llm.site, segments)


@dataclass(frozen=True)
class NLL:
    """Surprise of the tokens of adjacent segments. Result: (tokens, 2), float32.

    For each token: -log p(token | all before it), and the entropy of that p, in nats. The first token of a prompt has
    nothing before it: nan.

    Attributes:
        segments: Names of the adjacent prompt segments.
    """

    segments: tuple[str, ...]


@dataclass(frozen=True)
class NextTokenProbs:
    """Next-token probabilities at the end of the prompt. Result: (len(tokens), 1), float32.

    Attributes:
        tokens: Texts, each of which is one token of the tokenizer, e.g. "Yes".
    """

    tokens: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError("a choice needs tokens to choose from")


@dataclass(frozen=True)
class Generate:
    """An answer that continues the prompt, ended by EOS or by `max_new_tokens`. Result: a list of `GeneratedText`.

    Attributes:
        max_new_tokens: Limit of the tokens of an answer.
        temperature: 0 for greedy decoding, above 0 for sampling.
        top_p: Share of the probability from which tokens are sampled.
        samples: Number of answers to sample per prompt. The result may have fewer.
        seed: Seed of sampling.
        states: Hidden states of the answer's tokens to keep, and of the EOS after it if its segments include EOS.
        tracked_tokens: Texts, each one token of the tokenizer, whose probabilities are kept at every step, before
            temperature and `top_p`.
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
    """The likeliest answer that contains the text of the prompt's last segment, which the model does not read.

    It is found by a beam search (beams.py) and ended by EOS or by `max_new_tokens`; the likeliest answer has the
    highest mean log-probability of a token. The text may be in lower or upper case, or capitalized.

    Result: token and log-probability of every step, (steps, 2), float32, including EOS if it ended the answer. There
    are no steps if the text has more than `max_new_tokens` tokens in every form.

    Attributes:
        beams: Number of beams.
        max_new_tokens: Limit of the tokens of the answer.
    """

    beams: int = 30
    max_new_tokens: int = 15

    def __post_init__(self) -> None:
        if self.beams < 1 or self.max_new_tokens < 1:
            raise ValueError("a beam search has at least one beam and one token")


@dataclass(frozen=True)
class Perturb:
    """Replace tokens of a text by those that the model would have written there instead (llm/perturbation).

    Literals of the prompt stay. Result: (replacements, 7), float32, the fields of `perturbation.text.PerturbationStep`.
    There are fewer than `tokens` if fewer may be replaced.

    Attributes:
        selection: `entropy` replaces the tokens that the model finds least likely, `random` random ones.
        schedule: `single_shot` chooses all replacements in the original text; with `iterative`, each is chosen in a
            text where the previous ones are made.
        tokens: Number of tokens to replace.
        seed: Seed of `random`.
    """

    selection: Literal["entropy", "random"]
    schedule: Literal["single_shot", "iterative"]
    tokens: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError("a perturbation replaces at least one token")


Operation = HiddenStates | NLL | NextTokenProbs | Generate | ConstrainedGenerate | Perturb


@dataclass(frozen=True)
class Request:
    """A request to the base model.

    Attributes:
        prompt: Segments of the prompt.
        operation: What is computed.
        name: Identifies the row in error messages.
    """

    prompt: PromptSegments
    operation: Operation
    name: str


def cut_to_operation(prompt: PromptSegments, operation: Operation) -> PromptSegments:
    """Cut a prompt after the last segment that an operation needs.

    Args:
        prompt: Segments of the prompt.
        operation: The operation.

    Returns:
        The segments that are needed.

    Raises:
        AbstainError: The prompt lacks a segment of the operation, or the segments are not adjacent.
    """
    if isinstance(operation, NextTokenProbs | Generate | ConstrainedGenerate | Perturb):
        return prompt
    names = [segment.name for segment in prompt]
    for name in operation.segments:
        if name not in names:
            raise AbstainError(
                Code.MODEL_UNSUITABLE,
                f"no segment '{name}' in the prompt layout: it has {', '.join(dict.fromkeys(names))}",
            )
    start = names.index(operation.segments[0])
    if tuple(names[start : start + len(operation.segments)]) != operation.segments:
        raise AbstainError(
            Code.MODEL_UNSUITABLE,
            f"{', '.join(operation.segments)} are not adjacent in the prompt layout: request one by one",
        )
    return prompt[: names.index(operation.segments[-1]) + 1]


def get_tracked_tokens(operation: Operation) -> tuple[str, ...]:
    """Return the texts whose probabilities `operation` reads, each of which must be one token of the base model."""
    if isinstance(operation, NextTokenProbs):
        return operation.tokens
    return operation.tracked_tokens if isinstance(operation, Generate) else ()


def get_prompt_segments(request: Request) -> PromptSegments:
    """Return the part of a request's prompt that the model reads, without the target of a constrained answer.

    Args:
        request: The request.

    Returns:
        The segments.

    Raises:
        AbstainError: As in `cut_to_operation`.
    """
    prompt = cut_to_operation(request.prompt, request.operation)
    return prompt[:-1] if isinstance(request.operation, ConstrainedGenerate) else prompt
