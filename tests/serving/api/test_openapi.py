"""Every route is sent what its description allows, and what it does not (schemathesis)."""

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

from abstain.serving.api.app import make_app
from abstain.serving.service.keys import ApiKeys
from tests.serving.api.conftest import MadeUpReleases, MakeRelease, MakeService

CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
ROUTES = {"/v1/gate", "/v1/answer", "/v1/feedback", "/v1/contexts", "/v1/familiarity", "/v1/version"}


@pytest.fixture
def app(make_service: MakeService, releases: MadeUpReleases, make_release: MakeRelease) -> FastAPI:
    releases.promote("v1.0.0", make_release())
    return make_app(make_service(text_limit=2000), ApiKeys())


def attack(app: FastAPI, examples: int) -> set[str]:
    """Send every route so many valid requests, and as many invalid ones; returns the routes."""
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
    return routes


@pytest.mark.heavy
def test_routes_answer_as_the_openapi_describes(app: FastAPI) -> None:
    assert attack(app, 8) >= ROUTES


@pytest.mark.soak(twin="test_routes_answer_as_the_openapi_describes")
def test_routes_answer_as_the_openapi_describes_at_length(app: FastAPI) -> None:
    assert attack(app, 300) >= ROUTES


def test_openapi_is_3_1_and_names_the_key(app: FastAPI) -> None:
    openapi = app.openapi()
    assert openapi["openapi"].startswith("3.1")
    gate = openapi["paths"]["/v1/gate"]["post"]
    assert gate["security"] and "429" in gate["responses"]
    assert "application/problem+json" in gate["responses"]["422"]["content"]
