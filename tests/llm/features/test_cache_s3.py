import os
import socket
import time
from contextlib import ExitStack
from datetime import timedelta
from functools import partial

import boto3
import pytest
import torch
from s3fs import S3FileSystem

from abstain.core import filesystem
from abstain.core.errors import AbstainError
from abstain.llm.features import file_store, maintenance
from abstain.llm.features.cache import FeatureCache
from abstain.llm.features.shard import encode_shard
from tests.llm.features.test_cache import SPACE, expected, flip_bit, fork, part, read, rows

pytestmark = pytest.mark.slow


def objects(url: str) -> dict[str, bytes]:
    client, bucket = boto3.client("s3"), url.removeprefix("s3://").split("/")[0]
    listed = client.list_objects_v2(Bucket=bucket).get("Contents", [])
    return {one["Key"]: client.get_object(Bucket=bucket, Key=one["Key"])["Body"].read() for one in listed}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """(method, range) of each request to the server."""
    made: list[tuple[str, str | None]] = []
    original = S3FileSystem._call_s3

    async def noted(self: S3FileSystem, method: str, *arguments: dict, **kwargs: object) -> object:
        ranges = [found["Range"] for found in (kwargs, *arguments) if "Range" in found]
        made.append((method, str(ranges[0]) if ranges else None))
        return await original(self, method, *arguments, **kwargs)

    monkeypatch.setattr(S3FileSystem, "_call_s3", noted)
    return made


def test_cache_s3_objects_are_shards_below_the_prefix(s3: str) -> None:
    url, everything = f"{s3}/some/prefix", rows(*"abc")
    cache = FeatureCache(f"{url}/", SPACE)
    for _ in range(2):
        cache.write(everything)
    header, content = encode_shard(SPACE, everything)
    assert objects(s3) == {f"some/prefix/{header.name}": content}
    assert FeatureCache(url, SPACE).find_missing("abcd") == ["d"]
    assert FeatureCache(f"{s3}/some/pre", SPACE).find_missing("a") == ["a"]


def test_cache_s3_listing_reads_headers_only(s3: str, calls: list[tuple[str, str | None]]) -> None:
    writer = FeatureCache(s3, SPACE)
    for n in range(5):
        writer.write({f"{n}": torch.zeros(20_000, 4)})
    writer.write({f"long{n:0100}": torch.zeros(0, 4) for n in range(200)})  # of a header longer than FIRST_BYTES
    calls.clear()
    reader = FeatureCache(s3, SPACE)
    assert reader.find_missing(["0", "4", "5"]) == ["5"]
    (found,) = maintenance.collect_namespace_stats(s3)
    assert (found.rows, found.shards, found.namespace) == (205, 6, SPACE)
    assert sum(len(content) for content in objects(s3).values()) > 5 * 320_000
    gets = [ranged for method, ranged in calls if method == "get_object"]
    assert len(gets) == 2 * (6 + 1)
    for ranged in gets:
        first, last = str(ranged).removeprefix("bytes=").split("-")
        assert int(last) < file_store.FIRST_BYTES or int(first) == file_store.FIRST_BYTES
    assert {method for method, _ in calls} <= {"list_objects_v2", "get_object"}
    calls.clear()
    reader.refresh()
    assert not [method for method, _ in calls if method == "get_object"]  # it knows them all


def test_cache_s3_forked_writers_do_not_share_a_connection(s3: str) -> None:
    everything = rows(*"abcdefgh")
    cache = FeatureCache(s3, SPACE)
    cache.write(part(everything, "a"))

    def write_and_read(first: int) -> None:
        for _ in range(3):
            cache.write(part(everything, "abcdefgh"[first : first + 6]))
        assert read(cache, "a") == expected(everything, "a")

    children = [fork(partial(write_and_read, n)) for n in range(3)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 3
    cache.refresh()
    assert read(cache, "abcdefgh") == expected(everything, "abcdefgh")


def test_cache_s3_damaged_object_is_quarantined_and_pruned(s3: str) -> None:
    url, everything = f"{s3}/f", rows(*"abc")
    cache, client, bucket = FeatureCache(url, SPACE), boto3.client("s3"), s3.removeprefix("s3://")
    cache.write(part(everything, "ab"))
    cache.write(part(everything, "bc"))
    header, content = encode_shard(SPACE, part(everything, "ab"))
    moved, broken = f"quarantine/{header.name.replace('/', '-')}", flip_bit(content)
    client.put_object(Bucket=bucket, Key=f"f/{header.name}", Body=broken)
    client.put_object(Bucket=bucket, Key="f/mine.txt", Body=b"")
    assert maintenance.verify(url) == maintenance.VerifyResult(2, (header.name,))
    assert f"f/{header.name}" not in objects(s3) and objects(s3)[f"f/{moved}"] == broken
    time.sleep(1.1)  # an object's time has whole seconds
    assert maintenance.prune(url, {}, timedelta(days=1)).names == ()
    assert maintenance.prune(url, {SPACE.digest: {"b"}}, timedelta(0)).names == (moved,)
    assert len(maintenance.prune(url, {}, timedelta(0)).names) == 1
    assert list(objects(s3)) == ["f/mine.txt"]


def test_cache_s3_missing_bucket_is_named(s3: str) -> None:
    with pytest.raises(AbstainError, match=f"cannot read the feature cache in {s3}-x/f.*no such bucket.*AWS_"):
        FeatureCache(f"{s3}-x/f", SPACE)
    cache = FeatureCache(s3, SPACE)
    boto3.client("s3").delete_bucket(Bucket=s3.removeprefix("s3://"))
    with pytest.raises(AbstainError, match=f"cannot write the feature cache in {s3}: "):
        cache.write(rows("a"))


@pytest.mark.parametrize(
    ("where", "says"),
    [("closed", "Could not connect"), ("silent", "timeout"), ("no credentials", "Unable to locate credentials")],
)
def test_cache_s3_unusable_server_is_named_soon(
    s3: str, monkeypatch: pytest.MonkeyPatch, where: str, says: str
) -> None:
    monkeypatch.setitem(filesystem._S3_OPTIONS["config_kwargs"], "connect_timeout", 1)
    with socket.socket() as server, ExitStack() as clients:
        if where == "no credentials":
            monkeypatch.delenv("AWS_ACCESS_KEY_ID")
            monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        else:
            server.bind(("127.0.0.1", 0))
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        if where == "silent":  # it does not answer at all: its queue is full
            server.listen(0)
            for _ in range(3):
                client = clients.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(server.getsockname())
            time.sleep(0.1)
        started = time.monotonic()
        with pytest.raises(AbstainError, match=says) as caught:
            FeatureCache(f"{s3}/f", SPACE)
    assert time.monotonic() - started < 40  # two attempts at a connection take 2 s, and by default 120 s
    for word in (f"{s3}/f", "ABSTAIN_FEATURES", "AWS_ENDPOINT_URL", "credentials"):
        assert word in str(caught.value)
    S3FileSystem.clear_instance_cache()
