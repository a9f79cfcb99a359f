from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import DeploymentFilter
from prefect.client.schemas.objects import FlowRun
from prefect.events import Event, RelatedResource, Resource
from prefect.events.schemas.automations import Automation, AutomationCore
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import AwaitingConcurrencySlot, Crashed, Pending, Running, Scheduled

from abstain.config.params import load_params
from abstain.core.errors import AbstainError
from abstain_tasks.runs.duplicate_runs import cancel_duplicate_runs
from abstain_tasks.runs.events import ALARM, DRIFT, INGESTED, REJECTED, REVIEWS
from abstain_tasks.server import automation_sync
from abstain_tasks.server.automations import NOTIFY, PREFIX, RETRAIN
from abstain_tasks.server.webhook import read_stored_url, store_url
from tests.checkout import ROOT
from tests.tasks.server.test_server import wait_until

pytestmark = pytest.mark.slow
URL = "http://127.0.0.1:9/hook/secret"


class OnServer:
    """The server that tests share, whose runs no worker takes."""

    def __init__(self, client: SyncPrefectClient) -> None:
        self.client = client

    def deploy(self) -> None:
        for flow, _, name in (deployment.partition("/") for deployment in (RETRAIN, NOTIFY)):
            self.client.create_deployment(self.client.create_flow_from_name(flow), name)

    def automations(self) -> dict[str, Automation]:
        found = self.client.read_automations()
        return {automation.name: automation for automation in found if automation.name.startswith(PREFIX)}

    def emit(self, name: str, resource: str, related: Sequence[dict[str, str]] = (), **payload: str) -> None:
        about = Resource({"prefect.resource.id": resource})
        event = Event(event=name, resource=about, related=[RelatedResource(one) for one in related], payload=payload)
        self.client.request("POST", "/events", json=[event.model_dump(mode="json")]).raise_for_status()

    def runs(self, deployment: str) -> list[FlowRun]:
        own = DeploymentFilter.model_validate({"id": {"any_": [self.client.read_deployment_by_name(deployment).id]}})
        return self.client.read_flow_runs(deployment_filter=own)

    def start(self, deployment: str, **parameters: bool) -> FlowRun:
        """Start a run without a process."""
        of = self.client.read_deployment_by_name(deployment).id
        run = self.client.create_flow_run_from_deployment(of, parameters=parameters)
        for state in (Pending(), Running()):
            self.client.set_flow_run_state(run.id, state, force=True)
        return run

    def state(self, run: FlowRun) -> str | None:
        return self.client.read_flow_run(run.id).state_name


@pytest.fixture
def server(prefect_server: str) -> Iterator[OnServer]:
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        found = OnServer(client)
        found.deploy()
        yield found
        for automation in found.automations().values():
            client.delete_automation(automation.id)
        for deployment in (RETRAIN, NOTIFY):
            client.delete_deployment(client.read_deployment_by_name(deployment).id)


def test_sync_automations_is_idempotent_keeps_switched_off(server: OnServer) -> None:
    assert automation_sync.sync_automations(True) == "8 created"
    made = server.automations()
    assert automation_sync.sync_automations(True) == "8 unchanged"
    assert server.automations() == made

    drift, rejected = made[f"{PREFIX}retrain-drift"], made[f"{PREFIX}alert-rejected"]
    changed = AutomationCore.model_validate(drift.model_dump(exclude={"owner_resource"}))
    changed.trigger.within = timedelta(days=1)  # type: ignore[union-attr]
    server.client.update_automation(drift.id, changed)
    server.client.create_automation(changed.model_copy(update={"name": "of a person"}))
    server.client.pause_automation(rejected.id)
    assert automation_sync.sync_automations(True, heartbeat=60) == "6 unchanged, 2 updated", "drift and lost-run"
    again = server.automations()
    assert again[drift.name].trigger.within == timedelta(days=7)  # type: ignore[union-attr]
    assert not again[rejected.name].enabled and again.keys() == made.keys()

    assert automation_sync.sync_automations(False, heartbeat=60) == "4 deleted, 4 unchanged"
    assert not any("alert" in name for name in server.automations())
    automation_sync.remove_rerun_automation()
    assert automation_sync.sync_automations(False, heartbeat=60) == "1 created, 3 unchanged"
    (own,) = server.client.read_automations_by_name("of a person")
    server.client.delete_automation(own.id)


