"""The failure of a flow as Prefect records and posts it: the message of its error with the code in front."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from abstain.core.errors import AbstainError


class CodedFailure(AbstainError):
    """An `AbstainError` that left a flow. Prefect makes the flow run's message of its class and its text."""

    def __str__(self) -> str:
        return self.message_with_code


@contextmanager
def coded_failures() -> Iterator[None]:
    """Raise an `AbstainError` of this block as a `CodedFailure`; below `@flow` it decorates the function."""
    try:
        yield
    except AbstainError as error:
        raise CodedFailure(error.code, error.message) from error
