"""Changes of a release's files and of the registry that names it: none of them decides."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
from tests.llm.builders import save_tiny_model
from tests.release.events import promotion
from tests.serving.status_page.builders import fused_release

pytestmark = pytest.mark.heavy  # a tiny model is loaded

FLIPS = 60
Change = Callable[[Path, random.Random], object]


def flip(file: Path, drawn: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
    file.write_bytes(content)


CHANGES: list[Change] = [
    lambda file, _: file.unlink(),
    lambda file, _: file.write_bytes(b""),
    lambda file, _: file.write_bytes(file.read_bytes() + b"\n"),
    lambda file, _: file.rename(file.with_name(f"{file.name}.bak")),
    lambda file, _: file.with_name(f"x{file.name}").write_bytes(file.read_bytes()),
    lambda file, _: file.with_name(f".{file.name}").write_bytes(b"x"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny-bank")


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
    """registry.json with `promote` in production as v1.2.0."""
    sha256 = hashlib.sha256((promoted / paths.RELEASED_ONNX.name).read_bytes()).hexdigest()
    carried = (promoted / DIGEST_FILE).read_text().strip()
    event = promotion("v1.2.0", sha256=sha256, bundle_sha256=carried)
    found: dict[str, Any] = json.loads(Registry().promote(event).to_json())
    return found


@pytest.fixture
def store(promoted: Path, tmp_path: Path) -> Path:
    """The local copy of the bundle."""
    folder = tmp_path / "releases" / "v1.2.0"
    shutil.copytree(promoted, folder)
    return folder


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


def is_refused(open_: Callable[[], object], *codes: Code) -> bool:
    try:
        open_()
    except AbstainError as error:
        assert not codes or error.code in codes, error.message_with_code
        return True
    return False


def test_no_changed_bundle_is_opened(
    promoted: Path, settings: Settings, tmp_path: Path, assert_repelled: Callable[..., None]
) -> None:
    drawn, refused = random.Random(7), []
    names = sorted(file.relative_to(promoted) for file in promoted.rglob("*") if file.is_file())
    assert {name.name for name in names} == {"probe.onnx", "fused.onnx", "approval.json", DIGEST_FILE}
    attempts: list[tuple[Path, Change]] = [(drawn.choice(names), flip) for _ in range(FLIPS)]
    attempts += [(name, change) for change in CHANGES for name in names]
    for number, (name, change) in enumerate(attempts):
        bundle = tmp_path / "changed" / str(number)
        shutil.copytree(promoted, bundle)
        change(bundle / name, drawn)
        refused.append(is_refused(lambda bundle=bundle: Gate.open(bundle, settings), Code.BAD_ARTIFACT))  # type: ignore[misc]
    assert_repelled("flipped bytes", FLIPS, sum(refused[:FLIPS]))
    assert_repelled("files changed, added or removed", len(attempts) - FLIPS, sum(refused[FLIPS:]))
    assert Gate.open(promoted, settings).version == "v1.2.0"


def test_another_bundle_is_refused_by_the_registrys_digest(
    promoted: Path, registry: dict[str, Any], settings: Settings, assert_repelled: Count
) -> None:
    digest = registry["history"][0]["bundle_sha256"]
    assert Gate.open(promoted, settings, digest=digest)
    (promoted / "approval.json").write_text('{"approved": true}')
    write_digest(promoted)
    assert Gate.open(promoted, settings), "it is whole in itself"
    refused = is_refused(lambda: Gate.open(promoted, settings, digest=digest), Code.BAD_ARTIFACT)
    assert_repelled("bundle and digest changed", 1, refused)


def test_a_damaged_local_copy_is_fetched_anew(
    origin: list[str], store: Path, promoted: Path, settings: Settings, assert_repelled: Count
) -> None:
    drawn, ready = random.Random(8), 0
    names = sorted(file.relative_to(store) for file in store.rglob("*") if file.is_file())
    for name in names:
        flip(store / name, drawn)
        live = VersionFollower(OriginVersionSource(), lambda bundle: Gate.open(bundle, settings))
        live.refresh()
        ready += live.current is not None
        assert (store / name).read_bytes() == (promoted / name).read_bytes()
    assert [folder.name for folder in store.parent.iterdir()] == ["v1.2.0"], "nothing is left beside it"
    assert_repelled("damaged local copies", len(names), ready)


def test_a_server_is_ready_once_the_damage_is_repaired(
    origin: list[str], store: Path, promoted: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> str:
        raise AbstainError(Code.BAD_ARTIFACT, "the DVC remote has other files")

    monkeypatch.setattr(bundles, "run", away)
    (store / "approval.json").write_text("[]")
    live = VersionFollower(OriginVersionSource(), lambda bundle: Gate.open(bundle, settings))
    for _ in range(2):
        live.refresh()
    assert live.current is None and live.n_failed_loads == 1 and live.last_error is not None
    assert live.last_error.message_with_code.startswith("A507: v1.2.0 fails to load: ")
    shutil.copy(promoted / "approval.json", store / "approval.json")
    live.refresh()
    assert live.current is not None and live.last_error is None


def changed(registry: dict[str, Any], **changes: Any) -> str:
    """`registry` with these changes: of the event where it has such a field."""
    event = registry["history"][0]
    of_event = {name: value for name, value in changes.items() if name in event}
    others = {name: value for name, value in changes.items() if name not in event}
    return json.dumps({**registry, "history": [{**event, **of_event}], **others})


def test_no_edit_of_the_registry_serves_another_version(
    origin: list[str], registry: dict[str, Any], store: Path, settings: Settings, assert_repelled: Count
) -> None:
    live = VersionFollower(OriginVersionSource(), lambda bundle: Gate.open(bundle, settings))
    live.refresh()
    first = live.current
    edits = [
        changed(registry, bundle_sha256="0" * 64),
        changed(registry, sha256="0" * 64),
        changed(registry, version="../../x"),
        changed(registry, version="v9.9.9"),
        changed(registry, version="v1.2"),
        changed(registry, action="serve"),
        changed(registry, guarantee="perhaps"),
        changed(registry, evil=1),
        changed(registry, schema_version=2),
        "{",
        "",
    ]
    held = 0
    for edit in edits:
        origin.append(edit)
        live.refresh()
        assert is_refused(fetch_production), edit
        held += live.current is first is not None
    assert_repelled("edits of `registry.json`", len(edits), held)
    origin.append(json.dumps(registry))
    live.refresh()
    assert live.current is first and live.last_error is None and fetch_production()[0] == store


def test_a_blocked_or_withdrawn_version_decides_nowhere(
    origin: list[str], registry: dict[str, Any], store: Path, settings: Settings, assert_repelled: Count
) -> None:
    live, stopped = VersionFollower(OriginVersionSource(), lambda bundle: Gate.open(bundle, settings)), 0
    edits = {
        changed(registry, blocked={"v1.2.0": "complaints"}): r"blocked in registry.json (complaints)",
        changed(registry, history=[]): "nothing is in production yet",
    }
    for edit, why in edits.items():
        live.refresh()
        assert live.current is not None
        origin.append(edit)
        live.refresh()
        assert live.last_error is not None and why in live.last_error.message
        stopped += live.current is None and is_refused(fetch_production, Code.NO_VERSION)
        origin.append(json.dumps(registry))
    assert_repelled("blocked or withdrawn versions", len(edits), stopped)
