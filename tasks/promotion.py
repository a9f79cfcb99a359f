"""Promotion and roll-back: the gate's evidence gathered, its decision carried out and put on record.

What is promoted is the bundle `release/`: the ONNX file stamped with its version, the report, the metrics, the
approval record, requirements.lock and a smoke test. It is one DVC-tracked folder, immutable under its tag. torch and
ONNX Runtime are imported by what scores answers: most runs judge nothing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from abstain.config.params import load_params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.data.store.dataset import Store
from abstain.data.store.splits import holdout_digest
from abstain.ingest.erasure import erased_answers
from abstain.learning.metrics.weighted_metrics import row_weights
from abstain.release.gate import Decision, Measured, Rule, Window, decide
from abstain.release.registry import Event, Registry, load_registry, next_version, parse_registry, tag_of
from abstain.reports.evaluation import Strong, markdown_table, warning_line
from tasks.plan import REQUIREMENTS
from tasks.progress import observe
from tasks.record import commit, push
from tasks.shell import git, run
from tasks.workspace import Workspace, origin_snapshot

POINTER = ("release.dvc", paths.REGISTRY)
SMOKE_ROWS = 8
SMOKE_STATES, SMOKE_CONFIDENCES = "smoke.safetensors", "smoke.json"
SMOKE_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Outcome:
    """How a promotion ended. `version` is what is in production now, None where nothing is."""

    status: Literal["promoted", "rejected", "unchanged"]
    version: str | None
    reasons: list[str]


@task(cache_policy=NO_CACHE)
def promote_candidate(
    workspace: Workspace, new_holdout: str | None, again: bool = False, accept_erasure: str | None = None
) -> Outcome:
    """Judge the candidate in `artifacts/` and promote it when the gate approves; push the record either way.

    Where production was trained on rows that were erased since, the candidate is new whatever its bytes are, and has
    only to be not worse than the champion. `new_holdout`: the reason why the hold-out was changed on purpose, which the
    record then carries. `again`: judge a candidate that was rejected before even where nothing has changed since.
    `accept_erasure`: the reason why the candidate may be worse than the tainted champion.

    Raises `AbstainError` where a tainted version stays in production and nobody has decided that it should.
    """
    registry = load_registry(workspace.path / paths.REGISTRY)
    candidate = _sha256(workspace.path / paths.ONNX)
    taint = registry.taint
    if accept_erasure is not None:
        registry.require_taint()
    if registry.prod and registry.prod.candidate == candidate and taint is None:
        push(workspace)
        observe("promote", "cached")
        return Outcome("unchanged", registry.prod.version, ["this candidate is what is in production"])
    for event in registry.history:
        if event.candidate == candidate and event.version in registry.blocked:
            push(workspace)
            why = f"it is {event.version} again, which was blocked: {registry.blocked[event.version]}"
            return _rejected(registry, [why])
    metrics = json.loads((workspace.path / paths.METRICS).read_text())
    rejection = workspace.path / paths.APPROVALS / f"rejected-{candidate[:12]}.json"
    params = load_params(workspace.path / paths.PARAMS)
    limits = {**params.gate.model_dump(mode="json"), "threshold": params.threshold.model_dump(mode="json")}
    erasure = {"since": taint.since.isoformat(), "accepted": accept_erasure} if taint else None
    now = {"champion": registry.version, "metrics": metrics, "gate": limits, "erasure": erasure}
    if not again and new_holdout is None and (reasons := _rejected_before(rejection, now)):
        push(workspace)
        observe("promote", "cached")
        return _rejected(registry, reasons)
    rule: Rule = "better" if taint is None else "accepted" if accept_erasure else "not_worse"
    decision = _gate(workspace, registry, metrics, new_holdout, rule)
    table = _decision_table(decision, registry)
    create_markdown_artifact(table, key="gate", description="may it be promoted?")
    version = next_version(workspace.git("tag", "--list").split())
    record = {
        **decision.to_dict(),
        "version": version if decision.approved else None,
        **now,
        "candidate_sha256": candidate,
        "decided_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": workspace.git("rev-parse", "HEAD").strip(),
        "requirements_sha256": _sha256(workspace.path / REQUIREMENTS),
        "new_holdout": new_holdout,
    }
    if decision.approved:
        _release(workspace, registry, record, candidate, metrics["holdout"]["digest"])
        observe("promote", "ran")
        return Outcome("promoted", version, [])
    _write_json(rejection, record)
    message = "Record why a candidate was not promoted\n\n" + "\n".join(decision.reasons)
    commit(workspace, message, paths.APPROVALS)
    push(workspace)
    observe("promote", "ran")
    return _rejected(registry, decision.reasons)


def keep_tainted(workspace: Workspace, reason: str) -> Registry:
    """Put on record why a version that was trained on erased rows stays in production; `AbstainError` where none is."""
    registry = load_registry(workspace.path / paths.REGISTRY).kept(reason)
    write_atomically(workspace.path / paths.REGISTRY, registry.to_json().encode())
    commit(workspace, f"Keep probe {registry.version}, {registry.taint}", paths.REGISTRY)
    push(workspace)
    return registry


def roll_back(workspace: Workspace, version: str | None, reason: str) -> Registry:
    """Move production to an earlier version, fetched, checksummed and smoke-tested first; block the one left.

    Returns the registry after that.
    """
    registry = load_registry(workspace.path / paths.REGISTRY)
    target = registry.rollback_target(version)
    smoke_test(fetch_release(workspace.path, target), target)
    now = target.model_copy(update={"action": "rollback", "at": datetime.now(UTC), "reason": reason})
    moved = registry.rolled_back(now)
    workspace.git("checkout", "-q", f"refs/tags/{tag_of(target.version)}", "--", "release.dvc")
    write_atomically(workspace.path / paths.REGISTRY, moved.to_json().encode())
    assert registry.prod is not None
    message = f"Roll back from {registry.prod.version} to {target.version}\n\n{reason}"
    commit(workspace, message, *POINTER)
    push(workspace)
    return moved


def production() -> tuple[Path, Event]:
    """The promoted bundle, as the origin says it now, fetched and checksummed, and the event that promoted it."""
    repository, revision = origin_snapshot()
    registry = parse_registry(git(repository, "show", f"{revision}:{paths.REGISTRY}"))
    if registry.prod is None:
        raise AbstainError("nothing is in production yet: run `abstain retrain` first")
    return fetch_release(repository, registry.prod), registry.prod


def fetch_release(repository: Path, event: Event) -> Path:
    """The bundle of one version, in the local store of releases; fetched with DVC where it is not there yet.

    Raises `AbstainError` when what came is not what was promoted.
    """
    target = load_settings().home.resolve() / "releases" / event.version
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=".fetching-"))
        bundle = scratch / "release"
        command = ["dvc", "get", str(repository), str(paths.RELEASE), "--rev", tag_of(event.version), "-o", str(bundle)]
        try:
            run(command, repository)
            bundle.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process fetched the same version first
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    if _sha256(target / paths.RELEASED_ONNX.name) != event.sha256:
        raise AbstainError(f"{target} is not what was promoted as {event.version}: delete that folder and try again")
    return target


def smoke_test(bundle: Path, event: Event) -> None:
    """Score the answers that the bundle brings along; raises `AbstainError` unless they score as when promoted."""
    from abstain.data.store.state_table import StateTable
    from abstain.learning.estimators.onnx_probe import OnnxProbe

    probe = OnnxProbe(bundle / paths.RELEASED_ONNX.name)
    expected = np.array(json.loads((bundle / SMOKE_CONFIDENCES).read_text()))
    difference = float(np.abs(probe.confidence(StateTable(bundle / SMOKE_STATES)) - expected).max())
    if probe.metadata.get("version") != event.version or not difference <= SMOKE_TOLERANCE:
        raise AbstainError(f"{event.version} fails its smoke test (largest difference {difference:.2g}): not used")


def _rejected(registry: Registry, reasons: list[str]) -> Outcome:
    """The outcome of a candidate that is not promoted; an `AbstainError` where somebody has to decide."""
    if registry.taint is None or registry.taint.kept:
        return Outcome("rejected", registry.version, reasons)
    raise AbstainError(
        f"probe {registry.version} stays in production, {registry.taint}, because the candidate without them is "
        f"rejected ({'; '.join(reasons)}): bring more reviews and retrain, take it although it is worse (`abstain "
        "promote --accept-erasure REASON`), keep what is there (`abstain promote --keep-tainted REASON`), or "
        "`abstain rollback` to a version without that mark"
    )


def _gate(
    workspace: Workspace, registry: Registry, metrics: dict[str, Any], new_holdout: str | None, rule: Rule
) -> Decision:
    from abstain.learning.estimators.onnx_probe import OnnxProbe

    params = load_params(workspace.path / paths.PARAMS)
    scores = pd.read_parquet(workspace.path / paths.SCORES)
    names = ["probe", "length_only", "base_rate"]
    champion, champion_threshold = registry.version, None
    if registry.prod and champion:
        try:
            scores[champion], champion_threshold = _champion_scores(workspace, registry.prod, scores["interaction_id"])
            names.append(champion)
        except AbstainError as error:
            if new_holdout is None:
                raise AbstainError(
                    f"{champion} cannot be compared with: {error}; where that cannot be helped, put on record why the "
                    "candidate is to be judged as a first version: abstain promote --accept-new-holdout REASON"
                ) from None
            champion = None
    candidate = OnnxProbe(workspace.path / paths.ONNX)
    tuned = json.loads((workspace.path / paths.THRESHOLD).read_text())
    of_errors = params.threshold.metric == "error_rate"
    measured = Measured(
        threshold=float(candidate.metadata["threshold"]),
        target_precision=tuned["precision"] if of_errors else params.threshold.target,
        target_error_rate=params.threshold.target if of_errors else None,
        parity=json.loads((workspace.path / paths.PARITY).read_text())["max_abs_difference"],
        latency_p99_ms=float(run(["python", "-m", "abstain.serving.probe_latency", str(paths.ONNX)], workspace.path)),
        champion_threshold=champion_threshold,
    )
    erased: int | None = 0
    if registry.prod and registry.prod.holdout != metrics["holdout"]["digest"] and new_holdout is None:
        erased = _erased_from_holdout(workspace, registry.prod, scores)
    holdout, newest = (_window(scores[scores["split"] == split], names) for split in ("holdout", "newest"))
    return decide(holdout, newest, measured, params.gate, champion, erased is not None, erased or 0, rule)


def _erased_from_holdout(workspace: Workspace, event: Event, scores: pd.DataFrame) -> int | None:
    """How many answers of the hold-out that `event` was promoted on are missing from that of `scores`.

    None where more has changed than that erased ones are gone, or where nobody can tell any more.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / paths.SCORES.name
        try:
            revision = f"refs/tags/{tag_of(event.version)}"
            workspace.dvc("get", ".", str(paths.SCORES), "--rev", revision, "-o", str(file), "--quiet")
        except AbstainError:
            return None
        before, now = _labels(pd.read_parquet(file)), _labels(scores)
    if holdout_digest(list(before), list(before.values())) != event.holdout:
        return None
    return erased_answers(before, now, Store(workspace.path / paths.DATA).forgotten())


