"""The bundle of a release: the ONNX files, the probe's stamped with the version, reports, metrics, record, smoke test.

It is one DVC-tracked folder, `release/`, immutable under its tag. torch and ONNX Runtime are imported where needed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.bundle_format import is_whole, sha256, write_digest
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_json
from abstain.release.registry import RegistryEvent, make_version_tag, parse_registry
from abstain.release.shadow import Shadow, make_shadow_name
from tasks.runs.shell import git, run
from tasks.runs.workspace import origin_snapshot
from tasks.training.plan import REQUIREMENTS

if TYPE_CHECKING:
    from abstain.serving.live_scorer import LiveScorer

SMOKE_ROWS = 8
SMOKE_STATES, SMOKE_CONFIDENCES = "smoke.npy", "smoke.json"
SMOKE_TOLERANCE = 1e-5


def fetch_production() -> tuple[Path, RegistryEvent]:
    """The bundle in production by the origin's registry, fetched and checksummed, and the event that promoted it.

    Raises `AbstainError` as `Registry.require_prod` and `fetch_bundle` do.
    """
    repository, revision = origin_snapshot()
    event = parse_registry(git(repository, "show", f"{revision}:{paths.REGISTRY}")).require_prod()
    return fetch_bundle(repository, event), event


class BundleReference(Protocol):
    """What a bundle is recognised by: the version in its ONNX file, and its digests, of that file and of all files."""

    @property
    def version(self) -> str: ...

    @property
    def sha256(self) -> str: ...

    @property
    def bundle_sha256(self) -> str: ...


def fetch_bundle(repository: Path, event: RegistryEvent) -> Path:
    """The bundle of one version, in the local store of releases; fetched with DVC where it is missing or damaged there.

    Raises `AbstainError` where the files that DVC gives are not those that were promoted; the store stays as it is.
    """
    target = stored(event.version)
    return _fetch(repository, event, target, paths.RELEASE, make_version_tag(event.version), "`abstain rollback`")


def fetch_shadow(repository: Path, shadow: Shadow) -> Path:
    """The bundle of a shadow, as `fetch_bundle` gives that of a version."""
    return _fetch(repository, shadow, stored(shadow.tag), paths.SHADOW, shadow.tag, "`abstain shadow clear`")


def stored(name: str) -> Path:
    """The folder of the local store of releases for a version, or for the tag of a shadow."""
    return load_settings().home.resolve() / "releases" / name.replace("/", "-")


def _fetch(repository: Path, event: BundleReference, target: Path, folder: Path, tag: str, remedy: str) -> Path:
    """`target`, with `folder` as it is under `tag`."""
    if _is_promoted(target, event):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=".fetching-"))
    bundle = scratch / "release"
    try:
        run(["dvc", "get", str(repository), str(folder), "--rev", tag, "-o", str(bundle)], repository)
        if not _is_promoted(bundle, event):
            raise AbstainError(
                Code.BAD_ARTIFACT,
                f"the files of {event.version} are not those that were promoted: the tag {tag} or the DVC remote was "
                f"changed: restore it, or {remedy}",
            )
        if target.exists() and not _is_promoted(target, event):
            target.rename(scratch / "damaged")
        bundle.rename(target)
    except OSError:
        if not _is_promoted(target, event):  # otherwise another process fetched the same version first
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _is_promoted(bundle: Path, event: BundleReference) -> bool:
    """Whether the files of `bundle` are those that were promoted."""
    onnx = bundle / paths.RELEASED_ONNX.name
    return onnx.is_file() and sha256(onnx) == event.sha256 and is_whole(bundle, event.bundle_sha256)


def smoke_test(bundle: Path, event: BundleReference) -> None:
    """Score the bundle's own answers; raises `AbstainError` unless they score as when promoted."""
    from abstain.serving.live_scorer import LiveScorer

    scorer = LiveScorer.open(bundle / paths.RELEASED_ONNX.name)
    expected = json.loads((bundle / SMOKE_CONFIDENCES).read_text())
    found = _smoke_confidences(scorer, bundle / SMOKE_STATES)
    difference = max(float(np.abs(np.subtract(found[name], of)).max()) for name, of in expected.items())
    if scorer.metadata.get("version") != event.version or not difference <= SMOKE_TOLERANCE:
        raise AbstainError(
            Code.EXPORT_DIFFERS, f"{event.version} fails its smoke test (largest difference {difference:.2g}): not used"
        )


