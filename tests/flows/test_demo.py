"""`abstain demo` on a cut of the sample, and the commands after it; `make soak` runs it as it is shipped."""

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import yaml

from abstain.data.labels.training_table import read_training_table
from abstain.data.store.dataset import DataStore
from benchmarks import history
from tests.checkout import shipped_params
from tests.conftest import ROOT, Project, copy_of, new_project, read_json
from tests.llm.builders import save_speaking_model

pytestmark = pytest.mark.slow

STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


@pytest.fixture(scope="module")
def project(trained: tuple[Project, str]) -> Project:
    return trained[0]


def read_production(project: Project) -> dict:
    return json.loads(project.git("show", "origin/main:registry.json", cwd=project.workspace))["history"][-1]


def test_demo_prints_promoted_version_and_metrics(trained: tuple[Project, str]) -> None:
    printed = trained[1]
    assert "probe v1.0.0 (promoted)" in printed
    assert re.search(r"AUROC +│ 0\.\d{3}, 95 % interval 0\.\d{3} to 0\.\d{3}", printed)
    assert re.search(r"at threshold 0\.\d{3} +│ precision \d+\.\d%, shows \d+\.\d%", printed)
    assert "report.html" in printed and "http://127.0.0.1:4200" in printed
    assert re.search(r"\d+ read = \d+ accepted \+ [1-9]\d* duplicate \+ \d+ pending \+ [1-9]\d* quar", printed)


def test_demo_second_run_is_cached_leaves_project_unchanged(shipped: Project, project: Project) -> None:
    before = project.git("rev-parse", "origin/main", cwd=project.workspace)
    again = shipped.run("abstain", "demo")
    assert f"none: all {len(STAGES)} are cached, nothing changed" in again
    assert "probe v1.0.0 (unchanged)" in again
    assert project.git("rev-parse", "origin/main", cwd=project.workspace) == before
    for one in (shipped, project):
        assert one.git("status", "--porcelain") == ""
        assert not (one.root / "data").exists() and not (one.root / "artifacts").exists()
    assert shipped.git("tag") == "" and len(shipped.git("log", "--oneline").splitlines()) == 2
    assert {"origin.git", "workspace", "releases"} & {path.name for path in shipped.home.iterdir()} == set()


def test_released_bundle_has_metadata_and_requirements(project: Project) -> None:
    file = project.home / "releases" / "v1.0.0" / "probe.onnx"
    carried = {entry.key: entry.value for entry in onnx.load(file).metadata_props}
    assert carried["version"] == "v1.0.0" and carried["layer"] == "4" and carried["site"] == "residual"
    assert carried["layout"] == "rag-chatml-v1" and len(carried["model_revision"]) == 16
    assert 0 < float(carried["threshold"]) < 1
    assert carried["architecture"] == "linear" and json.loads(carried["calibration"])["method"] == "isotonic"
    assert json.loads(carried["guarantee"])["status"] == "active"
    assert hashlib.sha256(file.read_bytes()).hexdigest() == read_production(project)["sha256"]
    requirements = (ROOT / "requirements.lock").read_bytes()
    approval = read_json(project.workspace / "approvals" / "v1.0.0.json")
    assert approval["requirements_sha256"] == hashlib.sha256(requirements).hexdigest()
    assert file.with_name("requirements.lock").read_bytes() == requirements


def test_gto_and_dvc_read_version(project: Project, tmp_path: Path) -> None:
    shown = project.command(["gto", "show", "-r", str(project.workspace)])
    assert "v1.0.0" in shown.stdout, shown.stderr
    file = tmp_path / "p.onnx"
    options = ["probe", "--rev", "v1.0.0", "-o", str(file)]
    project.run("dvc", "artifacts", "get", str(project.workspace), *options)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == read_production(project)["sha256"]


