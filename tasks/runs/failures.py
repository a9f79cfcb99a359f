"""The failure of a flow as Prefect records and posts it: the error's message with the code in front."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from abstain.core.errors import AbstainError


class CodedFailure(AbstainError):
    """An `AbstainError` that left a flow; Prefect makes the flow run's message from its class and text."""

    def __str__(self) -> str:
        return self.message_with_code


@contextmanager
def coded_failures() -> Iterator[None]:
    """Raise an `AbstainError` of this block as a `CodedFailure`; below `@flow` it decorates the function.

    Yields:
        Nothing.

    Raises:
        CodedFailure: The block raised an `AbstainError`.
    """
    try:
        yield
    except AbstainError as error:
        raise CodedFailure(error.code, error.message) from error