def _labels(scores: pd.DataFrame) -> dict[str, bool]:
    """Interaction id -> right or wrong, of the hold-out."""
    holdout = scores[scores["split"] == "holdout"]
    return dict(zip(holdout["interaction_id"], holdout["correct"].astype(bool).tolist(), strict=True))


def _rejected_before(record_file: Path, now: dict[str, Any]) -> list[str]:
    """Why this candidate was rejected before against the same champion, figures, limits and erasure; else empty.

    A latency is not remembered: the machine may have been busy.
    """
    if not record_file.is_file():
        return []
    record = json.loads(record_file.read_text())
    if any(check["name"] == "latency" and check["passed"] is False for check in record["checks"]):
        return []
    return list(record["reasons"]) if now == {key: record.get(key) for key in now} else []


def _champion_scores(workspace: Workspace, event: Event, ids: Iterable[str]) -> tuple[list[float], float]:
    """The champion's confidences of the same answers, read through its own layer and base model; its threshold."""
    from abstain.serving.predictor import Released

    bundle = fetch_release(workspace.path, event)
    scorer = Released.open(bundle / paths.RELEASED_ONNX.name, load_settings())
    asked = Store(workspace.path / paths.DATA).interactions(ids)
    scorer.source.fill(asked)  # of another layer or model than the candidate's, perhaps: kept for the next decision
    # What the champion cannot read it does not show.
    confidences = [0.0 if verdict.confidence is None else verdict.confidence for verdict in scorer.score(asked)]
    return confidences, float(scorer.probe.metadata["threshold"])


