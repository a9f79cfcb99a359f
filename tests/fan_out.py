"""What the tests of all runners share: a tiny base model that takes its time, and what lies in a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Context, Interaction
from abstain.llm.features.extraction import FeatureSource


def rows(count: int) -> list[Interaction]:
    """Different answers, each on a context of its own."""
    return [
        Interaction(
            interaction_id=f"i-{n}",
            asked_at="2026-09-01T12:00:00Z",
            question=f"Question {n}?",
            answer="yes " * (n % 5 + 1),
            contexts=(Context(chunk_id=f"doc#{n}", text=f"{n:04} " + "c" * (7 * n % 40 + 80)),),
            model="m@1",
        )
        for n in range(count)
    ]


def source_in(home: Path, model: Path, **settings: Any) -> FeatureSource:
    """A base model that reads a few tokens at a time, so that a shard takes long enough to be interrupted."""
    params = LLMParams(
        model=str(model), layout="rag-plain-v1", layer=2, site="residual", too_long="refuse", includes_eos=True
    )
    return FeatureSource(params, Settings(home=home, device="cpu", dtype="float32", batch_tokens=24, **settings))


def shards(source: FeatureSource) -> dict[str, tuple[bytes, int]]:
    """Every shard's bytes, and when it was written."""
    root = Path(source.settings.features)
    return {
        file.relative_to(root).as_posix(): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in root.rglob("*.safetensors")
    }


def contents(source: FeatureSource) -> dict[str, bytes]:
    """Every shard's bytes."""
    return {name: content for name, (content, _) in shards(source).items()}
