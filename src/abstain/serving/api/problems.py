"""Errors of the server as problem details (RFC 9457): `application/problem+json` with the code of the cause."""

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
from abstain.serving.api.callers import OverQuota

MEDIA_TYPE = "application/problem+json"
STATUS = {
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
    Code.FAILED_CHECK: 409,
    Code.ERASED_USER: 403,
    Code.UNKNOWN_NAME: 404,
    Code.NO_VERSION: 503,
    Code.NO_SERVICE: 503,
    Code.NO_PACKAGE: 501,
    Code.BUSY: 429,
    Code.NO_ACCESS: 403,
    Code.USAGE: 422,
}
"""Code of the cause -> status; 500 for any other."""
MAX_DETAIL_CHARS = 600


class Problem(Exception):
    """A response other than the one that was asked for."""

    def __init__(self, status: int, code: Code, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.headers = status, code, detail, dict(headers or {})

    @classmethod
    def from_error(cls, error: AbstainError) -> Problem:
        status = STATUS.get(error.code, 500)
        later = error.retry_after if isinstance(error, OverQuota) else 1
        return cls(status, error.code, error.message, {"Retry-After": str(later)} if status in (429, 503) else None)

    def response(self) -> JSONResponse:
        return problem_response(self.status, self.code, self.detail, self.headers)


def problem_response(
    status: int, code: Code, detail: str, headers: Mapping[str, str] | None = None, **more: Any
) -> JSONResponse:
    """The response. `detail` may quote what a caller sent: it is made printable, and cut."""
    shown = to_single_line(detail)
    content = {
        "type": f"urn:abstain:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": shown if len(shown) <= MAX_DETAIL_CHARS else f"{shown[:MAX_DETAIL_CHARS]}…",
        "code": str(code),
        **more,
    }
    return JSONResponse(content, status, dict(headers or {}), MEDIA_TYPE)


def handle_problems(app: FastAPI) -> None:
    """Answer every error of `app` with a problem."""

    async def of_problem(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Problem)
        return error.response()

    async def of_abstain(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, AbstainError)
        return Problem.from_error(error).response()

    async def of_validation(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        problems = _select_deepest_errors(error.errors())
        errors = [{"loc": ".".join(map(str, one["loc"][1:])), "msg": _message(one)} for one in problems[:20]]
        first = errors[0]
        detail = f"{first['loc']}: {first['msg']}" if first["loc"] else first["msg"]
        return problem_response(422, Code.INVALID_ROW, detail, errors=errors)

    async def of_http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = Code.UNKNOWN_NAME if error.status_code in (404, 405) else Code.WRONG_FORMAT
        return problem_response(error.status_code, code, str(error.detail), error.headers)

    async def of_bug(_: Request, error: Exception) -> JSONResponse:
        return problem_response(500, Code.PROCESS_DIED, f"an unexpected error ({type(error).__name__}): see the log")

    app.add_exception_handler(Problem, of_problem)
    app.add_exception_handler(Exception, of_bug)  # uvicorn logs its traceback
    app.add_exception_handler(AbstainError, of_abstain)
    app.add_exception_handler(RequestValidationError, of_validation)
    app.add_exception_handler(HTTPException, of_http)


def _select_deepest_errors(problems: Sequence[Any]) -> list[Any]:
    """Of the problems of a body that may have several shapes, those of the one that it has: the deepest."""
    deepest = max(problems, key=lambda one: len(one["loc"]))
    return [one for one in problems if one["loc"][:2] == deepest["loc"][:2]]


def _message(problem: Mapping[str, Any]) -> str:
    """What is wrong, in words for who sends JSON."""
    if problem["type"] == "model_attributes_type":
        return "no JSON object: send one, with Content-Type: application/json"
    told = str(problem["msg"]).removeprefix("Value error, ")
    return told.replace("valid tuple", "list").replace("valid dictionary", "object")
