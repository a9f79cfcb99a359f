"""`abstain`: the command line. Every command is one flow or one read; errors are one line.

Prefect and torch are imported by the commands that need them, after the environment is set: `--help` is instant.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from abstain.core.errors import AbstainError
from abstain_cli import (
    cache as cache_cli,
)
from abstain_cli import (
    import_rows as import_cli,
)
from abstain_cli import (
    kb as kb_cli,
)
from abstain_cli import (
    latency as latency_cli,
)
from abstain_cli import (
    perturb as perturb_cli,
)
from abstain_cli import (
    quarantine as quarantine_cli,
)
from abstain_cli import (
    review as review_cli,
)
from abstain_cli import (
    study as study_cli,
)
from abstain_cli.usage import UsageError, in_one_line

if TYPE_CHECKING:
    from abstain.core.contracts import Interaction, Question
    from abstain.release.registry import Registry
    from abstain.serving.predictor import Released

app = typer.Typer(
    help="Should this RAG answer be shown, or withheld? Keep the confidence probe that decides it fresh.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(cache_cli.app, name="cache")
app.add_typer(kb_cli.app, name="kb")
app.add_typer(quarantine_cli.app, name="quarantine")
app.add_typer(review_cli.app, name="review")
app.add_typer(import_cli.app, name="import")
app.command("latency")(latency_cli.time_scorers)
app.command("perturb")(perturb_cli.perturb_text)
app.command("study")(study_cli.run_study)
AT_ONCE = 64
"""Rows of a file that are scored or answered before any is printed."""

INTERRUPTED, TERMINATED = 130, 143
"""Exit statuses of a command that Ctrl-C, or SIGTERM, has ended: as a shell would say it."""

console = Console(markup=False, highlight=False)

Context = Annotated[list[str] | None, typer.Option("--context", "-c", help="a retrieved chunk; repeatable")]
NoContext = Annotated[bool, typer.Option("--no-context", help="rows without any context are meant, so decide on them")]


@app.command()
def demo() -> None:
    """Run the whole loop on the shipped sample: ingest, retrain, promote, score."""
    from tasks.server import server_for_run

    with server_for_run():
        from flows.demo import run_demo, show

    with _progress():
        result = run_demo()
    show(result, console)


@app.command()
def ingest(
    files: Annotated[
        list[str] | None,
        typer.Argument(help="JSON Lines, CSV, Parquet, Markdown, HTML; folders or URLs of them; none: sources.yaml"),
    ] = None,
) -> None:
    """Validate feedback and documents and add what is accepted, as one commit."""
    from tasks.server import server_for_run

    with server_for_run():
        from flows.ingest import ingest as flow

    with _progress():
        report = flow(files)
    console.print(report.to_markdown())


@app.command()
def forget(
    user: Annotated[str, typer.Argument(help="the user's id, as the source gives it, or its pseudonym")],
    with_interactions: Annotated[
        bool, typer.Option("--with-interactions", help="also the interactions they rated, with all verdicts on them")
    ] = False,
) -> None:
    """Remove a user's rows from the current data, keep them out, and mark the versions trained on them."""
    from tasks.ingest import forget_user
    from tasks.workspace import open_workspace

    with open_workspace() as workspace:
        erasure = forget_user(workspace, user, with_interactions=with_interactions)
    console.print(f"removed: {', '.join(f'{count:,} {table}' for table, count in erasure.removed.items())}")
    trained = [version if certain else f"{version} (?)" for version, certain in erasure.versions.items()]
    console.print(f"versions trained on data that held them: {', '.join(trained) or 'none'}")
    if erasure.registry.taint:
        console.print(
            f"in production: {_live(erasure.registry)}; `abstain retrain` replaces it by a version without them unless "
            "that is worse"
        )


