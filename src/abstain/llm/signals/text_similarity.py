"""Text similarity: is the answer about what a retrieved chunk is about, by a sentence encoder?

It is the cosine of the sentence embeddings of the answer and of the chunk that is closest to it. The question is not
compared: an answer close to it is on its subject, which says less about whether the answer is right than a text that
says the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.labels import Labels
from abstain.core.scorer_names import TEXT_SIMILARITY
from abstain.knowledge.retrieval.embeddings import Embeddings
from abstain.knowledge.retrieval.encoder import Encoder, SentenceEncoder
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch, ScorerUnavailable


@dataclass(frozen=True)
class TextSimilarity:
    """max over chunks of cos(answer, chunk); a negative cosine counts as 0, and the score is nan without chunks.

    Attributes:
        encoder: The sentence encoder. Text beyond its limit (256 tokens for the embedded one) is not compared.
        name: Name on the leaderboard.
        requires: No features of the base model.
    """

    encoder: Encoder
    name: str = TEXT_SIMILARITY
    requires: tuple[FeatureRequest, ...] = ()

    def fit(self, batch: FeatureBatch, labels: Labels) -> TextSimilarity:
        """Return the scorer itself; there is nothing to fit."""
        return self

    def score(self, batch: FeatureBatch) -> np.ndarray:
        """Compute the similarity of each answer and its closest chunk, float64 `(rows,)`."""
        texts = [[row.answer, *(context.text for context in row.contexts)] for row in batch.interactions]
        distinct = list(dict.fromkeys(text for row_texts in texts if len(row_texts) > 1 for text in row_texts))
        # Without a cache on disk: what people asked and were answered is erased with the rows alone.
        vectors = dict(zip(distinct, Embeddings(self.encoder).embed(distinct), strict=True))
        return np.array(
            [
                max((float(vectors[answer] @ vectors[chunk]) for chunk in chunks), default=np.nan)
                for answer, *chunks in texts
            ],
            float,
        ).clip(0, 1)

    def estimate_forward_tokens(self, interactions: Sequence[Interaction]) -> float:
        """Return 0: another model than the base model reads the answer."""
        return 0.0


def make_text_similarity(settings: Settings) -> TextSimilarity:
    """Make the scorer with the embedded encoder.

    Args:
        settings: Settings of this machine.

    Returns:
        The scorer.

    Raises:
        ScorerUnavailable: The encoder's package is not installed.
    """
    try:
        return TextSimilarity(SentenceEncoder(device=settings.device))
    except AbstainError as error:
        raise ScorerUnavailable(error.code, error.message) from None