def _window(scores: pd.DataFrame, names: list[str]) -> Window:
    return Window(
        correct=scores["correct"].to_numpy(int),
        groups=scores["group"].to_numpy(),
        products=scores["product"].fillna("(none)").to_numpy(),
        confidences={name: scores[name].fillna(0.0).to_numpy(float) for name in names},
        probability=scores["probability"].to_numpy(float),
        weight=row_weights(scores["inclusion_probability"].to_numpy(float)),
    )


def _release(workspace: Workspace, registry: Registry, record: dict[str, Any], candidate: str, holdout: str) -> None:
    """Build the bundle, commit it with the moved pointer, tag, push."""
    from abstain.learning.estimators.onnx_probe import stamp

    root, version = workspace.path, record["version"]
    bundle = root / paths.RELEASE
    shutil.rmtree(bundle, ignore_errors=True)
    bundle.mkdir()
    onnx = root / paths.RELEASED_ONNX
    stamp(root / paths.ONNX, onnx, {"version": version})
    report = sorted((root / paths.REPORT).iterdir())
    for file in (paths.METRICS, paths.EVALUATION, paths.PARAMS, Path(REQUIREMENTS), *report):
        shutil.copy(root / file, bundle / file.name)
    _write_json(bundle / "approval.json", record)
    _write_smoke_test(root, bundle)
    event = Event(
        action="promote",
        version=version,
        sha256=_sha256(onnx),
        candidate=candidate,
        at=datetime.fromisoformat(record["decided_at"]),
        holdout=holdout,
        reason=_reason(record["erasure"], record["new_holdout"]),
    )
    smoke_test(bundle, event)
    workspace.dvc("add", "--quiet", str(paths.RELEASE))
    _write_json(root / paths.APPROVALS / f"{version}.json", record)
    write_atomically(root / paths.REGISTRY, registry.promoted(event).to_json().encode())
    commit(workspace, f"Promote probe {version}", *POINTER, paths.APPROVALS)
    workspace.git("tag", "--annotate", "--force", tag_of(version), "-m", f"probe {version}, approved by the gate")
    push(workspace, tag_of(version))


