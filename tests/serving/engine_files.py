"""Files of hidden states, written by plain transformers as an engine would: none of the project's own engine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from abstain.core.contracts import Interaction


@dataclass(frozen=True)
class PlainModel:
    """A base model by transformers alone, in one dtype."""

    model: Any
    tokenizer: Any

    @classmethod
    def load(cls, folder: str | Path, dtype: torch.dtype = torch.float32) -> Self:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        return cls(model, AutoTokenizer.from_pretrained(folder))

    @property
    def depth(self) -> int:
        return int(self.model.config.num_hidden_layers)

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def states(self, ids: list[int]) -> tuple[Tensor, ...]:
        """The states (tokens, d) of layers 0 to `depth`, and last those of the last one before the final norm."""
        seen: list[Tensor] = []
        last = self.model.model.layers[-1]
        hook = last.register_forward_hook(lambda _m, _i, out: seen.append(out[0] if isinstance(out, tuple) else out))
        with torch.inference_mode():
            found = self.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        hook.remove()
        return (*(layer[0] for layer in found), seen[0].reshape(found[0].shape)[0])


def file_of(states: Tensor, ids: list[int] | Tensor, **more: Tensor) -> bytes:
    """The bytes of a file with `states`, (tokens, layers, d)."""
    return save({"hidden_states": states.contiguous(), "token_ids": torch.as_tensor(ids), **more})


def plain_prompt(one: Interaction) -> str:
    """The prompt of layout rag-plain-v1, word for word."""
    contexts = "\n\n".join(context.text for context in one.contexts)
    start = "Answer the question in a few words copied from the context.\n\nContext:\n"
    return f"{start}{contexts}\n\nQuestion:\n{one.question}\nAnswer:\n"
