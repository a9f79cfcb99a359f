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
from abstain.core.errors import AbstainError
from abstain.serving.api.callers import current_caller
from abstain.serving.api.gathering import RawStates
from abstain.serving.api.keys import ApiKey, Keys, Role
from abstain.serving.api.limits import (
    ARRIVED,
    BODY,
    BodyLimits,
    CountedResponses,
    KeyFirst,
    OwnOriginOnly,
    count_values,
    no_key,
    require_few_values,
)
from abstain.serving.api.problems import Problem, handle_problems
from abstain.serving.api.recording import Timed
from abstain.serving.api.schemas import (
    ANSWERS,
    AnswerRequest,
    AnswerResponse,
    ConceptResponse,
    ContextsRequest,
    DecisionResponse,
    FamiliarityRequest,
    FamiliarityResponse,
    FeedbackRequest,
    FeedbackResponse,
    GateRequest,
    HealthResponse,
    Several,
    VersionResponse,
)
from abstain.serving.api.service import GateService
from abstain.serving.api.streaming import answer_events, answer_response
from abstain.serving.api.telemetry import context_of, trace_headers
from abstain.serving.engine_states import StatesDescribed, request_in
from abstain.serving.gateways.kgateway import kgateway_routes
from abstain.serving.gateways.litellm import litellm_routes
from abstain.serving.gateways.portkey import portkey_routes

API_PATHS = ("/v1/", "/beta/", "/gateways/", "/request", "/response")
"""What begins so is for programs, which send their key with each request."""
STATES_PATH = "/v1/gate/states"
STATES_BYTES = 64 * 1024 * 1024
"""The longest body of `STATES_PATH`, which are states."""
ROW_BYTES, ROW_VALUES = 64 * 1024, 1000
"""So many bytes, and values, of JSON count as a row of the log: they take time even if they are refused."""
TEXT_FORMS = ("/try", "/review")
FORMS = (*TEXT_FORMS, "/login", "/logout")
"""The forms of the page (serving/status_page): of all that needs no key, they alone have a body."""
FORM_BYTES = 64 * 1024
"""The longest form, but for the texts in `TEXT_FORMS` of who may send some."""
CHARACTER_BYTES = 9
"""Of a character in a form: most of those beyond Latin have three bytes, each written as three."""
REFRESH_S = 15.0
"""How often the registry is asked for a new version."""
_bearer = HTTPBearer(auto_error=False, description="a key of `abstain key`; none on a server without keys")
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": what, "content": {"application/problem+json": {}}}
    for status, what in (
        (400, "no UTF-8, or JSON that is nested too deep"),
        (401, "no valid key"),
        (403, "the key lacks the role"),
        (408, "the body did not arrive in time"),
        (409, "the id was used with other content"),
        (413, "too much text"),
        (422, "an invalid request"),
        (429, "too many requests wait"),
        (501, "a package is not installed"),
        (503, "nothing is live, or the log cannot be written"),
    )
}


