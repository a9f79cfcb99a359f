"""The routes of the page: HTML made on the server, without any script, for people.

Notes:

* Without keys the server answers its own machine alone (`api.app`), and the page is open. With keys a visitor logs in:
  the key is sent once, in a form, and is neither kept nor shown; a cookie names the session (sessions.py).
* Texts of users are escaped by the templates. The policy lets a browser run nothing and load nothing.
* Forms are read here: they are pairs of names and texts, and nothing is ever uploaded.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import ValidationError
from starlette.types import Scope

from abstain.config.params import LabelParams
from abstain.core.codes import Code
from abstain.core.contracts import Review
from abstain.core.errors import AbstainError
from abstain.core.markdown import to_single_line
from abstain.data.decision_log import queries, queue
from abstain.data.decision_log.monitoring_windows import MonitoringWindow
from abstain.data.decision_log.queries import DecisionDetails
from abstain.data.decision_log.queue import QueuedAnswer
from abstain.reports.monitoring_window import format_statistics, format_title, history_rows
from abstain.serving.api.callers import current_caller, set_caller
from abstain.serving.api.keys import ApiKeys, Role
from abstain.serving.api.problems import MAX_DETAIL_CHARS, STATUS, Problem
from abstain.serving.api.service import GateService
from abstain.serving.gate import make_interaction
from abstain.serving.status_page.charts import coverage_chart, decisions_chart, history_chart, latency_chart
from abstain.serving.status_page.sessions import SESSION_HOURS, Sessions, Visitor
from abstain.serving.status_page.status_cache import StatusCache

COOKIE, LOGIN_COOKIE = "abstain-gate", "abstain-gate-login"
LISTED = 10
"""Withheld answers on the page."""
MOST_FIELDS = 20
CRITERION_HINTS = {
    "complete": "it says all that was asked for",
    "correct": "what it says is right",
    "truthful": "it says nothing that the sources do not",
}
STATES = {"show": "passed", "abstain": "warned", "unavailable": "failed"}
Handler = Callable[[Request], Awaitable[Response]]
_BLANK_LINE = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")
_NOTHING = {"question": "", "contexts": "", "answer": "", "no_context": ""}
_FOLDER = Path(__file__).parent


def add_page(app: FastAPI, service: GateService, keys: ApiKeys, labels: LabelParams) -> None:
    """Add the page of `service` to its app. `labels`: when a reviewed answer counts as correct."""
    page = _Page(service, Sessions(keys), labels)
    routes = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    handlers: tuple[tuple[str, str, Handler], ...] = (
        ("/", "GET", page.status),
        ("/try", "POST", page.try_answer),
        ("/review", "GET", page.review),
        ("/review", "POST", page.save_review),
        ("/login", "POST", page.log_in),
        ("/logout", "POST", page.log_out),
    )
    for path, method, handle in handlers:
        routes.add_api_route(path, _render_errors(handle, page), methods=[method], response_model=None)
    app.include_router(routes)
    app.state.has_visitor, app.state.problem_page = page.has_visitor, _render_problem


class _Page:
    def __init__(self, service: GateService, sessions: Sessions, labels: LabelParams) -> None:
        self._service, self._sessions = service, sessions
        self._figures = StatusCache(service.log, labels)

    async def status(self, request: Request) -> Response:
        """What is live, how it does, what it withheld, and the form to try an answer."""
        visitor = self.visitor(request)
        live, trouble = self._service.live.current, self._service.live.last_error
        told: dict[str, Any] = {"log_trouble": None, "log_replaced": self._service.log.database.replaced}
        try:
            figures = await self._figures.get(live.version_info if live else None)
            told |= {"days": figures.days, "charts": _charts(figures.days), "reviewed": figures.reviewed}
            told |= _monitoring(figures.windows)
            told |= await asyncio.to_thread(self._to_review, visitor)
        except AbstainError as error:
            told |= {"log_trouble": error.message_with_code, "reviewed": None, "withheld": [], "queue": None}
        predictor = live.gate.predictor if live else None
        is_well = predictor is not None and predictor.has_guarantee
        told |= {
            "release": live.version_info if live else None,
            "predictor": predictor,
            "trouble": trouble,
            "state": "failed" if not is_well else "warned" if trouble else "passed",
            "given": _NOTHING,
        }
        return self._render("status.html", visitor, told)

    def _to_review(self, visitor: Visitor) -> dict[str, Any]:
        """The newest withheld answers, and how far the review queue is, where `visitor` may see them.

        Raises `AbstainError` where the log cannot be read.
        """
        log = self._service.log
        withheld = queries.list_withheld(log.database, LISTED) if visitor.has_roles("withheld") else []
        return {
            "withheld": withheld,
            "is_reviewed": queries.find_reviewed(log.database, [one.interaction_id for one in withheld]),
            "queue": queue.progress(log.database) if visitor.has_roles("review") else None,
        }

    async def review(self, request: Request) -> Response:
        """An answer with the form to review it: the next one of the queue, or the one with the `id` of the query.

        That is one of the queue, or a withheld one. A path could not hold every id, such as `..`.
        """
        visitor, query = self.visitor(request), request.query_params
        key, database, withheld = query.get("id"), self._service.log.database, None
        if key is None:
            self._require(visitor, "review")
            after = int(query["after"]) if re.fullmatch(r"\d{1,18}", query.get("after", ""), re.ASCII) else 0
            queued = await asyncio.to_thread(queue.next_open, database, visitor.api_key.name, after)
        else:
            queued, withheld = await asyncio.to_thread(self._find, visitor, key)
        row = queued.interaction if queued else withheld.decision.interaction if withheld else None
        is_open = queued is not None and not queued.is_reviewed
        told = {
            "queued": queued,
            "withheld": withheld,
            "row": row,
            "is_open": is_open,  # then what the gate and others say of it would sway the verdict
            "reviews": [one for one in withheld.feedback if isinstance(one, Review)]
            if withheld and not is_open
            else [],
            "progress": await asyncio.to_thread(queue.progress, database),
            "previous": query.get("previous"),
            "verdicts": CRITERION_HINTS,
            "answer_token": self._sessions.form_token(_of_answer(visitor, row.interaction_id)) if row else "",
        }
        return self._render("review.html", visitor, told)

    def _find(self, visitor: Visitor, key: str) -> tuple[QueuedAnswer | None, DecisionDetails | None]:
        """The answer `key` of the queue, and the decision that withheld it, as far as `visitor` may see them.

        Raises `Problem` where there is neither, and `AbstainError` where the log cannot be read.
        """
        log = self._service.log
        queued = queue.find_queued(log.database, key) if visitor.has_roles("review") else None
        withheld = queries.get_decision(log.database, key) if visitor.has_roles("withheld") else None
        if withheld is not None and withheld.decision.shown:
            withheld = None
        if queued is None and withheld is None:
            self._require(visitor, "withheld")
            raise Problem(404, Code.UNKNOWN_NAME, "no answer with this id is withheld or in the review queue")
        return queued, withheld

    async def try_answer(self, request: Request) -> Response:
        """The decision about an answer that is tried, and its explanation."""
        visitor, form = await self._form(request, "ask")
        given = {name: form.get(name, "") for name in _NOTHING}
        contexts = [one for one in _BLANK_LINE.split(given["contexts"].strip()) if one.strip()]
        try:
            row = make_interaction(given["question"], contexts, given["answer"])
        except ValidationError as error:
            raise _invalid(error) from None
        explanation = await self._service.explain(row, bool(given["no_context"]))
        decision = explanation.decision
        told = {
            "explanation": explanation,
            "decision": decision,
            "state": STATES[decision.decision],
            "given": given,
        }
        return self._render("try.html", visitor, told)

    async def save_review(self, request: Request) -> Response:
        """Record a review under the name of the key, and go on: to the next answer of the queue, or back to this one.

        What else a form says is not read: who reviews follows from the session, the weight from the queue.
        """
        visitor, form = await self._form(request, "review")
        key = form.get("interaction_id", "")
        self._require_own_form(_of_answer(visitor, key), form.get("answer_token", ""))
        queued, _ = await asyncio.to_thread(self._find, visitor, key)
        try:
            row = Review(
                interaction_id=key,
                reviewed_at=datetime.now(UTC),
                reviewer=visitor.api_key.name,
                ideal_answer=form.get("ideal_answer", "").strip() or None,
                **{name: {"yes": True, "no": False}.get(form.get(name, "")) for name in CRITERION_HINTS},
            )
        except ValidationError as error:
            raise _invalid(error) from None
        set_caller(request.scope, visitor.api_key)
        self._service.rows.take(current_caller())
        await self._service.review(row)
        address = quote(key, safe="")
        return RedirectResponse(
            f"/review?after={queued.seq}&previous={address}" if queued else f"/review?id={address}", 303
        )

    async def log_in(self, request: Request) -> Response:
        form = await _fields(request)
        self._require_own_form(request.cookies.get(LOGIN_COOKIE, ""), form.get("token", ""))
        session = self._sessions.log_in(form.get("key", ""))
        if session is None:
            return self.ask_for_key(request, "That is no valid key.")
        response = RedirectResponse("/", 303)
        _set_cookie(request, response, COOKIE, session)
        return response

    async def log_out(self, request: Request) -> Response:
        visitor, _ = await self._form(request)
        self._sessions.log_out(visitor.session)
        response = RedirectResponse("/", 303)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return response

    def visitor(self, request: Request, *roles: Role) -> Visitor:
        """Who asks. Raises `_LoggedOut` where nobody known does, and `Problem` where a role is missing."""
        visitor = self._sessions.get_visitor(request.cookies.get(COOKIE))
        if visitor is None:
            raise _LoggedOut
        self._require(visitor, *roles)
        return visitor

    @staticmethod
    def _require(visitor: Visitor, *roles: Role) -> None:
        if not visitor.has_roles(*roles):
            lacking = ", ".join(sorted(set(roles) - visitor.api_key.roles))
            raise Problem(403, Code.NO_ACCESS, f"the key {visitor.api_key.name} lacks the role {lacking}")

    def has_visitor(self, scope: Scope) -> bool:
        """Whether a request is of somebody known."""
        return self._sessions.get_visitor(Request(scope).cookies.get(COOKIE)) is not None

    def ask_for_key(self, request: Request, problem: str = "") -> Response:
        """The form for a key."""
        nonce = request.cookies.get(LOGIN_COOKIE) or secrets.token_urlsafe(32)
        token = self._sessions.form_token(nonce)
        response = _render_template("login.html", 403, visitor=None, token=_hidden(token), problem=problem)
        _set_cookie(request, response, LOGIN_COOKIE, nonce)
        return response

    def _render(self, name: str, visitor: Visitor, values: Mapping[str, Any]) -> Response:
        return _render_template(name, 200, visitor=visitor, token=_hidden(visitor.form_token), **values)

    async def _form(self, request: Request, *roles: Role) -> tuple[Visitor, dict[str, str]]:
        """Who sends a form of ours, and its fields. Raises as `visitor`, and `Problem` for another's form."""
        visitor, form = self.visitor(request, *roles), await _fields(request)
        self._require_own_form(visitor.session, form.get("token", ""))
        return visitor, form

    def _require_own_form(self, of: str, token: str) -> None:
        if not self._sessions.is_valid_form_token(of, token):
            raise Problem(403, Code.NO_ACCESS, "this form is of another session: open the page again, and send it anew")


