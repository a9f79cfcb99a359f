"""Changes of a release's files and of the registry that names it: none of them decides."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from abstain.config.settings import Settings
from abstain.core import paths
from abstain.core.bundle_format import DIGEST_FILE, write_digest
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.release.registry import Registry
from abstain.serving.gate import Gate
from abstain.serving.service.version_follower import VersionFollower
from abstain_tasks.release import bundles, version_source
from abstain_tasks.release.bundles import fetch_production
from abstain_tasks.release.version_source import OriginVersionSource
from tests.attacks.conftest import Count
from tests.release.builders import promotion
from tests.serving.status_page.builders import fused_release

pytestmark = pytest.mark.heavy  # a tiny model is loaded

FLIPS = 60
Change = Callable[[Path, random.Random], object]


def flip(file: Path, rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


CHANGES: list[Change] = [
    lambda file, _: file.unlink(),
    lambda file, _: file.write_bytes(b""),
    lambda file, _: file.write_bytes(file.read_bytes() + b"\n"),
    lambda file, _: file.rename(file.with_name(f"{file.name}.bak")),
    lambda file, _: file.with_name(f"x{file.name}").write_bytes(file.read_bytes()),
    lambda file, _: file.with_name(f".{file.name}").write_bytes(b"x"),
]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path))
    return Settings(home=tmp_path, device="cpu", dtype="float32")


@pytest.fixture
def promoted(tmp_path: Path, model: Path, settings: Settings) -> Path:
    """The bundle that was promoted; the DVC remote has it."""
    bundle = fused_release(tmp_path / "promoted", model, settings)
    (bundle / "approval.json").write_text("{}")
    write_digest(bundle)
    return bundle


@pytest.fixture
def registry(promoted: Path) -> dict[str, Any]:
    """registry.json with `promoted` in production as v1.2.0."""
    sha256 = hashlib.sha256((promoted / paths.RELEASED_ONNX.name).read_bytes()).hexdigest()
    event = promotion("v1.2.0", sha256=sha256, bundle_sha256=(promoted / DIGEST_FILE).read_text().strip())
    return json.loads(Registry().promote(event).to_json())


@pytest.fixture
def store(promoted: Path, tmp_path: Path) -> Path:
    """The local copy of the bundle."""
    return Path(shutil.copytree(promoted, tmp_path / "releases" / "v1.2.0"))


@pytest.fixture
def live(origin: list[str], settings: Settings) -> VersionFollower:
    """What follows the origin, not refreshed yet."""
    return VersionFollower(OriginVersionSource(), lambda bundle: Gate.open(bundle, settings))


@pytest.fixture
def origin(
    registry: dict[str, Any], promoted: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The text of registry.json at the origin, the last item; DVC gives `promote` for the tag of v1.2.0 alone."""
    texts = [json.dumps(registry)]

    def get(command: Sequence[str], _: Path) -> str:
        if command[command.index("--rev") + 1] != "probe@v1.2.0":
            raise AbstainError(Code.FAILED_STEP, "there is no such tag")
        shutil.copytree(promoted, command[command.index("-o") + 1])
        return ""

    for module in (version_source, bundles):
        monkeypatch.setattr(module, "fetch_origin_snapshot", lambda: (tmp_path, "origin/main"))
        monkeypatch.setattr(module, "git", lambda *_: texts[-1])
        monkeypatch.setattr(module, "smoke_test", lambda *_: None)
    monkeypatch.setattr(bundles, "run", get)
    return texts


def is_rejected(open_: Callable[[], object], *codes: Code) -> bool:
    try:
        open_()
    except AbstainError as error:
        assert not codes or error.code in codes, error.message_with_code
        return True
    return False


