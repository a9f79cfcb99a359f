"""Validation of all accepted rows together, for the stage `validate`."""

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
    """Check everything in a store, each row against all that arrived before it.

    At most `BLOCK_ROWS` rows are in memory at a time.

    Args:
        store: The data folder.
        params: `validation` of params.yaml.
        now: Current time in UTC.

    Returns:
        The merged result.

    Raises:
        AbstainError: A row breaks its contract; the message names file and line.
    """
    chunks = tuple(store.iter_chunks())
    existing = ExistingData(
        KeyIndex(),
        {version.doc_id for version in store.iter_document_versions()},
        {chunk.chunk_id for chunk in chunks if chunk.removed_at is None},
    )
    knowledge_base = ValidatedRows(documents=tuple(read_documents(store.list_document_files())), chunks=chunks)
    merged = ValidationResult.merge(
        [ValidationResult(dict.fromkeys(TABLES, 0)), validate(knowledge_base, existing, params, now)]
    )
    del chunks, knowledge_base
    for table, contract in CONTRACTS.items():
        for part_file in store.list_part_files(contract):
            records = (make_record(stored_row) for stored_row in store.iter_part_rows(part_file, contract))
            file_number = existing.index.open_file(table, part_file)
            for block in iter_batches(records, BLOCK_ROWS):
                rows: dict[str, Any] = {table: block}
                result = validate(ValidatedRows(**rows), existing, params, now, unknown_contexts="warning")
                merged = ValidationResult.merge([merged, result])
                for record in block:  # its position does not matter here: nothing is read again
                    existing.index.add(record, file_number, 0, len(record.line))
    return merged