def make_app(service: GateService, keys: Keys, hosts: tuple[str, ...] | None = None) -> FastAPI:
    """The server's app. `hosts`: the only names it answers to, for one without keys; None: any."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        following = asyncio.create_task(_follow(service))
        try:
            yield
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
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
    app.include_router(_gate_routes(service, keys))
    for gateway_routes in (litellm_routes, kgateway_routes, portkey_routes):
        app.include_router(gateway_routes(service, requires(keys, "ask")))
    app.include_router(_health_routes(service))
    app.state.connections = service.settings.caller.connections
    # The page sets both, for its forms.
    app.state.has_visitor = lambda scope: not keys.required
    app.state.problem_page = Problem.response

    def body_limit(scope: Scope) -> int:
        path = scope["path"]
        if scope["method"] != "POST":
            return 0
        if path == STATES_PATH:
            return STATES_BYTES
        if path.startswith(API_PATHS):
            return service.settings.body_limit
        if path in TEXT_FORMS and app.state.has_visitor(scope):
            return FORM_BYTES + CHARACTER_BYTES * service.settings.text_limit
        return FORM_BYTES if path in FORMS else 0

    def check(scope: Scope, content: bytes) -> None:
        if not scope["path"].startswith(API_PATHS) or scope["path"] == STATES_PATH:
            return
        values = count_values(content)
        if rows := len(content) // ROW_BYTES + values // ROW_VALUES:
            service.rows.take(current_caller(), rows)
        require_few_values(values)

    def refusal(scope: Scope, problem: Problem) -> Response:
        told: Response = app.state.problem_page(problem) if scope["path"] in FORMS else problem.response()
        return told

    of_caller = service.settings.caller.bodies
    app.add_middleware(BodyLimits, limit_of=body_limit, of_caller=of_caller, check=check, refusal=refusal)
    app.add_middleware(KeyFirst, keys=keys, paths=API_PATHS, limit_of=body_limit)
    if hosts is not None:
        app.add_middleware(OwnOriginOnly, hosts=hosts)
    app.add_middleware(CountedResponses, problems=service.metrics.problems)
    return app


def requires(keys: Keys, role: Role | None = None) -> Callable[..., Awaitable[ApiKey]]:
    """A dependency: the caller, who has the role, or with None any."""

    async def caller(sent: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> ApiKey:
        # Without `async` each request would wait for a thread.
        holder = keys.holder(sent.credentials if sent else None)
        if holder is None:
            raise no_key()
        if role is not None:
            require_role(holder, role)
        return holder

    return caller


def require_role(holder: ApiKey, role: Role) -> None:
    """Raises `Problem` where the holder of a key lacks `role`."""
    if role not in holder.roles:
        raise Problem(403, Code.NO_ACCESS, f"the key {holder.name} lacks the role {role}")


async def _follow(service: GateService) -> None:
    """Follow the registry until the server ends."""
    live = None
    while True:
        await asyncio.to_thread(service.refresh)
        if service.live.now is not live:
            await asyncio.to_thread(_spare_collections, after_another=live is not None)
            live = service.live.now
        await asyncio.sleep(REFRESH_S)


def _spare_collections(*, after_another: bool) -> None:
    """Collect what a version left, and exempt the live one, with all that is imported, from further collections.

    They halt every request: with half a million objects for longer than a hundred decisions take.
    """
    if after_another:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def _gate_routes(service: GateService, keys: Keys) -> APIRouter:
    routes = APIRouter(prefix="/v1")
    Asker = Annotated[ApiKey, Depends(requires(keys, "ask"))]
    Teller = Annotated[ApiKey, Depends(requires(keys))]

    @routes.post("/gate", operation_id="gate", response_model=DecisionResponse | list[DecisionResponse])
    async def gate(asked: GateRequest | Several, _: Asker, request: Request) -> Response:
        """Decide about one answer or several: show it, abstain, or `unavailable`, which is never clean."""
        many = asked if isinstance(asked, list) else [asked]
        if len(many) > ANSWERS:
            raise AbstainError(Code.TOO_LARGE, f"{len(many)} answers in one request, {ANSWERS} are allowed")
        for each in many:  # before any is decided about
            service.gatherer.require_texts(each)
        service.require_room(many)
        service.rows.take(current_caller(), len(many))
        trace = context_of(request.headers)
        deciding = (service.decide(one, trace=trace) for one in many)
        found = await asyncio.gather(*deciding, return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException):
                raise one
        done = [one for one in found if isinstance(one, Timed)]
        decisions = [DecisionResponse(**vars(one.decision)).model_dump_json() for one in done]
        content = f"[{','.join(decisions)}]" if isinstance(asked, list) else decisions[0]
        return _decided(request, content, max((one.log_s for one in done), default=0.0), trace)

    states: dict[str, Any] = {"content": {"application/octet-stream": {}}, "required": True}

    @routes.post(
        "/gate/states",
        operation_id="gate_states",
        response_model=DecisionResponse,
        openapi_extra={"requestBody": states},
    )
    async def gate_states(_: Asker, request: Request) -> Response:
        """Decide by states that are the body: a safetensors file of `hidden_states` and `token_ids`.

        Its `__metadata__` hold, under `request`, the fields of `/v1/gate` as JSON, whose `states` describe the file.
        """
        content: bytes = request.scope["state"][BODY]
        asked, described = described_by(content)
        service.rows.take(current_caller())
        trace = context_of(request.headers)
        timed = await service.decide(asked, trace=trace, body=RawStates(content, described))
        told = DecisionResponse(**vars(timed.decision)).model_dump_json()
        return _decided(request, told, timed.log_s, trace)

    events: dict[str, Any] = {"content": {"text/event-stream": {}}}

    @routes.post("/answer", operation_id="answer", response_model=AnswerResponse, responses={200: events})
    async def answer(asked: AnswerRequest, holder: Asker, request: Request) -> Response:
        """Let the base model answer and decide about its answer, in one pass where the scorer is a probe."""
        if asked.stream == "optimistic":
            require_role(holder, "withheld")
        service.rows.take(current_caller())
        trace = context_of(request.headers)
        if asked.stream is not None:
            sent = answer_events(service, asked, holder, trace)
            return StreamingResponse(sent, media_type="text/event-stream", headers=trace_headers(trace))
        text, timed = await service.answer(asked, partial(leaving, request), trace)
        return _decided(request, answer_response(text, timed.decision, holder).model_dump_json(), timed.log_s, trace)

    @routes.post("/feedback", operation_id="feedback")
    async def feedback(given: FeedbackRequest, holder: Teller) -> FeedbackResponse:
        """Record a thumb or a review, once by its id; with keys, the reviewer is the key's name."""
        require_role(holder, "review" if given.is_review else "feedback")
        if keys.required and given.reviewer not in (None, holder.name):
            raise Problem(
                403, Code.NO_ACCESS, f"reviewer: with the key {holder.name} it is {holder.name}: leave it out"
            )
        if given.is_review and given.reviewer is None:
            given = given.model_copy(update={"reviewer": holder.name})
        service.rows.take(current_caller())
        return FeedbackResponse(feedback_id=given.feedback_id, outcome=await service.feedback(given))

    @routes.post("/contexts", operation_id="contexts", status_code=204)
    async def contexts(given: ContextsRequest, _: Asker) -> Response:
        """Register what an answer will rest on, by the id of its call: for requests with the same key."""
        service.rows.take(current_caller())
        await service.register(given)
        return Response(status_code=204)

    @routes.post("/familiarity", operation_id="familiarity")
    async def familiarity(asked: FamiliarityRequest, _: Asker, request: Request) -> FamiliarityResponse:
        """Whether the base model knows the concepts of an instruction, before it answers."""
        found, threshold = await service.familiarity(asked.instruction, partial(leaving, request))
        concepts = tuple(
            ConceptResponse(concept=one.concept, familiarity=one.score, guess=one.guess) for one in found.concepts
        )
        return FamiliarityResponse(
            familiarity=found.score, threshold=threshold, concepts=concepts, left_out=found.left_out
        )

    @routes.get("/version", operation_id="version")
    async def version(_: Asker) -> VersionResponse:
        """What is live, and what it promises."""
        live = service.live.now
        predictor = live.gate.predictor if live else None
        return VersionResponse(
            version=live.release.version if live else None,
            since=live.release.since if live else None,
            guaranteed=bool(predictor and predictor.guaranteed),
            guarantee=predictor.guarantee if predictor else None,
            mark=live.release.mark if live else "",
            scorer=predictor.scorer.name if predictor else None,
            signals=predictor.scorer.signals if predictor else (),
            threshold=predictor.threshold if predictor else None,
            model=predictor.source.params.model if predictor else None,
            feature_spec=live.gate.spec if live else None,
            trouble=service.live.trouble,
        )

    return routes