def _reason(erasure: dict[str, Any] | None, new_holdout: str | None) -> str:
    """Why a version was promoted: that the gate approved, the decisions of people that it rests on, or an erasure."""
    why = ["erasure", erasure["accepted"], new_holdout] if erasure else [new_holdout]
    return "; ".join(filter(None, why)) or "approved by the gate"


def _write_smoke_test(root: Path, bundle: Path) -> None:
    import torch

    from abstain.data.store.state_table import StateTable, write_table
    from abstain.learning.estimators.onnx_probe import OnnxProbe

    table = StateTable(root / paths.FEATURES)
    rows = table.take(np.flatnonzero(table.lengths)[:SMOKE_ROWS].tolist())
    lengths = [len(row) for row in rows]
    write_table(bundle / SMOKE_STATES, lengths, table.width, torch.float32, enumerate(rows), table.model)
    _write_json(bundle / SMOKE_CONFIDENCES, OnnxProbe(root / paths.ONNX).confidence(rows).tolist())


def _decision_table(decision: Decision, registry: Registry) -> str:
    marks = {True: "passed", False: Strong("failed"), None: "not judged"}
    rows = [{"check": c.name, "result": marks[c.passed], "why": c.says} for c in decision.checks]
    warning = [warning_line(registry.warning)] if registry.warning else []
    return "\n\n".join([f"## {'Approved' if decision.approved else 'Rejected'}", *warning, markdown_table(rows)])


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _write_json(file: Path, value: Any) -> None:
    write_atomically(file, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())