def build_bundle(root: Path, record: dict[str, Any], candidate: str, holdout: str) -> RegistryEvent:
    """Write the bundle of the approved candidate to `release/` below `root`, and smoke-test it.

    `candidate` is the digest of its ONNX file, `holdout` that of its hold-out. Returns the event for the registry.
    """
    version = record["version"]
    bundle = root / paths.RELEASE
    onnx = _write_scorer(root, bundle, {"version": version, **_make_guarantee_metadata(root, record)})
    report = sorted((root / paths.REPORT).iterdir())
    for file in (paths.METRICS, paths.EVALUATION, paths.PARAMS, Path(REQUIREMENTS), *report):
        shutil.copy(root / file, bundle / file.name)
    write_json(bundle / "approval.json", record)
    event = RegistryEvent(
        action="promote",
        version=version,
        sha256=sha256(onnx),
        candidate=candidate,
        at=datetime.fromisoformat(record["decided_at"]),
        holdout=holdout,
        reason=_describe_promotion_reason(record["erasure"], record["new_holdout"]),
        guaranteed=record["guaranteed"],
        more_reviews=record["more_reviews"],
        kind=json.loads((root / paths.SCORER_CHOICE).read_text())["kind"],
        bundle_sha256=write_digest(bundle),
    )
    smoke_test(bundle, event)
    return event


def build_shadow(root: Path, beside: str) -> Shadow:
    """Write the bundle of the candidate in `artifacts/` to `shadow/` below `root`, and smoke-test it.

    It has what decides, and no report: that shows answers. `beside`: the version in production.
    """
    candidate, bundle = sha256(root / paths.ONNX), root / paths.SHADOW
    onnx = _write_scorer(root, bundle, {"version": make_shadow_name(candidate)})
    shadow = Shadow(
        candidate=candidate,
        beside=beside,
        at=datetime.now(UTC),
        sha256=sha256(onnx),
        bundle_sha256=write_digest(bundle),
    )
    smoke_test(bundle, shadow)
    return shadow


def _write_scorer(root: Path, bundle: Path, metadata: dict[str, str]) -> Path:
    """Write a new `bundle` of the candidate: its ONNX files, the probe's with `metadata`, and a smoke test.

    Returns the probe's file.
    """
    from abstain.learning.estimators.onnx_probe import copy_with_metadata

    shutil.rmtree(bundle, ignore_errors=True)
    bundle.mkdir()
    onnx = bundle / paths.RELEASED_ONNX.name
    copy_with_metadata(root / paths.ONNX, onnx, metadata)
    shutil.copytree(root / paths.ONNX_PARTS, bundle / paths.RELEASED_PARTS.name)
    _write_smoke_test(root, bundle)
    return onnx


def _make_guarantee_metadata(root: Path, record: dict[str, Any]) -> dict[str, str]:
    """The guarantee in the ONNX file's metadata of a version for which the gate has checked none; else nothing."""
    from abstain.learning.estimators.onnx_probe import OnnxProbe

    if record["guaranteed"]:
        return {}
    asked = json.loads(OnnxProbe(root / paths.ONNX).metadata["guarantee"])
    said = {"guaranteed": False, "message": record["no_guarantee"], "more_reviews": record["more_reviews"]}
    return {"guarantee": json.dumps({**asked, **said}, sort_keys=True)}


def _describe_promotion_reason(erasure: dict[str, Any] | None, new_holdout: str | None) -> str:
    """Why a version was promoted: the gate approved, or a recorded decision or an erasure."""
    why = ["erasure", erasure["accepted"], new_holdout] if erasure else [new_holdout]
    return "; ".join(filter(None, why)) or "approved by the gate"


def _write_smoke_test(root: Path, bundle: Path) -> None:
    import torch

    from abstain.data.store.state_table import StateTable, write_table
    from abstain.serving.live_scorer import LiveScorer

    table = StateTable(root / paths.FEATURES)
    rows = table.read_rows(np.flatnonzero(table.lengths)[:SMOKE_ROWS].tolist())
    lengths = [len(row) for row in rows]
    write_table(bundle / SMOKE_STATES, lengths, table.width, torch.float32, enumerate(rows), table.model)
    confidences = _smoke_confidences(LiveScorer.open(root / paths.ONNX), bundle / SMOKE_STATES)
    write_json(bundle / SMOKE_CONFIDENCES, confidences)


def _smoke_confidences(scorer: LiveScorer, states: Path) -> dict[str, list[float]]:
    """The probe's confidences of the `states` of real answers, and the live scorer's of one that is made up."""
    from abstain.data.store.state_table import StateTable
    from abstain.serving.scorer_latency import make_random_features

    live = np.nan_to_num(scorer.score(make_random_features(scorer)), nan=-1.0)
    return {"probe": scorer.probe.confidence(StateTable(states)).tolist(), "live": live.tolist()}
