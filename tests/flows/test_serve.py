"""The loop over the gate: decisions, feedback and reviews in a real browser, ingest and erasure."""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect
from sqlalchemy import select

from abstain.core import paths
from abstain.core.contracts import Interaction, Review, Thumb
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.schema import QUEUE
from abstain.data.store.dataset import DataStore
from abstain.review.candidates import read_candidates
from abstain.review.sampling import draw_sample
from abstain.serving.service.keys import create_key
from abstain_tasks.data.review import add_sampling_priorities
from abstain_tasks.runs.workspace import Workspace
from tests.browser import headless
from tests.conftest import Project, copy_of

pytestmark = pytest.mark.slow

SECONDS = 1000


@contextmanager
def serve(project: Project, *options: str, is_live: bool = True, **variables: str) -> Iterator[httpx.Client]:
    """Yield a client of `abstain serve`, once a version is live if there is one."""
    settings = [f"{name}={value}" for name, value in variables.items()]
    command = ["env", *settings, "python", "-m", "abstain_cli.app", "serve", "--port", "0", *options]
    process = project.start(command, stderr=subprocess.STDOUT)
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
    return b"".join(file.read_bytes() for file in sorted(project.home.glob("decisions.sqlite*")))


def read_rows(project: Project) -> tuple[dict[str, Interaction], dict[str, Thumb]]:
    store = DataStore(project.workspace / paths.DATA)
    return (
        {row.interaction_id: row for row in store.iter_rows(Interaction) if row.interaction_id.startswith("chat-")},
        {row.interaction_id: row for row in store.iter_rows(Thumb) if row.interaction_id.startswith("chat-")},
    )


def test_serve_feedback_is_ingested_and_erased(trained: tuple, prefect_server: str, tmp_path: Path) -> None:
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
        retrieved = {**asked, "contexts": None, "entitlements": [], "interaction_id": "chat-2"}
        assert client.post("/v1/gate", json=retrieved).json()["confidence"] is not None
        plain = {**asked, "contexts": ["The fee is 45 euros."], "interaction_id": "chat-3"}
        assert client.post("/v1/gate", json=plain).status_code == 200
        for number in (1, 3):
            thumb = {"feedback_id": f"f-{number}", "interaction_id": f"chat-{number}", "thumb": "down", "user": "ann"}
            assert client.post("/v1/feedback", json=thumb).json()["outcome"] == "recorded"
    assert b"ann@example.org" not in read_log(project) and b"chat-2" in read_log(project)

    project.run("abstain", "ingest")
    interactions, thumbs = read_rows(project)
    assert {"chat-1", "chat-3"} <= interactions.keys() and thumbs.keys() == {"chat-1", "chat-3"}
    row = interactions["chat-1"]
    assert row.display == ("shown" if decision["show"] else "withheld") and "<EMAIL_ADDRESS>" in row.answer
    assert (thumbs["chat-1"].user or "").startswith("u-")
    project.run("abstain", "ingest")
    assert read_rows(project) == (interactions, thumbs)

    project.run("abstain", "erase-user", "ann", "--with-interactions")
    assert read_rows(project)[1] == {} and "chat-1" not in read_rows(project)[0]
    assert known.question.encode() not in read_log(project)


def test_review_queue_answers_are_ingested_with_weight(small_project: Project) -> None:
    small_project.edit_params("max_feedback_delay_days: 90", "max_feedback_delay_days: 36500")  # the sample has a date
    output = small_project.run("abstain", "review", "export", "-n", "8", "--queue")
    assert "8 answers wait in the review queue" in output
    url = f"sqlite:///{small_project.home}/decisions.sqlite"
    with closing(LogDatabase.open(url)) as log, log.read_transaction() as connection:
        drawn = {row.interaction_id: row.probability for row in connection.execute(select(QUEUE))}
    assert len(drawn) == 8 and 0 < min(drawn.values()) < 1
    key, line = create_key("ann", ["review"])
    (small_project.home / "keys").write_text(f"{line}\n")
    keys = {"ABSTAIN_SERVE_KEYS_FILE": str(small_project.home / "keys")}
    done = small_project.abstain("serve", "--host", "0.0.0.0")
    assert done.returncode == 1 and "abstain key" in done.stdout + done.stderr
    with serve(small_project, is_live=False, **keys) as client, headless() as browser:
        assert [client.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 503]
        page = browser.new_context(java_script_enabled=False, base_url=str(client.base_url)).new_page()
        page.set_default_timeout(60 * SECONDS)
        page.goto("/")
        page.get_by_label("Key").fill(key)
        page.keyboard.press("Enter")
        page.get_by_role("link", name="Review the next answer").click()
        for number in range(3):
            for name in ("Complete", "Correct", "Truthful"):
                page.get_by_role("group", name=name).get_by_role("radio", name="yes").check()
            page.get_by_role("button", name="Save and show the next").click()
            expect(page.get_by_text(f"{number + 1} of the 8 answers of this sample are reviewed.")).to_be_visible()
    report = small_project.run("abstain", "ingest")
    assert "not checked" not in report, "no source's own weight"
    found = [row for row in DataStore(small_project.workspace / "data").iter_rows(Review) if row.reviewer == "ann"]
    assert len(found) == 3 and all(row.inclusion_probability == drawn[row.interaction_id] for row in found)
    before = small_project.git("rev-parse", "main", cwd=small_project.home / "origin.git")
    small_project.run("abstain", "ingest")
    assert small_project.git("rev-parse", "main", cwd=small_project.home / "origin.git") == before


def test_add_sampling_priorities_uses_promoted_probe(trained: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `export` does between reading the window and drawing; without the clock, for the sample has a date."""
    trained[0].enter(monkeypatch)
    workspace = Workspace(trained[0].workspace, lock=-1)
    window = read_candidates(DataStore(workspace.path / "data"))
    options = {"seed": 0, "max_inference": 0, "progress": lambda done, total: None}
    threshold, messages = add_sampling_priorities(workspace, window, **options)
    frame = window.frame
    assert threshold is not None and 0 < threshold < 1
    scored = r"probe v1\.0\.0: \d+ answers scored from the cache, 0 read by the base model, [1-9]\d* not scored .*"
    assert re.fullmatch(scored, messages[0])
    known = frame["confidence"].notna()
    assert known.sum() > 40 and not known.all() and frame["confidence"][known].between(0, 1).all()
    assert frame["drift"].between(-1e-6, 2).sum() == frame["drift"].notna().sum() > 40
    frame["reviewed"] = False  # of the sample nearly all are
    design = draw_sample(frame, 12, 0.5, 0, threshold)
    assert design.rows["reason"].value_counts().to_dict() == {"random": 6, "uncertain": 3, "drift": 3}
