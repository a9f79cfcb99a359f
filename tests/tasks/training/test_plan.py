import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_cli.plan import format_plan
from abstain_tasks.runs.shell import git
from abstain_tasks.runs.workspace import Workspace
from abstain_tasks.training import pipeline, retrain_cost
from abstain_tasks.training import plan as module
from abstain_tasks.training.plan import AFTER, Change, RetrainPlan, StagePlan
from abstain_tasks.training.retrain_cost import RetrainCost
from abstain_tasks.training.site_choice import should_choose_site
from abstain_tasks.training.stage_times import MIN_TOKENS, BaseModelUsage, estimate_seconds, record_run
from tests.checkout import SHIPPED
from tests.test_dependencies import STAGES, find_closure

DAG = 'strict digraph {\n"data.dvc";\n"dataset";\n"features";\n"report";\n"dataset" -> "features";\n"features" -> "report";\n}'


@dataclass(frozen=True)
class Recorded(Workspace):
    """A workspace whose DVC says that `changed` is stale."""

    changed: dict[str, Any] = field(default_factory=dict)

    def dvc(self, *arguments: str) -> str:
        return DAG if arguments[0] == "dag" else json.dumps(self.changed)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path / "home"))


@pytest.fixture
def repository(tmp_path: Path) -> Callable[..., None]:
    """Commit requirements.lock, and `lock` as the stages of dvc.lock; None leaves a file as it was."""
    git(tmp_path, "init", "-q", "--initial-branch=main")

    def commit(requirements: str | None = None, lock: dict[str, str] | None = None) -> None:
        if requirements is not None:
            (tmp_path / "requirements.lock").write_text(requirements)
        if lock is not None:
            stages = {name: {"cmd": name, "outs": [{"md5": digest}]} for name, digest in lock.items()}
            (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "-q", "-m", "x")

    return commit


def plan(folder: Path, **changed: Any) -> RetrainPlan:
    return module.make_plan(Recorded(folder, 0, changed))


