"""Errors of the server as problem details (RFC 9457): `application/problem+json` with the code of the error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.markdown import to_single_line
from abstain.serving.service.callers import QuotaExceeded

MEDIA_TYPE = "application/problem+json"
STATUS_BY_CODE = {
    Code.INVALID_ROW: 422,
    Code.WRONG_FORMAT: 422,
    Code.TOO_LARGE: 413,
    Code.TOO_LONG: 422,
    Code.MODEL_UNSUITABLE: 422,
    Code.NOT_FINITE: 422,
    Code.NOTHING_TO_SCORE: 422,
    Code.VERSION_MISMATCH: 422,
    Code.STATES_MISMATCH: 422,
    Code.NOT_READABLE: 422,
    Code.ID_IN_USE: 409,
    Code.TOO_MANY_TRIES: 409,
    Code.ERASED_USER: 403,
    Code.UNKNOWN_NAME: 404,
    Code.NO_VERSION: 503,
    Code.NO_SERVICE: 503,
    Code.NO_PACKAGE: 501,
    Code.BUSY: 429,
    Code.NO_ACCESS: 403,
    Code.USAGE: 422,
}
"""HTTP status by code of the error; 500 for any other."""
MAX_DETAIL_CHARS = 600


class Problem(Exception):
    """An error response.

    Attributes:
        status: HTTP status.
        code: Code of the error.
        detail: Message.
        headers: Headers of the response.
    """

    def __init__(self, status: int, code: Code, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.headers = status, code, detail, dict(headers or {})

    @classmethod
    def from_error(cls, error: AbstainError) -> Problem:
        """Return the problem for an error."""
        status = STATUS_BY_CODE.get(error.code, 500)
        retry_after_s = error.retry_after if isinstance(error, QuotaExceeded) else 1
        return cls(
            status, error.code, error.message, {"Retry-After": str(retry_after_s)} if status in (429, 503) else None
        )

    def to_response(self) -> JSONResponse:
        """Return the response."""
        return make_problem_response(self.status, self.code, self.detail, self.headers)


def make_problem_response(
    status: int, code: Code, detail: str, headers: Mapping[str, str] | None = None, **extra_fields: Any
) -> JSONResponse:
    """Build the response of a problem.

    Args:
        status: HTTP status.
        code: Code of the error.
        detail: Message. It may quote what a caller sent, so it is made printable and cut.
        headers: Headers of the response.
        extra_fields: Further fields of the body.

    Returns:
        The response.
    """
    text = to_single_line(detail)
    content = {
        "type": f"urn:abstain:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": text if len(text) <= MAX_DETAIL_CHARS else f"{text[:MAX_DETAIL_CHARS]}…",
        "code": str(code),
        **extra_fields,
    }
    return JSONResponse(content, status, dict(headers or {}), MEDIA_TYPE)


def handle_problems(app: FastAPI) -> None:
    """Answer every error of `app` with a problem."""

    async def handle_problem(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Problem)
        return error.to_response()

    async def handle_abstain_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, AbstainError)
        return Problem.from_error(error).to_response()

    async def handle_validation_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        problems = _select_deepest_errors(error.errors())
        errors = [
            {"loc": ".".join(map(str, problem["loc"][1:])), "msg": _format_message(problem)}
            for problem in problems[:20]
        ]
        first = errors[0]
        detail = f"{first['loc']}: {first['msg']}" if first["loc"] else first["msg"]
        return make_problem_response(422, Code.INVALID_ROW, detail, errors=errors)

    async def handle_http_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = Code.UNKNOWN_NAME if error.status_code in (404, 405) else Code.WRONG_FORMAT
        return make_problem_response(error.status_code, code, str(error.detail), error.headers)

    async def handle_unexpected_error(_: Request, error: Exception) -> JSONResponse:
        return make_problem_response(
            500, Code.PROCESS_DIED, f"an unexpected error ({type(error).__name__}): see the log"
        )

    app.add_exception_handler(Problem, handle_problem)
    app.add_exception_handler(Exception, handle_unexpected_error)  # uvicorn logs its traceback
    app.add_exception_handler(AbstainError, handle_abstain_error)
    app.add_exception_handler(RequestValidationError, handle_validation_error)
    app.add_exception_handler(HTTPException, handle_http_error)


def _select_deepest_errors(problems: Sequence[Any]) -> list[Any]:
    """Return the errors of the shape that the body has, if it may have several: the deepest ones."""
    deepest = max(problems, key=lambda problem: len(problem["loc"]))
    return [problem for problem in problems if problem["loc"][:2] == deepest["loc"][:2]]


def _format_message(problem: Mapping[str, Any]) -> str:
    """Return the message of a validation error for callers who send JSON."""
    if problem["type"] == "model_attributes_type":
        return "no JSON object: send one, with Content-Type: application/json"
    message = str(problem["msg"]).removeprefix("Value error, ")
    return message.replace("valid tuple", "list").replace("valid dictionary", "object")