def test_store_url_keeps_until_replaced_or_empty(server: OnServer) -> None:
    try:
        assert store_url(None) is None
        assert store_url(URL) == store_url(None) == read_stored_url() == URL
        assert store_url(f"{URL}2") == store_url(None) == f"{URL}2"
    finally:
        assert store_url("") is None
    assert store_url("") is store_url(None) is read_stored_url() is None


def test_sync_automations_missing_deployment_is_named(server: OnServer) -> None:
    server.client.delete_deployment(server.client.read_deployment_by_name(NOTIFY).id)
    with pytest.raises(AbstainError, match="no deployment notify/webhook"):
        automation_sync.sync_automations(True)
    server.deploy()


def test_automations_act_once_per_event(server: OnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    params = load_params(ROOT / "params.yaml")
    soon = params.monitoring.model_copy(update={"feed_silent_hours": 10 / 3600})
    monkeypatch.setattr(automation_sync, "load_params", lambda _: params.model_copy(update={"monitoring": soon}))
    automation_sync.sync_automations(True, heartbeat=10 / 3)

    server.emit(INGESTED, INGESTED)
    lost = server.start(RETRAIN, force=True)
    flow = f"prefect.flow.{lost.flow_id}"
    of_flow = {"prefect.resource.id": flow, "prefect.resource.role": "flow", "prefect.resource.name": "retrain"}
    server.emit("prefect.flow-run.heartbeat", f"prefect.flow-run.{lost.id}", [of_flow])
    for _ in range(3):
        server.emit(REVIEWS, f"{REVIEWS}.v1.0.0.1")
        server.emit(REVIEWS, REVIEWS)  # of no portion that is full
        server.emit(DRIFT, DRIFT)
        server.emit(REJECTED, f"{REJECTED}.0123", code="A401", text="probe: not better", remedy="wait")
        server.emit(ALARM, f"{ALARM}.v1.0.0.2026-11-01.A701", code="A701", kind="guarantee violated", text="it is")
    server.emit(REVIEWS, f"{REVIEWS}.v1.0.0.2")

    def list_titles() -> list[str]:
        return sorted(run.parameters["title"] for run in server.runs(NOTIFY))

    wait_until(lambda: len(server.runs(RETRAIN)) == 5, 20)
    assert server.state(lost) == "Crashed"
    forced = [run for run in server.runs(RETRAIN) if run.parameters == {"force": True}]
    assert len(forced) == 2, "the lost run and one in its place; the others for 200 reviews, the next ones, and drift"
    wait_until(lambda: len(list_titles()) == 4, 3)
    assert list_titles() == [
        "a candidate was rejected",
        "monitoring: guarantee violated",
        "no rows come in",
        f"retrain: run {lost.name} has crashed",
    ]
    (rejected,) = (run for run in server.runs(NOTIFY) if "rejected" in run.parameters["title"])
    assert rejected.parameters["text"] == "probe: not better; wait" and rejected.parameters["code"] == "A401"

    (second,) = (run for run in forced if run.id != lost.id)
    server.client.set_flow_run_state(second.id, Crashed(), force=True)
    wait_until(lambda: len(list_titles()) == 5, 20)
    assert len(server.runs(RETRAIN)) == 5, "it is not run a third time"


def test_cancel_duplicate_runs_supersedes_waiting_runs(server: OnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_minute = datetime.now(UTC) + timedelta(minutes=1)
    deployment = server.client.read_deployment_by_name(RETRAIN).id

    def create(**parameters: bool) -> FlowRun:
        return server.client.create_flow_run_from_deployment(deployment, parameters=parameters)

    this = server.start(RETRAIN)
    due, for_a_slot, later, others, running = create(), create(), create(), create(force=True), server.start(RETRAIN)
    server.client.set_flow_run_state(for_a_slot.id, AwaitingConcurrencySlot(scheduled_time=in_a_minute), force=True)
    server.client.set_flow_run_state(later.id, Scheduled(scheduled_time=in_a_minute), force=True)
    cancel_duplicate_runs()  # outside of a deployment: nothing
    assert server.state(due) == "Scheduled"
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", str(deployment))
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", str(this.id))
    cancel_duplicate_runs()
    assert [server.state(run) for run in (due, for_a_slot)] == ["Superseded", "Superseded"]
    assert [server.state(run) for run in (later, others, running, this)] == [*["Scheduled"] * 2, *["Running"] * 2]
