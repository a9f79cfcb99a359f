"""The HTTP routes of `abstain serve`.

Annotations are evaluated here: FastAPI reads them, and those of the callers are made for each app.
"""

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from opentelemetry.context import Context as TraceContext
from pydantic import ValidationError
from starlette.types import Scope

from abstain.core.codes import Code
from abstain.core.errors import AbstainError, describe_first_problem
from abstain.serving.api.middleware import (
    BODY,
    BODY_RECEIVED_AT,
    ApiKeyMiddleware,
    BodyLimitMiddleware,
    ResponseMetricsMiddleware,
    SameOriginMiddleware,
    check_value_count,
    estimate_value_count,
    make_unauthorized_problem,
)
from abstain.serving.api.problems import Problem, handle_problems
from abstain.serving.api.streaming import make_answer_response, stream_answer_events
from abstain.serving.engine_states import StatesDescription, parse_embedded_request
from abstain.serving.gateways.kgateway import make_kgateway_routes
from abstain.serving.gateways.litellm import make_litellm_routes
from abstain.serving.gateways.portkey import make_portkey_routes
from abstain.serving.predictor import Predictor
from abstain.serving.service.callers import get_current_caller
from abstain.serving.service.decision_inputs import RawStates
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKey, ApiKeys, Role
from abstain.serving.service.recording import RecordedDecision
from abstain.serving.service.schemas import (
    MAX_ANSWERS,
    AnswerRequest,
    AnswerResponse,
    ContextsRequest,
    DecisionResponse,
    ErrorResponse,
    FeedbackRequest,
    FeedbackResponse,
    GateRequest,
    GateRequests,
    HealthResponse,
    ScorerResponse,
    VersionResponse,
)
from abstain.serving.service.telemetry import extract_trace_context, make_trace_headers

API_PATHS = ("/v1/", "/beta/", "/gateways/", "/request", "/response")
"""Prefixes of the paths for programs, which send their key with each request."""
GENERATING_PATH = "/v1/answer"
"""It keeps the base model busy for seconds: if too many requests wait, more are rejected before they are parsed."""
STATES_PATH = "/v1/gate/states"
MAX_STATES_BYTES = 64 * 1024 * 1024
"""Maximum body size of `STATES_PATH`, whose body is states."""
BYTES_PER_ROW, VALUES_PER_ROW = 64 * 1024, 1000
"""Each such number of bytes, and of values, of JSON counts as a row of the log: it takes time even if rejected."""
TEXT_FORMS = ("/try", "/review")
FORMS = (*TEXT_FORMS, "/login", "/logout")
"""The forms of the page (serving/status_page): the only requests without a key that have a body."""
MAX_FORM_BYTES = 64 * 1024
"""Maximum size of a form, without the texts in `TEXT_FORMS` of visitors who may send some."""
MAX_CHARACTER_BYTES = 9
"""Size of a character in a form: most characters beyond Latin have three bytes, each written as three."""
REFRESH_INTERVAL_S = 15.0
"""How often the registry is asked for a new version."""
_bearer = HTTPBearer(auto_error=False, description="a key of `abstain key`; none on a server without keys")
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "content": {"application/problem+json": {}}}
    for status, description in (
        (400, "no UTF-8, or JSON that is nested too deep"),
        (401, "no valid key"),
        (403, "the key lacks the role"),
        (408, "the body did not arrive in time"),
        (409, "the id was used with other content, or the conversation has no tries left"),
        (413, "too much text"),
        (422, "an invalid request"),
        (429, "too many requests wait"),
        (501, "a package is not installed"),
        (503, "nothing is live, or the log cannot be written"),
    )
}


