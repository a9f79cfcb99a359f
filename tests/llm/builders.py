"""Tiny models with random weights and their tokenizers: real Hugging Face classes, no downloads."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    OPTConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from abstain.config.params import LLMParams
from abstain.llm.engine.loading import LoadedModel, ModelRef
from abstain.llm.engine.prompts import Layout, PromptSegments
from abstain.llm.engine.tokenization import EncodedPrompt, encode_prompt

LAYERS, WIDTH, WINDOW = 4, 32, 512
LAYOUT = Layout(
    "tiny",
    """
    - {segment: instruction, literal: "<|im_start|>user\\n"}
    - {segment: context, field: contexts, join: "\\n\\n"}
    - {segment: question_mark, literal: "\\nQuestion: "}
    - {segment: question, field: question}
    - {segment: turn, literal: "<|im_end|>\\n<|im_start|>assistant\\n"}
    - {segment: answer, field: answer}
    - {segment: eos}
    """,
)

_SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": WINDOW,
    "initializer_range": 0.3,  # large enough for every block to change the stream visibly
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**_SIZES, num_key_value_heads=2),
    "qwen2": lambda: Qwen2Config(**_SIZES, num_key_value_heads=2),
    "gemma3": lambda: Gemma3TextConfig(
        **_SIZES,
        num_key_value_heads=1,
        head_dim=8,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"] * 2,
    ),
    "gpt2": lambda: GPT2Config(**_SIZES),
    "opt": lambda: OPTConfig(
        **_SIZES | {"pad_token_id": 1}, ffn_dim=2 * WIDTH, word_embed_proj_dim=WIDTH, init_std=0.3, dropout=0.0
    ),
}


def byte_tokenizer(*, eos: bool = True) -> PreTrainedTokenizerFast:
    """One token a byte, and the two special tokens of ChatML; `<|im_end|>` is EOS."""
    vocab = {symbol: at for at, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    special = {"eos_token": "<|im_end|>"} if eos else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, additional_special_tokens=["<|im_start|>", "<|im_end|>"], **special
    )


def tiny_model(family: str = "llama", seed: int = 0, **changes: Any) -> LoadedModel:
    torch.manual_seed(seed)
    config = CONFIGS[family]()
    config.update(changes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
    return LoadedModel(ModelRef(f"tiny-{family}", str(seed), "nowhere"), model, byte_tokenizer())


@cache
def shared_model(family: str = "llama") -> LoadedModel:
    """For tests that leave the weights alone."""
    return tiny_model(family)


@contextmanager
def watch_batches(module: torch.nn.Module) -> Iterator[list[tuple[int, int]]]:
    """The shape (rows, tokens) of each batch that a model reads."""
    shapes: list[tuple[int, int]] = []
    hook = module.register_forward_pre_hook(
        lambda _module, _args, named: shapes.append(tuple(named["input_ids"].shape)), with_kwargs=True
    )
    yield shapes
    hook.remove()


def save_model(loaded: LoadedModel, folder: Path) -> Path:
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def save_tiny_model(folder: Path, seed: int = 0, **changes: Any) -> Path:
    return save_model(tiny_model(seed=seed, **changes), folder)


def save_speaking_model(folder: Path, **changes: Any) -> Path:
    """Save a tiny Llama whose tokenizer has words for Yes and No."""
    loaded = tiny_model(**changes)
    loaded.tokenizer.add_tokens(["Yes", "No"])
    return save_model(loaded, folder)


def make_params(model: Path | str, **changes: Any) -> LLMParams:
    """`llm` of params.yaml for the model in a folder."""
    defaults = {"layout": "rag-plain-v1", "layer": 2, "site": "residual", "too_long": "refuse", "includes_eos": True}
    return LLMParams(model=str(model), **defaults | changes)


def tiny_pass(
    answer: str = "None.", context: str = "There is no fee.", question: str = "What is the fee?"
) -> PromptSegments:
    return LAYOUT.render(question, [context] if context else [], answer)


def tiny_passes() -> dict[str, PromptSegments]:
    """Passes of different lengths, two of them equally long."""
    return {
        "short": tiny_pass("No.", ""),
        "plain": tiny_pass(),
        "twin": tiny_pass("None!"),
        "long answer": tiny_pass("There is no fee, whatever the card, and there never was one. " * 2),
        "long context": tiny_pass("None.", "The fee is described on another page. " * 4),
        "unicode": tiny_pass("Es fällt keine Gebühr an — nie. 免费", "Gebühr: 0 €"),
        "one token": tiny_pass("0", "Fee: 0"),
    }


def plain_forward(loaded: LoadedModel, ids: list[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Log-probabilities (tokens, vocabulary) by Hugging Face alone, and at each depth the states (tokens, d)."""
    with torch.inference_mode():
        output = loaded.model(torch.tensor([ids]), output_hidden_states=True)
    return output.logits[0].float().log_softmax(-1), tuple(states[0] for states in output.hidden_states)


def blocks_of(loaded: LoadedModel) -> torch.nn.ModuleList:
    base = loaded.model.base_model
    return getattr(base, "h", None) or getattr(base, "layers", None) or base.decoder.layers


def plain_neurons(loaded: LoadedModel, ids: list[int]) -> dict[int, Tensor]:
    """By layer what the second linear layer of the feed-forward part reads, (tokens, d_ff), by Hugging Face alone."""
    neurons: dict[int, Tensor] = {}
    hooks = []
    for layer, block in enumerate(blocks_of(loaded), start=1):
        part = getattr(block, "mlp", block)  # in OPT it is the block itself
        (down,) = (getattr(part, name) for name in ("down_proj", "c_proj", "fc2") if hasattr(part, name))
        hooks.append(
            down.register_forward_pre_hook(
                lambda _m, read, at=layer: neurons.update({at: read[0].reshape(len(ids), -1)})
            )
        )
    plain_forward(loaded, ids)
    for hook in hooks:
        hook.remove()
    return neurons


def surprise(log_p: Tensor, ids: list[int]) -> Tensor:
    """(tokens, 2): NLL and entropy of `ids`; nan for the first token."""
    nll = -log_p[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    entropy = -(log_p.exp() * log_p).sum(-1)[:-1]
    return torch.cat([torch.full((1, 2), float("nan")), torch.stack([nll, entropy], 1)])


def plain_surprise(loaded: LoadedModel, pass_: PromptSegments) -> tuple[EncodedPrompt, Tensor]:
    encoded = encode_prompt(loaded.tokenizer, pass_)
    return encoded, surprise(plain_forward(loaded, encoded.ids)[0], encoded.ids)
