from collections.abc import Sequence

import numpy as np
import pytest

from abstain.config.settings import Settings
from abstain.llm.signals.base import FeatureBatch, RunsModel
from abstain.llm.signals.overlap import OVERLAP_SIGNAL, compute_overlap
from abstain.llm.signals.text_similarity import TextSimilarity, make_text_similarity
from tests.llm.signals.builders import interaction, unread
from tests.tolerance import assert_near


@pytest.mark.parametrize(
    ("answer", "chunks", "share"),
    [
        ("The fee is 5 euros.", ["A fee, 5 EUROS, is due."], 1.0),
        ("fee fee fee", ["The fee.", "A FEE!"], 2 / 3),
        ("Das Entgelt beträgt 5 Euro", ["Entgelt: 5 Euro"], 3 / 5),
        ("Nothing here", ["The fee."], 0.0),
        ("the!", ["The fee."], float("nan")),
        ("5 euros", [], float("nan")),
    ],
)
def test_overlap_is_share_of_words_in_the_chunks(answer: str, chunks: list[str], share: float) -> None:
    assert compute_overlap(answer, chunks) == pytest.approx(share, nan_ok=True)
    np.testing.assert_allclose(OVERLAP_SIGNAL.score(unread(interaction(answer, chunks))), [share])
    assert not OVERLAP_SIGNAL.requires and not isinstance(OVERLAP_SIGNAL, RunsModel)


class CompassEncoder:
    """Texts are directions in the plane, in degrees; each text is encoded once."""

    identity, dimension = "compass", 2

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        self.texts += texts
        angles = np.radians([float(text) for text in texts])
        return 3 * np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)


def test_text_similarity_is_cosine_of_the_closest_chunk() -> None:
    encoder = CompassEncoder()
    answers = [("0", ["60", "90"]), ("0", ["180"]), ("90", ["60", "0"]), ("45", [])]
    scorer = TextSimilarity(encoder)
    scores = scorer.score(unread(*(interaction(answer, chunks) for answer, chunks in answers)))
    assert_near(scores[:3], np.array([0.5, 0.0, np.sqrt(3) / 2]), np.float32)
    assert np.isnan(scores[3]) and sorted(encoder.texts) == ["0", "180", "60", "90"]
    assert scorer.score(FeatureBatch([], {})).shape == (0,)
    assert scorer.estimate_forward_tokens([interaction()]) == 0


@pytest.mark.slow
def test_text_similarity_embedded_encoder_ranks_support(settings: Settings) -> None:
    answers = unread(interaction("The gold card costs 5 euros a year."), interaction("Whales are mammals."))
    supported, foreign = make_text_similarity(settings).score(answers)
    assert supported > 0.7 > 0.3 > foreign