class _LoggedOut(Exception):
    """Raised where a key is needed and nobody is logged in."""


def _of_answer(visitor: Visitor, interaction_id: str) -> str:
    """What the token of a form is of that reviews this answer: in the form of another one it is not valid."""
    return f"{visitor.session}\0{interaction_id}"


def _render_errors(handle: Handler, page: _Page) -> Callable[[Request], Awaitable[Response]]:
    """`handle`, whose errors are pages, too."""

    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except _LoggedOut:
            return page.ask_for_key(request)
        except Problem as problem:
            return _render_problem(problem)
        except AbstainError as error:
            return _render_problem(Problem.from_error(error))

    return answer


async def _fields(request: Request) -> dict[str, str]:
    """The fields of a form, with one kind of line ends. Raises `Problem` for what no form of ours sends."""
    try:
        pairs = parse_qsl(
            (await request.body()).decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MOST_FIELDS,
        )
    except ValueError:
        raise Problem(422, Code.INVALID_ROW, "the form cannot be read") from None
    return {name: value.replace("\r\n", "\n") for name, value in pairs}


def _render_problem(problem: Problem) -> Response:
    """The page of a problem."""
    said = to_single_line(f"{problem.code}: {problem.detail}")[:MAX_DETAIL_CHARS]
    response = _render_template("problem.html", problem.status, visitor=None, problem=said)
    response.headers.update(problem.headers)
    return response


