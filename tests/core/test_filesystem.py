import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.filesystem import expand_variables, get_display_name, redact_url, redact_urls, translate_errors

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
    ("https://user@host/a", "https://host/a"),
    ("https://host/a.jsonl?X-Amz-Signature=secret", "https://host/a.jsonl"),
    ("https://host/a.jsonl#secret", "https://host/a.jsonl"),
    ("s3://bucket/a@b#1.jsonl", "s3://bucket/a@b#1.jsonl"),
    ("http://minio:9000/bucket/a@b.jsonl", "http://minio:9000/bucket/a@b.jsonl"),
    ("http://[::1]:9000/a@b", "http://[::1]:9000/a@b"),
    ("http://[::1]/a@b", "http://[::1]/a@b"),
    ("/data/a@b?c#d.jsonl", "/data/a@b?c#d.jsonl"),
]


@pytest.mark.parametrize(("url", "shown"), SHOWN)
def test_redact_url_removes_secrets(url: str, shown: str) -> None:
    assert redact_url(url) == shown
    assert redact_url(shown) == shown
    if "://" in url:
        assert redact_urls(f"cannot read '{url}' ({url})") == f"cannot read '{shown}' ({shown})"


def test_translate_errors_redacts_secrets() -> None:
    with (
        pytest.raises(AbstainError) as raised,
        translate_errors(Code.NOT_READABLE, "a.jsonl", "check it"),
    ):
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
