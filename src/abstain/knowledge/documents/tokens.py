"""Token counts of texts by the encoder's tokenizer, without loading the encoder."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.knowledge.retrieval.encoder import find_encoder_folder

CHARACTERS_PER_TOKEN = 4


def make_token_counter(folder: Path | None = None) -> Callable[[str], int]:
    """Make a function that counts the tokens of a text.

    The encoder's own marks at the beginning and the end are not counted, and nothing is cut off. Words that the encoder
    does not tokenize (to all-MiniLM a word of more than 100 characters is one unknown token) count one token per 4
    characters, because the language model that reads the chunk tokenizes them.

    Args:
        folder: Folder of the `tokenizer.json`; by default the embedded encoder's.

    Returns:
        The function.

    Raises:
        AbstainError: There is no tokenizer in the folder.
    """
    return _make_counter(folder or find_encoder_folder())


@cache
def _make_counter(folder: Path) -> Callable[[str], int]:
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise AbstainError(Code.NO_MODEL, f"{file} is not there: chunks are measured by the encoder's tokenizer")
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    unknown = tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "")

    def count(text: str) -> int:
        encoded = tokenizer.encode(text, add_special_tokens=False)
        ids = encoded.ids
        if unknown not in ids:
            return len(ids)
        spans = (span for token_id, span in zip(ids, encoded.offsets, strict=True) if token_id == unknown)
        return len(ids) + sum((end - start) // CHARACTERS_PER_TOKEN for start, end in spans)

    return count
