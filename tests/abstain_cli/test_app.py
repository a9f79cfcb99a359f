"""Bad input to the command line: one clear line that names the thing and the remedy, and nothing changed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from abstain.config.settings import Settings, load_settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.filesystem import expand_variables, get_display_name
from abstain.ingest.report import IngestReport
from abstain_cli import app as cli
from abstain_tasks.runs.shell import git
from abstain_tasks.runs.workspace import ensure_origin
from tests.conftest import Project, new_project
from tests.llm.builders import save_tiny_model
from tests.serving.builders import GUARANTEE, release, requests


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One for all that is refused before anything is written."""
    return new_project(tmp_path_factory.mktemp("project"))


def fails(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and re.match(r"error A\d{3}: ", lines[0]), done.stderr
    for word in words:
        assert word in lines[0], lines[0]


@pytest.mark.heavy
def test_no_git_at_all(project: Project, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    done = subprocess.run(
        [str(Path(project.environment["PATH"].split(":")[0]) / "python"), "-m", "abstain_cli.app", "retrain"],
        cwd=project.root,
        env=project.environment | {"PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )
    fails(done, "git is not installed")


@pytest.mark.heavy
def test_outside_a_repository(project: Project, tmp_path: Path) -> None:
    fails(project.abstain("status", cwd=tmp_path), "is in no git repository", "clone of the project")


@pytest.mark.heavy
def test_a_dirty_tree_is_refused_at_once(project: Project) -> None:
    (project.root / "params.yaml").open("a").write("# mine\n")
    fails(project.abstain("retrain"), "params.yaml in", "not committed", "`git commit`")
    assert not (project.home / "origin.git").exists()
    project.git("checkout", "--quiet", "params.yaml")


def test_only_changes_to_what_a_run_reads_stop_it(plain_clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTAIN_HOME", str(plain_clone / "home"))
    (plain_clone / "reviews.xlsx").touch()
    (plain_clone / "README.md").write_text("Mine")
    assert ensure_origin(plain_clone, load_settings()) == str(plain_clone / "home" / "origin.git")
    (plain_clone / "src").mkdir()
    (plain_clone / "src" / "mine.py").touch()
    with pytest.raises(AbstainError, match=r"^src/ in .*: not committed"):
        ensure_origin(plain_clone, load_settings())


@pytest.mark.heavy
def test_before_the_first_run(project: Project) -> None:
    for command in (["status"], ["score", "-q", "a", "-a", "b"]):
        fails(project.abstain(*command), "no run has been made", "abstain retrain")


@pytest.fixture
def plain_clone(tmp_path: Path) -> Path:
    """A git repository with a README alone, committed."""
    for command in (["init", "-q"], ["add", "--all"], ["commit", "-qm", "A project"]):
        (tmp_path / "README.md").write_text("Theirs")
        git(tmp_path, "-c", "user.name=t", "-c", "user.email=t@localhost", *command)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """`abstain ARGUMENTS` in this process, in no project; its exit status."""
    monkeypatch.setattr(cli, "_prepare_environment", lambda: None)
    monkeypatch.setattr(sys, "argv", ["abstain", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


def test_help_names_every_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--help") == 0
    said = capsys.readouterr().out
    for path, _ in commands(typer.main.get_command(cli.app)):
        assert path[0] in said
        assert run(monkeypatch, *path, "--help") == 0
    assert {"demo", "ingest", "retrain", "plan", "status", "score", "promote", "rollback"} <= set(said.split())


def commands(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below `group`, by the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


NUMBERS = [
    (path, param.opts[-1])
    for path, command in commands(typer.main.get_command(cli.app))
    for param in command.params
    if re.search(r"\b(int|float)\b", str(param.type_descriptor.annotation))
]


@pytest.mark.heavy
@pytest.mark.parametrize(("path", "option"), NUMBERS, ids=lambda value: str(value))
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "many"])
def test_option_that_is_no_number_is_one_line(
    path: tuple[str, ...], option: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *path, option, value) == 2
    said = capsys.readouterr().err
    assert said.startswith("error A603: ") and said.count("\n") == 1 and option in said


def test_every_number_among_the_options_was_looked_at() -> None:
    named = {option for _, option in NUMBERS}
    assert {"-k", "-n", "--top-p", "--temperature", "--max-new-tokens", "--seed", "--port"} <= named
    assert {"--random-share", "--max-inference", "--older-than-days"} <= named


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nope"], "No such command 'nope'"),
        (["kb", "search"], "Missing argument"),
        (["kb", "search", " "], "the question is empty"),
        (["kb", "search", "q", "-k", "0"], "-k"),
        (["score"], "either a FILE, or --question and --answer"),
        (["score", "--contxt", "c"], "--contxt"),
        (["score", "-q", "a", "-a", "b", "-c", "c", "--no-context"], "contradict each other"),
        (["score", "file.jsonl", "-c", "c"], "either a FILE, or --question and --answer"),
        (["generate", "-q", "a", "--top-p", "0"], "top_p is above 0"),
        (["generate", "-q", "a", "--temperature", "0.001"], "a temperature is 0 or at least 0.01"),
        (["review", "export", "-o", "nowhere.csv"], "end its name in .xlsx"),
        (["review", "export", "--since", "soon"], "--since"),
    ],
)
def test_a_command_typed_wrong_is_one_line_and_status_2(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error A603: ") and said.count("\n") == 1 and says in said


def test_explain_prints_cause_and_remedy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "explain", "a601") == 0
    assert capsys.readouterr().out == f"A601: {Code.BAD_SETTING.cause}\nRemedy: {Code.BAD_SETTING.remedy}\n"
    assert run(monkeypatch, "explain", "A999") == 1
    assert capsys.readouterr().err == "error A602: no code 'A999': see docs/codes.md\n"


@pytest.fixture
def promoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe on a tiny model, as if it were in production."""
    for name, value in (("HOME", str(tmp_path / "home")), ("DEVICE", "cpu"), ("DTYPE", "float32")):
        monkeypatch.setenv(f"ABSTAIN_{name}", value)
    file = release(tmp_path / "bundle", save_tiny_model(tmp_path / "tiny-bank"), Settings(), guarantee=GUARANTEE)
    monkeypatch.setattr("abstain_tasks.release.bundles.fetch_production", lambda: (file.parent, None))


def test_rows_without_context_are_unavailable_and_warned_of(
    promoted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(one.model_dump_json() + "\n" for one in requests(3)))
    bare = ["-q", "Why?"]
    for arguments, warned, unavailable in (
        (["score", str(file)], "1 of 3 rows have no context", [True, False, False]),
        (["score", str(file), "--no-context"], "", [False, False, False]),
        (["score", *bare, "-a", "So."], "the answer has no context", [True]),
        (["score", *bare, "-a", "So.", "--no-context"], "", [False]),
        (["score", *bare, "-a", "So.", "-c", "It is so."], "", [False]),
        (["generate", *bare, "--max-new-tokens", "2"], "the answer has no context", [True]),
        (["generate", *bare, "--max-new-tokens", "2", "--no-context"], "", [False]),
    ):
        assert run(monkeypatch, *arguments) == 0
        said = capsys.readouterr()
        assert [json.loads(line)["decision"] == "unavailable" for line in said.out.splitlines()] == unavailable
        assert said.err.count("\n") == bool(warned) and said.err.startswith(f"warning A206: {warned}" if warned else "")


def test_an_answer_from_flags_is_decided(
    promoted: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "score", "-q", "Why?", "-a", "So.", "-c", "It is so.") == 0
    assert json.loads(capsys.readouterr().out)["decision"] in ("show", "abstain")


def test_an_answer_that_fits_no_window_is_an_option_error(
    promoted: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "generate", "-q", "Why?", "-c", "So.", "--max-new-tokens", "100000") == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(
        "error A603: --max-new-tokens 100000 leaves no room for any question: "
    )
    assert said.err.count("\n") == 1 and "512" in said.err


def test_exit_statuses_are_those_of_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raised: list[BaseException] = [KeyboardInterrupt(), typer.Exit(1)]

    def stats() -> None:
        raise raised.pop(0)

    (command,) = (found for found in cli.cache.app.registered_commands if found.callback.__name__ == "stats")
    monkeypatch.setattr(command, "callback", stats)
    assert [run(monkeypatch, "cache", "stats") for _ in range(2)] == [130, 1]
    assert capsys.readouterr().err.startswith("stopped; run the same command again")
    assert run(monkeypatch, "--help") == 0 and run(monkeypatch) == 2
    capsys.readouterr()
    assert run(monkeypatch, "kb") == 2
    assert capsys.readouterr().err == "", "the help says it all"


def test_a_signature_is_no_parameter_of_the_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect stores the parameters of a run, and shows them."""
    given: list[list[str] | None] = []

    def ingest(files: list[str] | None, mapping: str | None) -> IngestReport:
        given.append(files)
        return IngestReport(read=0, accepted=0, duplicate=0, pending=0, quarantined=0, contracts={})

    monkeypatch.setitem(sys.modules, "abstain_tasks.server", SimpleNamespace(server_for_run=nullcontext))
    monkeypatch.setitem(sys.modules, "abstain_flows.ingest", SimpleNamespace(ingest=ingest))
    signed = "https://user:word@host/a.jsonl?X-Amz-Signature=secret"
    monkeypatch.setenv("SIGNED", signed)
    cli.ingest([signed, "b.jsonl", "https://host/c.jsonl", "${SIGNED}"])
    cli.ingest()
    assert given[1] is None and given[0] is not None
    first, *others = given[0]
    assert others == ["b.jsonl", "https://host/c.jsonl", "${SIGNED}"]
    assert not re.search("word|secret", first)
    assert expand_variables(first, "x") == signed and get_display_name(first) == "a.jsonl"
    monkeypatch.delenv(first[2:-1])


@pytest.mark.parametrize("name", ["review-queue-a.jsonl", "https://host/review-queue.csv?sig=secret"])
def test_no_file_takes_the_name_of_verdicts_whose_weights_were_checked(name: str) -> None:
    with pytest.raises(
        AbstainError, match=r"^review-queue[^?]*: such names are reserved for the reviews of `abstain review"
    ):
        cli.ingest(["a.jsonl", name])


@pytest.mark.slow
def test_error_of_a_stage_is_one_line_and_nothing_is_promoted(tmp_path: Path, prefect_server: str) -> None:
    project = replace(new_project(tmp_path), server=prefect_server)
    project.edit_params("layer: 20", "layer: 99")
    fails(project.abstain("retrain"), "layer 99", "layers 1 to 30", "llm.layer")
    assert "Promote" not in project.git("log", "--oneline", "main", cwd=project.home / "origin.git")
