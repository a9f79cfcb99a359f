"""The texts of the log, their embeddings in memory, and what the feature cache has of their hidden states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.data.decision_log import queries
from abstain.data.decision_log.database import LogDatabase
from abstain.knowledge.retrieval.embeddings import Embeddings
from abstain.knowledge.retrieval.encoder import SentenceEncoder


class LoggedAnswers:
    """The answers of one log; `run.AnswerSource`. The encoder is loaded when the first text is embedded."""

    def __init__(self, database: LogDatabase, settings: Settings) -> None:
        self._database, self._settings = database, settings
        self._known: dict[str, np.ndarray] = {}  # of this process: windows share what came before them

    def interactions(self, ids: Sequence[str]) -> Mapping[str, Interaction]:
        """Those of `ids` whose texts are kept."""
        return queries.interactions(self._database, ids)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """(n, d) float32, rows of unit length."""
        missing = list(dict.fromkeys(text for text in texts if text not in self._known))
        if missing:
            self._known |= dict(zip(missing, self._embeddings.embed(missing), strict=True))
        return np.array([self._known[text] for text in texts], np.float32)

    def states(self, llm: LLMParams, rows: Sequence[Interaction]) -> tuple[np.ndarray, np.ndarray]:
        """See `comparison.States`. Raises `AbstainError` where the base model or the cache is not there."""
        from abstain.llm.features.extraction import FeatureSource  # torch, which only this needs

        source = FeatureSource(llm, self._settings)
        keys = source.keys(rows)
        missing = set(source.cache.missing(key for key in keys if key))
        wanted = [key for key in keys if key and key not in missing]
        means = {key: states.float().mean(dim=0).numpy() for key, states in source.cache.read(wanted)}
        has = np.array([key in means for key in keys], bool)
        return has, np.array([means[key] for key in keys if key in means])

    @cached_property
    def _embeddings(self) -> Embeddings:
        return Embeddings(SentenceEncoder(device=self._settings.device))