@app.command()
def retrain(
    promote: Annotated[bool, typer.Option(help="judge the candidate and promote it if it is better")] = True,
    new_holdout: Annotated[
        str | None, typer.Option(help="why the hold-out, or the base model, was changed on purpose")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="run cached stages too")] = False,
) -> None:
    """Run what is stale; promote the result if the gate approves."""
    from tasks.server import server_for_run

    with server_for_run():
        from flows.retrain import retrain as flow

    with _progress():
        result = flow(promote=promote, new_holdout=new_holdout, force=force)
    for stage in result.stages:
        console.print(f"{stage.stage:16} {stage.status:7} {stage.seconds:6.1f} s")
    if result.outcome:
        console.print(_outcome(result.outcome.status, result.outcome.version, result.outcome.reasons))


@app.command()
def plan() -> None:
    """Say what a retrain would do, and do nothing: stages stale or cached, forward passes missing."""
    from tasks.plan import make_plan
    from tasks.workspace import open_workspace

    with open_workspace() as workspace:
        result = make_plan(workspace)
    table = Table("stage", "would", "because")
    for stage, reasons in result.stale.items():
        table.add_row(stage, "run" if reasons else "be cached", ", ".join(reasons) or "nothing it depends on changed")
    console.print(table)
    if result.demand is None:
        console.print("no stage that asks the base model would run")
    else:
        console.print(
            f"{result.demand.answers} labelled answers: the base model is asked {result.demand.requests} things, "
            f"{result.demand.missing} of which the cache does not have"
        )
    if result.earlier:
        console.print(
            f"cached, but first computed with another requirements.lock: {', '.join(result.earlier)}; "
            "`abstain retrain --force` computes them again"
        )


@app.command()
def status() -> None:
    """Say what is in production, since when, and how it did."""
    from abstain.release.registry import parse_registry
    from tasks.shell import git
    from tasks.workspace import origin_snapshot

    repository, revision = origin_snapshot()
    registry = parse_registry(git(repository, "show", f"{revision}:registry.json"))
    if registry.prod is None:
        console.print("nothing is in production yet: run `abstain retrain`")
        return
    record = json.loads(git(repository, "show", f"{revision}:approvals/{registry.prod.version}.json"))
    holdout = record["metrics"]["holdout"]
    probe, at = holdout["scorers"]["probe"], holdout["at_threshold"]
    console.print(
        f"in production: {_live(registry)}, by {registry.prod.action} at "
        f"{registry.prod.at:%Y-%m-%d %H:%M} UTC\nAUROC {probe['auroc']:.3f} "
        f"[{probe['auroc_low']:.3f}, {probe['auroc_high']:.3f}] on {holdout['rows']} answers; "
        f"at threshold {at['threshold']:.3f} precision {at['precision']:.3f}, shows {at['display_rate']:.1%}"
    )
    for event in reversed(registry.history):
        console.print(f"  {event.at:%Y-%m-%d %H:%M}  {event.action:8}  {event.version}  {event.reason}")
    for version, reason in registry.blocked.items():
        console.print(f"  blocked: {version} ({reason})")
    for version, taint in registry.tainted.items():
        console.print(f"  {version}: {taint}")


@app.command()
def score(
    file: Annotated[Path | None, typer.Argument(help="JSON Lines of interactions; `-` reads standard input")] = None,
    question: Annotated[str | None, typer.Option("--question", "-q")] = None,
    answer: Annotated[str | None, typer.Option("--answer", "-a")] = None,
    context: Context = None,
    no_context: NoContext = False,
) -> None:
    """Show or abstain? One answer from flags, or a file of them; one JSON line each."""
    _require_one_input(file, (question, answer), context, no_context, "--question and --answer")
    from dataclasses import asdict

    from abstain.config.settings import load_settings
    from abstain.serving.predictor import Released
    from abstain.serving.requests import from_flags, read_interactions
    from tasks.promotion import production

    requests = read_interactions(file) if file else [from_flags(question or "", answer or "", context or [])]
    bundle, _ = production()
    scorer = Released.open(bundle / "probe.onnx", load_settings())
    _warn_of_no_context(scorer, requests, no_context)
    for at in range(0, len(requests), AT_ONCE):
        for verdict in scorer.judge(requests[at : at + AT_ONCE], no_context=no_context):
            print(json.dumps(asdict(verdict)), flush=True)


