import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from abstain.llm.features.cache import CacheNamespace, FeatureCache
from abstain.llm.features.maintenance import prune
from abstain_cli import cache as cache_cli
from tests.abstain_cli.conftest import invoke

SPACE = CacheNamespace("tiny@1", "float32", "HiddenStates(layer=2)", "1")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ABSTAIN_FEATURES", str(tmp_path))
    monkeypatch.setattr(cache_cli.console, "width", 160)
    return tmp_path


def test_cache_stats(root: Path) -> None:
    assert "holds no features yet" in invoke("cache", "stats")
    for space in (SPACE, replace(SPACE, engine="2")):
        FeatureCache(root, space).write({key: torch.zeros(100, 4) for key in "abc"})
    printed = invoke("cache", "stats")
    for word in (SPACE.digest, *vars(SPACE).values(), "3", "KiB", str(root)):
        assert word in printed


def test_cache_verify(root: Path) -> None:
    FeatureCache(root, SPACE).write({"a": torch.zeros(2, 4)})
    assert "1 shards checked, 0 damaged" in invoke("cache", "verify")
    (shard,) = root.rglob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-1])
    lines = invoke("cache", "verify", status=1).splitlines()
    assert lines[0].startswith(f"damaged: {SPACE.digest}/{shard.name}") and lines[1] == "1 shards checked, 1 damaged"
    assert "0 shards checked, 0 damaged" in invoke("cache", "verify")


def test_cache_prune(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abstain_tasks.data.feature_cache.collect_needed_keys", lambda: {SPACE.digest: {"a"}})
    for key in "ab":
        FeatureCache(root, SPACE).write({key: torch.zeros(2, 4)})
    assert re.search(r"^0 files", invoke("cache", "prune"), re.MULTILINE)
    assert re.search(
        r"^1 files, .* would be removed", invoke("cache", "prune", "--older-than-days", "0", "--dry-run"), re.MULTILINE
    )
    assert FeatureCache(root, SPACE).find_missing("ab") == []
    assert re.search(r"^1 files, .* removed", invoke("cache", "prune", "--older-than-days", "0"), re.MULTILINE)
    assert FeatureCache(root, SPACE).find_missing("ab") == ["b"]
    assert prune(root, {}, timedelta(0), dry_run=True).names
