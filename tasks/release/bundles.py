"""The bundle of a version: ONNX files (the probe's stamped with the version), reports, metrics, record, smoke test.

It is one DVC-tracked folder, `release/`, immutable under its tag. torch and ONNX Runtime are imported where needed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.bundle_format import compute_sha256, is_intact, write_digest
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_json
from abstain.core.scorer_names import PROBE
from abstain.release.registry import RegistryEvent, make_version_tag, parse_registry
from abstain.release.shadow import Shadow, make_shadow_name
from abstain_tasks.runs.shell import git, run
from abstain_tasks.runs.workspace import fetch_origin_snapshot
from abstain_tasks.training.plan import REQUIREMENTS

if TYPE_CHECKING:
    from abstain.release.promotion_record import PromotionRecord

SMOKE_ROWS = 8
SMOKE_STATES, SMOKE_CONFIDENCES = "smoke.npy", "smoke.json"
SMOKE_TOLERANCE = 1e-5


def fetch_production() -> tuple[Path, RegistryEvent]:
    """Fetch the bundle in production by the origin's registry, and verify its checksums.

    Returns:
        The folder of the bundle, and the event that promoted it.

    Raises:
        AbstainError: As for `Registry.require_production` and `fetch_bundle`.
    """
    repository, revision = fetch_origin_snapshot()
    event = parse_registry(git(repository, "show", f"{revision}:{paths.REGISTRY}")).require_production()
    return fetch_bundle(repository, event), event


class BundleReference(Protocol):
    """Identifies a bundle.

    Attributes:
        version: The version in its ONNX file.
        sha256: Digest of that file.
        bundle_sha256: Digest of all files.
    """

    @property
    def version(self) -> str: ...

    @property
    def sha256(self) -> str: ...

    @property
    def bundle_sha256(self) -> str: ...


def fetch_bundle(repository: Path, event: RegistryEvent) -> Path:
    """Return the bundle of one version in the local store; it is fetched with DVC if it is missing or damaged.

    Args:
        repository: Repository with the version's tag.
        event: The version and its digests.

    Returns:
        The folder of the bundle.

    Raises:
        AbstainError: The files that DVC gives are not those that were promoted; the store stays as it is.
    """
    target = get_bundle_folder(event.version)
    return _fetch(repository, event, target, paths.RELEASE, make_version_tag(event.version), "`abstain rollback`")


def fetch_shadow(repository: Path, shadow: Shadow) -> Path:
    """Return the bundle of a shadow, as `fetch_bundle` does for a version.

    Args:
        repository: Repository with the shadow's tag.
        shadow: The shadow.

    Returns:
        The folder of the bundle.
    """
    return _fetch(repository, shadow, get_bundle_folder(shadow.tag), paths.SHADOW, shadow.tag, "`abstain shadow clear`")


def get_bundle_folder(name: str) -> Path:
    """Get the folder of a bundle in the local store.

    Args:
        name: A version, or the tag of a shadow.

    Returns:
        The folder; it need not exist.
    """
    return load_settings().home.resolve() / "releases" / name.replace("/", "-")


def _fetch(repository: Path, event: BundleReference, target: Path, folder: Path, tag: str, remedy: str) -> Path:
    """Return `target`, filled with `folder` as it is under `tag` if it is missing or damaged."""
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
    return onnx.is_file() and compute_sha256(onnx) == event.sha256 and is_intact(bundle, event.bundle_sha256)


def smoke_test(bundle: Path, event: BundleReference) -> None:
    """Run the bundle's files on its own inputs, and compare with their confidences at its promotion.

    Args:
        bundle: The folder of the bundle.
        event: The version.

    Raises:
        AbstainError: The confidences or the version differ.
    """
    from abstain.learning.estimators.onnx_probe import OnnxProbe

    expected = json.loads((bundle / SMOKE_CONFIDENCES).read_text())
    confidences = _compute_smoke_confidences(bundle)
    difference = max(float(np.abs(np.subtract(confidences[name], values)).max()) for name, values in expected.items())
    version = OnnxProbe(bundle / paths.RELEASED_ONNX.name).metadata.get("version")
    if version != event.version or not difference <= SMOKE_TOLERANCE:
        raise AbstainError(
            Code.EXPORT_DIFFERS, f"{event.version} fails its smoke test (largest difference {difference:.2g}): not used"
        )


def build_bundle(root: Path, record: PromotionRecord) -> RegistryEvent:
    """Write the bundle of the approved candidate to `release/` and smoke-test it.

    Args:
        root: The folder of the workspace.
        record: The promotion record.

    Returns:
        The event for the registry.
    """
    assert record.version is not None
    bundle, content = root / paths.RELEASE, record.to_dict()
    guarantee = json.dumps(content["guarantee"], sort_keys=True)
    onnx = _write_scorer(root, bundle, {"version": record.version, "guarantee": guarantee})
    report = sorted((root / paths.REPORT).iterdir())
    for file in (paths.METRICS, paths.EVALUATION, paths.PARAMS, Path(REQUIREMENTS), *report):
        shutil.copy(root / file, bundle / file.name)
    write_json(bundle / "approval.json", content)
    event = RegistryEvent(
        action="promote",
        version=record.version,
        sha256=compute_sha256(onnx),
        candidate_sha256=record.candidate_sha256,
        occurred_at=datetime.fromisoformat(record.decided_at),
        holdout_sha256=record.metrics.holdout.digest,
        reason=_describe_promotion_reason(record),
        guarantee=record.guarantee,
        scorer=json.loads((root / paths.SCORER_CHOICE).read_text())["name"],
        bundle_sha256=write_digest(bundle),
    )
    smoke_test(bundle, event)
    return event


def build_shadow(root: Path, production_version: str) -> Shadow:
    """Write the bundle of the candidate in `artifacts/` to `shadow/` and smoke-test it.

    It has the files that decide, but no report, because a report shows answers.

    Args:
        root: The folder of the workspace.
        production_version: The version in production.

    Returns:
        The shadow.
    """
    candidate, bundle = compute_sha256(root / paths.ONNX), root / paths.SHADOW
    onnx = _write_scorer(root, bundle, {"version": make_shadow_name(candidate)})
    shadow = Shadow(
        candidate_sha256=candidate,
        production_version=production_version,
        created_at=datetime.now(UTC),
        sha256=compute_sha256(onnx),
        bundle_sha256=write_digest(bundle),
    )
    smoke_test(bundle, shadow)
    return shadow


def _write_scorer(root: Path, bundle: Path, metadata: dict[str, str]) -> Path:
    """Write a new `bundle` of the candidate: ONNX files (the probe's with `metadata`) and a smoke test.

    Returns:
        The probe's file.
    """
    from abstain.learning.estimators.onnx_probe import copy_with_metadata

    shutil.rmtree(bundle, ignore_errors=True)
    bundle.mkdir()
    onnx = bundle / paths.RELEASED_ONNX.name
    copy_with_metadata(root / paths.ONNX, onnx, metadata)
    shutil.copytree(root / paths.ONNX_PARTS, bundle / paths.RELEASED_PARTS.name)
    _write_smoke_test(root, bundle)
    return onnx


def _describe_promotion_reason(record: PromotionRecord) -> str:
    """Describe why a version was promoted: the checks approved it, a recorded decision, an erasure or a correction."""
    reasons: list[str | None] = []
    if record.erasure:
        reasons += ["erasure" if record.erasure.cause == "erased" else "correction", record.erasure.accepted]
    reasons.append(record.new_holdout_reason)
    return "; ".join(filter(None, reasons)) or "approved by the promotion checks"


def _write_smoke_test(root: Path, bundle: Path) -> None:
    import torch

    from abstain.data.store.state_table import StateTable, write_table

    table = StateTable(root / paths.FEATURES)
    rows = table.read_rows(np.flatnonzero(table.lengths)[:SMOKE_ROWS].tolist())
    lengths = [len(row) for row in rows]
    write_table(bundle / SMOKE_STATES, lengths, table.width, torch.float32, enumerate(rows), table.model)
    write_json(bundle / SMOKE_CONFIDENCES, _compute_smoke_confidences(bundle))


def _compute_smoke_confidences(bundle: Path) -> dict[str, list[float]]:
    """Compute the probe's confidences for states of real answers, and those of the other files for made-up inputs."""
    from abstain.data.store.state_table import StateTable
    from abstain.learning.estimators.onnx_file import run_on_random_inputs
    from abstain.learning.estimators.onnx_probe import OnnxProbe

    probe = OnnxProbe(bundle / paths.RELEASED_ONNX.name).predict(StateTable(bundle / SMOKE_STATES))
    parts = sorted((bundle / paths.RELEASED_PARTS.name).glob("*.onnx"))
    outputs = {file.stem: run_on_random_inputs(file.read_bytes(), SMOKE_ROWS).tolist() for file in parts}
    return {PROBE: probe.tolist()} | outputs
