"""The review queue from end to end: drawn, reviewed in a real browser on the gate's page, and taken in."""

import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import select

from abstain.core.contracts import Review
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.schema import QUEUE
from abstain.data.store.dataset import DataStore
from abstain.review.candidates import read_candidates
from abstain.review.export import collect_sample, make_review_file
from abstain.review.sampling import draw_sample
from abstain.review.workbook import read_rows
from abstain.serving.service.keys import create_key
from abstain_tasks.data.review import add_sampling_priorities
from abstain_tasks.runs.workspace import Workspace
from tests.browser import headless
from tests.conftest import Project
from tests.ports import free_port
from tests.review.builders import SEAL_KEY

pytestmark = pytest.mark.slow

SECONDS = 1000


@contextmanager
def open_review_page(project: Project, key_line: str) -> Iterator[Page]:
    """The page of `abstain serve` in a browser without JavaScript."""
    keys, port = project.home / "keys", free_port()
    keys.write_text(f"{key_line}\n")
    command = [
        *("env", f"ABSTAIN_SERVE_KEYS_FILE={keys}", sys.executable),
        *("-m", "abstain_cli.app", "serve", "--port", str(port)),
    ]
    running = project.start(command, stderr=subprocess.STDOUT)
    try:
        assert running.stdout is not None
        address = next(found[0] for line in running.stdout if (found := re.search(r"http://[\d.:]+", line)))
        threading.Thread(target=running.stdout.read, daemon=True).start()
        with headless() as browser:
            page = browser.new_context(java_script_enabled=False, base_url=address).new_page()
            page.set_default_timeout(60 * SECONDS)
            yield page
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(timeout=60)


def abstain(project: Project, *arguments: str) -> str:
    done = project.abstain(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_review_queue_answers_are_ingested_with_weight(small_project: Project) -> None:
    small_project.edit_params("max_feedback_delay_days: 90", "max_feedback_delay_days: 36500")  # the sample has a date
    output = abstain(small_project, "review", "export", "-n", "8", "--queue")
    assert "8 answers wait in the review queue" in output
    url = f"sqlite:///{small_project.home}/decisions.sqlite"
    with closing(LogDatabase.open(url)) as log, log.read_transaction() as connection:
        drawn = {row.interaction_id: row.probability for row in connection.execute(select(QUEUE))}
    assert len(drawn) == 8 and 0 < min(drawn.values()) < 1
    key, line = create_key("ann", ["review"])
    with open_review_page(small_project, line) as page:
        page.goto("/")
        page.get_by_label("Key").fill(key)
        page.keyboard.press("Enter")
        page.get_by_role("link", name="Review the next answer").click()
        for number in range(3):
            for name in ("Complete", "Correct", "Truthful"):
                page.get_by_role("group", name=name).get_by_role("radio", name="yes").check()
            page.get_by_role("button", name="Save and show the next").click()
            expect(page.get_by_text(f"{number + 1} of the 8 answers of this sample are reviewed.")).to_be_visible()
    report = abstain(small_project, "ingest")
    assert "not checked" not in report, "no source's own weight"
    found = [row for row in DataStore(small_project.workspace / "data").iter_rows(Review) if row.reviewer == "ann"]
    assert len(found) == 3 and all(row.inclusion_probability == drawn[row.interaction_id] for row in found)
    before = small_project.git("rev-parse", "main", cwd=small_project.home / "origin.git")
    abstain(small_project, "ingest")
    assert small_project.git("rev-parse", "main", cwd=small_project.home / "origin.git") == before


def test_add_sampling_priorities_uses_promoted_probe(
    trained: tuple[Project, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `export` does between reading the window and drawing; without the clock, for the sample has a date."""
    for name, value in trained[0].environment.items():
        monkeypatch.setenv(name, value)
    workspace = Workspace(trained[0].workspace, lock=-1)
    window = read_candidates(DataStore(workspace.path / "data"))
    threshold, messages = add_sampling_priorities(
        workspace, window, seed=0, max_inference=0, progress=lambda done, total: None
    )
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
    doubt = (frame.loc[~frame["reviewed"], "confidence"] - threshold).abs()
    assert set(doubt.nsmallest(3).index) == set(design.rows.index[design.rows["reason"] == "uncertain"])
    rows = read_rows(make_review_file(collect_sample(design, window, DataStore(workspace.path / "data")), SEAL_KEY))
    assert Counter(row.cells["reason"] for row in rows) == {"random": 6, "uncertain": 3, "drift": 3}
