"""Versions that were trained on erased or corrected rows, with real git and a stub of DVC."""

import json
import logging
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any
from unittest.mock import Mock, patch

import pytest

from abstain.config.params import load_params
from abstain.config.settings import get_decision_log_url, load_settings
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.contracts import Interaction, Thumb
from abstain.core.errors import AbstainError
from abstain.core.files import write_json
from abstain.data.decision_log import queries
from abstain.data.store.dataset import DataStore, ErasedUsers, IngestedBatch, create_empty_store
from abstain.data.store.record_keys import make_interaction_identity
from abstain.data.store.splits import hash_to_unit_interval
from abstain.ingest.report import IngestReport
from abstain.reports.page import render_html
from abstain.review.workbook import ID_COLUMN
from abstain_cli import app as cli
from abstain_flows import ingest as ingest_flow
from abstain_flows import promote as promote_flow
from abstain_flows import retrain as retrain_flow
from abstain_tasks.data import ingest
from abstain_tasks.data.erasure import erase_user
from abstain_tasks.data.erasure_copies import record_export
from abstain_tasks.monitoring import publish
from abstain_tasks.release.promotion import PromotionResult, promote_candidate
from abstain_tasks.runs.git_commit import OriginMoved, commit, push
from abstain_tasks.runs.workspace import BRANCH
from abstain_tasks.server import reports
from tests.data.decision_log.builders import decision, open_log
from tests.factories import NOW, alone, feedback, interaction, row, thumb, verdict, write_lines
from tests.review.builders import write_file
from tests.tasks.conftest import DAY, Candidates, Plain, read_approval, read_checks

pytestmark = pytest.mark.heavy  # git, and whole evaluations: not pure functions


def test_promote_same_bytes_after_erasure_is_new_version(workspace: Plain, candidates: Candidates) -> None:
    assert candidates.promote().status == "unchanged"
    workspace.taint("v1.0.0")
    assert candidates.promote() == PromotionResult("promoted", "v1.1.0", [])
    first, second = workspace.on_origin().history
    assert (second.reason, second.candidate_sha256) == ("erasure", first.candidate_sha256)
    assert second.sha256 != first.sha256
    assert workspace.on_origin().taint is None and "v1.0.0" in workspace.on_origin().tainted
    assert "probe@v1.1.0" in workspace.git("ls-remote", "--tags", "origin")
    assert read_approval(workspace, "v1.1.0")["erasure"]["since"] == DAY.isoformat()
    assert "not worse than v1.0.0" in read_checks(workspace, "v1.1.0")
    assert candidates.promote().status == "unchanged"


def test_promote_worse_after_erasure_needs_acceptance(workspace: Plain, candidates: Candidates) -> None:
    candidates.write(0.9)
    with pytest.raises(AbstainError, match="v1.0.0 was not trained"):
        candidates.promote(accept_erasure="the law")
    workspace.taint("v1.0.0")
    candidates.latency = 1000.0
    with pytest.raises(AbstainError, match="latency"):
        candidates.promote(accept_erasure="the law")
    assert workspace.on_origin().production_version == "v1.0.0"
    candidates.latency = 1.0
    assert candidates.promote(accept_erasure="the law").version == "v1.1.0"
    assert workspace.on_origin().history[-1].reason == "erasure; the law"
    assert read_approval(workspace, "v1.1.0")["erasure"]["accepted"] == "the law"
    assert read_checks(workspace, "v1.1.0")["not worse than v1.0.0"]["passed"] is None


def test_promote_blocked_candidate_is_rejected(workspace: Plain, candidates: Candidates) -> None:
    candidates.write(1.8)
    assert candidates.promote().version == "v1.1.0"
    registry = workspace.on_origin()
    moved = registry.roll_back(registry.history[0].model_copy(update={"action": "rollback", "reason": "complaints"}))
    (workspace.path / paths.REGISTRY).write_text(moved.to_json())
    (reason,) = candidates.promote().reasons
    assert reason.startswith("A407 ") and "v1.1.0 again, which was blocked: complaints" in reason
    workspace.taint("v1.0.0")
    with pytest.raises(AbstainError, match="v1.1.0 again, which was blocked: complaints"):
        candidates.promote()