def _invalid(error: ValidationError) -> Problem:
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"]))
    return Problem(
        STATUS[Code.INVALID_ROW], Code.INVALID_ROW, f"{where}: {problem['msg']}" if where else problem["msg"]
    )


def _charts(by_day: Any) -> list[tuple[str, list[tuple[str, str]], Markup]]:
    """Title, legend (class and name) and drawing of each chart."""
    kinds = [("show", "show"), ("abstain", "abstain"), ("unavailable", "unavailable")]
    return [
        ("Decisions a day", kinds, decisions_chart(by_day)),
        ("Coverage: share of answers shown", [], coverage_chart(by_day)),
        (
            "Latency of a decision",
            [("show", "half (p50)"), ("abstain", "99 in 100 (p99), dashed")],
            latency_chart(by_day),
        ),
    ]


def _monitoring(windows: Sequence[MonitoringWindow]) -> dict[str, Any]:
    """The newest window of the monitoring, None where there is none yet, and the history."""
    if not windows:
        return {"window": None}
    newest = windows[-1]
    lines = format_statistics(newest)
    told = {
        "window": newest,
        "window_title": format_title(newest),
        "window_lines": lines,
        "windows": history_rows(windows),
    }
    return told | {"history": history_chart(windows)}


def _render_template(name: str, status: int, **told: Any) -> Response:
    environment, policy = _templates()
    headers = {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-store",
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
    }
    return HTMLResponse(environment.get_template(name).render(**told), status, headers)


