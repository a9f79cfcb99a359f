"""Texts of the decision log, their embeddings in memory, and their hidden states from the feature cache."""

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
    """The answers of one log, as `run.AnswerSource`.

    The encoder is loaded when the first text is embedded.

    Args:
        database: The decision log.
        settings: Settings of this machine.
    """

    def __init__(self, database: LogDatabase, settings: Settings) -> None:
        self._database, self._settings = database, settings
        self._embedding_by_text: dict[str, np.ndarray] = {}  # of this process: windows share what came before them

    def interactions(self, ids: Sequence[str]) -> Mapping[str, Interaction]:
        """Read the interactions whose texts are kept.

        Args:
            ids: Interaction ids.

        Returns:
            Interaction by id.
        """
        return queries.read_interactions(self._database, ids)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Embed texts; embeddings are cached in memory.

        Args:
            texts: The texts.

        Returns:
            (n, d) float32, rows of unit length.
        """
        missing = list(dict.fromkeys(text for text in texts if text not in self._embedding_by_text))
        if missing:
            self._embedding_by_text |= dict(zip(missing, self._embeddings.embed(missing), strict=True))
        return np.array([self._embedding_by_text[text] for text in texts], np.float32)

    def states(self, llm: LLMParams, rows: Sequence[Interaction]) -> tuple[np.ndarray, np.ndarray]:
        """Read the mean hidden states of answers from the feature cache, as `window_comparison.ReadCachedStates`.

        Args:
            llm: The base model and its layer.
            rows: The answers.

        Returns:
            (n,) bool, which answers have cached states, and the (cached, d) means over their tokens.

        Raises:
            AbstainError: The base model or the cache is missing.
        """
        from abstain.llm.features.extraction import FeatureSource  # torch, which only this needs

        source = FeatureSource(llm, self._settings)
        keys = source.build_keys(rows)
        missing = set(source.cache.find_missing(key for key in keys if key))
        cached = [key for key in keys if key and key not in missing]
        mean_by_key = {key: states.float().mean(dim=0).numpy() for key, states in source.cache.read(cached)}
        has_states = np.array([key in mean_by_key for key in keys], bool)
        return has_states, np.array([mean_by_key[key] for key in keys if key in mean_by_key])

    @cached_property
    def _embeddings(self) -> Embeddings:
        return Embeddings(SentenceEncoder(device=self._settings.device))