def test_score_flags_equal_score_file(project: Project, tmp_path: Path) -> None:
    part = project.workspace / "data" / "interactions" / "000001.jsonl"
    rows = [json.loads(line) for line in part.open()][:30]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    decisions = [json.loads(line) for line in project.run("abstain", "score", str(file)).splitlines()]
    assert [v["interaction_id"] for v in decisions] == [row["interaction_id"] for row in rows]
    assert all((v["confidence"] >= v["threshold"]) == (v["decision"] == "show") for v in decisions)
    assert len({round(v["confidence"], 3) for v in decisions}) > 10
    contexts = [part for context in rows[0]["contexts"] for part in ("--context", context["text"])]
    guarantee = {"status": "active", "metric": "error_rate", "target": 0.25, "confidence": 0.9}
    assert all(v["guarantee"] == {**guarantee, "population": "all_answers"} for v in decisions)
    one = project.abstain("score", "--question", rows[0]["question"], "--answer", rows[0]["answer"], *contexts)
    # The same text is the same feature, so the same confidence to the last bit.
    assert json.loads(one.stdout)["confidence"] == decisions[0]["confidence"]


def test_plan_and_status_of_other_machine_after_demo(project: Project, tmp_path: Path) -> None:
    elsewhere = [f"ABSTAIN_HOME={tmp_path / 'serving'}", f"ABSTAIN_ORIGIN={project.home / 'origin.git'}"]
    status = project.command(["env", *elsewhere, "python", "-m", "abstain_cli.app", "status"])
    assert "in production: probe v1.0.0" in status.stdout and "AUROC" in status.stdout, status.stderr
    assert {stage: would for stage, (would, *_) in plan(project).items()} == dict.fromkeys(STAGES, "cached")


def test_latency_benchmark_lists_scorers(project: Project) -> None:
    printed = project.run("python", "-m", "benchmarks.latency", "--answers", "1")
    rows = dict(re.findall(r"│ (\S.*?) +│ +([\d,]+) │ +\2 │", printed))
    assert {"probe: layer 4, residual, all chunks", "probe: layer 2, mlp, all chunks"} <= set(rows)
    assert "longest" in printed and "0" not in rows.values()
    assert "skipped: entailment: A601: no model: set scorers.entailment_model in params.yaml" in printed


def test_promote_and_rollback_without_another_version(
    trained: tuple[Project, str], prefect_server: str, tmp_path: Path
) -> None:
    project = replace(copy_of(trained[0], tmp_path), server=prefect_server)
    assert "unchanged: " in project.run("abstain", "promote")
    back = project.abstain("rollback", "--reason", "complaints")
    assert back.returncode == 1 and "v1.0.0" in back.stderr and back.stderr.count("\n") == 1
    assert read_production(project)["version"] == "v1.0.0"


new_holdout = pytest.mark.soak(twin="test_promote_and_rollback_without_another_version")


@pytest.fixture(scope="module")
def rejected(trained: tuple, prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, str]:
    """A project after the retrain of another probe on another hold-out, and what that printed."""
    project = replace(copy_of(trained[0], tmp_path_factory.mktemp("rejected") / "project"), server=prefect_server)
    project.edit_params("  export: linear", "  export: attention")
    project.edit_params("on_infeasible: fail", "on_infeasible: heuristic")
    project.edit_params("  layers: [2] ", "  layers: [] ")
    project.edit_params("  sites: [residual, mlp]", "  sites: []")
    project.edit_params("architectures: [linear, attention]", "architectures: [attention]")
    project.edit_params('holdout_frozen_at: "2026-11-01', 'holdout_frozen_at: "2026-11-10')
    done = project.abstain("retrain")
    return project, done.stdout + done.stderr


@new_holdout
def test_retrain_on_a_new_holdout_is_rejected(rejected: tuple[Project, str]) -> None:
    project, printed = rejected
    assert "rejected: probe v1.0.0 stays in production" in printed, printed
    assert "--accept-new-holdout REASON" in printed
    assert "the check `same hold-out` failed: " in printed
    assert re.search(r"validate +cached", printed) and re.search(r"train_probe +ran", printed)
    assert read_production(project)["version"] == "v1.0.0"