def test_make_plan_unchanged_reads_no_model(tmp_path: Path, repository: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    repository("torch==1\n")
    monkeypatch.setattr(retrain_cost, "estimate_retrain_cost", Mock(side_effect=AssertionError("models are read")))
    cached = StagePlan([], "nothing changed")
    assert plan(tmp_path) == RetrainPlan({"dataset": cached, "features": cached, "report": cached}, None, [])
    code = "src/abstain/reports/plots.py"
    report = plan(tmp_path, report=[deps(**{code: "modified"})]).stages["report"]
    assert report.reasons == [Change("code", code, ("modified",))]


def test_make_plan_stale_stage_has_cost(tmp_path: Path, repository: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    repository("torch==1\n", {"dataset": "a", "features": "b"})
    (tmp_path / "params.yaml").write_text(SHIPPED["params.yaml"])
    wanted = RetrainCost(3, 10, 4, {"features": 500})
    monkeypatch.setattr(retrain_cost, "estimate_retrain_cost", Mock(return_value=wanted))
    planned = plan(tmp_path, dataset=["changed command"])
    assert planned.cost == wanted and planned.blocked is None
    assert planned.stages == {
        "dataset": StagePlan([Change("command", "changed command")], "command changed"),
        "features": StagePlan([Change(AFTER, "dataset")], "after dataset", 500),  # the speed is unknown
        "report": StagePlan([Change(AFTER, "features")], "no recorded run"),
    }
    record_run("dataset", 3.0, None)
    record_run("features", 70.0, BaseModelUsage("smollm2-135m-instruct", 20_000, 40.0))
    again = plan(tmp_path, dataset=["changed command"]).stages
    assert [stage.seconds for stage in again.values()] == [3.0, pytest.approx(31.0), None]


def test_make_plan_blocked_is_first_line(tmp_path: Path, repository: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    repository("torch==1\n")
    blocked = AbstainError(Code.BAD_SETTING, "layer 99 requested: set llm.layer")
    monkeypatch.setattr(retrain_cost, "estimate_retrain_cost", Mock(side_effect=blocked))
    planned = plan(tmp_path, dataset=["changed command"])
    first, *rest = format_plan(planned, verbose=False)
    assert first == "blocked: A601: layer 99 requested: set llm.layer"
    assert [line.split()[0] for line in rest] == ["dataset", "features", "report"]


def test_format_plan_line_per_stage_and_details() -> None:
    stages = {
        "validate": StagePlan([], "nothing changed"),
        "features": StagePlan(
            [Change("data", "data/reviews", ("modified",)), Change(AFTER, "dataset")], "data changed", 1_234_567, 754.0
        ),
        "report": StagePlan([Change(AFTER, "features")], "after features"),
    }
    whole = RetrainPlan(stages, RetrainCost(3, 10, 4, {"features": 1_234_567}), [])
    assert [line.split() for line in format_plan(whole, verbose=False)] == [
        ["validate", "cached", "nothing", "changed"],
        ["features", "runs", "data", "changed", "1,234,567", "tokens", "13", "min"],
        ["report", "runs", "after", "features", "-"],
    ]
    details = list(format_plan(whole, verbose=True))
    assert details[2:4] == ["    data/reviews modified", "    after dataset"]
    assert details[-1].startswith("3 labelled answers need 10 results of the base model, 4 of which are not in the")


def deps(**states: Any) -> dict[str, Any]:
    return {"changed deps": states}


def params(*keys: str) -> dict[str, Any]:
    return deps(**{"params.yaml": dict.fromkeys(keys, "modified")})


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ([deps(**{"data/interactions": "modified", "data/reviews": "modified"})], "data changed"),
        ([deps(**{"src/abstain/core": "modified"}), params("probe.seed")], "code and parameters changed"),
        ([params("probe.seed")], "parameter probe.seed changed"),
        (["changed command", deps(data="new", src="new"), params("llm")], "command, data and code changed"),
        ([{"changed outs": {"artifacts/x": "deleted"}}], "output changed"),
        ([deps(**{"artifacts/x": "modified"})], "inputs changed"),
    ],
)
def test_summarize_reasons_in_five_words(tmp_path: Path, status: list[Any], words: str) -> None:
    stale = module.find_stale(Recorded(tmp_path, 0, {"features": status}), {"features": set()})
    assert module.summarize_reasons(stale["features"]) == words and len(words.split()) <= 5


def test_summarize_reasons_up_to_four_stages() -> None:
    changes = [Change("", "artifacts/x", ("modified",)), *(Change(AFTER, name) for name in "abcde")]
    assert module.summarize_reasons(changes) == "after a, b, c, d"


@pytest.mark.heavy
def test_base_model_stages_import_engine() -> None:
    engine = "src/abstain/llm/engine/engine.py"
    assert {name for name in STAGES if engine in find_closure(f"abstain.stages.{name}")} == module.BASE_MODEL_STAGES


def test_find_stages_with_other_requirements(tmp_path: Path, repository: Callable[..., None]) -> None:
    workspace = Recorded(tmp_path, 0)
    repository("torch==1\n")
    assert module.find_stages_with_other_requirements(workspace) == set()  # nothing was computed yet
    repository(lock={"dataset": "a", "features": "b", "report": "c"})
    assert module.find_stages_with_other_requirements(workspace) == set()
    repository("torch==2\n")
    assert module.find_stages_with_other_requirements(workspace) == {"dataset", "features", "report"}
    repository(lock={"dataset": "a", "features": "B", "report": "c"})
    assert module.find_stages_with_other_requirements(workspace) == {"dataset", "report"}
    assert plan(tmp_path, report=["changed command"]).earlier == ["dataset"]  # report would run anyway
    repository(lock={"dataset": "A", "features": "B", "report": "C"})
    assert module.find_stages_with_other_requirements(workspace) == set()
    repository("torch==3\n", {"dataset": "d", "features": "B", "report": "d"})  # recorded with their requirements
    assert module.find_stages_with_other_requirements(workspace) == {"features"}


def test_find_stages_with_other_requirements_after_merge(tmp_path: Path, repository: Callable[..., None]) -> None:
    """A person changes requirements.lock, a run retrains without it meanwhile, and the person merges the run's commit."""
    repository("torch==1\n", {"dataset": "a"})
    git(tmp_path, "checkout", "-q", "-b", "run")
    repository(lock={"dataset": "b"})
    git(tmp_path, "checkout", "-q", "main")
    repository("torch==2\n")
    git(tmp_path, "merge", "-q", "-m", "Merge the run", "run")
    assert module.find_stages_with_other_requirements(Recorded(tmp_path, 0)) == {"dataset"}


@pytest.mark.parametrize(("force", "options"), [(False, []), (True, ["--force"])])
def test_run_stage_force_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool, options: list) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(pipeline, "get_run_logger", lambda: logging.getLogger())
    monkeypatch.setattr(pipeline, "run", lambda command, *_, **__: commands.append(command) or "Running stage")
    result = pipeline.run_stage.fn(Workspace(tmp_path, 0), "dataset", force=force)
    assert commands == [["dvc", "--wait-for-lock", "repro", "--single-item", *options, "dataset"]]
    assert result.status == "ran"


