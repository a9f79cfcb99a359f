import os
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from torch import Tensor

from abstain.llm.features import file_store
from abstain.llm.features.cache import CacheNamespace, FeatureCache
from abstain.llm.features.maintenance import PruneResult, VerifyResult, collect_namespace_stats, prune, verify
from abstain.llm.features.shard import encode_shard
from tests.llm.features.test_cache import SPACE, files, flip_bit, part, rows

OTHER = replace(SPACE, operation="Other()")
DAY = timedelta(days=1)


def written(root: Path, space: CacheNamespace, of: Mapping[str, Tensor], days_ago: float = 0) -> Path:
    FeatureCache(root, space).write(of)
    file = root / encode_shard(space, of)[0].name
    age(file, days_ago)
    return file


def age(file: Path, days: float) -> None:
    os.utime(file, (at := time.time() - days * 86400, at))


def test_maintenance_of_an_empty_cache(tmp_path: Path) -> None:
    assert collect_namespace_stats(tmp_path / "none") == []
    assert verify(tmp_path / "none") == VerifyResult(0, ())
    assert prune(tmp_path / "none", {}, DAY) == PruneResult((), 0)
    assert list(tmp_path.iterdir()) == []


def test_namespace_stats_are_separate_and_read_headers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = rows("a", "b", "c")
    one = written(tmp_path, SPACE, part(everything, "ab"), days_ago=3)
    two = written(tmp_path, SPACE, part(everything, "bc"), days_ago=2)
    bad = written(tmp_path, OTHER, everything)
    bad.write_bytes(b"")
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.delattr(file_store.FileStore, "read")
    unreadable, found = collect_namespace_stats(tmp_path)
    assert (unreadable.digest, unreadable.namespace, unreadable.shards) == (OTHER.digest, None, 1)
    assert (unreadable.rows, unreadable.unreadable, unreadable.bytes) == (0, 1, 0)
    assert (found.digest, found.namespace, found.rows, found.distinct) == (SPACE.digest, SPACE, 4, 3)
    assert (found.shards, found.unreadable, found.bytes) == (2, 0, one.stat().st_size + two.stat().st_size)
    assert abs(datetime.now(UTC) - 2 * DAY - found.written_at) < timedelta(minutes=5)
    assert bad.exists()  # looking moves nothing


def test_verify_moves_damaged_shards_to_quarantine(tmp_path: Path) -> None:
    bad, good = written(tmp_path, SPACE, rows("a", "b")), written(tmp_path, OTHER, rows("a"))
    bad.write_bytes(flip_bit(bad.read_bytes()))
    seen: list[tuple[int, int]] = []
    report = verify(tmp_path, lambda done, total: seen.append((done, total)))
    assert report == VerifyResult(2, (f"{SPACE.digest}/{bad.name}",))
    assert seen == [(1, 2), (2, 2)]
    assert files(tmp_path) == sorted([good, tmp_path / "quarantine" / f"{SPACE.digest}-{bad.name}"])
    assert verify(tmp_path) == VerifyResult(1, ())


def test_prune_deletes_old_unneeded_files(tmp_path: Path) -> None:
    everything = rows(*"abcdef")
    needed = written(tmp_path, SPACE, part(everything, "ab"), days_ago=40)
    old = written(tmp_path, SPACE, part(everything, "cd"), days_ago=40)
    young = written(tmp_path, SPACE, part(everything, "ef"), days_ago=20)
    other = written(tmp_path, OTHER, part(everything, "ab"), days_ago=40)
    broken = written(tmp_path, OTHER, part(everything, "ef"), days_ago=40)
    broken.write_bytes(flip_bit(broken.read_bytes())[:9])
    age(broken, 40)
    left = [
        tmp_path / "jobs" / f"{'5e' * 16}.job",
        tmp_path / "jobs" / f".{'5e' * 16}.job.{'5e' * 8}",
        tmp_path / "quarantine" / f"{SPACE.digest}-{old.name}",
        old.with_name(f".{old.name}.ab12_x"),
        old.with_name(f".{young.name}.k"),
    ]
    mine = [tmp_path / "notes.txt", old.with_name("other.safetensors"), tmp_path / "x.safetensors"]
    mine += [tmp_path / "jobs" / name for name in ("batch-17.job", f"{'5e' * 16}.txt")]
    for file in (*left, *mine):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"12345")
        age(file, 40)
    age(left[-1], 1)

    before, doomed = files(tmp_path), sorted([old, other, broken, *left[:-1]])
    keep = {SPACE.digest: {"b", "x"}}
    names = tuple(sorted(file.relative_to(tmp_path).as_posix() for file in doomed))
    expected = PruneResult(names, sum(file.stat().st_size for file in doomed))
    assert prune(tmp_path, keep, 30 * DAY, dry_run=True) == expected
    assert files(tmp_path) == before
    assert prune(tmp_path, keep, 30 * DAY) == expected
    assert files(tmp_path) == sorted({*before} - {*doomed})
    assert needed.exists() and young.exists() and all(file.exists() for file in mine)
    assert prune(tmp_path, keep, 30 * DAY) == PruneResult((), 0)
    assert FeatureCache(tmp_path, SPACE).find_missing("abcdef") == ["c", "d"]


def test_prune_keeps_jobs_that_may_be_running(tmp_path: Path) -> None:
    live, killed = (tmp_path / "jobs" / f"{digest * 16}.job" for digest in ("5e", "7a"))
    live.parent.mkdir()
    for file, days in ((live, 6.9), (killed, 7.1)):
        file.write_bytes(b"12345")
        age(file, days)
    assert prune(tmp_path, {}, timedelta(0)).names == (f"jobs/{killed.name}",)
    assert files(tmp_path) == [live]
