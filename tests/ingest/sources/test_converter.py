import io

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.ingest.sources import converter
from abstain.ingest.sources.converter import convert_file


def test_convert_file_reads_a_stream_without_descriptor() -> None:
    with convert_file("document", io.BytesIO(b"# Fees\n"), "a.md", "a.md") as output:
        assert b"# Fees" in output.read()


@pytest.mark.parametrize("limit", ["MAX_INPUT_BYTES", "MIN_OUTPUT_BYTES"])
def test_convert_file_beyond_a_limit_is_one_line(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    with monkeypatch.context() as limited:
        limited.setattr(converter, limit, 10)
        limited.setattr(converter, "MAX_OUTPUT_RATIO", 0)
        with pytest.raises(AbstainError, match=r"^folder/a\.md: ") as refused:
            convert_file("document", io.BytesIO(b"x" * 11), "a.md", "folder/a.md")
    assert refused.value.code is Code.TOO_LARGE
    convert_file("document", io.BytesIO(b"x"), "a.md", "a.md").close()