def make_app(service: GateService, keys: ApiKeys, hosts: tuple[str, ...] | None = None) -> FastAPI:
    """Build the server's app.

    Args:
        service: The gate service.
        keys: Keys of the callers.
        hosts: The only host names that it answers to, for a server without keys; None for any.

    Returns:
        The app.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        polling = asyncio.create_task(_poll_registry(service))
        try:
            yield
        finally:
            polling.cancel()
            with suppress(asyncio.CancelledError):
                await polling
            await service.close()

    app = FastAPI(
        title="Abstain",
        version="1",
        description="Should this RAG answer be shown, or withheld?",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=PROBLEMS,
    )
    handle_problems(app)
    app.include_router(_make_gate_routes(service, keys))
    for gateway_routes in (make_litellm_routes, make_kgateway_routes, make_portkey_routes):
        app.include_router(gateway_routes(service, require_caller(keys, "ask")))
    app.include_router(_make_health_routes(service))
    app.state.max_connections = service.settings.caller.max_connections
    # The page sets both, for its forms.
    app.state.has_visitor = lambda scope: not keys.required
    app.state.problem_page = Problem.to_response

    def get_body_limit(scope: Scope) -> int:
        path = scope["path"]
        if scope["method"] != "POST":
            return 0
        if path == STATES_PATH:
            return MAX_STATES_BYTES
        if path.startswith(API_PATHS):
            return service.settings.body_limit
        if path in TEXT_FORMS and app.state.has_visitor(scope):
            return MAX_FORM_BYTES + MAX_CHARACTER_BYTES * service.settings.text_limit
        return MAX_FORM_BYTES if path in FORMS else 0

    def check_body(scope: Scope, content: bytes) -> None:
        if not scope["path"].startswith(API_PATHS) or scope["path"] == STATES_PATH:
            return
        if scope["path"] == GENERATING_PATH:
            service.check_queue(get_current_caller())
        n_values = estimate_value_count(content)
        if n_rows := len(content) // BYTES_PER_ROW + n_values // VALUES_PER_ROW:
            service.row_quota.take(get_current_caller(), n_rows)
        check_value_count(n_values)

    def make_rejection(scope: Scope, problem: Problem) -> Response:
        response: Response = app.state.problem_page(problem) if scope["path"] in FORMS else problem.to_response()
        return response

    max_bytes_per_caller = service.settings.caller.max_body_bytes
    app.add_middleware(
        BodyLimitMiddleware,
        get_limit=get_body_limit,
        max_bytes_per_caller=max_bytes_per_caller,
        check_body=check_body,
        make_response=make_rejection,
    )
    app.add_middleware(ApiKeyMiddleware, keys=keys, paths=API_PATHS, get_limit=get_body_limit)
    if hosts is not None:
        app.add_middleware(SameOriginMiddleware, hosts=hosts)
    app.add_middleware(ResponseMetricsMiddleware, problems=service.metrics.problems)
    return app


def require_caller(keys: ApiKeys, role: Role | None = None) -> Callable[..., Awaitable[ApiKey]]:
    """Return a FastAPI dependency that authenticates the caller.

    Args:
        keys: Keys of the callers.
        role: Role that the caller needs; None for any.

    Returns:
        The dependency; its value is the caller's key.
    """

    async def caller(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> ApiKey:
        # Without `async` each request would wait for a thread.
        api_key = keys.authenticate(credentials.credentials if credentials else None)
        if api_key is None:
            raise make_unauthorized_problem()
        if role is not None:
            require_role(api_key, role)
        return api_key

    return caller


def require_role(api_key: ApiKey, role: Role) -> None:
    """Check that a key has a role.

    Args:
        api_key: Key of the caller.
        role: The required role.

    Raises:
        Problem: The key lacks the role.
    """
    if role not in api_key.roles:
        raise Problem(403, Code.NO_ACCESS, f"the key {api_key.name} lacks the role {role}")


async def _poll_registry(service: GateService) -> None:
    """Follow the registry until the server ends."""
    live = None
    while True:
        await asyncio.to_thread(service.refresh)
        if service.follower.current is not live:
            await asyncio.to_thread(_spare_collections, after_another=live is not None)
            live = service.follower.current
        await asyncio.sleep(REFRESH_INTERVAL_S)


def _spare_collections(*, after_another: bool) -> None:
    """Collect what a version left, and exempt the live one, with all that is imported, from further collections.

    A collection halts every request: with half a million objects for longer than a hundred decisions take.
    """
    if after_another:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def _make_gate_routes(service: GateService, keys: ApiKeys) -> APIRouter:
    routes = APIRouter(prefix="/v1")
    AskKey = Annotated[ApiKey, Depends(require_caller(keys, "ask"))]
    AnyKey = Annotated[ApiKey, Depends(require_caller(keys))]

    @routes.post("/gate", operation_id="gate", response_model=DecisionResponse | list[DecisionResponse])
    async def gate(body: GateRequest | GateRequests, _: AskKey, request: Request) -> Response:
        """Decide about one answer or several: "show", "abstain", or "unavailable" if there is no decision."""
        gate_requests = body if isinstance(body, list) else [body]
        if len(gate_requests) > MAX_ANSWERS:
            raise AbstainError(
                Code.TOO_LARGE, f"{len(gate_requests)} answers in one request, {MAX_ANSWERS} are allowed"
            )
        for gate_request in gate_requests:  # before any is decided about
            service.gatherer.validate_texts(gate_request)
        service.check_capacity(gate_requests)
        service.row_quota.take(get_current_caller(), len(gate_requests))
        trace = extract_trace_context(request.headers)
        decisions_under_way = (service.decide(gate_request, trace=trace) for gate_request in gate_requests)
        outcomes = await asyncio.gather(*decisions_under_way, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        recorded_decisions = [outcome for outcome in outcomes if isinstance(outcome, RecordedDecision)]
        contents = [DecisionResponse(**vars(recorded.decision)).model_dump_json() for recorded in recorded_decisions]
        content = f"[{','.join(contents)}]" if isinstance(body, list) else contents[0]
        return _make_decision_response(
            request, content, max((recorded.log_s for recorded in recorded_decisions), default=0.0), trace
        )

    states: dict[str, Any] = {"content": {"application/octet-stream": {}}, "required": True}

    @routes.post(
        "/gate/states",
        operation_id="gate_states",
        response_model=DecisionResponse,
        openapi_extra={"requestBody": states},
    )
    async def gate_states(_: AskKey, request: Request) -> Response:
        """Decide by states in the body: a safetensors file of `hidden_states` and `token_ids`.

        Its `__metadata__` hold, under `request`, the fields of `/v1/gate` as JSON, whose `states` describe the file.
        """
        content: bytes = request.scope["state"][BODY]
        gate_request, description = parse_states_request(content)
        service.row_quota.take(get_current_caller())
        trace = extract_trace_context(request.headers)
        recorded = await service.decide(gate_request, trace=trace, raw_states=RawStates(content, description))
        response_content = DecisionResponse(**vars(recorded.decision)).model_dump_json()
        return _make_decision_response(request, response_content, recorded.log_s, trace)

    events: dict[str, Any] = {"content": {"text/event-stream": {}}}

    @routes.post("/answer", operation_id="answer", response_model=AnswerResponse, responses={200: events})
    async def answer(body: AnswerRequest, api_key: AskKey, request: Request) -> Response:
        """Let the base model answer and decide about its answer, in one generation if the scorer is a probe."""
        if body.stream == "optimistic":
            require_role(api_key, "read_withheld")
        service.row_quota.take(get_current_caller())
        trace = extract_trace_context(request.headers)
        if body.stream is not None:
            event_stream = stream_answer_events(service, body, api_key, trace)
            return StreamingResponse(event_stream, media_type="text/event-stream", headers=make_trace_headers(trace))
        text, recorded = await service.answer(body, partial(wait_for_disconnect, request), trace)
        return _make_decision_response(
            request, make_answer_response(text, recorded.decision, api_key).model_dump_json(), recorded.log_s, trace
        )

    @routes.post("/feedback", operation_id="feedback")
    async def feedback(body: FeedbackRequest, api_key: AnyKey) -> FeedbackResponse:
        """Record a thumb or a review, once per id; with keys, the reviewer is the key's name."""
        require_role(api_key, "review" if body.is_review else "feedback")
        if keys.required and body.reviewer not in (None, api_key.name):
            raise Problem(
                403, Code.NO_ACCESS, f"reviewer: with the key {api_key.name} it is {api_key.name}: leave it out"
            )
        if body.is_review and body.reviewer is None:
            body = body.model_copy(update={"reviewer": api_key.name})
        service.row_quota.take(get_current_caller())
        return FeedbackResponse(feedback_id=body.feedback_id, outcome=await service.feedback.record_feedback(body))

    @routes.post("/contexts", operation_id="contexts", status_code=204)
    async def contexts(body: ContextsRequest, _: AskKey) -> Response:
        """Register the contexts of an answer by the id of its call, for requests with the same key."""
        service.row_quota.take(get_current_caller())
        await service.feedback.register_contexts(body)
        return Response(status_code=204)

    @routes.get("/version", operation_id="version")
    async def version(_: AskKey) -> VersionResponse:
        """Return the live version and its guarantee."""
        live, error = service.follower.current, service.follower.last_error
        predictor = live.gate.predictor if live else None
        return VersionResponse(
            version=live.version_info.version if live else None,
            live_since=live.version_info.live_since if live else None,
            guarantee=predictor.guarantee if predictor else None,
            notices=live.version_info.notices if live else (),
            scorer=_describe_scorer(predictor) if predictor else None,
            feature_spec=live.gate.spec if live else None,
            error=error and ErrorResponse(code=error.code, message=error.message),
        )

    return routes


