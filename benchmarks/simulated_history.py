"""A history of nights, simulated: commits, promoted versions with bundles that can be served, and records.

Of each night there is a commit with thumbs of its own in data/, and with another output of a stage; of some, a version.
The last commit has the data and the lock of the first one again, so nothing is stale there, and its candidate is what
is in production. Everything is written into the DVC cache and remote of the home, and pushed to the origin at once.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.bundle_format import write_digest
from abstain.learning.estimators.onnx_probe import copy_with_metadata
from abstain.release.promotion_record import PromotionRecord
from abstain.release.registry import Registry, RegistryEvent, load_registry, make_version_tag
from abstain_tasks.release.bundles import compute_sha256
from abstain_tasks.release.promotion_records import write_record
from abstain_tasks.runs.shell import git, run
from abstain_tasks.runs.workspace import BRANCH, Workspace

OUTPUT = "artifacts/probe_choice.json"
"""The output of a stage that differs from night to night."""
Files = dict[str, bytes]


class DvcObjects:
    """Cache and remote of the home, written without DVC: 365 `dvc add` would take longer than a year's runs."""

    def __init__(self) -> None:
        home = load_settings().home.resolve()
        self._roots = [home / "dvc-cache" / "files" / "md5", home / "dvc-remote" / "files" / "md5"]

    def read(self, digest: str) -> bytes:
        """Return the object with this digest; that of a folder's list ends with `.dir`."""
        return (self._roots[0] / digest[:2] / digest[2:]).read_bytes()

    def add(self, content: bytes, suffix: str = "") -> str:
        """Store an object and return its digest."""
        digest = hashlib.md5(content, usedforsecurity=False).hexdigest() + suffix
        for root in self._roots:
            file = root / digest[:2] / digest[2:]
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        return digest

    def add_folder(self, entries: dict[str, str]) -> str:
        """Store the list of a folder's files (path -> digest) and return its digest."""
        files = [{"md5": digest, "relpath": path} for path, digest in sorted(entries.items())]
        return self.add(json.dumps(files, sort_keys=True).encode(), ".dir")

    def read_entries(self, digest: str) -> dict[str, str]:
        """Return the files of a folder's list by path."""
        return {entry["relpath"]: entry["md5"] for entry in json.loads(self.read(digest))}


