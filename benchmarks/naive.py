"""The baseline of the engine: the loop that the papers' own code runs, one row and one method at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from abstain.llm.engine.loading import LoadedModel
from abstain.llm.engine.prompts import PromptSegments
from abstain.llm.engine.tokenization import EncodedPrompt, encode_prompt


def states(loaded: LoadedModel, prompts: Sequence[PromptSegments], layer: int) -> list[Tensor]:
    """Return the states of answer and EOS: the whole model with `output_hidden_states=True`, sliced afterwards."""
    rows = []
    for prompt in prompts:
        encoded = encode_prompt(loaded.tokenizer, prompt)
        with torch.inference_mode():
            output = loaded.model(torch.tensor([encoded.ids], device=loaded.model.device), output_hidden_states=True)
        rows.append(output.hidden_states[layer][0, slice(*encoded.span("answer", "eos"))].clone())
    return rows


def nll(loaded: LoadedModel, prompts: Sequence[PromptSegments], segments: Sequence[str]) -> list[dict[str, Tensor]]:
    """Return NLL and entropy of each token of `segments`, from the full matrix of log-probabilities in float32."""
    rows = []
    for prompt in prompts:
        encoded = encode_prompt(loaded.tokenizer, prompt)
        log_p = _log_probabilities(loaded, encoded)
        next_ids = torch.tensor(encoded.ids[1:], device=log_p.device)
        surprise = -log_p[:-1].gather(1, next_ids[:, None])[:, 0]
        entropy = -(log_p[:-1].exp() * log_p[:-1]).sum(-1)
        both = torch.cat([torch.full((1, 2), float("nan")), torch.stack([surprise, entropy], 1).cpu()])
        rows.append({name: both[slice(*encoded.spans[name])] for name in segments})
    return rows


def choices(loaded: LoadedModel, prompts: Sequence[PromptSegments], tokens: Sequence[str]) -> list[Tensor]:
    """Return the probabilities of `tokens` at the end of each prompt."""
    ids = [loaded.tokenizer.encode(token, add_special_tokens=False)[0] for token in tokens]
    encoded_prompts = [encode_prompt(loaded.tokenizer, prompt) for prompt in prompts]
    return [_log_probabilities(loaded, encoded)[-1, ids].exp().cpu() for encoded in encoded_prompts]


def _log_probabilities(loaded: LoadedModel, encoded: EncodedPrompt) -> Tensor:
    with torch.inference_mode():
        logits = loaded.model(torch.tensor([encoded.ids], device=loaded.model.device)).logits[0]
        return logits.float().log_softmax(-1)  # type: ignore[no-any-return]