@app.command()
def generate(
    file: Annotated[Path | None, typer.Argument(help="JSON Lines of questions; `-` reads standard input")] = None,
    question: Annotated[str | None, typer.Option("--question", "-q")] = None,
    context: Context = None,
    no_context: NoContext = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="longest answer")] = 48,
    temperature: Annotated[float, typer.Option(min=0, max=100, help="0: the likeliest answer; above: a sample")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="sample from this much of the probability")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="of the sample")] = 0,
) -> None:
    """Answer questions from retrieved chunks and decide in the same reading; one JSON line each."""
    _require_one_input(file, (question,), context, no_context, "--question")
    from abstain.llm.engine.requests import Generate

    try:
        ask = Generate(max_new_tokens, temperature, top_p, seed=seed)
    except ValueError as error:
        raise UsageError(str(error)) from None
    from dataclasses import asdict

    from abstain.config.settings import load_settings
    from abstain.serving.generate import answer, room_for
    from abstain.serving.predictor import Released
    from abstain.serving.requests import question_from_flags, read_questions
    from tasks.promotion import production

    questions = read_questions(file) if file else [question_from_flags(question or "", context or [])]
    bundle, _ = production()
    scorer = Released.open(bundle / "probe.onnx", load_settings())
    if excess := room_for(scorer, ask):
        raise UsageError(f"--max-new-tokens {max_new_tokens} leaves no room for any question: {excess}")
    _warn_of_no_context(scorer, questions, no_context)
    for at in range(0, len(questions), AT_ONCE):
        for one in answer(scorer, questions[at : at + AT_ONCE], ask, no_context=no_context):
            print(json.dumps({"answer": one.answer, **asdict(one.verdict)}), flush=True)


@app.command()
def promote(
    new_holdout: Annotated[
        str | None, typer.Option(help="why the hold-out, or the base model, was changed on purpose")
    ] = None,
    accept_erasure: Annotated[
        str | None,
        typer.Option(help="production was trained on erased rows: why to replace it though the candidate is worse"),
    ] = None,
    keep_tainted: Annotated[
        str | None, typer.Option(help="production was trained on erased rows: why it stays; judges nothing")
    ] = None,
) -> None:
    """Judge the last candidate again, for instance after `retrain --no-promote`, and promote it if it passes."""
    for option, reason in (("--accept-erasure", accept_erasure), ("--keep-tainted", keep_tainted)):
        if reason is not None and not reason.strip():
            raise AbstainError(f"{option}: say why, it goes on record")
    if keep_tainted is not None:
        if new_holdout is not None or accept_erasure is not None:
            raise AbstainError("--keep-tainted promotes nothing: give it without the other options")
        _keep_tainted(keep_tainted)
        return
    from tasks.server import server_for_run

    with server_for_run():
        from flows.promote import promote as flow

    with _progress():
        outcome = flow(new_holdout, accept_erasure)
    console.print(_outcome(outcome.status, outcome.version, outcome.reasons))


@app.command()
def rollback(
    version: Annotated[str | None, typer.Argument(help="the version to go back to; default: the one before")] = None,
    reason: Annotated[str, typer.Option(help="why; goes on record")] = "rolled back by hand",
) -> None:
    """Put an earlier version back into production and block the present one."""
    from tasks.promotion import roll_back
    from tasks.workspace import open_workspace

    with open_workspace() as workspace:
        registry = roll_back(workspace, version, reason)
    console.print(f"in production: {_live(registry)}")


