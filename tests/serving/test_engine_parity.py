"""The embedded model by plain transformers, as an engine would serve it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.engine.prompts import load_layout
from abstain.serving.engine_states import parse_states
from abstain.serving.feature_spec import FeatureSpec
from abstain.serving.predictor import Predictor
from abstain.serving.request_files import make_interaction_from_texts
from tests.conftest import MODELS
from tests.learning.estimators.builders import write_mean_probe
from tests.serving.builders import metadata
from tests.serving.engine_files import PlainModel
from tests.serving.test_engine_states import Served, describe

pytestmark = pytest.mark.slow

MODEL, LAYOUT, LAYER = "smollm2-135m-instruct", "rag-chatml-v1", 20
SYSTEM = "You answer questions of bank customers. Answer in a few words copied from the context."
ROWS = [
    make_interaction_from_texts("How much is a new card?", "A new card costs 12.50 EUR.", ["A lost card.", "Ask us."]),
    make_interaction_from_texts("Wie hoch ist die Gebühr?", "Es fällt keine Gebühr an — nie.", ["Gebühr: 0 €"]),
    make_interaction_from_texts("When?", "5", ["Within five working days."]),
]


@dataclass(frozen=True)
class Chat(Served):
    """An engine of the embedded model, which makes the prompt of a request by the model's own template."""

    def prompt(self, row: Interaction) -> list[int]:
        contexts = "\n\n".join(context.text for context in row.contexts)
        asked = f"Context:\n{contexts}\n\nQuestion:\n{row.question}"
        chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}]
        text = self.plain.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        return self.plain.ids(text)

    def read(self) -> list[Tensor]:
        """The states of `ROWS` by the project's own engine."""
        (states,) = self.predictor.reader.read(ROWS).batch.features.values()
        return [one.float() for one in states]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Chat]:
    """Open a release whose probe reads the states after a layer."""
    folder = tmp_path_factory.mktemp("probes")
    home = MODELS.parent
    settings = Settings(home=home, device="cpu", dtype="float32", features_url=str(folder / "features"))
    ref = find_model(MODEL, settings)
    load_tokenizer(ref)  # whose first use writes the model's folder
    plain = PlainModel.load(ref.path)

    def open_(layer: int = LAYER, includes_eos: bool = False) -> Chat:
        changes = {"layout": LAYOUT, "layout_digest": load_layout(LAYOUT).digest, "layer": str(layer)}
        described = metadata(Path(MODEL), settings) | changes | {"includes_eos": str(includes_eos).lower()}
        file = write_mean_probe(folder / "probe.onnx", plain.model.config.hidden_size, described)
        predictor = Predictor.open(file, settings)
        return Chat(predictor, plain, FeatureSpec.from_scorer(predictor.scorer, settings))

    return open_


def measure_difference(states: Tensor, expected: Tensor) -> float:
    """The largest difference of a token's state, relative to its length."""
    assert states.shape == expected.shape
    return float(((states - expected).norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.parametrize(
    ("by", "layers", "includes_eos"),
    [
        ("vllm", (LAYER,), False),
        ("vllm", (30, 1, LAYER), True),
        ("transformers", tuple(range(31)), True),
        ("transformers", (30,), False),
        ("sglang", (30,), True),
    ],
)
def test_parse_states_are_those_of_our_own_engine(
    serve: Callable[..., Chat], by: str, layers: tuple[int, ...], includes_eos: bool
) -> None:
    chat = serve(LAYER if LAYER in layers else 30, includes_eos)
    for row, expected in zip(ROWS, chat.read(), strict=True):
        tokens = chat.encode(row)
        assert chat.ids(row, eos=True) == tokens.ids, "the template makes the tokens of our layout"
        content, prompt = chat.write(row, *layers, eos=includes_eos)
        description = describe(by, layers=layers, prompt_tokens=prompt, is_normalized=by == "sglang" or None)
        with_texts, without = (parse_states(content, description, chat.spec, known) for known in (tokens, None))
        assert measure_difference(with_texts, expected) < 1e-4
        assert torch.equal(with_texts, without)
