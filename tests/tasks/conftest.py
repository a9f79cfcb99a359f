"""Promotion without DVC and without stages: candidates as the stages leave them, with real git."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from abstain.core import paths
from abstain.core.bundle_format import BUNDLE_FORMAT, FORMAT_KEY
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.store.splits import compute_holdout_digest
from abstain.data.store.state_table import write_table
from abstain.learning.thresholds.guarantee import GuaranteeEstimates
from abstain.release.evaluation_set import CANDIDATE
from abstain.release.registry import Registry, load_registry
from abstain_tasks.release import promotion, promotion_inputs
from abstain_tasks.release.promotion import PromotionResult, promote_candidate
from abstain_tasks.runs.git_commit import commit, push
from abstain_tasks.runs.shell import git
from abstain_tasks.runs.workspace import BRANCH, Workspace
from tests.checkout import SHIPPED
from tests.conftest import ROOT
from tests.factories import alone, row, thumb, verdict, write_lines
from tests.ingest.builders import take
from tests.learning.estimators.builders import D, ragged, write_mean_probe
from tests.learning.thresholds.builders import EVIDENCE, make_guarantee, make_missing_guarantee
from tests.release.builders import make_related_set, make_set
from tests.reports.builders import make_holdout_metrics

ESTIMATES = GuaranteeEstimates(coverage=0.5, precision=0.8, error_rate=0.1)
UNCHECKED = make_guarantee(metric="error_rate", target=0.1, status="unchecked", holdout=None, estimates=ESTIMATES)
MISSING = make_missing_guarantee(500, metric="error_rate", target=0.1, estimates=ESTIMATES)
AT_THRESHOLD = {"threshold": 0.5, "coverage": 0.5, "precision": 0.8, "shown": 200}
AT_THRESHOLD |= {"error_rate_low": 0.08, "error_rate_high": 0.12}

DAY = datetime(2026, 11, 20, tzinfo=UTC)


@dataclass(frozen=True)
class Plain(Workspace):
    """A workspace with a stub of DVC that keeps the files of each tag in a folder."""

    kept: Path = field(default_factory=Path)

    def dvc(self, *arguments: str) -> str:
        match arguments:
            case ("add", "--quiet", name):
                files = sorted(file for file in (self.path / name).rglob("*") if file.is_file())
                digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
                (self.path / f"{name}.dvc").write_text(digest)
            case ("push", "--quiet") | ("repro", "--quiet", "--single-item", _):
                pass
            case ("status", "--json"):
                return "{}"
            case ("get", ".", name, "--rev", revision, "-o", target, "--quiet"):
                found = self.kept / revision.replace("/", "-") / name
                if not found.exists():
                    raise AbstainError(Code.FAILED_STEP, f"{name} is nowhere")
                (shutil.copytree if found.is_dir() else shutil.copy)(found, target)
            case _:
                raise AssertionError(arguments)
        return ""

    def dvc_succeeds(self, *arguments: str) -> bool:
        assert arguments == ("fetch", "--all-tags", "--quiet", "data.dvc")
        return False

    def find_cached_files(self, revision: str, tables: Sequence[str]) -> list[tuple[str, Path]] | None:
        data = self.kept / revision.replace("/", "-") / paths.DATA
        found = [(table, file) for table in tables for file in sorted((data / table).glob("*"))]
        return found if {table for table, _ in found} == set(tables) else None

    def keep(self, version: str, *names: Path) -> None:
        """Let `dvc get --rev` of the version find these files."""
        for name in names:
            target = self.kept / f"refs-tags-probe@{version}" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (self.path / name).is_dir() else shutil.copy)(self.path / name, target)

    def on_origin(self) -> Registry:
        return Registry.model_validate_json(self.git("show", f"origin/{BRANCH}:registry.json"))

    def taint(self, *versions: str, at: datetime = DAY) -> None:
        registry = load_registry(self.path / paths.REGISTRY).mark_tainted(dict.fromkeys(versions, True), at)
        (self.path / paths.REGISTRY).write_text(registry.to_json())
        commit(self, "Erase a user", paths.REGISTRY)
        push(self)


def read_approval(workspace: Workspace, name: str) -> dict[str, Any]:
    return json.loads((workspace.path / paths.APPROVALS / f"{name}.json").read_text())


def read_checks(workspace: Workspace, version: str) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in read_approval(workspace, version)["checks"]}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plain:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path / "home"))
    git(tmp_path, "init", "-q", "--bare", f"--initial-branch={BRANCH}", "origin.git")
    git(tmp_path, "clone", "-q", "origin.git", "workspace")
    made = Plain(tmp_path / "workspace", -1, tmp_path / "kept")
    made.git("checkout", "-q", "-B", BRANCH)
    for name in ("params.yaml", "registry.json", ".gitignore"):
        (made.path / name).write_text(SHIPPED.get(name) or (ROOT / name).read_text())
    (made.path / "requirements.lock").write_text("abstain==0\n")
    commit(made, "A project", "params.yaml", "registry.json", ".gitignore", "requirements.lock")
    push(made)
    return made


@dataclass
class Candidates:
    """Writes what the stages leave of a candidate, and promotes it; the champion scores as the last promoted did."""

    workspace: Plain
    judged: list[str] = field(default_factory=list)
    champion: pd.Series | None = None
    latency: float = 1.0

    def write(
        self,
        probe: float = 1.2,
        *,
        drop: int = 0,
        flipped: int = 0,
        guaranteed: bool = True,
        n_self_selected: int | None = None,
    ) -> None:
        """Write a candidate of strength `probe`, without the first `drop` answers of the hold-out.

        `flipped`: the first so many answers have the other label. `guaranteed`: whether the validation split guarantees
        something. `n_self_selected`: the first so many reviews are self-selected and find all that is shown incorrect,
        the others are sampled; None if that is unknown. A third of all reviews are of the hold-out.
        """
        root = self.workspace.path
        shutil.rmtree(root / paths.ARTIFACTS, ignore_errors=True)
        (root / paths.REPORT).mkdir(parents=True)
        evidence = EVIDENCE.model_copy(update={"sampled": n_self_selected is not None})
        guarantee = UNCHECKED.model_copy(update={"evidence": evidence}) if guaranteed else MISSING
        scorer = {"name": "probe", "forward_tokens": 50.0, "sha256": {}, "models": {}}
        metadata = {
            FORMAT_KEY: BUNDLE_FORMAT,
            "model": "m",
            "model_revision": "1",
            "layout": "l",
            "layer": "1",
            "site": "mlp",
            "too_long": "refuse",
            "includes_eos": "true",
            "threshold": "0.5",
            "strength": repr(probe),
            "guarantee": guarantee.model_dump_json(),
            "scorer": json.dumps(scorer),
        }
        write_mean_probe(root / paths.ONNX, D, metadata)
        (root / paths.ONNX_PARTS).mkdir()
        (root / paths.SCORER_CHOICE).write_text(json.dumps({"name": "probe"}))
        found = make_related_set(400, probe, 1.2, seed=1, correlation=0.99)
        scores = pd.DataFrame(
            {
                "interaction_id": [f"i-{n}" for n in range(400)],
                "split": "holdout",
                "group": found.groups,
                "product": found.products,
                "correct": found.correct,
                "inclusion_probability": np.nan,
                "sampled": n_self_selected is not None,
                "probability": found.confidences[CANDIDATE],
                "confidence": found.confidences[CANDIDATE],
                "length_only": make_set().confidences["length_only"],
                "base_rate": 0.6,
            }
        ).iloc[drop:]
        if n_self_selected is not None:
            scores["sampled"] = np.arange(len(scores)) >= n_self_selected
            scores["inclusion_probability"] = np.where(scores["sampled"], 1.0, np.nan)
            wrong = ~scores["sampled"] & (scores["confidence"] >= 0.5)
            scores["correct"] = np.where(wrong, 0, scores["correct"])
        scores.loc[: flipped - 1, "correct"] ^= 1
        scores.to_parquet(root / paths.SCORES)
        digest = compute_holdout_digest(list(scores["interaction_id"]), scores["correct"].tolist())
        holdout = make_holdout_metrics(AT_THRESHOLD, digest=digest, strength=probe, rows=len(scores))
        metrics = {"holdout": holdout.to_dict(), "newest": {"rows": 0, "auroc": None}}
        (root / paths.METRICS).write_text(json.dumps(metrics))
        tuned = {"threshold": 0.5, "guarantee": guarantee.model_dump(mode="json")}
        (root / paths.THRESHOLD).write_text(json.dumps(tuned | {"heuristic": None, "self_selected": None}))
        sources = ["review"] * 3 * len(scores) + ["thumb"] * 1000
        pd.DataFrame({"source": sources}).to_parquet(root / paths.DATASET)
        (root / paths.PARITY).write_text(json.dumps({"max_abs_difference": 0.0}))
        (root / paths.EVALUATION).write_text("{}")
        (root / paths.REPORT / "report.md").write_text("# Report\n")
        states = ragged(3, 1, 4)
        write_table(root / paths.FEATURES, [len(one) for one in states], D, torch.float32, enumerate(states), "m@1")
        self.last = scores.set_index("interaction_id")["confidence"]

    def scores_of_champion(self, _workspace: Any, _event: Any, ids: pd.Series) -> promotion_inputs.ChampionScores:
        found = self.champion.loc[list(ids)].tolist()
        return promotion_inputs.ChampionScores(found, found, 0.5)

    def promote(self, **options: Any) -> PromotionResult:
        outcome = promote_candidate.fn(self.workspace, options.pop("new_holdout", None), **options)
        if outcome.status == "promoted":
            self.champion = self.last
            self.workspace.keep(outcome.version, paths.SCORES)
        return outcome


@pytest.fixture
def first_candidates(workspace: Plain, monkeypatch: pytest.MonkeyPatch) -> Candidates:
    """With nothing in production."""
    made = Candidates(workspace)
    monkeypatch.setattr(promotion_inputs, "run", lambda *_, **__: f'{{"p99_ms": {made.latency}, "decision_ms": 40.0}}')
    monkeypatch.setattr(promotion, "create_markdown_artifact", lambda text, **_: made.judged.append(text))
    monkeypatch.setattr(promotion_inputs, "score_champion", made.scores_of_champion)
    return made


@pytest.fixture
def candidates(first_candidates: Candidates) -> Candidates:
    """With v1.0.0 in production."""
    first_candidates.write()
    assert first_candidates.promote() == PromotionResult("promoted", "v1.0.0", [])
    first_candidates.judged.clear()
    return first_candidates


@pytest.fixture
def history(workspace: Plain, tmp_path: Path) -> Plain:
    """Tags v1.0.0 to v1.2.0: ann's thumb came with the second, and bob's only waits for its interaction."""
    data = workspace.path / paths.DATA
    batches = (
        [row("i-1", review=verdict()), row("i-2")],
        [alone(thumb(user="u-ann"), "i-1"), alone(thumb(user="u-bob"), "i-9")],
        [row("i-3", thumb=thumb(user="u-eve"))],
    )
    for minor, rows in enumerate(batches):
        file = write_lines(tmp_path / f"{minor}.jsonl", *rows)
        take(data, file)
        workspace.dvc("add", "--quiet", "data")
        commit(workspace, "Ingest", "data.dvc")
        workspace.git("tag", "--annotate", f"probe@v1.{minor}.0", "-m", "t")
        workspace.keep(f"v1.{minor}.0", paths.DATA)
    push(workspace)
    params = workspace.path / paths.PARAMS
    params.write_text(params.read_text().replace("pseudonymize: true", "pseudonymize: false"))
    return workspace
