import errno
import json
import os
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fsspec
import pytest
import torch
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from abstain.core.errors import AbstainError
from abstain.llm.engine.prompts import Segment, load_layout
from abstain.llm.features import file_store
from abstain.llm.features.cache import CacheNamespace, FeatureCache, prompt_key
from abstain.llm.features.shard import encode_shard

SPACE = CacheNamespace("tiny@1", "float32", "HiddenStates(layer=2)", "1")


def rows(*keys: str) -> dict[str, Tensor]:
    """One row for each key; a row depends on the keys before its own."""
    generator = torch.Generator().manual_seed(0)
    return {key: torch.randn(n % 3 + 1, 4, generator=generator) for n, key in enumerate(keys)}


def part(rows: dict[str, Tensor], keys: Iterable[str]) -> dict[str, Tensor]:
    return {key: rows[key] for key in keys}


def as_bytes(tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def read(cache: FeatureCache, keys: Iterable[str]) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    pairs = [(key, as_bytes(row)) for key, row in cache.read(keys)]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def expected(rows: dict[str, Tensor], keys: Iterable[str]) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    return {key: as_bytes(rows[key]) for key in keys}


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def shard(root: Path) -> Path:
    (found,) = (file for file in files(root) if file.parent.name == SPACE.digest)
    return found


@pytest.fixture(params=["folder", "file://", "memory://", pytest.param("s3://", marks=pytest.mark.slow)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory://":
        yield f"memory://{uuid.uuid4().hex}"
        fsspec.filesystem("memory").store.clear()
    elif request.param == "s3://":
        yield request.getfixturevalue("s3")
    else:
        yield str(tmp_path) if request.param == "folder" else f"file://{tmp_path}"


@settings(deadline=None, max_examples=25)
@given(
    lengths=st.dictionaries(st.text(min_size=1, max_size=8), st.integers(0, 5), min_size=1, max_size=6),
    cut=st.integers(0, 6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    bits=st.randoms(use_true_random=False),
)
def test_cache_reads_back_the_bytes_written(lengths: dict[str, int], cut: int, dtype: torch.dtype, bits) -> None:
    wanted = {  # any bit pattern, so nan and infinity too
        key: torch.tensor(list(bits.randbytes(n * 3 * dtype.itemsize)), dtype=torch.uint8).view(dtype).reshape(n, 3)
        for key, n in lengths.items()
    }
    keys = list(wanted)
    with tempfile.TemporaryDirectory() as folder:
        cache = FeatureCache(folder, SPACE)
        for some in (keys[:cut], keys[cut:]):
            cache.write(part(wanted, some))
        for reader in (cache, FeatureCache(folder, SPACE)):
            assert reader.find_missing(keys) == []
            assert reader.get_lengths(reversed(keys)) == list(reversed(lengths.values()))
            assert reader.get_width_and_dtype() == (3, dtype)
            assert read(reader, reversed(keys)) == expected(wanted, keys)


def test_cache_in_every_kind_of_root(root: str) -> None:
    everything = rows(*"abcde")
    one, other = FeatureCache(root, SPACE), FeatureCache(root, SPACE)
    one.write(part(everything, "abc"))
    other.write(part(everything, "cde"))
    assert one.find_missing("abcde") == ["d", "e"]  # it sees what was there when it was opened, and its own
    one.refresh()
    for reader in (one, FeatureCache(root, SPACE)):
        assert reader.find_missing("abcdef") == ["f"]
        assert read(reader, "ecba") == expected(everything, "abce")
    assert FeatureCache(root, replace(SPACE, engine="2")).find_missing("a") == ["a"]


def test_find_missing_keeps_order_without_repetition(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, SPACE)
    cache.write(rows("b", "d"))
    assert cache.find_missing(["e", "b", "a", "e", "d", "c", "a"]) == ["e", "a", "c"]
    assert list(read(cache, ["b", "a", "b"])) == ["b"]
    with pytest.raises(KeyError):
        cache.get_lengths(["b", "a"])


def test_cache_opening_writes_nothing(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, SPACE)
    cache.write({})
    assert (cache.find_missing(["a"]), cache.get_width_and_dtype(), read(cache, ["a"])) == (["a"], None, {})
    assert list(tmp_path.iterdir()) == []


def test_cache_row_is_a_copy_and_gone_with_its_shard(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, SPACE)
    cache.write(rows("a", "b"))
    ((_, first),) = cache.read(["a"])
    assert first.untyped_storage().nbytes() == first.numel() * first.itemsize, "it does not hold its shard in memory"
    first.zero_()
    assert read(cache, ["a"]) == expected(rows("a", "b"), "a")
    shard(tmp_path).unlink()  # pruned, which is no damage
    assert (read(cache, "a"), cache.find_missing("a"), files(tmp_path)) == ({}, ["a"], [])


def test_cache_rows_of_another_shape_are_refused(tmp_path: Path) -> None:
    cache, row = FeatureCache(tmp_path, SPACE), torch.zeros(1, 4)
    cache.write({"there": row})
    for wrong in (row[0], torch.zeros(1, 5), row.half(), row.long()):
        for others in ({}, {"a": row}):
            with pytest.raises(ValueError, match="row"):
                cache.write(others | {"b": wrong})
    assert len(files(tmp_path)) == 1


def fork(action: Callable[[], object]) -> int:
    """Run `action` in a child process, which dies where it hangs, and return its id."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        action()
        os._exit(0)
    return child


def test_cache_killed_writer_leaves_nothing_to_read(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, SPACE)

    def write_and_die() -> None:
        Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment]
        cache.write(rows("a", "b"))

    assert os.waitpid(fork(write_and_die), 0)[1] == signal.SIGKILL
    assert len(files(tmp_path)) == 1  # under a name that is not read
    cache.refresh()
    assert cache.find_missing(["a", "b"]) == ["a", "b"]
    cache.write(rows("a", "b"))
    assert FeatureCache(tmp_path, SPACE).find_missing(["a", "b"]) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_cache_full_disk_is_an_error_and_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    cache = FeatureCache(tmp_path, SPACE)
    cache.write(rows("a"))
    with monkeypatch.context() as patch, pytest.raises(AbstainError, match="abstain cache prune") as caught:
        patch.setattr(os, "fsync", Mock(side_effect=OSError(number, os.strerror(number))))
        cache.write(rows("b"))
    assert str(tmp_path) in str(caught.value)
    assert files(tmp_path) == [shard(tmp_path)]
    assert read(cache, "ab") == expected(rows("a"), "a")
    with pytest.raises(AbstainError, match="cannot write the feature cache in .*ABSTAIN_FEATURES"):
        FeatureCache(shard(tmp_path), SPACE).write(rows("a"))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nope://bucket", "nope://bucket: .*ABSTAIN_FEATURES"),
        ("gs://bucket", "gs://bucket: .*gcsfs"),
        ("nope://me:secret@host/x", r"nope://host/x: .*ABSTAIN_FEATURES"),
    ],
)
def test_cache_unknown_protocol_is_refused_without_secrets(url: str, says: str) -> None:
    with pytest.raises(AbstainError, match=says) as caught:
        FeatureCache(url, SPACE)
    assert "secret" not in str(caught.value)


def test_cache_missing_s3fs_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec, "url_to_fs", Mock(side_effect=ImportError("Install s3fs to access S3")))
    with pytest.raises(AbstainError, match=r's3://bucket: .*`pip install "abstain\[s3\]"`'):
        FeatureCache("s3://bucket", SPACE)


def flip_bit(whole: bytes) -> bytes:
    return whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]


OUTSIDE = json.dumps({"namespace": asdict(SPACE), "rows": [["a", 0, 3]], "sha256": ""})
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda whole: whole[:-1],
    "flipped bit": flip_bit,
    "other space": lambda _: encode_shard(replace(SPACE, engine="2"), rows("a", "b"))[1],
    "other rows": lambda _: encode_shard(SPACE, rows("x", "y"))[1],
    "no index": lambda _: save({"states": torch.zeros(2, 4)}, {"other": "thing"}),
    "old format": lambda _: save({"states": torch.zeros(2, 4)}, {"index": '[["a", 0, 2]]'}),
    "outside": lambda _: save({"states": torch.zeros(2, 4)}, {"index": OUTSIDE}),
    "empty": lambda _: b"",
    "only a start": lambda whole: whole[:20],
    "longer": lambda whole: whole + b"x",
    "a length as high as it gets": lambda whole: b"\xff" * 8 + whole[8:],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("opened", ["before", "after"])
def test_cache_rows_of_a_damaged_shard_are_missing(
    tmp_path: Path, damage: Callable[[bytes], bytes], opened: str, caplog: pytest.LogCaptureFixture
) -> None:
    everything = rows("a", "b", "c")
    cache = FeatureCache(tmp_path, SPACE)
    cache.write(part(everything, "ab"))
    bad = shard(tmp_path)
    cache.write(part(everything, "c"))
    content = damage(bad.read_bytes())
    bad.write_bytes(content)
    if opened == "after":
        cache = FeatureCache(tmp_path, SPACE)
    assert read(cache, "abc") == expected(everything, "c")
    assert cache.find_missing("abc") == ["a", "b"]
    assert not bad.exists()
    assert (tmp_path / "quarantine" / f"{SPACE.digest}-{bad.name}").read_bytes() == content
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "quarantine" in caplog.text and str(tmp_path) in caplog.text
    cache.write(part(everything, "ab"))
    for reader in (cache, FeatureCache(tmp_path, SPACE)):
        assert read(reader, "abc") == expected(everything, "abc")


def test_cache_row_stored_twice_is_read_from_the_good_copy(root: str) -> None:
    everything = rows("a", "b", "c")
    cache = FeatureCache(root, SPACE)
    cache.write(part(everything, "ab"))
    cache.write(part(everything, "bc"))
    fs, base = fsspec.url_to_fs(root)
    bad = f"{base}/{encode_shard(SPACE, part(everything, 'ab'))[0].name}"
    fs.pipe_file(bad, flip_bit(fs.cat_file(bad)))
    assert read(cache, "abc") == expected(everything, "bc")
    assert cache.find_missing("abc") == ["a"]
    assert [Path(name).parent.name for name in fs.find(base)].count("quarantine") == 1


@pytest.mark.parametrize("gone", [FileNotFoundError, NotADirectoryError])
def test_file_store_vanished_folder_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: type) -> None:
    store = file_store.FileStore(tmp_path)
    for name in ("a/one", "b/two"):
        store.write(name, b"x")
    listed = LocalFileSystem.ls
    broken: dict[str, Exception] = {str(tmp_path / "a"): gone()}

    def ls(self: LocalFileSystem, path: str, **options: Any) -> list:
        if path in broken:
            raise broken[path]
        return listed(self, path, **options)

    monkeypatch.setattr(LocalFileSystem, "ls", ls)
    assert [entry.name for entry in store.list()] == ["b/two"]
    for folder in (tmp_path, tmp_path / "a"):
        broken |= {str(folder): PermissionError(13, "Permission denied")}
        with pytest.raises(AbstainError, match="cannot read the feature cache in .*Permission denied"):
            store.list()


def test_file_store_lists_links(tmp_path: Path) -> None:
    store = file_store.FileStore(tmp_path / "cache")
    store.write("a/own", b"x")
    (tmp_path / "elsewhere").write_bytes(b"four")
    (tmp_path / "cache/a/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "cache/a/nothing").symlink_to(tmp_path / "gone")
    assert [(entry.name, entry.size) for entry in store.list()] == [("a/link", 4), ("a/own", 1)]


def test_cache_reads_again_after_a_garbled_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = FeatureCache(tmp_path, SPACE)
    cache.write(rows("a"))
    reads = [flip_bit(shard(tmp_path).read_bytes()), shard(tmp_path).read_bytes()]
    monkeypatch.setattr(file_store.FileStore, "read", lambda *_: reads.pop(0))
    assert read(cache, "a") == expected(rows("a"), "a")
    assert files(tmp_path) == [shard(tmp_path)]


def test_cache_racing_writers_leave_whole_shards(tmp_path: Path) -> None:
    everything = rows(*"abcdefgh")

    def write(first: int) -> None:
        for _ in range(20):
            FeatureCache(tmp_path, SPACE).write(part(everything, "abcdefgh"[first : first + 5]))

    children = [fork(partial(write, n)) for n in range(4)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert read(FeatureCache(tmp_path, SPACE), "abcdefgh") == expected(everything, "abcdefgh")
    assert len(files(tmp_path)) == 4


def test_cache_without_atomic_put_writes_and_renames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_store, "ATOMIC_PROTOCOLS", ())
    url, write = f"memory://{uuid.uuid4().hex}", MemoryFileSystem.pipe_file
    cache = FeatureCache(url, SPACE)
    cache.write(rows("a"))
    assert read(FeatureCache(url, SPACE), "a") == expected(rows("a"), "a")

    def write_half(fs: MemoryFileSystem, path: str, value: bytes, **_: object) -> None:
        write(fs, path, value[: len(value) // 2])
        raise ConnectionResetError("gone")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", write_half)
    with pytest.raises(AbstainError, match=f"{url}: gone: "):
        cache.write(rows("b"))
    assert len(fsspec.filesystem("memory").find(url)) == 1


def test_namespace_fields_separate_rows(tmp_path: Path) -> None:
    assert SPACE.digest == "8423d1410f1a5317"
    FeatureCache(tmp_path, SPACE).write(rows("a"))
    assert FeatureCache(tmp_path, replace(SPACE)).find_missing(["a"]) == []
    for change in ({"model": "tiny@2"}, {"dtype": "bfloat16"}, {"operation": "Nothing()"}, {"engine": "2"}):
        assert FeatureCache(tmp_path, replace(SPACE, **change)).find_missing(["a"]) == ["a"]


def test_prompt_key_depends_on_text_and_segments_only() -> None:
    assert prompt_key((Segment("a", "b"),)) == "3f151d8492eefa14e7e9df087af91d1f796f6a902b061652bce0d643cd1fceb9"
    layout = load_layout("rag-chatml-v1")
    pass_ = layout.render("Why?", ["one", "two"], "Because.")
    assert prompt_key(pass_) == prompt_key(layout.render("Why?", ["one", "two"], "Because."))
    others = [
        layout.render("Why", ["one", "two"], "Because."),
        layout.render("Why?", ["two", "one"], "Because."),
        layout.render("Why?Because.", ["one", "two"], ""),
        layout.render("", ["one", "two"], "Why?Because."),
        layout.render("Why?", ["one", "two"], None),
        load_layout("rag-plain-v1").render("Why?", ["one", "two"], "Because."),
        pass_[:-1],
        (*pass_[:-1], Segment("eos", "", literal=True)),
    ]
    assert len({prompt_key(other) for other in (pass_, *others)}) == len(others) + 1
