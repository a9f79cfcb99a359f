"""The embedded model by plain transformers, as an engine would serve it, and a probe that reads its states."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.learning.estimators.onnx_probe import export_probe
from abstain.learning.estimators.probes.linear import LinearProbe
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
from tests.llm.conftest import REPOSITORY
from tests.serving.builders import metadata
from tests.serving.engine_files import PlainModel, file_of

pytestmark = pytest.mark.slow

LAYOUT, LAYER = "rag-chatml-v1", 20
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
    """An engine, and a probe of its states after layer `layer` that was trained with or without EOS."""

    plain: PlainModel
    settings: Settings
    folder: Path

    def predictor(self, layer: int, includes_eos: bool) -> Predictor:
        file = self.folder / f"{layer}-{includes_eos}" / "probe.onnx"
        if not file.exists():
            file.parent.mkdir()
            described = metadata(Path("smollm2-135m-instruct"), self.settings)
            described |= {"layout": LAYOUT, "layout_digest": load_layout(LAYOUT).digest, "layer": str(layer)}
            export_probe(
                self._probe(layer, includes_eos), file, {**described, "includes_eos": str(includes_eos).lower()}
            )
        return Predictor.open(file, self.settings)

    def _probe(self, layer: int, includes_eos: bool) -> LinearProbe:
        """Random weights on standardized states, so large that a token more or less shows."""
        rows = [self.plain.states(self.ids(index, includes_eos))[layer] for index in range(len(ROWS))]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(layer)
            probe = LinearProbe(rows[0].shape[1])
            probe.fit_standardization(rows)
            torch.nn.init.normal_(probe.head.weight, std=0.05)
        with torch.no_grad():  # around a half
            probe.head.bias.zero_().sub_(torch.cat([probe.head(probe.pool_states(row, None)) for row in rows]).mean())
        probe.architecture = "linear"
        return probe

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

    def file(self, index: int, *layers: int, eos: bool = False, ids: list[int] | None = None) -> bytes:
        """The file of these layers, -1 the last before the final norm, of answer `at` or of other `ids`."""
        tokens = self.ids(index, eos) if ids is None else ids
        states = self.plain.states(tokens)
        return file_of(torch.stack([states[layer] for layer in layers], 1), tokens)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("probes")
    home = Path(os.environ.get("ABSTAIN_HOME") or REPOSITORY / ".abstain")
    settings = Settings(home=home, device="cpu", dtype="float32", features_url=str(folder / "features"))
    ref = find_model("smollm2-135m-instruct", settings)
    load_tokenizer(ref)  # whose first use writes the model's folder
    return Engine(PlainModel.load(ref.path), settings, folder)


def describe(engine: Engine, index: int, by: str, *layers: int, **changes: object) -> StatesDescription:
    how = {"engine": by, "layers": layers, "prompt_tokens": len(engine.prompt(index)), "finish_reason": "stop"}
    return StatesDescription.model_validate({**how, **changes})


def encode(predictor: Predictor, index: int) -> EncodedPrompt:
    found = predictor.source.encode(ROWS[index])
    assert isinstance(found, EncodedPrompt)
    return found


def test_encode_reads_a_chat_request_as_the_engine_does(engine: Engine) -> None:
    predictor = engine.predictor(LAYER, False)
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
def test_parse_states_score_as_our_own_engine(
    engine: Engine, by: str, layers: tuple[int, ...], more: dict[str, bool], includes_eos: bool
) -> None:
    predictor = engine.predictor(LAYER if LAYER in layers else 30, includes_eos)
    spec = FeatureSpec.from_scorer(predictor.scorer, engine.settings)
    expected = [decision.confidence for decision in predictor.decide_interactions(ROWS)]
    found = [
        parse_states(
            engine.file(index, *layers, eos=includes_eos), describe(engine, index, by, *layers, **more), spec, known
        )
        for index in range(len(ROWS))
        for known in (encode(predictor, index), None)
    ]
    confidences = predictor.scorer.probe.predict(found)
    assert np.abs(confidences[::2] - np.array(expected, float)).max() < 1e-3
    assert np.array_equal(confidences[::2], confidences[1::2])
    assert np.std(expected) > 0.05, "the answers differ"


def test_parse_states_a_token_short_would_score_otherwise(engine: Engine) -> None:
    predictor = engine.predictor(LAYER, False)
    spec = FeatureSpec.from_scorer(predictor.scorer, engine.settings)
    short, description = engine.file(0, LAYER, ids=engine.ids(0)[:-1]), describe(engine, 0, "vllm", LAYER)
    with pytest.raises(AbstainError, match="last token is missing"):
        parse_states(short, description, spec, encode(predictor, 0))
    (whole,) = predictor.decide_interactions(ROWS[:1])
    (other,) = predictor.scorer.probe.predict([parse_states(short, description, spec)])
    assert abs(other - (whole.confidence or 0)) > 1e-3


def test_parse_states_of_bfloat16_are_close(engine: Engine) -> None:
    """A model that runs in bfloat16 has other states; the difference is that of the project's own engine in bfloat16."""
    predictor = engine.predictor(LAYER, False)
    spec = FeatureSpec.from_scorer(predictor.scorer, engine.settings)
    ref = find_model("smollm2-135m-instruct", engine.settings)
    half = Engine(PlainModel.load(ref.path, torch.bfloat16), engine.settings, engine.folder)
    found = [
        parse_states(half.file(index, LAYER), describe(half, index, "vllm", LAYER), spec) for index in range(len(ROWS))
    ]
    expected = [decision.confidence for decision in predictor.decide_interactions(ROWS)]
    difference = np.abs(predictor.scorer.probe.predict(found) - np.array(expected, float)).max()
    assert 0 < difference < BFLOAT16


def test_parse_log_probs_score_as_those_of_the_base_model(engine: Engine) -> None:
    predictor = engine.predictor(LAYER, False)
    spec = FeatureSpec.from_scorer(predictor.scorer, engine.settings)
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
