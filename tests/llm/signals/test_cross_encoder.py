from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.signals import cross_encoder as module_under_test
from abstain.llm.signals import pair_encoder
from abstain.llm.signals.base import RunsModel, ScorerUnavailable
from abstain.llm.signals.cross_encoder import CrossEncoder, make_cross_encoder
from abstain.llm.signals.pair_encoder import PairEncoder
from tests.llm.signals.builders import interaction, labels, save_encoder, unread
from tests.tolerance import assert_near

ANSWERS = [
    interaction(f"{n} euros", ["The fee is 5 euros." if n % 2 else "A lost card is blocked."]) for n in range(40)
]
CORRECT = [n % 2 for n in range(40)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    saved = save_encoder(tmp_path / "encoder", "classify", max_position_embeddings=256)
    monkeypatch.setattr(pair_encoder, "find_encoder_folder", lambda: saved)
    monkeypatch.setattr(module_under_test, "EPOCHS", 30)  # random weights learn little in three
    monkeypatch.setattr(module_under_test, "LEARNING_RATE", 3e-3)
    return saved


@pytest.fixture
def scorer(folder: Path, settings: Settings) -> CrossEncoder:
    return make_cross_encoder(settings)


def test_pair_classifier_reads_cls_of_the_whole_encoder(folder: Path, settings: Settings) -> None:
    encoder = PairEncoder(settings)
    pairs = [("What is the fee? 5", "The fee is 5."), ("Is it lost?", "A card is lost.")]
    classifier = encoder.make_classifier().eval()
    with torch.no_grad():
        classifier.head.weight.normal_(generator=torch.Generator().manual_seed(0))
        logits = classifier(encoder.encode(pairs, remember=False))
        tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
        for (first, second), logit in zip(pairs, logits, strict=True):
            states = model(**tokenizer(first, second, return_tensors="pt")).last_hidden_state
            torch.testing.assert_close(classifier.head(states[0, 0])[0], logit, atol=2e-2, rtol=2e-2)
    assert abs(float(logits.diff())) > 0.2


@pytest.mark.heavy
def test_cross_encoder_learns_which_chunks_support(scorer: CrossEncoder) -> None:
    """The score is that of the best chunk."""
    untouched = torch.get_rng_state()
    fitted = scorer.fit(unread(*ANSWERS), labels(CORRECT))
    assert torch.equal(torch.get_rng_state(), untouched) and fitted is not scorer
    chunks = ["The fee is 5 euros.", "A lost card is blocked.", "call the hotline"]
    supported, foreign = (interaction("7 euros", [chunk]) for chunk in chunks[:2])
    scores = fitted.score(unread(supported, foreign))
    assert scores[0] > 0.6 > 0.4 > scores[1]
    again = scorer.fit(unread(*ANSWERS), labels(CORRECT))
    assert_near(again.score(unread(supported, foreign)), scores, np.float32)
    chunks[1] *= 3
    alone = [fitted.score(unread(interaction(contexts=[chunk])))[0] for chunk in chunks]
    together = fitted.score(unread(interaction(contexts=chunks), interaction(contexts=[]), *ANSWERS))
    assert np.ptp(alone) > 1e-3 and together[0] == pytest.approx(max(alone), abs=1e-4)
    assert np.isnan(together[1]) and not np.isnan(together[2:]).any()
    assert isinstance(fitted, RunsModel) and fitted.estimate_forward_tokens(ANSWERS) == 0


@pytest.mark.heavy
def test_cross_encoder_reads_training_pairs_once(scorer: CrossEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    read, encode = [], PairEncoder._encode_batch
    monkeypatch.setattr(PairEncoder, "_encode_batch", lambda self, pairs: read.extend(pairs) or encode(self, pairs))
    fitted = scorer.fit(unread(*ANSWERS), labels(CORRECT))
    scorer.fit(unread(*ANSWERS[:20]), labels(CORRECT[:20]))
    fitted.score(unread(*ANSWERS))
    assert len(read) == len(set(read)) == 40


def test_cross_encoder_one_class_is_unavailable(scorer: CrossEncoder) -> None:
    for answers, correct in ((ANSWERS, [1] * 40), ([interaction(contexts=[])] * 2, [0, 1])):
        with pytest.raises(ScorerUnavailable, match="one class only"):
            scorer.fit(unread(*answers), labels(correct))


def test_cross_encoder_without_package_is_unavailable(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none() -> Path:
        raise AbstainError(Code.NO_PACKAGE, "not installed")

    monkeypatch.setattr(pair_encoder, "find_encoder_folder", find_none)
    with pytest.raises(ScorerUnavailable, match="not installed"):
        make_cross_encoder(settings)
