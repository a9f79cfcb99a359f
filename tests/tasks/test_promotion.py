"""Versions without a guarantee: the first goes live as such, and the first with one replaces it."""

from __future__ import annotations

import pytest

from abstain.config.params import load_params
from abstain.core import paths
from abstain.release.registry import load_registry
from tasks import promotion
from tasks.git_commit import commit
from tasks.promotion import Promotion
from tasks.run_params import edit_params
from tests.tasks.conftest import Candidates, Plain

WHY = "about 300 would be needed: bring about 500 more reviews"


@pytest.fixture
def frozen(workspace: Plain, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The version in production before each promotion that freezes the hold-out."""
    found: list[str | None] = []

    def freeze(_: Plain) -> bool:
        found.append(load_registry(workspace.path / paths.REGISTRY).version)
        return False

    monkeypatch.setattr(promotion, "freeze_holdout", freeze)
    return found


def set_on_infeasible(workspace: Plain, value: str) -> None:
    edit_params(workspace, {"threshold": {"on_infeasible": value}})
    commit(workspace, "Where nothing can be guaranteed", paths.PARAMS)


def test_the_first_version_may_lack_a_guarantee_until_one_has_it(
    workspace: Plain, first_candidates: Candidates, frozen: list[str | None]
) -> None:
    set_on_infeasible(workspace, "heuristic")
    first_candidates.write(1.5, unguaranteed=WHY)
    assert first_candidates.promote() == Promotion("promoted", "v1.0.0", [f"none yet: {WHY}"])
    live = workspace.on_origin().prod
    assert live is not None and not live.guaranteed and frozen == []
    first_candidates.write(1.4, drop=20, unguaranteed=WHY)  # the hold-out has grown, and is no rival's
    assert first_candidates.promote().version == "v1.1.0"
    first_candidates.write(1.2, drop=10)  # ranks worse, but keeps its word
    assert first_candidates.promote() == Promotion("promoted", "v1.2.0", [])
    live = workspace.on_origin().prod
    assert live is not None and live.guaranteed and frozen == ["v1.1.0"]
    first_candidates.write(1.6, drop=10, unguaranteed=WHY)
    assert first_candidates.promote() == Promotion("rejected", "v1.2.0", [f"A302 guarantee: none: {WHY}"])


def test_where_it_must_not_the_record_says_why(
    workspace: Plain, first_candidates: Candidates, frozen: list[str | None]
) -> None:
    assert load_params(workspace.path / paths.PARAMS).threshold.on_infeasible == "fail"
    first_candidates.write(1.5, unguaranteed=WHY)
    assert first_candidates.promote() == Promotion("rejected", None, [f"A302 guarantee: none: {WHY}"])
    assert workspace.on_origin().prod is None and frozen == []
    assert list((workspace.path / paths.APPROVALS).glob("rejected-*.json"))
