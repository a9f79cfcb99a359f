"""A promotion or roll-back that is killed at any call of git or DVC: the same command again leaves it done, once."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from abstain.core.errors import AbstainError
from abstain.release.registry import make_version_tag, parse_registry
from abstain_tasks.release import promotion
from abstain_tasks.release.promotion import roll_back
from abstain_tasks.runs.shell import git, succeeds
from abstain_tasks.runs.workspace import BRANCH, _synchronize
from tests.attacks.conftest import Count
from tests.tasks.conftest import Candidates, Plain, candidates, first_candidates, workspace

__all__ = ["candidates", "first_candidates", "workspace"]

pytestmark = pytest.mark.heavy

STATE = ("origin.git", "workspace", "kept")
Command = Callable[[], object]
CountKills = Callable[[Command, slice, str], None]


class Killed(BaseException):
    """What no command catches."""


class Killer:
    """Kills a command of `workspace` before any of its calls of git and DVC, and puts back what was before it."""

    def __init__(self, workspace: Plain, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.workspace, self._folder, self._monkeypatch = workspace, folder, monkeypatch
        self._copy(folder, folder / "before")

    def run(self, command: Command, kill_at: int | None = None) -> list[str]:
        """Run `command`; what it calls, up to the call that is not made any more."""
        calls: list[str] = []

        def watch(program: str, real: Callable[..., str]) -> Callable[..., str]:
            def call(own: Plain, *arguments: str) -> str:
                calls.append(f"{program} {arguments[0]}")
                if len(calls) - 1 == kill_at:
                    raise Killed
                return real(own, *arguments)

            return call

        with self._monkeypatch.context() as patched, suppress(Killed):
            for program in ("git", "dvc"):
                patched.setattr(Plain, program, watch(program, getattr(Plain, program)))
            command()
        return calls

    @staticmethod
    def _copy(old: Path, new: Path) -> None:
        for name in STATE:
            shutil.rmtree(new / name, ignore_errors=True)
            if (old / name).exists():
                shutil.copytree(old / name, new / name, symlinks=True)

    def is_done_again(self, command: Command, kill_at: int, live: str) -> bool:
        """Whether `command`, killed and then run again as every command begins, leaves `live` and a whole origin."""
        self._copy(self._folder / "before", self._folder)
        self.run(command, kill_at)
        whole = self._is_whole()
        _synchronize(self.workspace, None)
        with suppress(AbstainError):  # it was done already
            command()
        return whole and self._is_whole() and self.workspace.on_origin().production_version == live

    def _is_whole(self) -> bool:
        """Whether the origin has for each promoted version its tag, bundle and record, and nothing else."""
        origin = self._folder / "origin.git"
        registry = parse_registry(git(origin, "show", f"{BRANCH}:registry.json"))
        tags = {make_version_tag(event.version) for event in registry.history}
        files = set(git(origin, "ls-tree", "-r", "--name-only", BRANCH).split())
        live = registry.production_version
        bundles = [f"{name}:release.dvc" for name in ([BRANCH, make_version_tag(live)] if live else [])]
        return (
            succeeds(origin, "git", "fsck", "--strict")
            and set(git(origin, "tag", "--list").split()) == tags
            and all(succeeds(origin, "git", "merge-base", "--is-ancestor", tag, BRANCH) for tag in tags)
            and files >= {f"approvals/{event.version}.json" for event in registry.history}
            and len({git(origin, "show", name) for name in bundles}) == bool(live)
        )


@pytest.fixture
def count_kills(
    workspace: Plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_repelled: Count
) -> CountKills:
    """Kill a command that leaves v1.0.0 live before each of these of its calls."""

    def count(command: Command, calls: slice, tried: str) -> None:
        killer = Killer(workspace, tmp_path, monkeypatch)
        made = killer.run(command)
        assert made[-2:] == ["dvc push", "git push"]
        done = [killer.is_done_again(command, number, "v1.0.0") for number in range(len(made))[calls]]
        assert_repelled(tried, len(done), sum(done))

    return count


def test_promotion_killed_at_its_push_is_done_once(first_candidates: Candidates, count_kills: CountKills) -> None:
    first_candidates.write()
    count_kills(first_candidates.promote, slice(-4, None), "promotions killed at commit or push")


@pytest.mark.soak(twin="test_promotion_killed_at_its_push_is_done_once")
def test_promotion_killed_anywhere_is_done_once(first_candidates: Candidates, count_kills: CountKills) -> None:
    first_candidates.write()
    count_kills(first_candidates.promote, slice(None), "promotions killed at any call")


@pytest.mark.soak(twin="test_promotion_killed_at_its_push_is_done_once")
def test_roll_back_killed_anywhere_is_done_once(
    workspace: Plain, candidates: Candidates, count_kills: CountKills, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates.write(1.8)
    assert candidates.promote().version == "v1.1.0"
    for name in ("fetch_bundle", "smoke_test"):
        monkeypatch.setattr(promotion, name, lambda *_: Path())
    count_kills(lambda: roll_back(workspace, None, "complaints"), slice(None), "roll-backs killed at any call")
    assert workspace.on_origin().blocked == {"v1.1.0": "complaints"}
