import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import typer

from abstain.config.settings import Settings, load_settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.filesystem import expand_variables, get_display_name
from abstain.ingest.report import IngestReport
from abstain.serving.service.keys import ApiKeys
from abstain_cli import app as cli
from abstain_tasks.runs.shell import git
from abstain_tasks.runs.workspace import ensure_origin
from tests.abstain_cli.conftest import assert_fails, fail, invoke
from tests.conftest import new_project
from tests.llm.builders import save_tiny_model
from tests.serving.builders import GUARANTEE, release, requests


@pytest.mark.heavy
def test_commands_outside_a_ready_project_fail(tmp_path: Path) -> None:
    project = new_project(tmp_path)
    without_git = ["env", f"PATH={project.home}", sys.executable, "-m", "abstain_cli.app", "retrain"]
    assert_fails(project.command(without_git), Code.NO_PACKAGE, "git is not installed")
    for command in ("status", "init"):
        assert_fails(project.abstain(command, cwd=tmp_path), Code.NO_CHECKOUT)
    for command in (["status"], ["score", "-q", "a", "-a", "b"]):
        assert_fails(project.abstain(*command), Code.NO_VERSION, "abstain retrain")
    (project.root / "params.yaml").open("a").write("# mine\n")
    assert_fails(project.abstain("retrain"), Code.NO_CHECKOUT, "params.yaml", "`git commit`")
    assert not (project.home / "origin.git").exists()


def test_ensure_origin_requires_committed_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text("Theirs")
    for command in (["init", "-q"], ["add", "--all"], ["commit", "-qm", "A project"]):
        git(tmp_path, "-c", "user.name=t", "-c", "user.email=t@localhost", *command)
    monkeypatch.setenv("ABSTAIN_HOME", str(tmp_path / "home"))
    (tmp_path / "reviews.xlsx").touch()
    (tmp_path / "README.md").write_text("Mine")
    assert ensure_origin(tmp_path, load_settings()) == str(tmp_path / "home" / "origin.git")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "mine.py").touch()
    with pytest.raises(AbstainError, match="src/", check=lambda error: error.code is Code.NO_CHECKOUT):
        ensure_origin(tmp_path, load_settings())


class Result(NamedTuple):
    status: int
    out: str
    err: str

    def is_usage_error(self, word: str) -> bool:
        """Return whether the command printed one line, a usage error with this word."""
        lines = self.err.splitlines()
        return self.status == 2 and len(lines) == 1 and lines[0].startswith("error A603: ") and word in lines[0]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs `abstain ARGUMENTS` in this process, in no project."""

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(cli, "_prepare_environment", lambda: None)
        monkeypatch.setattr(sys, "argv", ["abstain", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return Result(int(end.value.code or 0), *capsys.readouterr())

    return run


@pytest.mark.heavy
def test_help_names_every_command(run: Callable[..., Result]) -> None:
    status, printed, _ = run("--help")
    assert status == 0
    for path, _ in iter_commands(typer.main.get_command(cli.app)):
        assert path[0] in printed.split() and run(*path, "--help").status == 0


def iter_commands(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command below `group` with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from iter_commands(command, *path, name)
        else:
            yield (*path, name), command


@pytest.mark.heavy
def test_number_option_with_another_value_is_a_usage_error(run: Callable[..., Result]) -> None:
    numbers = [
        (path, param.opts[-1])
        for path, command in iter_commands(typer.main.get_command(cli.app))
        for param in command.params
        if re.search(r"\b(int|float)\b", str(param.type_descriptor.annotation))
    ]
    assert {"-k", "--top-p", "--port", "--max-inference", "--older-than-days"} <= {option for _, option in numbers}
    for path, option in numbers:
        for value in ("nan", "inf", "-1"):
            assert run(*path, option, value).is_usage_error(option), (path, option, value)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nope"], "'nope'"),
        (["kb", "search", " "], "question"),
        (["kb", "search", "q", "-k", "0"], "-k"),
        (["score"], "FILE, or --question and --answer"),
        (["score", "-q", "a", "-a", "b", "-c", "c", "--no-context"], "--context and --no-context"),
        (["generate", "-q", "a", "--top-p", "0"], "top_p"),
        (["generate", "-q", "a", "--temperature", "0.001"], "temperature"),
        (["review", "export", "-o", "nowhere.csv"], ".xlsx"),
        (["review", "export", "--since", "soon"], "--since"),
    ],
)
def test_wrong_command_line_is_a_usage_error(arguments: list[str], word: str, run: Callable[..., Result]) -> None:
    assert run(*arguments).is_usage_error(word)


def test_explain_prints_cause_and_remedy(run: Callable[..., Result]) -> None:
    text = f"A601: {Code.BAD_SETTING.cause}\nRemedy: {Code.BAD_SETTING.remedy}\n"
    assert run("explain", "a601") == (0, text, "")
    status, _, error = run("explain", "A999")
    assert status == 1 and re.fullmatch(r"error A602: .*'A999'.*\n", error)


def test_key_prints_a_key_and_its_line() -> None:
    lines = invoke("key", "assistant", "--role", "ask", "-r", "feedback").splitlines()
    printed = dict(line.split(maxsplit=1) for line in lines)
    holder = ApiKeys(printed["line"]).authenticate(printed["key"])
    assert holder is not None and holder.name == "assistant" and holder.roles == {"ask", "feedback"}
    assert printed["key"] not in printed["line"]
    assert fail("key", "assistant", "--role", "root") is Code.UNKNOWN_NAME
    assert fail("key", "two words") is Code.BAD_SETTING


@pytest.fixture
def promoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe on a tiny model is in production."""
    for name, value in (("HOME", str(tmp_path / "home")), ("DEVICE", "cpu"), ("DTYPE", "float32")):
        monkeypatch.setenv(f"ABSTAIN_{name}", value)
    file = release(tmp_path / "bundle", save_tiny_model(tmp_path / "tiny-bank"), Settings(), guarantee=GUARANTEE)
    monkeypatch.setattr("abstain_tasks.release.bundles.fetch_production", lambda: (file.parent, None))


