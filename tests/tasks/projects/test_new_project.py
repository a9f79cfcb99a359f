"""`abstain init` with real git: new projects, upgrades and merges of a release; the project of the demo."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from abstain.config.params import load_params
from abstain.config.settings import load_settings
from abstain.config.template import read_template
from abstain.core.errors import AbstainError
from abstain.release.registry import Registry, get_next_version
from abstain_tasks.projects.demo_project import OWN_PLACES, demo_project
from abstain_tasks.projects.new_project import STATE, Choices, start_project, upgrade_project
from abstain_tasks.runs.shell import git
from abstain_tasks.runs.workspace import open_workspace
from tests.checkout import ROOT, SHIPPED
from tests.llm.builders import save_tiny_model
from tests.release.builders import promotion

pytestmark = pytest.mark.heavy  # clones of a whole repository

PARAMS = Path("params.yaml")
OWN_ROWS = read_template("data.yaml").replace("md5: ", "md5: 00")
SAMPLE_ROWS = f"{SHIPPED['data.dvc']}# again\n"


@dataclass(frozen=True)
class Clone:
    """A clone of the project as it is shipped, without its code, and a home."""

    root: Path
    home: Path

    def git(self, *arguments: str) -> str:
        return git(self.root, *arguments)

    def write(self, message: str, **files: str) -> None:
        """Commit files; `data_dvc` is data.dvc."""
        for name, text in files.items():
            (self.root / name.replace("_", ".")).write_text(text)
        self.git("add", "--all")
        self.git("commit", "-qm", message)

    def state(self) -> tuple[str, str, dict[str, str]]:
        """The commit, changes that are not committed, and the state's files."""
        return self.git("rev-parse", "HEAD"), self.git("status", "--porcelain"), self.files()

    def leftovers(self) -> set[str]:
        return {path.name for path in self.home.iterdir() if path.name.startswith(".")}

    def files(self) -> dict[str, str]:
        return {str(name): (self.root / name).read_text() for name in STATE}


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    made = Clone(tmp_path / "clone", tmp_path / "clone" / ".abstain")
    (made.root / ".dvc").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ABSTAIN_HOME", str(made.home))
    monkeypatch.delenv("ABSTAIN_ORIGIN", raising=False)
    monkeypatch.chdir(made.root)
    for name in (".gitattributes", ".gitignore", "dvc.yaml"):
        (made.root / name).write_text((ROOT / name).read_text())
    for name, text in SHIPPED.items():
        (made.root / name).write_text(text)
    made.git("init", "-q", "--initial-branch=main")
    made.write("A release")
    return made


@pytest.fixture(scope="module")
def choices(tmp_path_factory: pytest.TempPathFactory) -> Choices:
    model = save_tiny_model(tmp_path_factory.mktemp("model") / "tiny-bank")
    return Choices(model=str(model), layout="rag-plain-v1", target=0.2, source="s3://b/in", remote="s3://b/dvc")


def write_promotion(clone: Clone, data: str) -> str:
    """Tag a version that was trained on the data of this pointer, and return a registry with it."""
    clone.write("Data", data_dvc=data)
    clone.git("tag", "probe@v1.0.0")
    return Registry(history=(promotion(),)).to_json()


def test_start_project_replaces_sample_once(clone: Clone, choices: Choices) -> None:
    before = clone.git("rev-parse", "HEAD")
    assert start_project(choices)
    started = clone.state()
    assert clone.git("rev-parse", "HEAD^") == before and started[1] == ""
    params = load_params(PARAMS)
    assert (params.llm.model, params.llm.layer, params.threshold.target) == (choices.model, "auto", 0.2)
    assert params.split.holdout_frozen_at is None and params.threshold.on_infeasible == "heuristic"
    files = clone.files()
    assert files["data.dvc"] == read_template("data.yaml") and json.loads(files["registry.json"])["history"] == []
    inbox, decisions = yaml.safe_load(files["sources.yaml"])["sources"]
    assert inbox == {"name": "inbox", "kind": "files", "url": "s3://b/in"} and decisions["kind"] == "decisions"
    assert "url = s3://b/dvc\n" in files[".dvc/config"] and "# maximum error rate" in files["params.yaml"]
    assert not start_project(Choices())
    with pytest.raises(AbstainError, match=r"params\.yaml"):
        start_project(choices)
    assert clone.state() == started
    assert clone.leftovers() == set()


