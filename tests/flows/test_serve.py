"""The loop over the gate: decisions, feedback, ingest and erasure."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from abstain.core import paths
from abstain.core.contracts import Interaction, Thumb
from abstain.data.store.dataset import DataStore
from tests.conftest import Project, copy_of

pytestmark = pytest.mark.slow


@contextmanager
def serve(project: Project, *options: str, is_live: bool = True) -> Iterator[httpx.Client]:
    """Yield a client of `abstain serve`, once a version is live if there is one."""
    command = ["python", "-m", "abstain_cli.app", "serve", "--port", "0", *options]
    process = project.start(command, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    try:
        address = ""
        while "http://" not in address:
            address = process.stdout.readline()
            assert address, "it has ended"
        with httpx.Client(base_url=address.split()[-1], timeout=60) as client:
            deadline = time.monotonic() + 300
            while is_live and client.get("/readyz").status_code != 200:
                assert time.monotonic() < deadline, client.get("/readyz").text
                time.sleep(0.2)
            yield client
    finally:
        process.kill()
        process.wait()


def read_log(project: Project) -> bytes:
    """Return all that the decision log has written."""
    return b"".join(file.read_bytes() for file in sorted(project.home.glob("decisions.sqlite*")))


def read_rows(project: Project) -> tuple[dict[str, Interaction], dict[str, Thumb]]:
    """Return the gate's answers in data/, and the thumbs on them."""
    store = DataStore(project.workspace / paths.DATA)
    return (
        {row.interaction_id: row for row in store.iter_rows(Interaction) if row.interaction_id.startswith("chat-")},
        {row.interaction_id: row for row in store.iter_rows(Thumb) if row.interaction_id.startswith("chat-")},
    )


def test_serve_feedback_is_ingested_and_erased(
    trained: tuple[Project, str], prefect_server: str, tmp_path: Path
) -> None:
    project = replace(copy_of(trained[0], tmp_path), server=prefect_server)
    known = next(row for row in DataStore(trained[0].workspace / paths.DATA).iter_rows(Interaction) if row.contexts)
    asked: dict[str, Any] = {
        "question": known.question,
        "contexts": [one.model_dump() for one in known.contexts],
        "answer": f"{known.answer} Or call ann@example.org.",
        "user": "ann",
    }
    with serve(project, "--retrieve") as client:
        version = client.get("/v1/version").json()
        assert version["version"] == "v1.0.0" and version["feature_spec"]["requires"]
        decision = client.post("/v1/gate", json={**asked, "interaction_id": "chat-1"}).json()
        assert decision["confidence"] is not None and decision["version"] == "v1.0.0"
        retrieved = client.post(
            "/v1/gate", json={**asked, "contexts": None, "entitlements": [], "interaction_id": "chat-2"}
        ).json()
        assert retrieved["confidence"] is not None
        plain = {**asked, "contexts": ["The fee is 45 euros."], "interaction_id": "chat-3"}
        assert client.post("/v1/gate", json=plain).status_code == 200
        for number in (1, 3):
            thumb = {"feedback_id": f"f-{number}", "interaction_id": f"chat-{number}", "thumb": "down", "user": "ann"}
            assert client.post("/v1/feedback", json=thumb).json()["outcome"] == "recorded"
    assert b"ann@example.org" not in read_log(project) and b"chat-2" in read_log(project)

    done = project.abstain("ingest")
    assert done.returncode == 0, done.stdout + done.stderr
    interactions, thumbs = read_rows(project)
    assert {"chat-1", "chat-3"} <= interactions.keys() and thumbs.keys() == {"chat-1", "chat-3"}
    row = interactions["chat-1"]
    assert row.display == ("shown" if decision["show"] else "withheld") and "<EMAIL_ADDRESS>" in row.answer
    assert (thumbs["chat-1"].user or "").startswith("u-")
    again = project.abstain("ingest")
    assert again.returncode == 0 and read_rows(project) == (interactions, thumbs)

    erased = project.abstain("erase-user", "ann", "--with-interactions")
    assert erased.returncode == 0, erased.stdout + erased.stderr
    assert read_rows(project)[1] == {} and "chat-1" not in read_rows(project)[0]
    assert known.question.encode() not in read_log(project)


@pytest.fixture
def empty_project(shipped: Project, tmp_path: Path) -> Project:
    """A checkout without any run."""
    copy = Project(tmp_path / "checkout", tmp_path / "home")
    for folder in (copy.home, tmp_path / "empty"):
        folder.mkdir()
    shipped.git("clone", "-q", str(shipped.root), str(copy.root))
    return copy


def test_serve_before_first_version_is_unavailable(empty_project: Project) -> None:
    with serve(empty_project, is_live=False) as client:
        assert client.get("/healthz").status_code == 200 and client.get("/readyz").status_code == 503
        decision = client.post("/v1/gate", json={"question": "?", "contexts": ["c"], "answer": "a"}).json()
        assert (decision["decision"], decision["show"]) == ("unavailable", False)


def test_serve_on_other_host_needs_keys(empty_project: Project) -> None:
    done = empty_project.abstain("serve", "--host", "0.0.0.0")
    assert done.returncode == 1 and "abstain key" in done.stdout + done.stderr
