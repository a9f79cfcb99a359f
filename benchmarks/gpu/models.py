"""Random models in the shapes of well-known families, and random prompts: no download, the same work, the same code."""

from __future__ import annotations

import random
from typing import Any

import torch
import transformers

from abstain.llm.engine.loading import LoadedModel, ModelRef
from abstain.llm.engine.prompts import PromptSegments, Segment

LLAMA_8B: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
}
"""The shape of Llama 3.1 8B."""
TINY = LLAMA_8B | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
SMALL: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    # Larger than usual, so that attention is far from uniform and a wrong mask or position shows.
    "initializer_range": 0.06,
}
WINDOWED = SMALL | {
    "head_dim": 64,
    "sliding_window": 48,
    "query_pre_attn_scalar": 64,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
}
FAMILIES = {
    "Llama": ("LlamaConfig", SMALL),
    "Qwen 3": ("Qwen3Config", SMALL | {"head_dim": 64}),
    "Gemma 2": ("Gemma2Config", WINDOWED | {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 30.0}),
    "Gemma 3": ("Gemma3TextConfig", WINDOWED),
}
"""Family -> (name of its configuration in transformers, values): grouped heads, norms of queries and keys, soft caps,
sliding windows."""


class NumberTokenizer:
    """A tokenizer of numbers: "17 4" is two tokens."""

    bos_token_id = 0
    eos_token_id = 1

    def encode(self, text: str, **_: Any) -> list[int]:
        return [int(number) for number in text.split()]

    def decode(self, tokens: list[int], **_: Any) -> str:
        return " ".join(map(str, tokens))


def random_model(
    name: str, config: str, values: dict[str, Any], device: torch.device, dtype: torch.dtype, **options: Any
) -> LoadedModel:
    """Return a causal model with random weights, the same for the same seed of torch.

    Args:
        name: Name of the model in errors.
        config: Name of its configuration class in transformers.
        values: Values of the configuration.
        device: Device of the weights.
        dtype: Type of the weights.
        **options: Options of `from_config`, such as `attn_implementation`.

    Returns:
        The model with a tokenizer of numbers.
    """
    configuration = getattr(transformers, config)(**values)
    with device:
        model = transformers.AutoModelForCausalLM.from_config(configuration, dtype=dtype, **options)
    return LoadedModel(ModelRef(name, "random", ""), model.eval().requires_grad_(False), NumberTokenizer())


def random_prompt(
    vocabulary: int, draw: random.Random, *, context: int, question: int = 16, answer: int = 32
) -> PromptSegments:
    """Return a prompt of random tokens with `context`, `question` and `answer` tokens, and EOS."""
    lengths = {"context": context, "question": question, "answer": answer}
    texts = {name: " ".join(str(draw.randrange(2, vocabulary)) for _ in range(n)) for name, n in lengths.items()}
    return (*(Segment(name, text) for name, text in texts.items()), Segment("eos", eos=True))
