import pytest
import torch

from abstain.errors import AbstainError
from abstain.llm.generate import generate_answers
from abstain.llm.layout import Pass
from abstain.llm.tokens import encode_pass

from .builders import LAYOUT, tiny_model

LOADED = tiny_model()
PROMPTS = [
    LAYOUT.render(question, [context], None) for question, context in [("Fee?", "9"), ("Why?", "x" * 40), ("", "")]
]


def greedy(prompt: Pass, steps: int) -> str:
    """Greedy decoding by plain forwards of one row, without a cache."""
    ids = list(encode_pass(LOADED.tokenizer, prompt).ids)
    start = len(ids)
    for _ in range(steps):
        with torch.inference_mode():
            ids.append(int(LOADED.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == LOADED.tokenizer.eos_token_id:
            break
    return LOADED.tokenizer.decode(ids[start:], skip_special_tokens=True).strip()


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_answers_are_greedy_whatever_the_batch_and_come_in_order(batch_size: int) -> None:
    expected = [greedy(prompt, 6) for prompt in PROMPTS]
    assert len(set(expected)) > 1
    assert generate_answers(LOADED, PROMPTS, max_new_tokens=6, batch_size=batch_size) == expected


def test_progress_counts_prompts() -> None:
    seen: list[int] = []
    generate_answers(LOADED, PROMPTS, max_new_tokens=1, batch_size=2, progress=seen.append)
    assert seen == [2, 3]


def test_no_prompts_no_answers_and_an_empty_prompt_is_refused() -> None:
    assert generate_answers(LOADED, []) == []
    with pytest.raises(AbstainError, match="a prompt without any tokens"):
        generate_answers(LOADED, [()])
