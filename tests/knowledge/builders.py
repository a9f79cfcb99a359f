"""Documents and chunks to break one thing in, and an encoder whose similarities can be told from the texts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from abstain.core.contracts import Chunk, Document
from abstain.knowledge.retrieval.encoder import Vectors

VOCABULARY = ("fee", "limit", "card", "loan", "rate")


def document(body: str, **changes: Any) -> Document:
    fields = {"doc_id": "gold", "title": "Gold Card", "updated_at": "2026-08-01T00:00:00Z"}
    return Document(**{**fields, "body": body, **changes})


def chunk(key: str, text: str, *entitlements: str, **changes: Any) -> Chunk:
    fields = {"doc_id": key.partition("#")[0], "section_path": ("T",), "kind": "text", "content_hash": "0"}
    own = {"chunk_id": key, "text": text, "entitlements": entitlements, "updated_at": "2026-08-01T00:00:00Z"}
    return Chunk(**{**fields, **own, **changes})


class BagOfWords:
    """How often each word of the vocabulary occurs; counts what it encodes."""

    identity = "bagofwords"
    dimension = len(VOCABULARY)

    def __init__(self) -> None:
        self.encoded: list[str] = []
        self.calls = 0

    def encode(self, texts: Sequence[str]) -> Vectors:
        assert texts, "nothing to encode"
        self.calls += 1
        self.encoded += texts
        return np.array([[text.split().count(word) for word in VOCABULARY] for text in texts], dtype=np.float32)