def test_promote_holdout_without_erased_answers_is_same(workspace: Plain, candidates: Candidates) -> None:
    erased = tuple(make_interaction_identity(f"i-{n}").hex() for n in range(2))
    (workspace.path / paths.DATA).mkdir()
    file = workspace.path / paths.DATA / "erased.json"
    workspace.taint("v1.0.0")
    candidates.write(1.8, drop=2)
    for known in ((), erased[:1]):
        file.write_text(ErasedUsers(interactions=known).to_json_line())
        with pytest.raises(AbstainError, match="same hold-out"):
            candidates.promote(recheck=True)
    file.write_text(ErasedUsers(interactions=erased).to_json_line())
    assert candidates.promote(recheck=True).version == "v1.1.0"
    assert "2 of its answers" in read_checks(workspace, "v1.1.0")["same hold-out"]["message"]


def test_promote_unreadable_champion_holdout_is_not_same(workspace: Plain, candidates: Candidates) -> None:
    shutil.rmtree(workspace.kept)
    workspace.taint("v1.0.0")
    candidates.write(drop=2)
    with pytest.raises(AbstainError, match="same hold-out` failed: .*--accept-new-holdout REASON"):
        candidates.promote()
    assert candidates.promote(new_holdout="the old one is lost").version == "v1.1.0"
    assert workspace.on_origin().history[-1].reason == "erasure; the old one is lost"