@new_holdout
def test_promote_on_a_new_holdout_and_rollback(rejected: tuple[Project, str]) -> None:
    project, _ = rejected
    decided = project.abstain("promote", "--accept-new-holdout", "a fortnight [more] of questions")
    assert "promoted: probe v1.1.0 is in production" in decided.stdout, decided.stdout + decided.stderr
    approval = read_json(project.workspace / "approvals" / "v1.1.0.json")
    assert approval["new_holdout_reason"] == "a fortnight [more] of questions"
    checks = {check["name"]: check["passed"] for check in approval["checks"]}
    assert checks["same hold-out"] and checks["better than champion v1.0.0"] and "newest split" in checks

    assert "probe v1.0.0" in project.run("abstain", "rollback", "--reason", "complaints")
    assert read_production(project)["version"] == "v1.0.0"


def plan(project: Project) -> dict[str, list[str]]:
    """What the plan says of each stage: runs or cached, why, tokens."""
    lines = project.run("abstain", "plan").splitlines()
    return {line.split()[0]: re.split(r"\s{2,}", line)[1:] for line in lines}


def test_plan_other_model_reads_all_other_labels_nothing(trained: tuple[Project, str], tmp_path: Path) -> None:
    project = copy_of(trained[0], tmp_path / "changed")
    model = save_speaking_model(tmp_path / "model", max_position_embeddings=8192)
    project.edit_params("model: smollm2-135m-instruct ", f"model: {model} ")
    project.edit_params("  layer: 4 ", "  layer: auto ")
    stages = plan(project)
    assert stages["validate"][0] == stages["dataset"][0] == "cached"
    assert stages["features"][0] == "runs" and int(stages["features"][2].split()[0].replace(",", "")) > 1000

    project.git("revert", "--no-edit", "HEAD", "HEAD~1")
    project.edit_params("correct_if: [correct, truthful, complete]", "correct_if: [correct]")
    stages = plan(project)
    assert stages["validate"][0] == "cached"
    assert stages["dataset"][:2] == ["runs", "parameter labels changed"]
    assert stages["features"][0] == "runs" and stages["features"][2] == "0 tokens"
    params, store = shipped_params(), DataStore(project.workspace / "data")
    policies = [params.labels, params.labels.model_copy(update={"correct_if": ("correct",)})]
    before, after = (read_training_table(store, labels, params.split)[0] for labels in policies)
    assert before[["interaction_id", "split"]].equals(after[["interaction_id", "split"]])
    assert before["correct"].sum() < after["correct"].sum()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = new_project(tmp_path_factory.mktemp("shipped"))
    project.run("abstain", "demo")
    return project.demo


whole_sample = pytest.mark.soak(twin="test_demo_prints_promoted_version_and_metrics")


@whole_sample
def test_demo_as_shipped_beats_baselines(whole: Project) -> None:
    approval = read_json(whole.workspace / "approvals" / "v1.0.0.json")
    scorers = approval["metrics"]["holdout"]["scorers"]
    assert approval["approved"] and all(check["passed"] is not False for check in approval["checks"])
    assert scorers["probe"]["auroc"] > scorers["length_only"]["auroc"]
    assert scorers["probe"]["brier"] < scorers["base_rate"]["brier"]
    assert approval["metrics"]["holdout"]["rows"] >= 100
    log_probs = {"sequence_log_prob", "min_log_prob", "mean_log_prob"}
    probes = {"probe", "lstm", "attention"}  # the linear one, or the one that is served, is called probe
    assert {"gradient_boosting_label", "length_only", "base_rate", *log_probs} <= scorers.keys()
    assert {"fusion_one_pass", "fusion_two_passes"} == {name for name in scorers if name.startswith("fusion")}
    assert len(probes & scorers.keys()) >= 2


