from pathlib import Path

import numpy as np
import pytest

from abstain.config.settings import Settings
from abstain.llm.engine.prompts import load_layout
from abstain.llm.engine.tokenization import encode_prompt
from abstain.llm.familiarity.masking import MASK
from abstain.llm.features.feature_store import FeatureStore
from studies.self_familiarity.baselines import BASELINES, FamiliarityBaselines, Instruction
from studies.self_familiarity.similarity import bert_score
from tests.llm.builders import plain_forward, tiny_model
from tests.llm.conftest import settings, tiny_folder

pytestmark = pytest.mark.soak(twin="test_familiarity_study_stopped_goes_on")

__all__ = ["settings", "tiny_folder"]

ASKED = [Instruction("What is a Tuplet?", ("Tuplet",), "music"), Instruction("Why?", (MASK,)), Instruction("No.", ())]


@pytest.fixture
def baselines(tiny_folder: Path, settings: Settings, short_similarity: None) -> FamiliarityBaselines:
    return FamiliarityBaselines(FeatureStore(str(tiny_folder), settings), "chatml", 8, 3, 4)


def set_reply(monkeypatch: pytest.MonkeyPatch, reply: str) -> None:
    monkeypatch.setattr(FamiliarityBaselines, "_replies", lambda self, prompts, ask, progress: [reply] * len(prompts))


def log_probs_of(question: str, text: str, reply: str) -> np.ndarray:
    loaded = tiny_model()
    prompt = load_layout(f"{question}-chatml-v1", "questions").render(text, (), None) if question else ()
    ids = encode_prompt(loaded.tokenizer, prompt).ids if prompt else []
    tokens = loaded.tokenizer.encode(reply, add_special_tokens=False)
    log_p = plain_forward(loaded, [*ids, *tokens])[0]
    start = max(len(ids), 1)
    return np.array([float(log_p[at - 1, token]) for at, token in enumerate([*ids, *tokens]) if at >= start])


def test_baselines_score_every_instruction(baselines: FamiliarityBaselines) -> None:
    found = baselines.score(ASKED)
    assert tuple(found) == BASELINES
    assert all(one.shape == (len(ASKED),) for one in found.values())
    assert all(np.isfinite(one[:2]).all() for name, one in found.items() if name != "greedy_significance")
    assert np.isnan(found["greedy_significance"][2]), "without a concept nothing can be masked"
    assert (found["sampled_bert_score"] > 1).any(), "samples of one prompt differ"


def test_baselines_are_computed_from_the_reply(
    baselines: FamiliarityBaselines, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_reply(monkeypatch, "It is.")
    found = baselines.score(ASKED)
    given, alone = log_probs_of("instruction", ASKED[0].text, "It is."), log_probs_of("", "", "It is.")
    assert found["greedy_mean_log_prob"][0] == pytest.approx(given.mean(), abs=1e-4)
    assert found["greedy_min_log_prob"][0] == pytest.approx(given.min(), abs=1e-4)
    assert found["greedy_perplexity"][0] == pytest.approx(-np.exp(-alone.mean()), rel=1e-3)
    set_reply(monkeypatch, "Xyz.")
    tuplet, masked, _ = baselines.score(ASKED)["greedy_significance"]
    assert masked == 0 < tuplet, "a masked concept says nothing"
    p, q = (log_probs_of("concept-explain", text, "Xyz.")[:3] for text in ("Tuplet", MASK))
    assert tuplet == pytest.approx(((np.exp(p) - np.exp(q)) * (p - q)).mean(), rel=1e-3)
    set_reply(monkeypatch, "")
    found = baselines.score(ASKED[:2])
    assert all(np.isnan(found[name]).all() for name in BASELINES if not name.startswith("sampled"))


def test_significance_leaves_out_concept_and_stop_words(
    baselines: FamiliarityBaselines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the authors' `get_mask_score`: what the reply says of a mention counts for nothing, and is masked for the rest."""
    set_reply(monkeypatch, "Xa tuPLET, z")
    (found,) = baselines.score(ASKED[:1])["greedy_significance"]
    mentions = {"Tuplet": " tuPLET", MASK: f" {MASK}" * len(" tuPLET")}
    p, q = (
        log_probs_of("concept-explain", concept, f"Xa{mention}, z")[[0, -1]] for concept, mention in mentions.items()
    )
    assert found == pytest.approx(((np.exp(p) - np.exp(q)) * (p - q)).mean(), rel=1e-3)


@pytest.mark.parametrize("reply", ["Yes.", "No."])
def test_baselines_forward_inference_is_the_probability_of_yes(
    baselines: FamiliarityBaselines, monkeypatch: pytest.MonkeyPatch, reply: str
) -> None:
    set_reply(monkeypatch, reply)
    plain = Instruction("What is a Tuplet?", ("Tuplet",))
    probability = np.exp(log_probs_of("concepts-known", plain.text, reply).mean())
    expected = probability if reply == "Yes." else 1 - probability
    assert baselines.score([plain])["forward_inference"] == pytest.approx([expected], abs=1e-5)


def test_bert_score_is_the_f1_of_the_best_matches() -> None:
    one, other = np.eye(4)[:2], np.eye(4)[[0, 2, 3]]
    assert bert_score(one, one) == 1.0
    assert bert_score(one, other) == pytest.approx(2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))
