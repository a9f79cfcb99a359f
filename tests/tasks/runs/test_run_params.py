import difflib
from pathlib import Path

import pytest
import yaml

from abstain.config.params import load_params
from abstain.core import paths
from abstain.core.errors import AbstainError
from abstain_tasks.runs.git_commit import commit
from abstain_tasks.runs.run_params import commit_params, write_params
from abstain_tasks.runs.workspace import BRANCH, Workspace
from tests.checkout import SHIPPED
from tests.tasks.conftest import Candidates, Plain

FULL = """
scorers:
  enabled: [entropy, min_log_prob]   # the list is replaced, not appended to
privacy: {phone_regions: ["NO"]}
promotion: {max_ece: 0.2}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "more.yaml").write_text(FULL)
    return tmp_path / "more.yaml"


@pytest.fixture
def plain(tmp_path: Path) -> Workspace:
    (tmp_path / "params.yaml").write_text(SHIPPED["params.yaml"])
    return Workspace(tmp_path, -1)


def test_write_params_replaces_keys_and_keeps_comments(plain: Workspace, file: Path) -> None:
    before, lines = load_params(plain.path / "params.yaml"), (plain.path / "params.yaml").read_text().splitlines()
    write_params(plain, file)
    after = load_params(plain.path / "params.yaml")
    diff = difflib.ndiff(lines, (plain.path / "params.yaml").read_text().splitlines())
    changed = [line[2:].split()[0] for line in diff if line.startswith("+ ")]
    assert changed == ["phone_regions:", "enabled:", "max_ece:"]
    assert after.scorers.enabled == ("entropy", "min_log_prob") and after.privacy.phone_regions == ("NO",)
    assert after.promotion.max_ece == pytest.approx(0.2)
    same = {"scorers", "privacy", "promotion"}
    assert after.model_dump(exclude=same) == before.model_dump(exclude=same)
    assert after.scorers.entailment_model == before.scorers.entailment_model


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("probe: {hiden: 3}", "more.yaml: unknown key 'probe.hiden'"),
        ("probe: {hidden: 0}", "more.yaml: probe.hidden"),
        ("probe: [", "more.yaml is not valid YAML"),
    ],
)
def test_write_params_invalid_file_names_file_and_key(plain: Workspace, file: Path, content: str, message: str) -> None:
    file.write_text(content)
    with pytest.raises(AbstainError, match=message):
        write_params(plain, file)
    file.unlink()
    with pytest.raises(AbstainError, match="more.yaml is missing"):
        write_params(plain, file)
    assert (plain.path / "params.yaml").read_text() == SHIPPED["params.yaml"]


def retrain_with(workspace: Plain, file: Path) -> str:
    """Commit what a retrain with `file` does before the promotion checks, and return the commit before."""
    before = commit_params(workspace, file)
    lock = yaml.safe_dump({"max_ece": load_params(workspace.path / "params.yaml").promotion.max_ece})
    (workspace.path / "dvc.lock").write_text(lock)
    commit(workspace, "Retrain", "dvc.lock")
    return before


@pytest.mark.heavy
def test_promote_own_params_stay_with_version(workspace: Plain, candidates: Candidates, file: Path) -> None:
    own = (workspace.path / "params.yaml").read_text()
    before = retrain_with(workspace, file)
    candidates.write(2.0)
    assert candidates.promote(base_commit=before).version == "v1.1.0"
    assert workspace.git("show", f"origin/{BRANCH}:params.yaml") == own.rstrip("\n")
    assert yaml.safe_load(workspace.git("show", "probe@v1.1.0:dvc.lock")) == {"max_ece": 0.2}
    kept = load_params(workspace.path / paths.RELEASE / "params.yaml")
    assert kept.promotion.max_ece == pytest.approx(0.2) and kept.scorers.enabled == ("entropy", "min_log_prob")
    assert workspace.git("status", "--porcelain") == ""


@pytest.mark.heavy
def test_promote_own_params_rejected_leaves_only_record(workspace: Plain, candidates: Candidates, file: Path) -> None:
    own = (workspace.path / "params.yaml").read_text()
    before = retrain_with(workspace, file)
    candidates.write(0.9)
    assert candidates.promote(base_commit=before).status == "rejected"
    changed = workspace.git("diff", "--name-only", before, f"origin/{BRANCH}").split()
    assert [name.partition("-")[0] for name in changed] == ["approvals/rejected"]
    assert (workspace.path / "params.yaml").read_text() == own
    again = retrain_with(workspace, file)
    assert candidates.promote(base_commit=again).status == "rejected"  # as recorded: it is not judged twice
    assert workspace.git("rev-parse", "HEAD") == workspace.git("rev-parse", f"origin/{BRANCH}")