@dataclass
class NightlyHistory:
    """State from which nights are made, of a project with one promoted version."""

    workspace: Workspace
    objects: DvcObjects
    registry: Registry
    entries: dict[str, str]
    lock: dict[str, Any]
    record: dict[str, Any]
    bundle: dict[str, bytes]
    commits: list[tuple[datetime, str, Files, str | None]] = field(default_factory=list)

    @classmethod
    def from_workspace(cls, workspace: Workspace) -> NightlyHistory:
        """Read the state of a workspace."""
        root, objects = workspace.path, DvcObjects()
        registry = load_registry(root / paths.REGISTRY)
        assert registry.production_version is not None
        pointer = yaml.safe_load((root / "data.dvc").read_text())
        record = json.loads((root / paths.APPROVALS / f"{registry.production_version}.json").read_text())
        del record["seal"]
        bundle = {
            file.relative_to(root / paths.RELEASE).as_posix(): file.read_bytes()
            for file in (root / paths.RELEASE).rglob("*")
            if file.is_file()
        }
        lock = yaml.safe_load((root / "dvc.lock").read_text())
        return cls(workspace, objects, registry, objects.read_entries(pointer["outs"][0]["md5"]), lock, record, bundle)

    def add_night(self, number: int, committed_at: datetime) -> None:
        """Add a commit with thumbs of one user, and another output."""
        vote = {"user": f"u-{number:020x}", "thumb": "up", "comment": None}
        line = json.dumps(
            {"interaction_id": f"night-{number}", "given_at": f"{committed_at:%Y-%m-%dT%H:%M:%SZ}", **vote}
        )
        self.entries[f"feedback/night-{number:03}.jsonl"] = self.objects.add(f"{line}\n".encode())
        for stage in self.lock["stages"].values():
            for out in stage.get("outs", ()):
                if out["path"] == OUTPUT:
                    out["md5"] = self.objects.add(json.dumps({"night": number}).encode())
        files = {
            "data.dvc": _pointer(self.objects.add_folder(self.entries), "data"),
            "dvc.lock": yaml.dump(self.lock, Dumper=yaml.CSafeDumper, sort_keys=False).encode(),
        }
        self.commits.append((committed_at, f"Retrain: night {number}", files, None))

    def promote(self, minor: int, promoted_at: datetime, candidate: str) -> None:
        """Add version v1.`minor`.0, whose bundle is that of the first one with its own name and record."""
        version, folder = f"v1.{minor}.0", Path(self._scratch.name)
        record = {
            **self.record,
            "version": version,
            "decided_at": promoted_at.isoformat(),
            "candidate_sha256": candidate,
        }
        bundle = folder / "release"
        for name, content in {**self.bundle, "approval.json": json.dumps(record).encode()}.items():
            (bundle / name).parent.mkdir(parents=True, exist_ok=True)
            (bundle / name).write_bytes(content)
        copy_with_metadata(bundle / paths.RELEASED_ONNX.name, bundle / paths.RELEASED_ONNX.name, {"version": version})
        digest = write_digest(bundle)
        entries = {
            file.relative_to(bundle).as_posix(): self.objects.add(file.read_bytes())
            for file in bundle.rglob("*")
            if file.is_file()
        }
        first = self.registry.history[0]
        digests = {"sha256": compute_sha256(bundle / paths.RELEASED_ONNX.name), "bundle_sha256": digest}
        event = RegistryEvent(
            **{
                **first.model_dump(),
                "version": version,
                "candidate_sha256": candidate,
                "occurred_at": promoted_at,
                **digests,
            }
        )
        self.registry = self.registry.promote(event)
        name = paths.APPROVALS / f"{version}.json"
        files = {
            "release.dvc": _pointer(self.objects.add_folder(entries), "release"),
            str(paths.REGISTRY): self.registry.to_json().encode(),
            str(name): self._seal_record(record),
        }
        self.commits.append((promoted_at, f"Promote probe {version}", files, make_version_tag(version)))

    def reject(self, number: int, decided_at: datetime) -> None:
        """Add the record of a candidate that was compared with production and not promoted."""
        candidate = _digest(f"rejected {number}")
        record = {
            **self.record,
            "approved": False,
            "version": None,
            "decided_at": decided_at.isoformat(),
            "candidate_sha256": candidate,
            "inputs_sha256": candidate,
            "champion": self.registry.production_version,
        }
        name = paths.APPROVALS / f"rejected-{candidate[:12]}-{self.record['metrics']['holdout']['digest'][:8]}.json"
        self.commits.append(
            (decided_at, "Record why a candidate was not promoted", {str(name): self._seal_record(record)}, None)
        )

    def push(self, committed_at: datetime) -> None:
        """Restore the data and lock of the workspace at the end, and push all commits to the origin."""
        root = self.workspace.path
        files = {name: (root / name).read_bytes() for name in ("data.dvc", "dvc.lock")}
        self.commits.append((committed_at, "Retrain: as at first", files, None))
        stream = Path(self._scratch.name) / "stream"
        stream.write_bytes(b"".join(_stream(self.commits, self.workspace.git("rev-parse", "HEAD").strip())))
        run(["sh", "-c", f"git fast-import --quiet --force < {stream}"], root)
        git(root, "reset", "-q", "--hard", BRANCH)
        git(root, "push", "-q", "--tags", "origin", f"HEAD:refs/heads/{BRANCH}")

    def _seal_record(self, record: dict[str, Any]) -> bytes:
        file = Path(self._scratch.name) / "record.json"
        write_record(file, PromotionRecord.model_validate(record))
        return file.read_bytes()

    def __post_init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory()


def simulate(workspace: Workspace, nights: int, versions: int, rejected: int, until: datetime | None = None) -> None:
    """Give the project `nights` commits, in all `versions` versions, and records of `rejected` candidates.

    The last night is `until`, by default yesterday. The first version is there already, and its candidate becomes that
    of the last one.
    """
    history = NightlyHistory.from_workspace(workspace)
    last_at = until or datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
    candidate = history.registry.history[-1].candidate_sha256
    first = history.registry.history[-1].model_copy(update={"candidate_sha256": _digest("first")})
    history.registry = Registry(history=(first,))
    for night in range(nights):
        committed_at = last_at - timedelta(days=nights - 1 - night)
        history.add_night(night, committed_at)
        for number in _due(night, nights, rejected):
            history.reject(number, committed_at)
        for number in _due(night, nights, versions - 1):
            is_last = number == versions - 2
            history.promote(number + 1, committed_at, candidate if is_last else _digest(f"candidate {number}"))
    history.push(last_at)


def _due(night: int, nights: int, events: int) -> range:
    """Return which of `events`, spread evenly over the nights, are due in this one."""
    return range(night * events // nights, (night + 1) * events // nights)


def _pointer(digest: str, path: str) -> bytes:
    return yaml.safe_dump({"outs": [{"md5": digest, "hash": "md5", "path": path}]}).encode()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _stream(commits: list[tuple[datetime, str, Files, str | None]], parent: str) -> Iterator[bytes]:
    """Yield the commits, one on top of the other, and their tags in the format of `git fast-import`."""
    for number, (committed_at, message, files, tag) in enumerate(commits, start=1):
        identity = f"Abstain <abstain@localhost> {int(committed_at.timestamp())} +0000\n"
        yield f"commit refs/heads/{BRANCH}\nmark :{number}\ncommitter {identity}".encode()
        yield _data(message.encode()) + (f"from {parent}\n".encode() if number == 1 else b"")
        for name, content in files.items():
            yield f"M 100644 inline {name}\n".encode() + _data(content)
        if tag:
            yield f"tag {tag}\nfrom :{number}\ntagger {identity}".encode() + _data(message.encode())


def _data(content: bytes) -> bytes:
    return f"data {len(content)}\n".encode() + content + b"\n"
