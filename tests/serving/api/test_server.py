import logging

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from abstain.core.errors import AbstainError
from abstain.serving.api.app import make_app
from abstain.serving.api.server import MAX_LINES_PER_MINUTE, MAX_MESSAGES_PER_MINUTE, LogRateFilter, listen
from abstain.serving.service.keys import ApiKeys
from tests.serving.conftest import MakeService, Promote

pytestmark = pytest.mark.heavy
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)


@pytest.fixture
def app(make_service: MakeService, promote: Promote) -> FastAPI:
    promote()
    return make_app(make_service(text_limit=2000), ApiKeys())


@pytest.mark.parametrize(
    "examples", [5, pytest.param(300, marks=pytest.mark.soak(twin="test_routes_answer_as_the_openapi_describes"))]
)
def test_routes_answer_as_the_openapi_describes(app: FastAPI, examples: int) -> None:
    """Every route so many valid requests, and as many invalid ones."""
    openapi = app.openapi()
    assert openapi["openapi"].startswith("3.1")
    gate = openapi["paths"]["/v1/gate"]["post"]
    assert gate["security"] and "429" in gate["responses"]
    assert "application/problem+json" in gate["responses"]["422"]["content"]
    routes = set()
    for result in schemathesis.openapi.from_asgi("/openapi.json", app).get_all_operations():
        operation = result.ok()
        routes.add(operation.path)
        for mode in [GenerationMode.POSITIVE, *([GenerationMode.NEGATIVE] if operation.method == "post" else [])]:

            @settings(max_examples=examples, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
            @given(operation.as_strategy(generation_mode=mode))
            def send(case: Case) -> None:
                case.call_and_validate(checks=list(CHECKS))

            send()
    assert routes >= {"/v1/gate", "/v1/answer", "/v1/feedback", "/v1/contexts", "/v1/version"}


def test_listen_names_the_option_of_a_taken_port() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(AbstainError, match="--port"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_log_rate_filter_hides_no_other_cause() -> None:
    log_filter = LogRateFilter()

    def passes(cause: object, level: int = logging.WARNING) -> bool:
        return log_filter.filter(logging.LogRecord("x", level, "log.py", 1, "decision log: %s", (cause,), None))

    assert sum(passes("locked") for _ in range(100)) == MAX_LINES_PER_MINUTE
    assert passes("disk full") and passes("locked", logging.ERROR)
    made_up = sum(passes(number) for number in range(10_000))
    assert made_up < MAX_LINES_PER_MINUTE + MAX_MESSAGES_PER_MINUTE, "callers may make up causes"