def _describe_scorer(predictor: Predictor) -> ScorerResponse:
    scorer = predictor.scorer
    return ScorerResponse(
        name=scorer.name,
        components=tuple(scorer.components),
        threshold=predictor.threshold,
        base_model=predictor.source.params.model,
        forward_tokens=scorer.forward_tokens,
    )


def _make_health_routes(service: GateService) -> APIRouter:
    routes = APIRouter()

    @routes.get("/healthz", operation_id="healthz")
    async def healthz() -> HealthResponse:
        """Return whether the process answers."""
        return HealthResponse(status="alive")

    @routes.get("/readyz", operation_id="readyz")
    async def readyz() -> HealthResponse:
        """Return whether a version is live and its decisions can be logged."""
        error = service.follower.last_error
        if service.follower.current is None:
            reason = error.message_with_code if error else "the first version is being opened"
            raise AbstainError(Code.NO_VERSION, reason)
        if service.log.last_error is not None:
            raise AbstainError(Code.NO_SERVICE, service.log.last_error)
        return HealthResponse(status="ready")

    @routes.get("/metrics", operation_id="metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return metrics for Prometheus."""
        service.update_gauges()
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


async def wait_for_disconnect(request: Request) -> None:
    """Return once the caller of `request`, which has been read, has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _make_decision_response(request: Request, content: str, log_s: float, trace: TraceContext) -> Response:
    """Return the response with `content`, JSON as its model wrote it.

    Validating it again would take as long as deciding. The header `Server-Timing` has the time from the last byte of
    the body on without the log, and the time of the log.
    """
    duration_s = time.perf_counter() - request.scope["state"][BODY_RECEIVED_AT]
    timing = f"gate;dur={1000 * (duration_s - log_s):.2f}, log;dur={1000 * log_s:.2f}"
    headers = {"Server-Timing": timing, **make_trace_headers(trace)}
    return Response(content, media_type="application/json", headers=headers)


def parse_states_request(content: bytes) -> tuple[GateRequest, StatesDescription]:
    """Parse the request in the metadata of a safetensors file.

    Args:
        content: Bytes of the file.

    Returns:
        The request, and the description of the states in the file.

    Raises:
        AbstainError: There is no request, or a field of it is invalid.
    """
    fields = parse_embedded_request(content)
    try:
        description = StatesDescription.model_validate_json(json.dumps(fields.pop("states", None)))
        return GateRequest.model_validate_json(json.dumps(fields)), description
    except ValidationError as error:
        message = f"request in the metadata: {describe_first_problem(error)}"
        raise AbstainError(Code.INVALID_ROW, message) from None