def _health_routes(service: GateService) -> APIRouter:
    routes = APIRouter()

    @routes.get("/healthz", operation_id="healthz")
    async def healthz() -> HealthResponse:
        """Whether the process answers."""
        return HealthResponse(status="alive")

    @routes.get("/readyz", operation_id="readyz")
    async def readyz() -> HealthResponse:
        """Whether a version is live, and its decisions can be logged."""
        if service.live.now is None:
            raise AbstainError(Code.NO_VERSION, service.live.trouble or "the first version is being opened")
        if service.log.trouble is not None:
            raise AbstainError(Code.NO_SERVICE, service.log.trouble)
        return HealthResponse(status="ready")

    @routes.get("/metrics", operation_id="metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        service.count_waiting()
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


async def leaving(request: Request) -> None:
    """Return once who sent `request`, which has been read, has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _decided(request: Request, content: str, log_s: float, trace: TraceContext) -> Response:
    """The response with `content`, JSON as its model wrote it: validating it again would take as long as deciding.

    `Server-Timing`: what was ours, from the last byte of the body on, and what the log took.
    """
    took = time.perf_counter() - request.scope["state"][ARRIVED]
    timing = f"gate;dur={1000 * (took - log_s):.2f}, log;dur={1000 * log_s:.2f}"
    headers = {"Server-Timing": timing, **trace_headers(trace)}
    return Response(content, media_type="application/json", headers=headers)


def described_by(content: bytes) -> tuple[GateRequest, StatesDescribed]:
    """What the metadata of a safetensors file ask. Raises `AbstainError` for a field that is wrong."""
    fields = request_in(content)
    try:
        described = StatesDescribed.model_validate_json(json.dumps(fields.pop("states", None)))
        return GateRequest.model_validate_json(json.dumps(fields)), described
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise AbstainError(Code.INVALID_ROW, f"request in the metadata: {where}: {problem['msg']}") from None