@whole_sample
def test_readme_has_metrics_of_demo(whole: Project) -> None:
    """The README's figures are those of a real run: another machine may differ in the last digits, not more."""
    metrics = read_json(whole.home / "releases" / "v1.0.0" / "metrics.json")["holdout"]
    row = r"\| `(\w+)`[^|]* \| \*{0,2}(0\.\d{3})\*{0,2} \| 0\.\d{3} to"
    written = dict(re.findall(row, (ROOT / "README.md").read_text()))
    scorers = metrics["scorers"]
    assert {"linear", metrics["served"]["name"]} <= written.keys()
    for name, auroc in written.items():
        assert abs(float(auroc) - scorers["probe" if name == "linear" else name]["auroc"]) < 0.03, name


NIGHTS = """
from datetime import UTC, datetime, timedelta
from benchmarks.simulated_history import simulate
from abstain_tasks.runs.workspace import open_workspace
with open_workspace() as workspace:
    simulate(workspace, nights=6, versions=3, rejected=2, until=datetime.now(UTC) - timedelta(days=200))
"""
OPEN = """
from abstain_tasks.release.version_source import OriginVersionSource
releases = OriginVersionSource()
print(releases.fetch_bundle(releases.get_production()).name)
"""


@pytest.fixture
def aged(trained: tuple[Project, str], prefect_server: str, tmp_path: Path) -> Project:
    """A copy of the demo's project with a DVC cache and remote of its own, after six nights and three versions."""
    copy = replace(copy_of(trained[0], tmp_path / "copy"), server=prefect_server)
    for name in ("dvc-cache", "dvc-remote"):
        (copy.home / name).unlink()
        shutil.copytree(trained[0].home / name, copy.home / name)
    (copy.home / "features").unlink()  # `abstain cache prune` has tests of its own; which are needed, torch has to say
    copy.run("python", "-c", NIGHTS)
    return copy


def list_objects(folder: Path) -> set[str]:
    files = (folder / "files" / "md5").glob("*/*")
    return {f"{file.parent.name}{file.name}" for file in files}


def hash_output(night: int) -> str:
    return hashlib.md5(json.dumps({"night": night}).encode()).hexdigest()


def test_retention_keeps_live_and_tagged_and_restores(aged: Project, tmp_path: Path) -> None:
    before = list_objects(aged.home / "dvc-remote")
    assert {hash_output(0), hash_output(5)} <= before
    output = aged.run("abstain", "retention", "--apply")
    after = list_objects(aged.home / "dvc-remote")
    assert "deleted" in output and hash_output(0) not in after, "only a commit of 205 days ago names it"
    assert hash_output(5) in after, "a tag names it"
    shutil.rmtree(aged.home / "dvc-cache")
    assert aged.run("python", "-c", OPEN).split() == ["v1.2.0"]
    assert "in production: probe v1.1.0" in aged.run("abstain", "rollback", "--reason", "a test")

    elsewhere = replace(aged, root=tmp_path / "new" / "checkout", home=tmp_path / "new" / "home")
    left_out = re.findall(r"--exclude=\./([\w-]+)", (ROOT / "docs" / "howto" / "backup.md").read_text())
    assert "workspace" in left_out
    shutil.copytree(aged.home, elsewhere.home, symlinks=True, ignore=shutil.ignore_patterns(*left_out))
    aged.git("clone", "-q", str(elsewhere.home / "origin.git"), str(elsewhere.root))
    assert elsewhere.run("abstain", "status") == aged.run("abstain", "status")
    assert "features          cached" in elsewhere.run("abstain", "plan")


@pytest.mark.soak(twin="test_retention_keeps_live_and_tagged_and_restores")
def test_commands_after_year_of_nights_are_fast(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    found = {name: (few, many) for name, few, many in history.compare(project.root, dict(history.COMMANDS), rounds=3)}
    assert [name for name, (few, many) in found.items() if many.median > 1.5 * few.median] == [], found
    assert found["retrain, nothing new"][1].median <= 20
    differs = {name for name, (few, many) in found.items() if few.calls != many.calls}
    assert differs <= {"erase-user"}, "which looks at every version"
