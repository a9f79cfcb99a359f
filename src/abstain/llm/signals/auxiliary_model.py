"""Find, load and run auxiliary models (entailment, QA), and cache their outputs (docs/decisions/074)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.device import choose_device
from abstain.llm.engine.loading import (
    ModelRef,
    find_model,
    get_context_length,
    load_weights,
    require_fast_tokenizer,
    translate_load_errors,
)
from abstain.llm.engine.prompts import PromptSegments
from abstain.llm.features.cache import CacheNamespace, FeatureCache, prompt_key
from abstain.llm.signals.base import ScorerUnavailable

Head = Literal["ForSequenceClassification", "ForQuestionAnswering"]
OUTPUTS: Mapping[Head, tuple[str, ...]] = {
    "ForSequenceClassification": ("logits",),
    "ForQuestionAnswering": ("start_logits", "end_logits"),
}
BLOCK = 512
"""Rows that are computed and written to the cache together."""
DEFAULT_CONTEXT_LENGTH = 512
"""Tokens of an excerpt if a model names no limit."""
REMEDY = "name another model in params.yaml"
MIN_LONG_TEXT_TOKENS = 16
"""Least number of tokens of the long text that must fit next to the short one."""


@dataclass(frozen=True)
class TextExcerpt:
    """Both texts as a model reads them, the long one possibly cut. Each list has one entry per token.

    Attributes:
        inputs: Inputs of the model by name.
        offsets: First and last (exclusive) character of each token in its text.
        sequence_ids: Index of the text of each token, 0 or 1; None for a special token.
    """

    inputs: Mapping[str, list[int]]
    offsets: Sequence[tuple[int, int]]
    sequence_ids: Sequence[int | None]


@dataclass(frozen=True)
class AuxiliaryModel:
    """A model that was found; its weights are loaded at the first computation.

    Attributes:
        ref: Folder and revision of the model.
        head: Type of its output layer.
        settings: Settings of this machine.
    """

    ref: ModelRef
    head: Head
    settings: Settings

    @property
    def tokenizer(self) -> Any:
        return _load(self.ref, self.head, self.settings).tokenizer

    def compute_cached(
        self,
        operation: str,
        version: str,
        prompts: Sequence[PromptSegments],
        compute: Callable[[list[PromptSegments]], list[Tensor]],
    ) -> list[Tensor]:
        """Compute a function of prompts; results in the cache are not computed again.

        Args:
            operation: Name of the computation, part of the cache namespace.
            version: Version of the computation, part of the cache namespace.
            prompts: Texts that the model reads.
            compute: Function of a list of prompts; one float32 result `(n, width)` per prompt, in order.

        Returns:
            The results, in the order of `prompts`.
        """
        dtype = str(_get_dtype(self.settings)).removeprefix("torch.")
        cache = FeatureCache(self.settings.features, CacheNamespace(str(self.ref), dtype, operation, version))
        keys = [prompt_key(prompt) for prompt in prompts]
        rows = dict(cache.read(keys))
        missing = [(key, prompt) for key, prompt in dict(zip(keys, prompts, strict=True)).items() if key not in rows]
        for start in range(0, len(missing), BLOCK):
            block = missing[start : start + BLOCK]
            results = compute([prompt for _, prompt in block])
            computed = {key: row for (key, _), row in zip(block, results, strict=True)}
            cache.write(computed)
            rows |= computed
        return [rows[key] for key in keys]

    def build_excerpts(self, first: str, second: str, split: Literal["first", "second"]) -> list[TextExcerpt]:
        """Encode two texts, one of them in as many excerpts as it needs.

        Args:
            first: Text before the separator.
            second: Text after the separator.
            split: Which text is cut into excerpts. Each excerpt shares a quarter of it with the next.

        Returns:
            The excerpts; none if the other text leaves too little space.
        """
        loaded = _load(self.ref, self.head, self.settings)
        tokenizer = loaded.tokenizer
        short = tokenizer(second if split == "first" else first, add_special_tokens=False)["input_ids"]
        available_tokens = loaded.context_length - tokenizer.num_special_tokens_to_add(pair=True) - len(short)
        if available_tokens < MIN_LONG_TEXT_TOKENS:
            return []
        encoded = tokenizer(
            first,
            second,
            truncation=f"only_{split}",
            max_length=loaded.context_length,
            stride=available_tokens // 4,
            return_overflowing_tokens=True,
        )
        return [
            TextExcerpt(
                {name: encoded[name][index] for name in tokenizer.model_input_names if name in encoded},
                excerpt.offsets,
                excerpt.sequence_ids,
            )
            for index, excerpt in enumerate(encoded.encodings)
        ]

    def run(self, excerpts: Sequence[TextExcerpt]) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """Run the model on excerpts, the longest first.

        A batch has at most `ABSTAIN_BATCH_TOKENS` tokens, padding included, or one excerpt.

        Args:
            excerpts: Encoded texts.

        Yields:
            Index of the excerpt and its `OUTPUTS`, float32 on the CPU, with padding at the end.

        Raises:
            AbstainError: Logits are not finite.
        """
        from transformers import DataCollatorWithPadding

        if not excerpts:
            return
        loaded = _load(self.ref, self.head, self.settings)
        cannot_pad = loaded.tokenizer.pad_token is None  # there is no token to fill up a shorter excerpt
        pad = DataCollatorWithPadding(loaded.tokenizer, padding=not cannot_pad)
        lengths = [len(excerpt.offsets) for excerpt in excerpts]
        order = sorted(range(len(excerpts)), key=lambda i: (-lengths[i], i))
        while order:
            rows = 1 if cannot_pad else max(1, self.settings.batch_tokens // lengths[order[0]])
            batch, order = order[:rows], order[rows:]
            with torch.inference_mode():
                out = loaded.model(**pad([dict(excerpts[i].inputs) for i in batch]).to(loaded.model.device))
            logits = [out[name].float().cpu() for name in OUTPUTS[self.head]]
            if not all(torch.isfinite(output).all() for output in logits):
                raise AbstainError(
                    Code.NOT_FINITE, f"{self.ref.name}: its logits are not finite; try ABSTAIN_DTYPE=float32"
                )
            for row, index in enumerate(batch):
                yield index, tuple(output[row] for output in logits)


def find_auxiliary_model(name: str | None, setting: str, head: Head, settings: Settings) -> tuple[AuxiliaryModel, Any]:
    """Find the model that a setting of params.yaml names; no weights are loaded.

    Args:
        name: A folder or a Hugging Face `id[@revision]`; None if it is not set.
        setting: Name of the setting, for messages.
        head: Type of output layer that the model must have.
        settings: Settings of this machine.

    Returns:
        The model and its configuration.

    Raises:
        ScorerUnavailable: No model is set or found, it has another head, or it has no usable tokenizer.
    """
    from transformers import AutoConfig

    if not name:
        raise ScorerUnavailable(Code.BAD_SETTING, f"no model: set {setting} in params.yaml")
    remedy = f"set {setting} in params.yaml"
    try:
        ref = find_model(name, settings, remedy)
        with translate_load_errors(ref, remedy):
            config = AutoConfig.from_pretrained(ref.path, trust_remote_code=False)
        tokenizer = _load_tokenizer(ref)
    except AbstainError as error:
        raise ScorerUnavailable(error.code, error.message) from None
    architectures = config.architectures or []
    if architectures and not any(head in architecture for architecture in architectures):
        raise ScorerUnavailable(
            Code.MODEL_UNSUITABLE, f"{name} is a {', '.join(architectures)}: {setting} needs a ...{head}"
        )
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # transformers' errors for missing files
        raise ScorerUnavailable(
            Code.MODEL_UNSUITABLE,
            f"{name}: its tokenizer knows no words: save the tokenizer beside the model, or {remedy}",
        )
    return AuxiliaryModel(ref, head, settings), config


@dataclass(frozen=True)
class _Loaded:
    model: Any
    tokenizer: Any
    context_length: int


@lru_cache(maxsize=2)
def _load(ref: ModelRef, head: Head, settings: Settings) -> _Loaded:
    """Load weights and tokenizer.

    Raises:
        AbstainError: The weights of the head are missing, or the tokenizer has no character offsets of its tokens.
    """
    tokenizer = _load_tokenizer(ref)
    require_fast_tokenizer(ref.name, tokenizer)
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    model = load_weights(ref, f"AutoModel{head}", choose_device(settings), _get_dtype(settings), REMEDY)
    context_length = min(
        tokenizer.model_max_length, get_context_length(model.config.get_text_config()) or DEFAULT_CONTEXT_LENGTH
    )
    return _Loaded(model, tokenizer, int(context_length))


@lru_cache(maxsize=2)
def _load_tokenizer(ref: ModelRef) -> Any:
    from transformers import AutoTokenizer

    with translate_load_errors(ref, REMEDY):
        return AutoTokenizer.from_pretrained(ref.path, split_special_tokens=True, trust_remote_code=False)


def _get_dtype(settings: Settings) -> torch.dtype:
    return torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32