@lru_cache(maxsize=1)
def _templates() -> tuple[Environment, str]:
    """The templates, and the policy that allows their style, by digest, their own forms, and nothing else."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    style = (_FOLDER / "style.css").read_text(encoding="utf-8")
    environment.globals["style"] = Markup(style)  # noqa: S704 (a file of the package)
    environment.filters |= {
        "figure": _figure,
        "share": lambda value: "none" if value is None else f"{100 * value:.1f} %",
        "milliseconds": lambda value: "none" if value is None else f"{value:,.1f}",
        "moment": lambda value: f"{value.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        "address": lambda key: quote(key, safe=""),
        "surprise": lambda value: "low" if value < -4.6 else "middle" if value < -2.3 else "high",
    }
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    own = f"style-src 'sha256-{digest}'; img-src 'self' data:; form-action 'self'"
    return environment, f"default-src 'none'; {own}; base-uri 'none'; frame-ancestors 'none'"


def _figure(value: float | None, absent: str = "none") -> str:
    return absent if value is None else f"{value:.3f}"


def _hidden(token: str) -> Any:
    """Writes the hidden field of each form."""
    return lambda: Markup('<input type="hidden" name="token" value="{}">').format(token)


def _set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    # TLS ends at a proxy, whose headers are not trusted; what a browser says matters to its own cookie alone.
    is_encrypted = request.headers.get("origin", "").startswith("https://")
    response.set_cookie(
        name, value, max_age=int(SESSION_HOURS * 3600), httponly=True, samesite="strict", secure=is_encrypted
    )