def main() -> None:
    """Entry point: set the environment, run, and turn an error into one line.

    The exit status is 2 for a command that was typed wrong, 1 for any other `AbstainError`. A run that is stopped says
    so in one line: by Ctrl-C with exit status 130, by SIGTERM with 143.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # what the run has begun is ended in good order
    try:
        _prepare()
        sys.exit(app(prog_name="abstain", standalone_mode=False))
    except typer.TyperException as error:
        if says := in_one_line(error):
            print(f"error: {says}", file=sys.stderr)
        sys.exit(error.exit_code)
    except AbstainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:  # before the command has begun; in a command, typer makes a status of it
        _say_stopped()
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        if end.code in (INTERRUPTED, TERMINATED):
            _say_stopped()
        raise


def _say_stopped() -> None:
    print("stopped; run the same command again to go on where it was", file=sys.stderr)


def _prepare() -> None:
    """Caches beside the checkout, Prefect's log kept out of the terminal."""
    if set(sys.argv[1:]) & {"--help"} or len(sys.argv) == 1:
        return
    from abstain.config.settings import load_settings
    from tasks.server import prepare_environment
    from tasks.workspace import ensure_origin, project_root

    prepare_environment()
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    if sys.argv[1] in {"demo", "ingest", "retrain", "promote", "rollback", "plan", "latency"}:
        ensure_origin(project_root(), load_settings())  # no git, or a dirty tree, is said before a server is started


@contextmanager
def _progress() -> Iterator[None]:
    """A line a step, with a bar for those that say how far they are; on no terminal, the steps' own lines."""
    from tasks.pipeline import PROGRESS
    from tasks.progress import observed_by

    if not console.is_terminal:
        with observed_by(lambda step, says: print(f"{step}: {says}", flush=True)):
            yield
        return
    columns = (
        TextColumn("{task.description:18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status]}"),
    )
    with Progress(*columns, console=console) as bars:
        steps: dict[str, TaskID] = {}

        def observer(step: str, says: str) -> None:
            if step not in steps:
                steps[step] = bars.add_task(step, total=1, status="")
            if match := PROGRESS.fullmatch(says):
                bars.update(steps[step], completed=int(match["done"]), total=int(match["total"]))
            elif says in ("ran", "cached"):
                bars.update(steps[step], completed=1, total=1, status="" if says == "ran" else "cached")
                bars.stop_task(steps[step])

        with observed_by(observer):
            yield


def _require_one_input(
    file: Path | None, texts: Sequence[str | None], context: Sequence[str] | None, no_context: bool, flags: str
) -> None:
    """Raise `UsageError` unless there is either a file or every text, with contexts or the word that there is none."""
    if (file is None) == (None in texts) or (file and (context or any(text is not None for text in texts))):
        raise UsageError(f"give either a FILE, or {flags} (and --context, once a chunk)")
    if context and no_context:
        raise UsageError("--context and --no-context contradict each other: leave one of them out")


def _warn_of_no_context(scorer: Released, asked: Sequence[Interaction | Question], no_context: bool) -> None:
    lacking = 0 if no_context else sum(map(scorer.lacks_context, asked))
    if lacking:
        which = f"{lacking:,} of {len(asked):,} rows have" if len(asked) > 1 else "the answer has"
        print(
            f"warning: {which} no context, so the decision is unavailable: give what was retrieved, or --no-context if "
            "that is meant",
            file=sys.stderr,
        )


def _keep_tainted(reason: str) -> None:
    from tasks.promotion import keep_tainted
    from tasks.workspace import open_workspace

    with open_workspace() as workspace:
        registry = keep_tainted(workspace, reason)
    console.print(f"in production: {_live(registry)}")


def _live(registry: Registry) -> str:
    """The version in production, with its mark where it was trained on erased rows."""
    return f"probe {registry.version}, {registry.taint}" if registry.taint else f"probe {registry.version}"


def _outcome(status: str, version: str | None, reasons: list[str]) -> str:
    if status == "promoted":
        return f"promoted: probe {version} is in production"
    kept = f"probe {version} stays in production" if version else "nothing is in production"
    return "\n  ".join([f"{status}: {kept}", *reasons])


if __name__ == "__main__":
    main()
