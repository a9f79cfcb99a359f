"""The routes of the page: HTML made on the server, without any script, for people.

Notes:

* A server without keys answers only its own machine (`api.app`), and the page is open. With keys a visitor logs in: the
  key is sent once, in a form, and is neither stored nor shown; a cookie names the session (sessions.py).
* The templates escape texts of users. The policy lets a browser run nothing and load nothing.
* Forms are parsed here: they are pairs of names and texts, and nothing is ever uploaded.
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
from abstain.core.contracts import Chunk, Review, locate_contexts
from abstain.core.errors import AbstainError
from abstain.core.markdown import to_single_line
from abstain.data.decision_log import queries, queue
from abstain.data.decision_log.monitoring_windows import MonitoringWindow
from abstain.data.decision_log.queries import DecisionDetails
from abstain.data.decision_log.queue import QueuedAnswer
from abstain.reports.monitoring_window import format_statistics, history_rows
from abstain.serving.api.problems import MAX_DETAIL_CHARS, STATUS_BY_CODE, Problem
from abstain.serving.gate import make_interaction
from abstain.serving.service.callers import get_current_caller, set_caller
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys, Role
from abstain.serving.status_page.charts import (
    draw_coverage_chart,
    draw_decisions_chart,
    draw_history_chart,
    draw_latency_chart,
)
from abstain.serving.status_page.sessions import SESSION_HOURS, Sessions, Visitor
from abstain.serving.status_page.status_cache import StatusCache

COOKIE, LOGIN_COOKIE = "abstain-gate", "abstain-gate-login"
MAX_WITHHELD_LISTED = 10
"""Maximum number of withheld answers on the page."""
MAX_FORM_FIELDS = 20
CRITERION_HINTS = {
    "complete": "it says all that was asked for",
    "correct": "what it says is right",
    "truthful": "it says nothing that the sources do not",
}
STATE_BY_DECISION = {"show": "passed", "abstain": "warned", "unavailable": "failed"}
Handler = Callable[[Request], Awaitable[Response]]
_BLANK_LINE = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")
_EMPTY_FORM = {"question": "", "contexts": "", "answer": "", "allow_no_context": ""}
_FOLDER = Path(__file__).parent


def add_page(
    app: FastAPI, service: GateService, keys: ApiKeys, labels: LabelParams, chunks: Mapping[str, Chunk]
) -> None:
    """Add the page to the server's app.

    Args:
        app: The app.
        service: The gate service.
        keys: Keys of the visitors.
        labels: Rule by which a reviewed answer counts as correct.
        chunks: Id -> chunk of the knowledge base, to name heading and page of an answer's sources.
    """
    page = _Page(service, Sessions(keys), labels, chunks)
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
    def __init__(
        self, service: GateService, sessions: Sessions, labels: LabelParams, chunks: Mapping[str, Chunk]
    ) -> None:
        self._service, self._sessions, self._chunks = service, sessions, chunks
        self._status_cache = StatusCache(service.log, labels)

    async def status(self, request: Request) -> Response:
        """Show the live version, its statistics, the withheld answers, and the form to try an answer."""
        visitor = self.get_visitor(request)
        live, last_error = self._service.follower.current, self._service.follower.last_error
        values: dict[str, Any] = {"log_error": None, "log_replaced": self._service.log.database.n_replaced}
        try:
            figures = await self._status_cache.get(live.version_info if live else None)
            values |= {
                "days": figures.days,
                "charts": _build_charts(figures.days),
                "reviewed": figures.review_statistics,
            }
            values |= _build_monitoring_values(figures.windows)
            values |= await asyncio.to_thread(self._load_review_values, visitor)
        except AbstainError as error:
            values |= {"log_error": error.message_with_code, "reviewed": None, "withheld": [], "queue": None}
        predictor = live.gate.predictor if live else None
        is_well = predictor is not None and predictor.guarantee.status == "active"
        values |= {
            "release": live.version_info if live else None,
            "predictor": predictor,
            "error": last_error,
            "state": "failed" if not is_well else "warned" if last_error else "passed",
            "given": _EMPTY_FORM,
        }
        return self._render("status.html", visitor, values)

    def _load_review_values(self, visitor: Visitor) -> dict[str, Any]:
        """Load the newest withheld answers and the progress of the review queue, as far as `visitor` may see them.

        Raises `AbstainError` if the log cannot be read.
        """
        log, may_read = self._service.log, visitor.has_roles("read_withheld")
        withheld = queries.list_withheld(log.database, MAX_WITHHELD_LISTED) if may_read else []
        return {
            "withheld": withheld,
            "is_reviewed": queries.find_reviewed(log.database, [details.interaction_id for details in withheld]),
            "queue": queue.count_progress(log.database) if visitor.has_roles("review") else None,
        }

    async def review(self, request: Request) -> Response:
        """Show an answer with the form to review it: the next one of the queue, or the one with the `id` of the query.

        The latter is one of the queue or a withheld one. A path could not contain every id, such as `..`.
        """
        visitor, query = self.get_visitor(request), request.query_params
        interaction_id, database, withheld = query.get("id"), self._service.log.database, None
        if interaction_id is None:
            self._require_roles(visitor, "review")
            after = int(query["after"]) if re.fullmatch(r"\d{1,18}", query.get("after", ""), re.ASCII) else 0
            queued = await asyncio.to_thread(queue.hold_next_open, database, visitor.api_key.name, after)
        else:
            queued, withheld = await asyncio.to_thread(self._find_answer, visitor, interaction_id)
        row = queued.interaction if queued else withheld.decision.interaction if withheld else None
        is_open = queued is not None and not queued.is_reviewed
        values = {
            "queued": queued,
            "withheld": withheld,
            "row": row,
            "locations": locate_contexts(row.contexts, self._chunks) if row else {},
            "is_open": is_open,  # then what the gate and others say of it would sway the review
            "reviews": [item for item in withheld.feedback if isinstance(item, Review)]
            if withheld and not is_open
            else [],
            "progress": await asyncio.to_thread(queue.count_progress, database),
            "previous": query.get("previous"),
            "criteria": CRITERION_HINTS,
            "answer_token": self._sessions.make_form_token(_make_form_owner(visitor, row.interaction_id))
            if row
            else "",
        }
        return self._render("review.html", visitor, values)

    def _find_answer(self, visitor: Visitor, interaction_id: str) -> tuple[QueuedAnswer | None, DecisionDetails | None]:
        """Return the answer in the queue, and the decision that withheld it, as far as `visitor` may see them.

        Raises `Problem` if there is neither, and `AbstainError` if the log cannot be read.
        """
        log = self._service.log
        queued = queue.find_queued(log.database, interaction_id) if visitor.has_roles("review") else None
        withheld = queries.get_decision(log.database, interaction_id) if visitor.has_roles("read_withheld") else None
        if withheld is not None and withheld.decision.shown:
            withheld = None
        if queued is None and withheld is None:
            self._require_roles(visitor, "read_withheld")
            raise Problem(404, Code.UNKNOWN_NAME, "no answer with this id is withheld or in the review queue")
        return queued, withheld

    async def try_answer(self, request: Request) -> Response:
        """Show the decision about an answer that is tried, and its explanation."""
        visitor, form = await self._read_form(request, "ask")
        inputs = {name: form.get(name, "") for name in _EMPTY_FORM}
        contexts = [text for text in _BLANK_LINE.split(inputs["contexts"].strip()) if text.strip()]
        try:
            row = make_interaction(inputs["question"], contexts, inputs["answer"])
        except ValidationError as error:
            raise _make_invalid_problem(error) from None
        version = self._service.follower.current
        explanation = await self._service.explain(row, bool(inputs["allow_no_context"]))
        decision = explanation.decision
        values = {
            "explanation": explanation,
            "decision": decision,
            "guarantee": version.gate.predictor.guarantee.message if version else "none",
            "state": STATE_BY_DECISION[decision.decision],
            "given": inputs,
        }
        return self._render("try.html", visitor, values)

    async def save_review(self, request: Request) -> Response:
        """Record a review under the name of the key, and go to the next answer of the queue, or back to this one.

        Other fields of the form are ignored: the reviewer follows from the session, the weight from the queue.
        """
        visitor, form = await self._read_form(request, "review")
        interaction_id = form.get("interaction_id", "")
        self._require_own_form(_make_form_owner(visitor, interaction_id), form.get("answer_token", ""))
        queued, _ = await asyncio.to_thread(self._find_answer, visitor, interaction_id)
        try:
            review = Review(
                interaction_id=interaction_id,
                reviewed_at=datetime.now(UTC),
                reviewer=visitor.api_key.name,
                ideal_answer=form.get("ideal_answer", "").strip() or None,
                **{name: {"yes": True, "no": False}.get(form.get(name, "")) for name in CRITERION_HINTS},
            )
        except ValidationError as error:
            raise _make_invalid_problem(error) from None
        set_caller(request.scope, visitor.api_key)
        self._service.row_quota.take(get_current_caller())
        await self._service.feedback.record_review(review)
        quoted_id = quote(interaction_id, safe="")
        return RedirectResponse(
            f"/review?after={queued.seq}&previous={quoted_id}" if queued else f"/review?id={quoted_id}", 303
        )

    async def log_in(self, request: Request) -> Response:
        """Open a session if the form has a valid key."""
        form = await _read_form_fields(request)
        self._require_own_form(request.cookies.get(LOGIN_COOKIE, ""), form.get("token", ""))
        session = self._sessions.log_in(form.get("key", ""))
        if session is None:
            return self.ask_for_key(request, "That is no valid key.")
        response = RedirectResponse("/", 303)
        _set_cookie(request, response, COOKIE, session)
        return response

    async def log_out(self, request: Request) -> Response:
        """End the session."""
        visitor, _ = await self._read_form(request)
        self._sessions.log_out(visitor.session)
        response = RedirectResponse("/", 303)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return response

    def get_visitor(self, request: Request, *roles: Role) -> Visitor:
        """Return the visitor. Raises `_LoggedOut` if nobody is logged in, and `Problem` if a role is missing."""
        visitor = self._sessions.get_visitor(request.cookies.get(COOKIE))
        if visitor is None:
            raise _LoggedOut
        self._require_roles(visitor, *roles)
        return visitor

    @staticmethod
    def _require_roles(visitor: Visitor, *roles: Role) -> None:
        if not visitor.has_roles(*roles):
            missing = ", ".join(sorted(set(roles) - visitor.api_key.roles))
            raise Problem(403, Code.NO_ACCESS, f"the key {visitor.api_key.name} lacks the role {missing}")

    def has_visitor(self, scope: Scope) -> bool:
        """Return whether somebody is logged in."""
        return self._sessions.get_visitor(Request(scope).cookies.get(COOKIE)) is not None

    def ask_for_key(self, request: Request, problem: str = "") -> Response:
        """Show the form for a key."""
        nonce = request.cookies.get(LOGIN_COOKIE) or secrets.token_urlsafe(32)
        token = self._sessions.make_form_token(nonce)
        response = _render_template("login.html", 403, visitor=None, token=_make_hidden_field(token), problem=problem)
        _set_cookie(request, response, LOGIN_COOKIE, nonce)
        return response

    def _render(self, name: str, visitor: Visitor, values: Mapping[str, Any]) -> Response:
        return _render_template(name, 200, visitor=visitor, token=_make_hidden_field(visitor.form_token), **values)

    async def _read_form(self, request: Request, *roles: Role) -> tuple[Visitor, dict[str, str]]:
        """Return the visitor and the fields of our form. Raises as `get_visitor`, and `Problem` for a foreign form."""
        visitor, form = self.get_visitor(request, *roles), await _read_form_fields(request)
        self._require_own_form(visitor.session, form.get("token", ""))
        return visitor, form

    def _require_own_form(self, owner: str, token: str) -> None:
        if not self._sessions.is_valid_form_token(owner, token):
            raise Problem(403, Code.NO_ACCESS, "this form is of another session: open the page again, and send it anew")


class _LoggedOut(Exception):
    """Raised if a key is needed and nobody is logged in."""


def _make_form_owner(visitor: Visitor, interaction_id: str) -> str:
    """Return the owner of the token of a review form, which makes it invalid in the form of another answer."""
    return f"{visitor.session}\0{interaction_id}"


def _render_errors(handle: Handler, page: _Page) -> Callable[[Request], Awaitable[Response]]:
    """Return `handle` with error pages."""

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


async def _read_form_fields(request: Request) -> dict[str, str]:
    """Return the fields of a form, with uniform line ends. Raises `Problem` for what no form of ours sends."""
    try:
        pairs = parse_qsl(
            (await request.body()).decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MAX_FORM_FIELDS,
        )
    except ValueError:
        raise Problem(422, Code.INVALID_ROW, "the form cannot be read") from None
    return {name: value.replace("\r\n", "\n") for name, value in pairs}


def _render_problem(problem: Problem) -> Response:
    """Return the page of a problem."""
    message = to_single_line(f"{problem.code}: {problem.detail}")[:MAX_DETAIL_CHARS]
    response = _render_template("problem.html", problem.status, visitor=None, problem=message)
    response.headers.update(problem.headers)
    return response


def _make_invalid_problem(error: ValidationError) -> Problem:
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"]))
    return Problem(
        STATUS_BY_CODE[Code.INVALID_ROW], Code.INVALID_ROW, f"{where}: {problem['msg']}" if where else problem["msg"]
    )


def _build_charts(days: Any) -> list[tuple[str, list[tuple[str, str]], Markup]]:
    """Return title, legend (class and name) and drawing of each chart."""
    kinds = [("show", "show"), ("abstain", "abstain"), ("unavailable", "unavailable")]
    return [
        ("Decisions a day", kinds, draw_decisions_chart(days)),
        ("Coverage: share of answers shown", [], draw_coverage_chart(days)),
        (
            "Latency of a decision",
            [("show", "half (p50)"), ("abstain", "99 in 100 (p99), dashed")],
            draw_latency_chart(days),
        ),
    ]


def _build_monitoring_values(windows: Sequence[MonitoringWindow]) -> dict[str, Any]:
    """Return the newest monitoring window, None if there is none yet, and the history."""
    if not windows:
        return {"window": None}
    return {
        "window": windows[-1],
        "window_lines": format_statistics(windows[-1]),
        "windows": history_rows(windows),
        "history": draw_history_chart(windows),
    }


def _render_template(name: str, status: int, **values: Any) -> Response:
    environment, policy = _load_templates()
    headers = {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-store",
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
    }
    return HTMLResponse(environment.get_template(name).render(**values), status, headers)


@lru_cache(maxsize=1)
def _load_templates() -> tuple[Environment, str]:
    """Return the templates, and the policy that allows only their style, by digest, and their own forms."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    style = (_FOLDER / "style.css").read_text(encoding="utf-8")
    environment.globals["style"] = Markup(style)  # noqa: S704 (a file of the package)
    environment.filters |= {
        "figure": _format_number,
        "share": lambda value: "none" if value is None else f"{100 * value:.1f} %",
        "milliseconds": lambda value: "none" if value is None else f"{value:,.1f}",
        "moment": lambda value: f"{value.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        "address": lambda interaction_id: quote(interaction_id, safe=""),
        "surprise": lambda value: "low" if value < -4.6 else "middle" if value < -2.3 else "high",
    }
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    own_policy = f"style-src 'sha256-{digest}'; img-src 'self' data:; form-action 'self'"
    return environment, f"default-src 'none'; {own_policy}; base-uri 'none'; frame-ancestors 'none'"


def _format_number(value: float | None, absent: str = "none") -> str:
    return absent if value is None else f"{value:.3f}"


def _make_hidden_field(token: str) -> Any:
    """Return a function that writes the hidden field of each form."""
    return lambda: Markup('<input type="hidden" name="token" value="{}">').format(token)


def _set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    # TLS ends at a proxy, whose headers are not trusted; what a browser says matters only to its own cookie.
    is_encrypted = request.headers.get("origin", "").startswith("https://")
    response.set_cookie(
        name, value, max_age=int(SESSION_HOURS * 3600), httponly=True, samesite="strict", secure=is_encrypted
    )
