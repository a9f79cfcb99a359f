"""Greedy, batched answers for rendered passes (`Layout.render(..., answer=None)`).

Prompts of similar length share a batch, padded on the left, so that every row's next token stands at the
end. Decoding is greedy: the same weights, dtype and prompts give the same answers. The last bits of a float
depend on the shape of the batch, so a tie may fall the other way at another `batch_size`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from abstain.errors import AbstainError
from abstain.llm.layout import Pass
from abstain.llm.loading import LoadedModel
from abstain.llm.tokens import encode_pass


def generate_answers(
    loaded: LoadedModel,
    prompts: Sequence[Pass],
    max_new_tokens: int = 48,
    batch_size: int = 16,
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """The base model's answer to each prompt, stripped, in the order of `prompts`.

    An answer ends before EOS or after `max_new_tokens` tokens and may be empty. `progress` is called after
    each batch with the number of prompts that are done. Raises `AbstainError` where a prompt has no tokens.
    """
    encoded = [encode_pass(loaded.tokenizer, prompt).ids for prompt in prompts]
    if not all(encoded):
        raise AbstainError("a prompt without any tokens cannot be answered: check the layout's literals")
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]), reverse=True)
    answers = [""] * len(encoded)
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        for row, answer in zip(rows, _generate(loaded, [encoded[i] for i in rows], max_new_tokens), strict=True):
            answers[row] = answer
        if progress is not None:
            progress(start + len(rows))
    return answers


def _generate(loaded: LoadedModel, batch: list[list[int]], max_new_tokens: int) -> list[str]:
    tokenizer, model = loaded.tokenizer, loaded.model
    width = max(map(len, batch))
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in batch], device=model.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in batch], device=model.device)
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=pad,
        )
    texts: list[str] = tokenizer.batch_decode(out[:, width:], skip_special_tokens=True)
    return [text.strip() for text in texts]
