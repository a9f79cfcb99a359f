import os
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest

from abstain.core.bundle_format import BUNDLE_FORMAT, require_format
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import create_home, write_atomically
from abstain.core.filesystem import expand_variables, get_display_name, redact_url, redact_urls, translate_errors
from tests.factories import bytes_of


def test_write_atomically_syncs_before_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def record_sync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        done.append("folder" if stat.S_ISDIR(status.st_mode) else f"{status.st_size} bytes")
        fsync(descriptor)

    def record_rename(self: Path, target: Path) -> Path:
        done.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "replace", record_rename)
    file = tmp_path / "rows.jsonl"
    for content in (b"old\n", b"newer\n", b"newer\n"):
        write_atomically(file, content)
        assert file.read_bytes() == content
    assert done == ["4 bytes", "rename", "folder", "6 bytes", "rename", "folder"], "none for the same content"
    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError("disk gone")))
    with pytest.raises(OSError, match="disk gone"):
        write_atomically(file, b"newest\n")
    assert bytes_of(tmp_path) == {"rows.jsonl": b"newer\n"}


def test_write_atomically_keeps_mode_or_uses_umask(tmp_path: Path) -> None:
    private, new = tmp_path / "reviews.csv", tmp_path / "new.csv"
    private.write_text("old")
    private.chmod(0o600)
    before = os.umask(0o027)
    try:
        for file in (private, new):
            write_atomically(file, b"verdict\n")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(file.stat().st_mode) for file in (private, new)] == [0o600, 0o640]


def test_create_home_new_folder_is_private(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o775)
    before = stat.S_IMODE(shared.stat().st_mode)
    for home in (tmp_path / "home", shared):
        create_home(home)
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700
    assert stat.S_IMODE(shared.stat().st_mode) == before


SHOWN = [
    ("ftp://u:p@ss@host/a.jsonl", "ftp://host/a.jsonl"),
    ("sftp://user:pa/ss@host/a.jsonl", "sftp://host/a.jsonl"),
    ("sftp://user:pa/s@s/x@host:22/a.jsonl", "sftp://host:22/a.jsonl"),
    ("ftp://u:p@ss/wo@rd@host/a.jsonl", "ftp://host/a.jsonl"),
    ("https://u:p?a@host/a.jsonl?sig=secret", "https://host/a.jsonl"),
    ("https://u:p#a@host/a.jsonl", "https://host/a.jsonl"),
    ("https://u:1234@host/a@b.jsonl?mail=a@b", "https://host/a@b.jsonl"),
    ("https://u:p@host/a.jsonl?sig=a@secret", "https://host/a.jsonl"),
    ("postgresql://ann:p@ss@host:5432/db?sslmode=require&password=p", "postgresql://host:5432/db"),
    ("https://host/a.jsonl?X-Amz-Signature=secret", "https://host/a.jsonl"),
    ("https://host/a.jsonl#secret", "https://host/a.jsonl"),
    ("s3://bucket/a@b#1.jsonl", "s3://bucket/a@b#1.jsonl"),
    ("http://minio:9000/bucket/a@b.jsonl", "http://minio:9000/bucket/a@b.jsonl"),
    ("http://[::1]:9000/a@b", "http://[::1]:9000/a@b"),
    ("/data/a@b?c#d.jsonl", "/data/a@b?c#d.jsonl"),
]


@pytest.mark.parametrize(("url", "shown"), SHOWN)
def test_redact_url_removes_secrets(url: str, shown: str) -> None:
    assert redact_url(url) == shown
    assert redact_url(shown) == shown
    if "://" in url:
        assert redact_urls(f"cannot read '{url}' ({url})") == f"cannot read '{shown}' ({shown})"


def test_translate_errors_redacts_secrets() -> None:
    with pytest.raises(AbstainError) as raised, translate_errors(Code.NOT_READABLE, "a.jsonl", "check it"):
        raise ValueError("404, url=URL('https://host/a.jsonl?X-Amz-Signature=secret')")
    assert raised.value.message == "a.jsonl: 404, url=URL('https://host/a.jsonl'): check it"
    assert raised.value.__suppress_context__, "Prefect logs the traceback of a failed run"


def test_expand_variables_reads_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGNED", "https://host/a.jsonl?X-Amz-Signature=secret")
    monkeypatch.setenv("PASSWORD", "p@ss/word")
    assert expand_variables("${SIGNED}", "x") == "https://host/a.jsonl?X-Amz-Signature=secret"
    assert get_display_name("${SIGNED}") == "a.jsonl"
    assert expand_variables("ftp://u:${PASSWORD}@host/a", "x") == "ftp://u:p%40ss%2Fword@host/a"
    assert expand_variables("folder/${PASSWORD}", "x") == "folder/${PASSWORD}", "a path is as it is"
    with pytest.raises(AbstainError, match="^here: the environment variable MISSING in its url is not set$"):
        expand_variables("ftp://${MISSING}@host", "here")


@pytest.mark.parametrize("metadata", [{}, {"format": ""}, {"format": f"{BUNDLE_FORMAT}0"}, {"format": "two"}])
def test_require_format_other_format_raises(metadata: dict[str, str]) -> None:
    require_format({"format": BUNDLE_FORMAT})
    with pytest.raises(AbstainError, match=rf"has format {metadata.get('format', 'none')}, "):
        require_format(metadata)