def test_start_project_drops_sample_versions(clone: Clone, choices: Choices) -> None:
    clone.write("Promote", registry_json=write_promotion(clone, SAMPLE_ROWS), dvc_lock="stages: {}\n")
    git(clone.root, "clone", "-q", "--bare", str(clone.root), str(clone.home / "origin.git"))
    (clone.home / "releases" / "v1.0.0").mkdir(parents=True)
    assert start_project(choices)
    assert json.loads(clone.files()["registry.json"])["history"] == [] and clone.git("tag") == ""
    assert not (clone.root / "dvc.lock").exists()
    assert {"origin.git", "releases"}.isdisjoint(path.name for path in clone.home.iterdir())


OWN_CONTENT: dict[str, Callable[[Clone], object]] = {
    "data.dvc records other rows": lambda clone: clone.write("Rows", data_dvc=OWN_ROWS),
    "params.yaml was edited": lambda clone: clone.write(
        "Edit", params_yaml=SHIPPED["params.yaml"].replace("target: 0.1 ", "target: 0.3 ")
    ),
    "sources.yaml was edited": lambda clone: clone.write("Edit", sources_yaml="sources: []\n"),
    "params.yaml has changes that are not committed": lambda clone: PARAMS.write_text("llm: {}\n"),
    "registry.json records a promotion on other rows": lambda clone: clone.write(
        "Promote", registry_json=write_promotion(clone, OWN_ROWS), data_dvc=SHIPPED["data.dvc"]
    ),
    "origin.git/data.dvc": lambda clone: push_rows(clone, clone.home / "origin.git", data_dvc=OWN_ROWS),
}


@pytest.mark.parametrize("message", OWN_CONTENT)
def test_start_project_own_content_is_rejected(clone: Clone, message: str) -> None:
    OWN_CONTENT[message](clone)
    before = clone.state()
    with pytest.raises(AbstainError, match=message):
        start_project(Choices())
    assert clone.state() == before


def push_rows(clone: Clone, bare: Path, **files: str) -> None:
    """Push a commit to a new bare origin of the clone, which the clone lacks."""
    other = Clone(clone.root.parent / "other", clone.home)
    git(clone.root, "clone", "-q", "--bare", str(clone.root), str(bare))
    git(clone.root, "clone", "-q", str(bare), str(other.root))
    other.write("Theirs", **files)
    other.git("push", "-q", "origin", "main")


def test_start_project_failed_changes_nothing(clone: Clone, choices: Choices, monkeypatch: pytest.MonkeyPatch) -> None:
    (clone.home / "releases").mkdir(parents=True)
    before = clone.state()

    def require_failure(message: str, chosen: Choices) -> None:
        with pytest.raises(AbstainError, match=message):
            start_project(chosen)
        assert clone.state() == before and len(clone.git("worktree", "list").splitlines()) == 1
        assert clone.leftovers() == set() and (clone.home / "releases").is_dir()

    require_failure("no-such-model", Choices(model="./no-such-model"))
    require_failure("no prompt layout 'rag'", Choices(model=choices.model, layout="rag"))
    require_failure("threshold.target", Choices(target=0.0))
    hook = clone.root / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho error: not today\nexit 1\n")
    hook.chmod(0o755)
    require_failure("not today", choices)
    hook.unlink()
    monkeypatch.setenv("ABSTAIN_ORIGIN", str(clone.home / "nowhere.git"))
    require_failure(r"ABSTAIN_ORIGIN cannot be pushed to \(.*nowhere.git", choices)
    team = clone.home / "team.git"
    push_rows(clone, team, code_py="print()\n")
    monkeypatch.setenv("ABSTAIN_ORIGIN", str(team))
    require_failure(r"\(\[rejected\] .*\(fetch first\)\), .*`git pull` what this clone lacks$", choices)


