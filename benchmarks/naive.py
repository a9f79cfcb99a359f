"""What the engine is measured against: the loop that the papers' own code runs, one row and one method at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from abstain.llm.engine.loading import LoadedModel
from abstain.llm.engine.prompts import PromptSegments
from abstain.llm.engine.tokenization import EncodedPrompt, encode_prompt


def states(loaded: LoadedModel, passes: Sequence[PromptSegments], layer: int) -> list[Tensor]:
    """Answer and EOS states: the whole model with `output_hidden_states=True`, sliced afterwards."""
    found = []
    for pass_ in passes:
        encoded = encode_prompt(loaded.tokenizer, pass_)
        with torch.inference_mode():
            output = loaded.model(torch.tensor([encoded.ids], device=loaded.model.device), output_hidden_states=True)
        found.append(output.hidden_states[layer][0, slice(*encoded.span("answer", "eos"))].clone())
    return found


def nll(loaded: LoadedModel, passes: Sequence[PromptSegments], segments: Sequence[str]) -> list[dict[str, Tensor]]:
    """Per-token NLL and entropy of each of `segments`, from the full matrix of log-probabilities in float32."""
    found = []
    for pass_ in passes:
        encoded = encode_prompt(loaded.tokenizer, pass_)
        log_p = _log_probabilities(loaded, encoded)
        following = torch.tensor(encoded.ids[1:], device=log_p.device)
        surprise = -log_p[:-1].gather(1, following[:, None])[:, 0]
        entropy = -(log_p[:-1].exp() * log_p[:-1]).sum(-1)
        both = torch.cat([torch.full((1, 2), float("nan")), torch.stack([surprise, entropy], 1).cpu()])
        found.append({name: both[slice(*encoded.spans[name])] for name in segments})
    return found


def choices(loaded: LoadedModel, passes: Sequence[PromptSegments], tokens: Sequence[str]) -> list[Tensor]:
    """Probabilities of `tokens` at the end of each pass."""
    ids = [loaded.tokenizer.encode(token, add_special_tokens=False)[0] for token in tokens]
    encoded = [encode_prompt(loaded.tokenizer, pass_) for pass_ in passes]
    return [_log_probabilities(loaded, one)[-1, ids].exp().cpu() for one in encoded]


def _log_probabilities(loaded: LoadedModel, encoded: EncodedPrompt) -> Tensor:
    with torch.inference_mode():
        logits = loaded.model(torch.tensor([encoded.ids], device=loaded.model.device)).logits[0]
        return logits.float().log_softmax(-1)  # type: ignore[no-any-return]