@pytest.fixture
def flows_here(workspace: Plain, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Return the flow `retrain` with every stage cached, without a Prefect server."""
    (workspace.path / paths.DATA).mkdir()
    for module in (retrain_flow, promote_flow):
        monkeypatch.setattr(module, "promote_candidate", promote_candidate.fn)
        monkeypatch.setattr(module, "open_workspace", lambda: nullcontext(workspace))
    monkeypatch.setattr(retrain_flow, "run_dag", lambda *_: [])
    for name in ("publish_validation", "publish_artifacts"):
        monkeypatch.setattr(retrain_flow, name, lambda _: None)
    monkeypatch.setattr("abstain_tasks.runs.workspace.open_workspace", lambda: nullcontext(workspace))
    monkeypatch.setattr(
        "abstain_tasks.release.status.fetch_origin_snapshot", lambda: (workspace.path, f"origin/{BRANCH}")
    )
    return retrain_flow.retrain.fn


def test_retrain_tainted_production_fails_until_decision(
    workspace: Plain, candidates: Candidates, flows_here: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    candidates.write(0.9)
    assert flows_here().promotion.status == "rejected"
    workspace.taint("v1.0.0")
    for _ in range(2):
        with pytest.raises(AbstainError, match="since 2026-11-20.*not worse than v1.0.0.*--keep-tainted") as error:
            flows_here()
        assert error.value.code is Code.ERASED_IN_PRODUCTION
    assert len(candidates.judged) == 2, "judged once more for the erasure, and remembered from then on"
    assert "trained on erased rows since 2026-11-20" in candidates.judged[-1]
    assert workspace.on_origin().production_version == "v1.0.0"

    for options in ({"keep_tainted": " "}, {"keep_tainted": "a", "accept_erasure": "b"}):
        with pytest.raises(AbstainError, match="--keep-tainted", check=lambda error: error.code is Code.USAGE):
            cli.promote(**options)
    cli.promote(keep_tainted="no [other] yet")
    kept = "trained on erased rows since 2026-11-20; kept on purpose: no [other] yet"
    assert kept in " ".join(capsys.readouterr().out.split())
    taint = workspace.on_origin().taint
    assert taint is not None and taint.keep_reason == "no [other] yet"
    assert flows_here().promotion.status == "rejected"
    workspace.taint("v1.0.0", at=DAY + timedelta(days=1))
    with pytest.raises(AbstainError, match="since 2026-11-20"):
        flows_here()
    candidates.write(1.2)
    assert candidates.promote().version == "v1.1.0"


def test_status_names_tainted_versions_and_undefined_metrics(
    workspace: Plain, candidates: Candidates, flows_here: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def read_status() -> str:
        cli.status()
        return " ".join(capsys.readouterr().out.split())

    assert "trained on erased rows" not in read_status()
    workspace.taint("v1.0.0")
    assert "in production: probe v1.0.0, trained on erased rows since 2026-11-20, by promote" in read_status()
    assert flows_here().promotion.version == "v1.1.0"
    status = read_status()
    assert "in production: probe v1.1.0, by promote" in status
    assert "v1.0.0: trained on erased rows since 2026-11-20" in status

    record = read_approval(workspace, "v1.1.0")
    holdout = record["metrics"]["holdout"]
    holdout["rows"] = 3
    holdout["scorers"]["probe"] |= dict.fromkeys(("auroc", "auroc_low", "auroc_high"))
    holdout["at_threshold"] |= {"threshold": 0.5, "precision": None, "coverage": 0.0}
    (workspace.path / paths.APPROVALS / "v1.1.0.json").write_text(json.dumps(record))
    commit(workspace, "Figures", paths.APPROVALS)
    push(workspace)
    undefined = "AUROC not defined on 3 answers; at threshold 0.500 precision not defined, shows 0.0%"
    assert undefined in read_status()


def test_publish_names_tainted_probe(workspace: Plain, candidates: Candidates, monkeypatch: pytest.MonkeyPatch) -> None:
    root, published = workspace.path, dict[str, str]()
    (root / paths.PLOTS).mkdir()
    (root / paths.PLOTS / "threshold.csv").write_text("threshold\n0.5\n")
    (root / paths.REPORT / "report.md").write_text("# Report\n\n## ✓ All is well\n", encoding="utf-8")
    monkeypatch.setattr("abstain.reports.plots.PLOTS", {})
    monkeypatch.setattr(publish.EvaluationResult, "from_files", lambda *_: None)
    monkeypatch.setattr(publish, "render_leaderboard", lambda _: "")
    monkeypatch.setattr(publish, "create_markdown_artifact", lambda text, key, **_: published.update({key: text}))
    monkeypatch.setattr(publish, "create_table_artifact", lambda *_, **__: None)
    monkeypatch.setattr(publish, "create_link_artifact", lambda *_, **__: None)
    monkeypatch.setattr(publish.reports, "write_page", lambda _, name, page: published.update({f"{name}-page": page}))
    mark = "probe v1.0.0, trained on erased rows since 2026-11-20"
    publish.publish_artifacts.fn(workspace)
    assert mark not in "".join(published.values())
    workspace.taint("v1.0.0")
    publish.publish_artifacts.fn(workspace)
    assert mark in published["evaluation"] and "# Report" in published["evaluation"]
    assert mark in published["evaluation-page"] and "All is well" in published["evaluation-page"]


@pytest.mark.parametrize(
    ("user", "with_interactions", "versions"),
    [
        ("u-ann", False, ["v1.1.0", "v1.2.0"]),
        ("u-ann", True, ["v1.0.0", "v1.1.0", "v1.2.0"]),  # v1.0.0 knew the expert's verdict on what she rated
        ("u-bob", False, []),  # nothing is trained on a thumb that waits
        ("u-eve", True, ["v1.2.0"]),
    ],
)
def test_erase_user_taints_in_one_commit(history: Plain, user: str, with_interactions: bool, versions: list) -> None:
    before = history.git("rev-parse", f"origin/{BRANCH}")
    erasure = erase_user(history, user, with_interactions=with_interactions)
    assert erasure.versions == dict.fromkeys(versions, True)
    assert list(history.on_origin().tainted) == versions and history.on_origin() == erasure.registry
    assert all(found.user != user for found in DataStore(history.path / paths.DATA).iter_rows(Thumb))
    assert history.git("rev-parse", f"origin/{BRANCH}~1") == before, "rows and marks are one commit"


def test_erase_user_lists_copies_outside_data(history: Plain) -> None:
    root, home = history.path, load_settings().home.resolve()
    files = [write_file(root.parent / f"{key}.xlsx", interaction(key)) for key in ("i-1", "i-2")]
    for file in files:
        record_export(file)
    shown = {"examples": {"caught": [{"interaction_id": "i-1"}], "missed": []}}
    other = {"examples": {"caught": [{"interaction_id": "i-12"}], "missed": []}}
    for version, evaluation in (("v1.0.0", shown), ("v1.1.0", other)):
        write_json(home / "releases" / version / "evaluation.json", evaluation)
        (example,) = evaluation["examples"]["caught"]
        page = render_html(f"# Report\n\n## \u2713 Well\n\n1. Likely · {example[ID_COLUMN]}\n   - a", {})
        reports.write_page(f"run-{version}", "evaluation", page)
    write_json(root / paths.EVALUATION, shown)
    expected = [files[0], home / "reports/run-v1.0.0/evaluation.html", root / paths.REPORT, home / "releases/v1.0.0"]
    for _ in range(2):  # asked again, it names what is still there
        copies = erase_user(history, "u-ann", with_interactions=True).copies
        assert [line.partition(": ")[0] for line in copies] == [str(place) for place in [*expected, home / "features"]]
    assert erase_user(history, "u-ann", with_interactions=False).copies == ()
    files[0].unlink()
    copies = erase_user(history, "u-ann", with_interactions=True).copies
    assert str(files[0]) not in "".join(copies) and len(copies) == 4


def test_erase_user_erases_decision_log_after_commit(history: Plain) -> None:
    url = get_decision_log_url(load_settings())
    log = open_log(url)
    for key, user in (("i-1", None), ("i-3", None), ("asked", "u-ann"), ("rated", None), ("other", None)):
        log.record_decision(decision(key, user=user))
    for key in ("rated", "i-3"):
        log.record_feedback(f"f-{key}", feedback(key, user="u-ann")).result()

    def read_texts() -> dict[str, str]:
        found = {key: queries.get_decision(log.database, key) for key in ("i-1", "i-3", "asked", "rated", "other")}
        return {key: one.text_state for key, one in found.items() if one}

    away = AbstainError(Code.NO_SERVICE, "away")
    with (
        patch("abstain.data.decision_log.erasure.erase_user", side_effect=away),
        pytest.raises(AbstainError, match="away"),
    ):
        erase_user(history, "u-ann", with_interactions=True)
    assert set(read_texts().values()) == {"kept"}
    erased = erase_user(history, "u-ann", with_interactions=True)  # again: the data has no more what she rated there
    gone = dict.fromkeys(("i-1", "i-3", "asked", "rated"), "erased")
    assert read_texts() == {**gone, "other": "kept"} and erased.removed["decision log"] == 6
    store = DataStore(history.path / paths.DATA)
    assert [found.interaction_id for found in store.iter_rows(Interaction)] == ["i-2"]
    assert {make_interaction_identity(key).hex() for key in gone} <= set(store.read_erased_users().interactions)
    log.close()


def test_erase_user_only_in_decision_log(history: Plain) -> None:
    log = open_log(get_decision_log_url(load_settings()))
    log.record_feedback("f", feedback("i-9", user="u-new", comment="as they said")).result()
    with pytest.raises(AbstainError, match="'u-nobody'"):
        erase_user(history, "u-nobody", with_interactions=False)
    assert erase_user(history, "u-new", with_interactions=False).removed["decision log"] == 1
    assert "u-new" in DataStore(history.path / paths.DATA).read_erased_users().users
    log.close()


def test_erase_user_repeated_taints_new_versions_only(history: Plain) -> None:
    erase_user(history, "u-ann", with_interactions=False)
    marked = history.on_origin()
    history.git("tag", "--annotate", "probe@v1.3.0", "probe@v1.2.0^{}", "-m", "t")
    history.keep("v1.3.0", paths.DATA)
    again = erase_user(history, "u-ann", with_interactions=False).registry
    assert {version: again.tainted[version] for version in marked.tainted} == marked.tainted
    assert set(again.tainted) - set(marked.tainted) == {"v1.3.0"}


def test_erase_user_clears_shadow_in_same_commit(history: Plain) -> None:
    for name in ("shadow.dvc", str(paths.SHADOW_POINTER)):
        (history.path / name).write_text("{}")
    commit(history, "A shadow", "shadow.dvc", paths.SHADOW_POINTER)
    assert erase_user(history, "u-ann", with_interactions=False).shadow_cleared
    listed = history.git("ls-tree", "--name-only", f"origin/{BRANCH}").split()
    assert "registry.json" in listed and not {"shadow.dvc", "shadow.json"} & set(listed)
    assert history.git("log", "-1", "--format=%s", f"origin/{BRANCH}").strip() == "Erase a user"
    assert not erase_user(history, "u-ann", with_interactions=False).shadow_cleared


def test_erase_user_lost_data_or_foreign_tag_is_uncertain(history: Plain) -> None:
    tree = history.git("hash-object", "-t", "tree", "-w", "/dev/null").strip()
    without_data = history.git("commit-tree", tree, "-m", "no data").strip()
    for name in ("probe@vnext", "probe@v7.0.0"):
        history.git("tag", "--annotate", name, without_data, "-m", "t")
    shutil.rmtree(history.kept / "refs-tags-probe@v1.0.0")
    erased = erase_user(history, "u-ann", with_interactions=False)
    assert erased.versions == {"v1.0.0": False, "v1.1.0": True, "v1.2.0": True, "v7.0.0": False}
    assert not history.on_origin().tainted["v1.0.0"].certain


REASON = "the export had the wrong answers"


def correct(workspace: Plain, *rows: dict[str, Any], reason: str | None = REASON) -> IngestReport:
    """The flow `ingest` of these rows, which is what `abstain ingest FILE --replace` runs."""
    file = write_lines(workspace.path.parent / "corrected.jsonl", *rows)
    with patch.object(ingest_flow, "open_workspace", lambda: nullcontext(workspace)):
        return ingest_flow.ingest.fn([str(file)], replace_reason=reason)


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_flow, "ingest_sources", ingest.ingest_sources.fn)
    monkeypatch.setattr(ingest, "publish_ingest", lambda *_: None)
    monkeypatch.setattr(ingest, "get_run_logger", logging.getLogger)


@pytest.mark.parametrize(
    ("rows", "versions"),
    [
        ([row("i-1", answer="Ten.")], ["v1.0.0", "v1.1.0", "v1.2.0"]),
        ([alone(thumb("down", user="u-ann"), "i-1")], ["v1.1.0", "v1.2.0"]),
        ([row("i-2", answer="Ten.")], []),  # without a label: nothing was trained on it
        ([row("i-3", thumb=thumb("down", user="u-eve"))], ["v1.2.0"]),
    ],
)
def test_correction_marks_versions_in_one_commit(history: Plain, rows: list[dict], versions: list[str]) -> None:
    before = history.git("rev-parse", f"origin/{BRANCH}")
    report = correct(history, *rows)
    assert list(history.on_origin().tainted) == versions
    assert {taint.cause for taint in history.on_origin().tainted.values()} <= {"corrected"}
    assert f"now marked: {', '.join(versions) or 'none'}" in report.effects[-1]
    assert history.git("rev-parse", f"origin/{BRANCH}~1") == before, "rows and marks are one commit"
    assert REASON in history.git("log", "-1", "--format=%b", f"origin/{BRANCH}")


def test_correction_report_names_labels_and_holdout(history: Plain) -> None:
    names = [f"h-{number}" for number in range(9)]
    assert not correct(history, *(row(name, review=verdict()) for name in names), reason=None).effects
    relabelled = [alone(verdict(False), name) for name in names]
    report = correct(history, *relabelled, row("i-1", answer="Ten."), row("new"))
    split = load_params(history.path / paths.PARAMS).split
    holdout_names = [name for name in (*names, "i-1") if hash_to_unit_interval(split.seed, name) < split.holdout]
    assert 0 < len(holdout_names) < 9
    assert report.effects[:3] == (
        f"labels: 9 of 10 changed ({', '.join(names)})",
        "answers that keep a label given for their former content: 1 (i-1)",
        f"answers of the hold-out: {len(holdout_names)} ({', '.join(holdout_names)})",
    )
    assert all(line in report.to_markdown() for line in report.effects)


def test_ingest_behind_another_run_is_taken_again(history: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Mock(side_effect=[OriginMoved(Code.FAILED_STEP, "moved")] * 2 + ["the report"])
    monkeypatch.setattr(ingest_flow, "ingest_sources", attempt)
    monkeypatch.setattr(ingest_flow, "get_run_logger", logging.getLogger)
    assert correct(history, row("i-1")) == "the report"
    attempt.side_effect = [OriginMoved(Code.FAILED_STEP, "moved")] * 3
    with pytest.raises(AbstainError, match=": moved$", check=lambda error: error.code is Code.FAILED_STEP):
        correct(history, row("i-1"))


def test_promote_on_corrected_holdout_is_new_comparison(workspace: Plain, candidates: Candidates) -> None:
    store = DataStore(workspace.path / paths.DATA)
    create_empty_store(store.folder)
    candidates.write(1.8, flipped=2)
    assert "same hold-out" in str(candidates.promote().reasons)
    corrected = tuple(make_interaction_identity(f"i-{number}").hex() for number in range(2))
    batch = IngestedBatch(batch="000001", arrived_at=NOW, sources=("a",), rows={}, replaced=corrected, reason=REASON)
    (store.folder / "batches.jsonl").write_text(batch.to_json_line() + "\n")
    workspace.taint("v1.0.0")
    assert candidates.promote(recheck=True).version == "v1.1.0"
    message = read_checks(workspace, "v1.1.0")["same hold-out"]["message"]
    assert "2 answers were corrected, so this counts as a new comparison" in message
    assert read_approval(workspace, "v1.1.0")["comparison"] == 2
