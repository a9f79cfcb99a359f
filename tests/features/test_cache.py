from __future__ import annotations

import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from abstain.features.cache import FeatureCache, Space, pass_key
from abstain.llm.layout import Segment, load_layout

SPACE = Space("tiny@1", "layout", 2, "residual", "float32")


def rows(*keys: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {key: torch.randn(n % 3 + 1, 4, generator=generator).to(dtype) for n, key in enumerate(keys)}


def as_bytes(tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().view(torch.uint8).numpy().tobytes()


def shards(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.dictionaries(st.text(min_size=1, max_size=8), st.integers(1, 5), min_size=1, max_size=6),
    cut=st.integers(0, 6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    bits=st.randoms(use_true_random=False),
)
def test_what_is_put_is_got_back_byte_for_byte(lengths: dict[str, int], cut: int, dtype: torch.dtype, bits) -> None:
    wanted = {
        # Any bit pattern, so nan and infinity too: the cache judges nothing.
        key: torch.frombuffer(bytearray(bits.randbytes(n * 3 * dtype.itemsize)), dtype=dtype).reshape(n, 3)
        for key, n in lengths.items()
    }
    keys = list(wanted)
    with tempfile.TemporaryDirectory() as root:
        cache = FeatureCache(Path(root), SPACE)
        for part in (keys[:cut], keys[cut:]):
            if part:
                cache.put({key: wanted[key] for key in part})
        for reader in (cache, FeatureCache(Path(root), SPACE)):
            assert reader.missing(keys) == []
            for key, states in zip(reversed(keys), reader.get(reversed(keys)), strict=True):
                assert as_bytes(states) == as_bytes(wanted[key])


def test_missing_keeps_the_order_and_names_each_key_once(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, SPACE)
    cache.put(rows("b", "d"))
    assert cache.missing(["e", "b", "a", "e", "d", "c", "a"]) == ["e", "a", "c"]
    with pytest.raises(KeyError):
        cache.get(["b", "a"])


def test_opening_a_cache_writes_nothing(tmp_path: Path) -> None:
    assert FeatureCache(tmp_path / "none", SPACE).missing(["a"]) == ["a"]
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_was_got_does_not_hold_on_to_its_shard(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, SPACE)
    cache.put(rows("a", "b"))
    (first,) = cache.get(["a"])
    first.zero_()
    assert as_bytes(cache.get(["a"])[0]) == as_bytes(rows("a", "b")["a"])


def in_a_process_that_is_killed_before_renaming(root: Path) -> int:
    """Put a row in a child whose every rename is its death; its exit status."""
    child = os.fork()
    if child == 0:
        Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment]
        FeatureCache(root, SPACE).put(rows("a", "b"))
        os._exit(0)
    return os.waitpid(child, 0)[1]


def test_a_killed_writer_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    assert in_a_process_that_is_killed_before_renaming(tmp_path) == signal.SIGKILL
    assert len(shards(tmp_path)) == 1  # what it had written is there, under a name that is not read
    cache = FeatureCache(tmp_path, SPACE)
    assert cache.missing(["a", "b"]) == ["a", "b"]
    cache.put(rows("a", "b"))
    assert FeatureCache(tmp_path, SPACE).missing(["a", "b"]) == []


def test_a_writer_that_fails_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    cache = FeatureCache(tmp_path, SPACE)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(Path, "replace", full)
        cache.put(rows("a"))
    assert shards(tmp_path) == []
    assert cache.missing(["a"]) == ["a"]


def truncated(whole: bytes) -> bytes:
    return whole[:-1]


def without_index(_: bytes) -> bytes:
    return save({"states": torch.zeros(2, 4)}, {"other": "thing"})


def with_a_broken_index(_: bytes) -> bytes:
    return save({"states": torch.zeros(2, 4)}, {"index": '[["a", 0'})


def with_an_index_of_another_shape(_: bytes) -> bytes:
    return save({"states": torch.zeros(2, 4)}, {"index": '[["a", 0]]'})


@pytest.mark.parametrize(
    "damage",
    [
        truncated,
        without_index,
        with_a_broken_index,
        with_an_index_of_another_shape,
        lambda whole: b"",
        lambda whole: b"not a shard at all",
        lambda whole: whole[:20],
    ],
)
def test_rows_of_a_damaged_shard_are_missing_again_and_the_others_are_not(tmp_path: Path, damage) -> None:
    cache = FeatureCache(tmp_path, SPACE)
    cache.put(rows("a", "b"))
    (shard,) = shards(tmp_path)
    cache.put(rows("c"))
    shard.write_bytes(damage(shard.read_bytes()))
    again = FeatureCache(tmp_path, SPACE)
    assert again.missing(["a", "b", "c"]) == ["a", "b"]
    assert not shard.exists()
    again.put(rows("a", "b"))
    for reader in (again, FeatureCache(tmp_path, SPACE)):
        assert as_bytes(reader.get(["b"])[0]) == as_bytes(rows("a", "b")["b"])


def test_two_writers_of_the_same_rows_only_store_them_twice(tmp_path: Path) -> None:
    one, other = FeatureCache(tmp_path, SPACE), FeatureCache(tmp_path, SPACE)
    everything = rows("a", "b", "c")
    one.put({key: everything[key] for key in ("a", "b")})
    assert other.missing(["a", "b", "c"]) == ["a", "b", "c"]  # it sees what was there when it was opened
    other.put({key: everything[key] for key in ("b", "c")})
    for reader, keys in ((one, "ab"), (other, "bc"), (FeatureCache(tmp_path, SPACE), "abc")):
        assert [as_bytes(row) for row in reader.get(keys)] == [as_bytes(everything[key]) for key in keys]


def test_writers_that_race_leave_whole_shards(tmp_path: Path) -> None:
    everything = rows(*"abcdefgh")
    children = []
    for n in range(4):
        child = os.fork()
        if child == 0:
            cache = FeatureCache(tmp_path, SPACE)
            for _ in range(20):
                cache.put({key: everything[key] for key in "abcdefgh"[n : n + 5]})
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    reader = FeatureCache(tmp_path, SPACE)
    assert [as_bytes(row) for row in reader.get("abcdefgh")] == [as_bytes(row) for row in everything.values()]
    assert len(shards(tmp_path)) == 4


@pytest.mark.parametrize(
    "change", [{"model": "tiny@2"}, {"layout": "other"}, {"layer": 3}, {"site": "mlp"}, {"dtype": "bfloat16"}]
)
def test_every_field_of_a_space_parts_its_rows(tmp_path: Path, change: dict) -> None:
    FeatureCache(tmp_path, SPACE).put(rows("a"))
    other = replace(SPACE, **change)
    assert other.digest != SPACE.digest
    assert FeatureCache(tmp_path, other).missing(["a"]) == ["a"]
    assert FeatureCache(tmp_path, replace(SPACE)).missing(["a"]) == []


PASS = load_layout("rag-chatml-v1").render("Why?", ["one", "two"], "Because.")


def test_a_key_depends_on_text_and_segments_only() -> None:
    layout = load_layout("rag-chatml-v1")
    assert pass_key(PASS) == pass_key(layout.render("Why?", ["one", "two"], "Because."))
    others = [
        layout.render("Why", ["one", "two"], "Because."),
        layout.render("Why?", ["two", "one"], "Because."),
        layout.render("Why?", ["one", "two"], "Because"),
        layout.render("Why?", ["one", "two"], None),
        load_layout("rag-plain-v1").render("Why?", ["one", "two"], "Because."),
        PASS[:-1],
        (*PASS[:-1], Segment("eos", "", literal=True)),
    ]
    assert len({pass_key(pass_) for pass_ in (PASS, *others)}) == len(others) + 1


@given(st.lists(st.text(max_size=4), min_size=2, max_size=2), st.lists(st.text(max_size=4), min_size=2, max_size=2))
def test_text_cannot_move_between_segments_unseen(one: list[str], other: list[str]) -> None:
    keys = [pass_key((Segment("question", q), Segment("answer", a))) for q, a in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


def test_keys_are_the_same_on_every_machine() -> None:
    assert pass_key((Segment("a", "b"),)) == "3f151d8492eefa14e7e9df087af91d1f796f6a902b061652bce0d643cd1fceb9"
    assert SPACE.digest == "8e54009cfd2f0fec"