def test_open_rejects_a_changed_bundle(
    promoted: Path, registry: dict[str, Any], settings: Settings, tmp_path: Path, assert_repelled: Count
) -> None:
    rng, rejected = random.Random(7), []
    names = sorted(file.relative_to(promoted) for file in promoted.rglob("*") if file.is_file())
    assert {name.name for name in names} == {"probe.onnx", "fusion.onnx", "approval.json", DIGEST_FILE}
    attempts: list[tuple[Path, Change]] = [(rng.choice(names), flip) for _ in range(FLIPS)]
    attempts += [(name, change) for change in CHANGES for name in names]
    for number, (name, change) in enumerate(attempts):
        bundle = Path(shutil.copytree(promoted, tmp_path / "changed" / str(number)))
        change(bundle / name, rng)
        rejected.append(is_rejected(partial(Gate.open, bundle, settings), Code.BAD_ARTIFACT))
    assert_repelled("flipped bytes", FLIPS, sum(rejected[:FLIPS]))
    assert_repelled("files changed, added or removed", len(attempts) - FLIPS, sum(rejected[FLIPS:]))
    digest = registry["history"][0]["bundle_sha256"]
    assert Gate.open(promoted, settings, digest=digest).version == "v1.2.0"
    (promoted / "approval.json").write_text('{"approved": true}')
    write_digest(promoted)
    assert Gate.open(promoted, settings), "it is whole in itself"
    rejected_digest = is_rejected(partial(Gate.open, promoted, settings, digest=digest), Code.BAD_ARTIFACT)
    assert_repelled("bundle and digest changed", 1, rejected_digest)


def test_damaged_local_copy_loads_once_it_is_repaired(
    live: VersionFollower, store: Path, promoted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "run", Mock(side_effect=AbstainError(Code.BAD_ARTIFACT, "the DVC remote was changed")))
    (store / "approval.json").write_text("[]")
    for _ in range(2):
        live.refresh()
    assert live.current is None and live.n_failed_loads == 1 and live.last_error is not None
    assert live.last_error.message_with_code.startswith("A507: v1.2.0 ")
    shutil.copy(promoted / "approval.json", store / "approval.json")
    live.refresh()
    assert live.current is not None and live.last_error is None


def edit(registry: dict[str, Any], **changes: Any) -> str:
    """`registry` with these changes: of the event where it has such a field."""
    event = registry["history"][0]
    of_event = {name: changes.pop(name) for name in changes.keys() & event}
    return json.dumps({**registry, "history": [{**event, **of_event}], **changes})


def test_edited_registry_serves_no_other_version(
    live: VersionFollower, origin: list[str], registry: dict[str, Any], store: Path, assert_repelled: Count
) -> None:
    live.refresh()
    first = live.current
    edits = [
        *(edit(registry, **{name: "0" * 64}) for name in ("bundle_sha256", "sha256")),
        *(edit(registry, version=version) for version in ("../../x", "v9.9.9", "v1.2")),
        edit(registry, action="serve"),
        edit(registry, guarantee="perhaps"),
        edit(registry, evil=1),
        edit(registry, schema_version=2),
        "{",
        "",
    ]
    unchanged = 0
    for text in edits:
        origin.append(text)
        live.refresh()
        assert is_rejected(fetch_production), text
        unchanged += live.current is first is not None
    assert_repelled("edits of `registry.json`", len(edits), unchanged)
    origin.append(json.dumps(registry))
    live.refresh()
    assert live.current is first and live.last_error is None and fetch_production()[0] == store


def test_blocked_or_withdrawn_version_decides_nothing(
    live: VersionFollower, origin: list[str], registry: dict[str, Any], store: Path, assert_repelled: Count
) -> None:
    stopped = 0
    edits = {"complaints": edit(registry, blocked={"v1.2.0": "complaints"}), "": edit(registry, history=[])}
    for reason, text in edits.items():
        live.refresh()
        assert live.current is not None
        origin.append(text)
        live.refresh()
        assert live.last_error is not None and live.last_error.code is Code.NO_VERSION
        assert reason in live.last_error.message
        stopped += live.current is None and is_rejected(fetch_production, Code.NO_VERSION)
        origin.append(json.dumps(registry))
    assert_repelled("blocked or withdrawn versions", len(edits), stopped)