@pytest.fixture
def server(clone: Clone) -> Path:
    bare = clone.root.parent / "server.git"
    clone.write("Promote", registry_json=write_promotion(clone, SAMPLE_ROWS))
    git(clone.root, "clone", "-q", "--bare", str(clone.root), str(bare))
    clone.git("remote", "add", "origin", str(bare))
    assert git(bare, "tag") == "probe@v1.0.0"
    return bare


def test_start_project_drop_tags(clone: Clone, choices: Choices, server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mate = Clone(clone.root.parent / "mate", clone.home)
    git(clone.root, "clone", "-q", str(server), str(mate.root))
    monkeypatch.setenv("ABSTAIN_ORIGIN", str(server))
    assert start_project(choices)
    assert git(server, "rev-parse", "main") == clone.git("rev-parse", "HEAD")
    clone.git("fetch", "-q", "--tags", "origin")
    assert clone.git("tag") == git(server, "tag") == ""
    assert json.loads(git(server, "show", "main:registry.json"))["history"] == []
    mate.git("pull", "-q", "--prune", "origin", "main")
    assert mate.git("tag") == "probe@v1.0.0"  # git keeps it; the page that says how to remove it:
    page = (ROOT / "docs" / "howto" / "bring-data.md").read_text()
    command = re.search(r"`git (fetch [^`]*--prune-tags[^`]*)`", page)
    assert command
    mate.git(*command[1].split())
    assert mate.git("tag") == ""


@pytest.mark.slow
def test_start_project_fetched_sample_tags_reach_no_run(clone: Clone, choices: Choices, server: Path) -> None:
    assert start_project(choices) and clone.git("tag") == ""
    clone.git("fetch", "-q", "origin")
    assert clone.git("tag") == "probe@v1.0.0"
    with open_workspace() as workspace:
        assert get_next_version([], workspace.git("tag").split()) == "v1.0.0"
        workspace.git("tag", "probe@v1.0.0")
        workspace.git("push", "-q", "origin", "probe@v1.0.0")
    with open_workspace() as workspace:
        assert workspace.git("rev-parse", "probe@v1.0.0") == clone.git("rev-parse", "HEAD")
    assert not start_project(Choices())


def test_upgrade_project_after_merge_adds_keys(clone: Clone, choices: Choices) -> None:
    start_project(choices)
    older = "".join(
        line
        for line in clone.files()["params.yaml"].splitlines(keepends=True)
        if "layout:" not in line and not line.startswith("audits") and "  enabled: []" not in line
    )
    clone.write("By an older release", params_yaml=older)
    clone.git("checkout", "-q", "-b", "release", "HEAD~2")
    clone.write(
        "A newer release",
        params_yaml=SHIPPED["params.yaml"]
        .replace("target: 0.1 ", "target: 0.3 ")
        .replace("max_epochs: 60", "max_epochs: 9"),
        sources_yaml=SHIPPED["sources.yaml"].replace("inbox", "outbox"),
        data_dvc=SHIPPED["data.dvc"].replace("md5: 1", "md5: 2"),
        code_py="print()\n",
    )
    clone.git("checkout", "-q", "main")
    before = clone.files()
    clone.git("merge", "-q", "-m", "Merge the release", "release")
    assert clone.files() == before and (clone.root / "code.py").is_file()
    with pytest.raises(AbstainError, match=r"lacks llm.layout, audits.enabled, .*`abstain init --upgrade`"):
        load_params(PARAMS)
    merged = clone.git("rev-parse", "HEAD")
    assert upgrade_project() == ["audits", "llm.layout"]
    assert clone.git("rev-parse", "HEAD^") == merged and clone.git("status", "--porcelain") == ""
    assert {"audits", "llm.layout"} <= set(clone.git("log", "-1", "--format=%B").split())
    params = load_params(PARAMS)
    assert (params.llm.model, params.threshold.target, params.probe.max_epochs) == (choices.model, 0.2, 60)
    assert set(older.splitlines()) < set(PARAMS.read_text().splitlines())
    assert upgrade_project() == []


def test_upgrade_project_invalid_params_change_nothing(clone: Clone, choices: Choices) -> None:
    start_project(choices)
    older = clone.files()["params.yaml"].replace("  folds: 5 ", "  # folds: 5 ", 1)
    unknown = older.replace("probe:\n", "probe:\n  warmups: 9\n")
    texts = {unknown: "'probe.warmups'", "": "params", "- llm\n": "params", "<<<<<<< HEAD\nllm: {}\n": "params"}
    for text, message in texts.items():
        clone.write("Edit", params_yaml=text)
        before = clone.state()
        with pytest.raises(AbstainError, match=rf"^[^\n]*{message}[^\n]*$"):
            upgrade_project()
        assert clone.state() == before


def test_merge_driver_of_all_state_merges_project_branches(clone: Clone, choices: Choices) -> None:
    start_project(choices)
    text = clone.files()["params.yaml"]
    clone.git("checkout", "-q", "-b", "team")
    clone.write("Theirs", params_yaml=text.replace("max_epochs: 60", "max_epochs: 9"))
    clone.git("checkout", "-q", "main")
    clone.write("Ours", params_yaml=text.replace("max_comparisons: 60", "max_comparisons: 50"))
    clone.git("merge", "-q", "-m", "Merge", "team")
    params = load_params(PARAMS)
    assert (params.probe.max_epochs, params.promotion.max_comparisons) == (9, 50)
    attributes = clone.git("check-attr", "merge", "--", *map(str, STATE)).splitlines()
    assert attributes == [f"{name}: merge: abstain" for name in STATE]


def test_upgrade_project_needs_commits_of_runs(clone: Clone, choices: Choices) -> None:
    start_project(choices)
    bare = clone.home / "origin.git"
    push_rows(clone, bare, data_dvc=OWN_ROWS)
    clone.write("Older", params_yaml=clone.files()["params.yaml"].replace("  folds: 5 ", "  # folds: 5 ", 1))
    head = clone.git("rev-parse", "HEAD")
    with pytest.raises(AbstainError, match=r"git pull .*origin.git main"):
        upgrade_project()
    assert clone.git("rev-parse", "HEAD") == head
    clone.git("pull", "-q", "--no-rebase", "--no-edit", str(bare), "main")
    assert upgrade_project() == ["probe.folds"] and clone.files()["data.dvc"] == OWN_ROWS


def test_demo_project_is_as_shipped_and_alone(clone: Clone, choices: Choices, monkeypatch: pytest.MonkeyPatch) -> None:
    start_project(choices)
    clone.write("Runs", dvc_lock="stages: {}\n", notes_md="ours\n")
    clone.git("tag", "probe@v1.0.0")
    for name in OWN_PLACES:
        monkeypatch.setenv(name, "prefect" if name.endswith("RUNNER") else str(clone.root.parent / "team.git"))
    before, tags, environment = clone.state(), clone.git("tag"), dict(os.environ)
    with demo_project() as project:
        assert Path.cwd() == project == clone.home / "demo"
        settings = load_settings()
        assert settings.home == project / ".abstain" and settings.origin is None and settings.runner == "local"
        assert {name: (project / name).read_text() for name in SHIPPED} == SHIPPED
        assert (project / "notes.md").is_file() and not (project / "dvc.lock").exists()
        assert git(project, "status", "--porcelain") == "" and git(project, "tag") == ""
    assert (clone.state(), clone.git("tag"), dict(os.environ), Path.cwd()) == (before, tags, environment, clone.root)


def test_demo_project_takes_changes_of_clone(clone: Clone) -> None:
    with demo_project() as project:
        first = git(project, "rev-parse", "HEAD")
    with demo_project():
        assert git(project, "rev-parse", "HEAD") == first
    clone.git("rm", "-q", "dvc.yaml")
    (clone.root / "dvc.yaml").write_text("stages: {}  # not committed\n")
    clone.git("add", "dvc.yaml")
    (clone.root / "untracked.jsonl").write_text("{}\n")
    with demo_project():
        assert git(project, "rev-parse", "HEAD^") == first
        assert git(project, "show", "--name-only", "--format=").split() == ["dvc.yaml"]
