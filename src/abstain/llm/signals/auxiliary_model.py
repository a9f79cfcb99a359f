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
from abstain.llm.engine.loading import ModelRef, find_model, get_context_length, translate_load_errors
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
WINDOW = 512
"""Tokens of a window where a model names no limit."""
HINT = "name another model in params.yaml"
ROOM = 16
"""Fewer tokens than this of a long text beside the short one are not worth reading."""


@dataclass(frozen=True)
class TextWindow:
    """Both texts as a model reads them, the long one perhaps cut. Lists of one entry a token.

    `places`: first and past the last character in its text; `texts`: 0 or 1, which text it is of, None: special.
    """

    inputs: Mapping[str, list[int]]
    places: Sequence[tuple[int, int]]
    texts: Sequence[int | None]


@dataclass(frozen=True)
class AuxiliaryModel:
    """A model that has been found; its weights are loaded when something has to be computed."""

    ref: ModelRef
    head: Head
    settings: Settings

    @property
    def tokenizer(self) -> Any:
        return _load(self.ref, self.head, self.settings).tokenizer

    def cached(
        self,
        ask: str,
        version: str,
        passes: Sequence[PromptSegments],
        compute: Callable[[list[PromptSegments]], list[Tensor]],
    ) -> list[Tensor]:
        """`compute` of each of `passes`, float32 (n, w), in order; only missing ones are computed."""
        dtype = str(_dtype(self.settings)).removeprefix("torch.")
        cache = FeatureCache(self.settings.features, CacheNamespace(str(self.ref), dtype, ask, version))
        keys = [prompt_key(pass_) for pass_ in passes]
        rows = dict(cache.read(keys))
        missing = [(key, pass_) for key, pass_ in dict(zip(keys, passes, strict=True)).items() if key not in rows]
        for at in range(0, len(missing), BLOCK):
            block = missing[at : at + BLOCK]
            found = compute([pass_ for _, pass_ in block])
            new = {key: row for (key, _), row in zip(block, found, strict=True)}
            cache.put(new)
            rows |= new
        return [rows[key] for key in keys]

    def windows(self, first: str, second: str, split: Literal["first", "second"]) -> list[TextWindow]:
        """Both texts for the model, the `split` one in as many windows as it needs, each of which shares a quarter with
        the next; none where the other leaves it no room."""
        loaded = _load(self.ref, self.head, self.settings)
        tokenizer = loaded.tokenizer
        short = tokenizer(second if split == "first" else first, add_special_tokens=False)["input_ids"]
        room = loaded.window - tokenizer.num_special_tokens_to_add(pair=True) - len(short)
        if room < ROOM:
            return []
        encoded = tokenizer(
            first,
            second,
            truncation=f"only_{split}",
            max_length=loaded.window,
            stride=room // 4,
            return_overflowing_tokens=True,
        )
        return [
            TextWindow(
                {name: encoded[name][at] for name in tokenizer.model_input_names if name in encoded},
                window.offsets,
                window.sequence_ids,
            )
            for at, window in enumerate(encoded.encodings)
        ]

    def run(self, windows: Sequence[TextWindow]) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """`(index, logits)` of each window, the longest first: its `OUTPUTS`, float32 on the CPU, with padding behind.

        At most `ABSTAIN_BATCH_TOKENS` go through at once, padding included, or one window. Raises `AbstainError` where
        logits are not finite.
        """
        from transformers import DataCollatorWithPadding

        if not windows:
            return
        loaded = _load(self.ref, self.head, self.settings)
        alone = loaded.tokenizer.pad_token is None  # nothing to fill a shorter one up with
        pad = DataCollatorWithPadding(loaded.tokenizer, padding=not alone)
        lengths = [len(window.places) for window in windows]
        order = sorted(range(len(windows)), key=lambda at: (-lengths[at], at))
        while order:
            rows = 1 if alone else max(1, self.settings.batch_tokens // lengths[order[0]])
            batch, order = order[:rows], order[rows:]
            with torch.inference_mode():
                out = loaded.model(**pad([dict(windows[at].inputs) for at in batch]).to(loaded.model.device))
            logits = [out[name].float().cpu() for name in OUTPUTS[self.head]]
            if not all(torch.isfinite(one).all() for one in logits):
                raise AbstainError(
                    Code.NOT_FINITE, f"{self.ref.name}: its logits are not finite; try ABSTAIN_DTYPE=float32"
                )
            for row, at in enumerate(batch):
                yield at, tuple(one[row] for one in logits)


def find_auxiliary_model(name: str | None, setting: str, head: Head, settings: Settings) -> tuple[AuxiliaryModel, Any]:
    """The model that `setting` of params.yaml names, a folder or a Hugging Face `id[@revision]`, and its configuration.

    No weights are loaded. Raises `ScorerUnavailable` where none is set or found, it has another head, or it has no
    usable tokenizer.
    """
    from transformers import AutoConfig

    if not name:
        raise ScorerUnavailable(Code.BAD_SETTING, f"no model: set {setting} in params.yaml")
    remedy = f"set {setting} in params.yaml"
    try:
        ref = find_model(name, settings, remedy)
        with translate_load_errors(ref, remedy):
            config = AutoConfig.from_pretrained(ref.path, trust_remote_code=False)
    except AbstainError as error:
        raise ScorerUnavailable(error.code, error.message) from None
    trained = config.architectures or []
    if trained and not any(head in architecture for architecture in trained):
        raise ScorerUnavailable(Code.MODEL_UNSUITABLE, f"{name} is a {', '.join(trained)}: {setting} needs a ...{head}")
    try:
        tokenizer = _tokenizer(ref)
    except AbstainError as error:
        raise ScorerUnavailable(error.code, error.message) from None
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
    window: int


@lru_cache(maxsize=2)
def _load(ref: ModelRef, head: Head, settings: Settings) -> _Loaded:
    """Weights and tokenizer. Raises `AbstainError` where the head's weights are missing, or the tokenizer has no
    character offsets of its tokens."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    tokenizer = _tokenizer(ref)
    if not tokenizer.is_fast:
        raise AbstainError(
            Code.MODEL_UNSUITABLE, f"{ref.name}: its tokenizer has no fast form (tokenizer.json): save it with one"
        )
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    with translate_load_errors(ref, HINT):
        model, info = getattr(transformers, f"AutoModel{head}").from_pretrained(
            ref.path,
            dtype=_dtype(settings),
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    if missing := sorted(info["missing_keys"]):
        raise AbstainError(
            Code.MODEL_UNSUITABLE,
            f"{ref.name}: its weights lack {missing[0]}, so its output would be random: "
            "choose a model that was trained for this",
        )
    model = model.to(choose_device(settings)).eval().requires_grad_(False)
    window = min(tokenizer.model_max_length, get_context_length(model.config.get_text_config()) or WINDOW)
    return _Loaded(model, tokenizer, int(window))


@lru_cache(maxsize=2)
def _tokenizer(ref: ModelRef) -> Any:
    from transformers import AutoTokenizer

    with translate_load_errors(ref, HINT):
        return AutoTokenizer.from_pretrained(ref.path, split_special_tokens=True, trust_remote_code=False)


def _dtype(settings: Settings) -> torch.dtype:
    return torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32