def test_run_stage_cached_starts_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "run", lambda command, *_, **__: pytest.fail(f"started {command}"))
    result = pipeline.run_stage.fn(Workspace(tmp_path, 0), "dataset", is_stale=False)
    assert result.status == "cached"


def test_run_stage_records_tokens_and_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.yaml").write_text(SHIPPED["params.yaml"])
    recorded: list[tuple[str, float, BaseModelUsage | None]] = []

    def run(command: list[str], folder: Path, on_line: Callable[[str], None], **_: object) -> str:
        for line in (
            "perturbing contexts: 7 tokens were run for passes of 9",
            "reading answers under B_c, N_c and P_c: 20000 tokens were run for passes of 30000",
        ):
            on_line(line)
        return "Running stage"

    monkeypatch.setattr(pipeline, "get_run_logger", lambda: logging.getLogger())
    monkeypatch.setattr(pipeline, "run", run)
    monkeypatch.setattr(pipeline, "record_run", lambda *run: recorded.append(run))
    pipeline.run_stage.fn(Workspace(tmp_path, 0), "nll_features")
    ((stage, seconds, reading),) = recorded
    assert stage == "nll_features" and reading is not None
    assert (reading.model, reading.tokens) == ("smollm2-135m-instruct", 20000) and reading.seconds <= seconds


def test_estimate_seconds_never_run_is_none() -> None:
    assert estimate_seconds("features", "m", 100) is None
    record_run("report", 4.0, None)
    assert estimate_seconds("report", "m", 0) == pytest.approx(4.0)
    assert estimate_seconds("report", "m", 100) is None


def test_estimate_seconds_grows_with_tokens_few_keep_speed() -> None:
    record_run("features", 60.0, BaseModelUsage("m", MIN_TOKENS, 50.0))
    assert estimate_seconds("features", "m", 2 * MIN_TOKENS) == pytest.approx(110.0)
    assert estimate_seconds("features", "m", 0) == pytest.approx(10.0)
    assert estimate_seconds("features", "another", MIN_TOKENS) is None
    record_run("features", 20.0, BaseModelUsage("m", MIN_TOKENS - 1, 15.0))
    assert estimate_seconds("features", "m", MIN_TOKENS) == pytest.approx(70.0)


@pytest.mark.parametrize(
    ("decided", "own", "wanted"),
    [
        ("auto", None, True),
        ("20", None, False),
        ("auto", "llm: {layer: 4}", False),
        ("20", "llm: {layer: auto}", True),
    ],
)
def test_should_choose_site_only_for_auto_layer(tmp_path: Path, decided: str, own: str | None, wanted: bool) -> None:
    text = SHIPPED["params.yaml"].replace("  layer: 20 ", f"  layer: {decided} ")
    (tmp_path / "params.yaml").write_text(text)
    (tmp_path / "own.yaml").write_text(own or "")
    assert should_choose_site(Workspace(tmp_path, 0), tmp_path / "own.yaml" if own else None) is wanted
