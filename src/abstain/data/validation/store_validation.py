"""Validation of all accepted rows together, as run by the stage `validate`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from abstain.config.params import ValidationParams
from abstain.data.store.dataset import DataStore
from abstain.data.store.key_index import BLOCK_ROWS, CONTRACTS, KeyIndex, iter_batches
from abstain.data.store.record_keys import make_record
from abstain.data.validation.checks import TABLES, ExistingData, ValidatedRows
from abstain.data.validation.results import ValidationResult
from abstain.data.validation.runner import validate
from abstain.knowledge.documents.reader import read_documents


def validate_store(store: DataStore, params: ValidationParams, now: datetime) -> ValidationResult:
    """Check everything in `store`, `BLOCK_ROWS` rows in memory at a time, each against all that came before it.

    Raises `AbstainError` naming file and line of a row that breaks its contract.
    """
    chunks = tuple(store.chunks())
    known = ExistingData(
        KeyIndex(),
        {version.doc_id for version in store.iter_document_versions()},
        {chunk.chunk_id for chunk in chunks if chunk.removed_at is None},
    )
    handbook = ValidatedRows(documents=tuple(read_documents(store.document_files())), chunks=chunks)
    found = ValidationResult.merge([ValidationResult(dict.fromkeys(TABLES, 0)), validate(handbook, known, params, now)])
    del chunks, handbook
    for table, contract in CONTRACTS.items():
        for part in store.list_part_files(contract):
            lines = (make_record(row) for row in store.iter_part_rows(part, contract))
            number = known.index.open_file(table, part)
            for block in iter_batches(lines, BLOCK_ROWS):
                rows: dict[str, Any] = {table: block}
                result = validate(ValidatedRows(**rows), known, params, now, unknown_contexts="warning")
                found = ValidationResult.merge([found, result])
                for line in block:  # its position does not matter here: nothing is read again
                    known.index.add(line, number, 0, len(line.line))
    return found
