from abstain.ingest.parsing import parse_line, read_document
from abstain.ingest.quarantine import QuarantinedRow
from abstain.ingest.sources.quarantine_source import QuarantineSource


def test_quarantine_source_gives_documents_first() -> None:
    refused = [parse_line(b"{", "a.jsonl", 7), read_document(b"no front matter", "fees.md")]
    source = QuarantineSource("q", [QuarantinedRow.from_row(row, row.reasons) for row in refused])
    assert [(row.source, row.line) for row in source.read({})] == [("fees.md", 1), ("a.jsonl", 7)]