def test_commands_without_context_are_unavailable(promoted: None, tmp_path: Path, run: Callable[..., Result]) -> None:
    """And an answer that could be longer than the model's context is a usage error."""
    (tmp_path / "rows.jsonl").write_text("".join(f"{row.model_dump_json()}\n" for row in requests(3)))
    score_file, score = ["score", str(tmp_path / "rows.jsonl")], ["score", "-q", "Why?", "-a", "So."]
    generate = ["generate", "-q", "Why?", "--max-new-tokens", "2"]
    for arguments, warning, unavailable in (
        (score_file, "1 of 3 rows", [True, False, False]),
        ([*score_file, "--no-context"], "", [False, False, False]),
        (score, "the answer", [True]),
        ([*score, "--no-context"], "", [False]),
        ([*score, "-c", "It is so."], "", [False]),
        (generate, "the answer", [True]),
        ([*generate, "--no-context"], "", [False]),
    ):
        status, out, err = run(*arguments)
        decisions = [json.loads(line)["decision"] for line in out.splitlines()]
        assert status == 0 and [decision == "unavailable" for decision in decisions] == unavailable
        assert set(decisions) <= {"show", "abstain", "unavailable"}
        assert err.count("\n") == bool(warning) and err.startswith(f"warning A206: {warning}" if warning else "")
    result = run("generate", "-q", "Why?", "-c", "So.", "--max-new-tokens", "100000")
    assert result.is_usage_error("--max-new-tokens 100000 ") and result.is_usage_error("512") and result.out == ""


def test_run_app_exit_statuses(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[BaseException] = [KeyboardInterrupt(), typer.Exit(1)]

    def stats() -> None:
        raise raised.pop(0)

    command = next(each for each in cli.cache.app.registered_commands if each.callback.__name__ == "stats")
    monkeypatch.setattr(command, "callback", stats)
    interrupted = run("cache", "stats")
    assert interrupted.status == 130 and interrupted.err.startswith("stopped")
    assert [run(*arguments).status for arguments in (("cache", "stats"), ("--help",), ())] == [1, 0, 2]
    result = run("kb")
    assert (result.status, result.err) == (2, "")


def test_ingest_keeps_signatures_out_of_flow_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect stores the parameters of a run, and shows them."""
    parameters: list[tuple[Any, ...]] = []

    def ingest(*options: Any) -> IngestReport:
        parameters.append(options)
        return IngestReport(read=0, accepted=0, duplicate=0, pending=0, quarantined=0, contracts={})

    monkeypatch.setitem(sys.modules, "abstain_tasks.server", SimpleNamespace(server_for_run=nullcontext))
    monkeypatch.setitem(sys.modules, "abstain_flows.ingest", SimpleNamespace(ingest=ingest))
    signed = "https://user:word@host/a.jsonl?X-Amz-Signature=secret"
    monkeypatch.setenv("SIGNED", signed)
    cli.ingest([signed, "b.jsonl", "https://host/c.jsonl", "${SIGNED}"])
    cli.ingest()
    cli.ingest(["b.jsonl"], replace="a wrong export")
    assert parameters[1:] == [(None, None, None), (["b.jsonl"], None, "a wrong export")]
    first, *others = parameters[0][0]
    assert others == ["b.jsonl", "https://host/c.jsonl", "${SIGNED}"]
    assert not re.search("word|secret", first)
    assert expand_variables(first, "x") == signed and get_display_name(first) == "a.jsonl"
    monkeypatch.delenv(first[2:-1])


@pytest.mark.parametrize(
    ("files", "reason", "message"),
    [
        (["a.jsonl"], " ", "--replace.*give a reason"),
        (None, "a wrong export", "--replace.*name them"),
        (["a.jsonl", "https://host/review-queue.csv?sig=secret"], None, "review-queue[^?]*:"),
    ],
)
def test_ingest_rejects_files_and_reasons(files: list[str] | None, reason: str | None, message: str) -> None:
    with pytest.raises(AbstainError, match=rf"^{message}.*\Z", check=lambda error: error.code is Code.USAGE):
        cli.ingest(files, replace=reason)
