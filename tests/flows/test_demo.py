"""`abstain demo` on a cut of the sample, and the commands after it."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import yaml

from tests.conftest import ROOT, Project, copy_of, read_json

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
    counts = re.search(r"(\d+) read = (\d+) accepted \+ (\d+) duplicate \+ (\d+) pending \+ (\d+) quar", printed)
    assert counts is not None
    read, accepted, duplicate, pending, quarantined = map(int, counts.groups())
    assert read == accepted + duplicate + pending + quarantined and quarantined > 0 and duplicate > 0


def test_demo_leaves_project_unchanged(shipped: Project, project: Project) -> None:
    for one in (shipped, project):
        assert one.git("status", "--porcelain") == ""
        assert not (one.root / "data").exists() and not (one.root / "artifacts").exists()
    assert shipped.git("tag") == "" and len(shipped.git("log", "--oneline").splitlines()) == 2
    assert {"origin.git", "workspace", "releases"} & {path.name for path in shipped.home.iterdir()} == set()


def test_demo_second_run_is_cached(shipped: Project, project: Project) -> None:
    before = project.git("rev-parse", "origin/main", cwd=project.workspace)
    again = shipped.abstain("demo")
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"none: all {len(STAGES)} are cached, nothing changed" in again.stdout
    assert "probe v1.0.0 (unchanged)" in again.stdout
    assert project.git("rev-parse", "origin/main", cwd=project.workspace) == before


def test_released_file_has_metadata(project: Project) -> None:
    file = project.home / "releases" / "v1.0.0" / "probe.onnx"
    carried = {entry.key: entry.value for entry in onnx.load(file).metadata_props}
    assert carried["version"] == "v1.0.0" and carried["layer"] == "4" and carried["site"] == "residual"
    assert carried["layout"] == "rag-chatml-v1" and len(carried["model_revision"]) == 16
    assert 0 < float(carried["threshold"]) < 1
    assert carried["architecture"] == "linear" and json.loads(carried["calibration"])["method"] == "isotonic"
    assert json.loads(carried["guarantee"])["status"] == "active"
    assert hashlib.sha256(file.read_bytes()).hexdigest() == read_production(project)["sha256"]


def test_bundle_has_requirements(project: Project) -> None:
    requirements = (ROOT / "requirements.lock").read_bytes()
    approval = read_json(project.workspace / "approvals" / "v1.0.0.json")
    assert approval["requirements_sha256"] == hashlib.sha256(requirements).hexdigest()
    assert (project.home / "releases" / "v1.0.0" / "requirements.lock").read_bytes() == requirements


def test_gto_and_dvc_read_version(project: Project, tmp_path: Path) -> None:
    shown = project.command(["gto", "show", "-r", str(project.workspace)])
    assert "v1.0.0" in shown.stdout, shown.stderr
    file = tmp_path / "p.onnx"
    options = ["probe", "--rev", "v1.0.0", "-o", str(file)]
    got = project.command(["dvc", "artifacts", "get", str(project.workspace), *options])
    assert got.returncode == 0, got.stderr
    assert hashlib.sha256(file.read_bytes()).hexdigest() == read_production(project)["sha256"]


def test_dvc_plots_have_curve_per_scorer(project: Project) -> None:
    shown = project.command(["dvc", "plots", "show", "--json"], cwd=project.workspace)
    assert shown.returncode == 0, shown.stderr
    ((roc,), *_) = (of for name, of in json.loads(shown.stdout)["data"].items() if name == "roc")
    points = roc["content"]["data"]["values"]
    assert {point["scorer"] for point in points} == {"probe", "fusion", "length_only"}
    assert roc["content"]["encoding"]["color"]["field"] == "series"


def test_score_flags_equal_score_file(project: Project, tmp_path: Path) -> None:
    part = project.workspace / "data" / "interactions" / "000001.jsonl"
    rows = [json.loads(line) for line in part.open()][:30]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scored = project.abstain("score", str(file))
    assert scored.returncode == 0, scored.stderr
    decisions = [json.loads(line) for line in scored.stdout.splitlines()]
    assert [v["interaction_id"] for v in decisions] == [row["interaction_id"] for row in rows]
    assert all((v["confidence"] >= v["threshold"]) == (v["decision"] == "show") for v in decisions)
    assert len({round(v["confidence"], 3) for v in decisions}) > 10
    contexts = [part for context in rows[0]["contexts"] for part in ("--context", context["text"])]
    guarantee = {"status": "active", "metric": "error_rate", "target": 0.25, "confidence": 0.9}
    assert all(v["guarantee"] == {**guarantee, "population": "all_answers"} for v in decisions)
    by_confidence = sorted(decisions, key=lambda v: v["confidence"])
    probabilities = [v["probability"] for v in by_confidence]
    assert probabilities == sorted(probabilities) and 0 <= probabilities[0] < probabilities[-1] <= 1
    one = project.abstain("score", "--question", rows[0]["question"], "--answer", rows[0]["answer"], *contexts)
    # The same text is the same feature, so the same confidence to the last bit.
    assert json.loads(one.stdout)["confidence"] == decisions[0]["confidence"]


def test_status_and_plan_after_demo(project: Project) -> None:
    status = project.abstain("status").stdout
    assert "in production: probe v1.0.0" in status and "AUROC" in status
    plan = project.abstain("plan")
    assert plan.returncode == 0, plan.stderr
    lines = [line.split() for line in plan.stdout.splitlines()]
    assert {stage: would for stage, would, *_ in lines} == dict.fromkeys(STAGES, "cached")


def test_latency_benchmark_lists_scorers(project: Project) -> None:
    done = project.command(["python", "-m", "benchmarks.latency", "--answers", "1"])
    assert done.returncode == 0, done.stderr
    rows = dict(re.findall(r"│ (\S.*?) +│ +([\d,]+) │ +\2 │", done.stdout))
    places = {"probe: layer 4, residual, all chunks", "probe: layer 2, mlp, all chunks"}
    assert {*places, "fusion"} <= set(rows)
    assert "longest" in done.stdout and "0" not in rows.values()
    assert "skipped: entailment: A601: no model: set scorers.entailment_model in params.yaml" in done.stdout


def test_status_on_other_machine_reads_origin(project: Project, tmp_path: Path) -> None:
    elsewhere = [f"ABSTAIN_HOME={tmp_path / 'serving'}", f"ABSTAIN_ORIGIN={project.home / 'origin.git'}"]
    status = project.command(["env", *elsewhere, "python", "-m", "abstain_cli.app", "status"])
    assert status.returncode == 0 and "in production: probe v1.0.0" in status.stdout, status.stderr


@pytest.fixture(scope="module")
def rejected(
    trained: tuple[Project, str], prefect_server: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Project, str]:
    """A copy of the project in which another probe was rejected on another hold-out, and what was printed."""
    project = replace(copy_of(trained[0], tmp_path_factory.mktemp("rejected")), server=prefect_server)
    project.edit_params("  export: linear", "  export: attention")
    project.edit_params("on_infeasible: fail", "on_infeasible: heuristic")
    project.edit_params("  layers: [2] ", "  layers: [] ")
    project.edit_params('holdout_frozen_at: "2026-11-01', 'holdout_frozen_at: "2026-11-10')
    done = project.abstain("retrain")
    assert done.returncode == 0, done.stdout + done.stderr
    return project, done.stdout


def test_promote_new_holdout_and_rollback(rejected: tuple[Project, str]) -> None:
    project, printed = rejected
    assert "rejected: probe v1.0.0 stays in production" in printed and "--accept-new-holdout REASON" in printed
    assert "the check `same hold-out` failed: " in printed
    assert re.search(r"validate +cached", printed) and re.search(r"train_probe +ran", printed)
    assert read_production(project)["version"] == "v1.0.0"

    decided = project.abstain("promote", "--accept-new-holdout", "a fortnight [more] of questions")
    assert "promoted: probe v1.1.0 is in production" in decided.stdout, decided.stdout + decided.stderr
    approval = read_json(project.workspace / "approvals" / "v1.1.0.json")
    assert approval["new_holdout_reason"] == "a fortnight [more] of questions"
    checks = {check["name"]: check["passed"] for check in approval["checks"]}
    assert checks["same hold-out"] and checks["better than champion v1.0.0"] and "newest split" in checks

    back = project.abstain("rollback", "--reason", "complaints")
    assert back.returncode == 0 and "probe v1.0.0" in back.stdout, back.stderr
    assert read_production(project)["version"] == "v1.0.0"
    assert "blocked: v1.1.0 (complaints)" in project.abstain("status").stdout
    again = project.abstain("promote")
    assert again.returncode == 0 and "v1.1.0 again, which was blocked: complaints" in again.stdout, again.stderr
