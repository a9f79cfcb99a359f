"""`abstain demo` with the parameters and the sample that are shipped."""

import re

import pytest

from tests.conftest import ROOT, Project, new_project, read_json

pytestmark = [pytest.mark.slow, pytest.mark.soak(twin="test_demo_prints_promoted_version_and_metrics")]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = new_project(tmp_path_factory.mktemp("shipped"))
    done = project.abstain("demo")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return project.demo


def test_demo_as_shipped_beats_baselines(shipped: Project) -> None:
    approval = read_json(shipped.workspace / "approvals" / "v1.0.0.json")
    scorers = approval["metrics"]["holdout"]["scorers"]
    assert approval["approved"] and all(check["passed"] is not False for check in approval["checks"])
    assert scorers["probe"]["auroc"] > scorers["length_only"]["auroc"]
    assert scorers["probe"]["brier"] < scorers["base_rate"]["brier"]
    assert approval["metrics"]["holdout"]["rows"] >= 100
    log_probs = {"sequence_log_prob", "min_log_prob", "mean_log_prob"}
    probes = {"probe", "lstm", "attention"}  # the linear one, or the one that is served, is called probe
    assert {"fusion", "gradient_boosting_label", "length_only", "base_rate", *log_probs} <= scorers.keys()
    assert len(probes & scorers.keys()) >= 2


def test_readme_has_metrics_of_demo(shipped: Project) -> None:
    """The README's figures are those of a real run: another machine may differ in the last digits, not more."""
    metrics = read_json(shipped.home / "releases" / "v1.0.0" / "metrics.json")["holdout"]
    written = re.search(r"\| `probe`[^|]* \| \*?\*?(0\.\d{3})", (ROOT / "README.md").read_text())
    assert written is not None, "the README's leaderboard has no row for the probe"
    assert abs(float(written[1]) - metrics["scorers"]["probe"]["auroc"]) < 0.03
