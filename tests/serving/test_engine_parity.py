"""The embedded model by plain transformers, as an engine would serve it."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from abstain.config.settings import Settings
from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.engine.prompts import load_layout
from abstain.llm.engine.tokenization import EncodedPrompt
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.compute_features import read_features
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS, NLL_WITH_CONTEXT
from abstain.serving.engine_states import StatesDescription, parse_states
from abstain.serving.feature_spec import FeatureSpec
from abstain.serving.log_probs import parse_log_probs
from abstain.serving.predictor import Predictor
from abstain.serving.request_files import make_interaction_from_texts
from tests.learning.estimators.builders import write_mean_probe
from tests.llm.conftest import REPOSITORY
from tests.serving.builders import metadata
from tests.serving.engine_files import PlainModel, file_of

pytestmark = pytest.mark.slow

MODEL, LAYOUT, LAYER = "smollm2-135m-instruct", "rag-chatml-v1", 20
BFLOAT16 = 0.05
SYSTEM = "You answer questions of bank customers. Answer in a few words copied from the context."
ROWS = [
    make_interaction_from_texts(question, answer, contexts)
    for question, answer, contexts in (
        ("How much is a new card?", "A new card costs 12.50 EUR.", ["A lost card costs 12.50 EUR.", "Ask us."]),
        ("Wie hoch ist die Gebühr?", "Es fällt keine Gebühr an — nie.", ["Gebühr: 0 €"]),
        ("When?", "5", ["Within five working days."]),
    )
]


@dataclass(frozen=True)
class Engine:
    """An engine of the embedded model, and releases whose probes read its states."""

    plain: PlainModel
    settings: Settings
    folder: Path

    def open(self, layer: int, includes_eos: bool) -> tuple[Predictor, FeatureSpec]:
        """A release whose probe reads the states after `layer`, and their specification."""
        changes = {"layout": LAYOUT, "layout_digest": load_layout(LAYOUT).digest, "layer": str(layer)}
        described = metadata(Path(MODEL), self.settings) | changes | {"includes_eos": str(includes_eos).lower()}
        folder = self.folder / f"{layer}-{includes_eos}"
        folder.mkdir(exist_ok=True)
        width = self.plain.model.config.hidden_size
        predictor = Predictor.open(write_mean_probe(folder / "probe.onnx", width, described), self.settings)
        return predictor, FeatureSpec.from_scorer(predictor.scorer, self.settings)

    def prompt(self, index: int) -> list[int]:
        """The tokens of a chat request, by the model's own template."""
        contexts = "\n\n".join(context.text for context in ROWS[index].contexts)
        asked = f"Context:\n{contexts}\n\nQuestion:\n{ROWS[index].question}"
        chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}]
        text = self.plain.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        return self.plain.ids(text)

    def ids(self, index: int, eos: bool = False) -> list[int]:
        return [
            *self.prompt(index),
            *self.plain.ids(ROWS[index].answer),
            *([self.plain.tokenizer.eos_token_id] if eos else []),
        ]

    def write(self, index: int, *layers: int, eos: bool = False) -> bytes:
        """The file of these layers of answer `index`."""
        tokens = self.ids(index, eos)
        states = self.plain.states(tokens)
        return file_of(torch.stack([states[layer] for layer in layers], 1), tokens)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("probes")
    home = Path(os.environ.get("ABSTAIN_HOME") or REPOSITORY / ".abstain")
    settings = Settings(home=home, device="cpu", dtype="float32", features_url=str(folder / "features"))
    ref = find_model(MODEL, settings)
    load_tokenizer(ref)  # whose first use writes the model's folder
    return Engine(PlainModel.load(ref.path), settings, folder)


def describe(engine: Engine, index: int, by: str, *layers: int, **changes: object) -> StatesDescription:
    how = {"engine": by, "layers": layers, "prompt_tokens": len(engine.prompt(index)), "finish_reason": "stop"}
    return StatesDescription.model_validate({**how, **changes})


def encode(predictor: Predictor, index: int) -> EncodedPrompt:
    tokens = predictor.source.encode(ROWS[index])
    assert isinstance(tokens, EncodedPrompt)
    return tokens


def measure_difference(states: Tensor, expected: Tensor) -> float:
    """The largest difference of a token's state, relative to its length."""
    assert states.shape == expected.shape
    return float(((states - expected).norm(dim=1) / expected.norm(dim=1)).max())


def test_encode_reads_a_chat_request_as_the_engine_does(engine: Engine) -> None:
    predictor, _ = engine.open(LAYER, False)
    for index in range(len(ROWS)):
        assert engine.ids(index, eos=True) == encode(predictor, index).ids


@pytest.mark.parametrize("includes_eos", [False, True])
@pytest.mark.parametrize(
    ("by", "layers", "more"),
    [
        ("vllm", (LAYER,), {}),
        ("vllm", (30, 1, LAYER), {}),
        ("transformers", tuple(range(31)), {}),
        ("transformers", (30,), {}),
        ("sglang", (30,), {"is_normalized": True}),
    ],
)
def test_parse_states_are_those_of_our_own_engine(
    engine: Engine, by: str, layers: tuple[int, ...], more: dict[str, bool], includes_eos: bool
) -> None:
    predictor, spec = engine.open(LAYER if LAYER in layers else 30, includes_eos)
    (expected,) = predictor.reader.read(ROWS).batch.features.values()
    for index in range(len(ROWS)):
        content, description = (
            engine.write(index, *layers, eos=includes_eos),
            describe(engine, index, by, *layers, **more),
        )
        with_texts, without = (
            parse_states(content, description, spec, tokens) for tokens in (encode(predictor, index), None)
        )
        assert measure_difference(with_texts, expected[index].float()) < 1e-4
        assert torch.equal(with_texts, without)


def test_parse_states_of_bfloat16_are_close(engine: Engine) -> None:
    """A model that runs in bfloat16 has other states; the difference is that of the project's own engine in bfloat16."""
    predictor, spec = engine.open(LAYER, False)
    model = find_model(MODEL, engine.settings).path
    half = Engine(PlainModel.load(model, torch.bfloat16), engine.settings, engine.folder)
    (expected,) = predictor.reader.read(ROWS).batch.features.values()
    for index in range(len(ROWS)):
        states = parse_states(half.write(index, LAYER), describe(half, index, "vllm", LAYER), spec)
        assert 0 < measure_difference(states, expected[index].float()) < BFLOAT16


def test_parse_log_probs_score_as_those_of_the_base_model(engine: Engine) -> None:
    predictor, spec = engine.open(LAYER, False)
    own = read_features(predictor.source.params, engine.settings, ROWS, [NLL_WITH_CONTEXT])
    for index, row in enumerate(ROWS):
        ids, start = engine.ids(index, eos=True), len(engine.prompt(index))
        with torch.inference_mode():
            log_p = engine.plain.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        content = [
            {"token": engine.plain.tokenizer.decode([ids[place]]), "logprob": float(log_p[place - 1, ids[place]])}
            for place in range(start, len(ids))
        ]
        response = {"choices": [{"logprobs": {"content": content}}]}
        found = parse_log_probs(response, spec, row.answer, encode(predictor, index))
        given = FeatureBatch([row], {NLL_WITH_CONTEXT: [found.to_nll_and_entropy()]})
        for signal in LIKELIHOOD_SIGNALS:
            if signal.name in ("sequence_log_prob", "joint_log_prob", "mean_log_prob", "min_log_prob"):
                assert signal.score(given) == pytest.approx(signal.score(own.take([index])), abs=1e-3)
