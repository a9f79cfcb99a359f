"""The loop over the gate: a service asks, a user objects, ingest takes it, and an erasure reaches all of it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
def serving(project: Project, *options: str) -> Iterator[httpx.Client]:
    """A client of `abstain serve`, once a version is live."""
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
            while client.get("/readyz").status_code != 200:
                assert time.monotonic() < deadline, client.get("/readyz").text
                time.sleep(0.2)
            yield client
    finally:
        process.kill()
        process.wait()


def on_disk(project: Project) -> bytes:
    """All that the decision log has written."""
    return b"".join(file.read_bytes() for file in sorted(project.home.glob("decisions.sqlite*")))


def taken(project: Project) -> tuple[dict[str, Interaction], dict[str, Thumb]]:
    """What data/ holds of the gate's answers, and of the thumbs on them."""
    store = DataStore(project.workspace / paths.DATA)
    return (
        {row.interaction_id: row for row in store.iter_rows(Interaction) if row.interaction_id.startswith("chat-")},
        {row.interaction_id: row for row in store.iter_rows(Thumb) if row.interaction_id.startswith("chat-")},
    )


def test_what_a_user_says_of_an_answer_comes_back_as_data_and_goes_when_it_is_erased(
    trained: tuple[Project, str], tmp_path: Path
) -> None:
    project = copy_of(trained[0], tmp_path)
    known = next(row for row in DataStore(trained[0].workspace / paths.DATA).iter_rows(Interaction) if row.contexts)
    asked: dict[str, Any] = {
        "question": known.question,
        "contexts": [one.model_dump() for one in known.contexts],
        "answer": f"{known.answer} Or call ann@example.org.",
        "user": "ann",
    }
    with serving(project, "--retrieve") as client:
        version = client.get("/v1/version").json()
        assert version["version"] == "v1.0.0" and version["feature_spec"]["requires"]
        decision = client.post("/v1/gate", json={**asked, "interaction_id": "chat-1"}).json()
        assert decision["confidence"] is not None and decision["version"] == "v1.0.0"
        retrieved = client.post(
            "/v1/gate", json={**asked, "contexts": None, "entitlements": [], "interaction_id": "chat-2"}
        ).json()
        assert retrieved["confidence"] is not None, "the chunks of the knowledge base were found"
        plain = {**asked, "contexts": ["The fee is 45 euros."], "interaction_id": "chat-3"}
        assert client.post("/v1/gate", json=plain).status_code == 200
        for number in (1, 3):
            thumb = {"feedback_id": f"f-{number}", "interaction_id": f"chat-{number}", "thumb": "down", "user": "ann"}
            assert client.post("/v1/feedback", json=thumb).json()["outcome"] == "recorded"
    assert b"ann@example.org" not in on_disk(project) and b"chat-2" in on_disk(project)

    done = project.abstain("ingest")
    assert done.returncode == 0, done.stdout + done.stderr
    interactions, thumbs = taken(project)
    assert {"chat-1", "chat-3"} <= interactions.keys() and thumbs.keys() == {"chat-1", "chat-3"}
    row = interactions["chat-1"]
    assert row.display == ("shown" if decision["show"] else "withheld") and "<EMAIL_ADDRESS>" in row.answer
    assert (thumbs["chat-1"].user or "").startswith("u-")
    again = project.abstain("ingest")
    assert again.returncode == 0 and taken(project) == (interactions, thumbs)

    erased = project.abstain("erase-user", "ann", "--with-interactions")
    assert erased.returncode == 0, erased.stdout + erased.stderr
    assert taken(project)[1] == {} and "chat-1" not in taken(project)[0]
    assert known.question.encode() not in on_disk(project)


def test_before_a_version_is_live_the_gate_says_so_and_shows_nothing(shipped: Project, tmp_path: Path) -> None:
    project = copy_of_nothing(shipped, tmp_path)
    process = project.start(["python", "-m", "abstain_cli.app", "serve", "--port", "0"], stderr=subprocess.STDOUT)
    assert process.stdout is not None
    try:
        address = process.stdout.readline()
        with httpx.Client(base_url=address.split()[-1], timeout=60) as client:
            assert client.get("/healthz").status_code == 200 and client.get("/readyz").status_code == 503
            decision = client.post("/v1/gate", json={"question": "?", "contexts": ["c"], "answer": "a"}).json()
            assert (decision["decision"], decision["show"]) == ("unavailable", False)
    finally:
        process.kill()
        process.wait()


def copy_of_nothing(project: Project, folder: Path) -> Project:
    """A checkout without any run."""
    copy = Project(folder / "checkout", folder / "home")
    (folder / "empty").mkdir(parents=True)
    project.git("clone", "-q", str(project.root), str(copy.root))
    copy.home.mkdir()
    return copy


def test_another_address_than_this_machines_needs_keys(shipped: Project, tmp_path: Path) -> None:
    done = copy_of_nothing(shipped, tmp_path).abstain("serve", "--host", "0.0.0.0")
    assert done.returncode == 1 and "abstain key" in done.stdout + done.stderr
