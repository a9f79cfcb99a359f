"""`abstain`: the command line. Every command is one flow or one read; errors are one line.

Prefect and torch are imported by the commands that need them, after the environment is set: `--help` is instant.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.filesystem import get_display_name, redact_url
from abstain_cli import (
    cache,
    explain,
    familiarity,
    init,
    kb,
    monitor,
    plan,
    quarantine,
    retention,
    review,
    score,
    serve,
    shadow,
)
from abstain_cli.entry import prepare_run, run_app
from abstain_cli.progress_bar import step_progress
from abstain_cli.terminal import console

if TYPE_CHECKING:
    from abstain.release.registry import Registry
    from abstain_tasks.release.promotion import PromotionResult

app = typer.Typer(
    help="Should this RAG answer be shown, or withheld? Keep the confidence model that decides it fresh.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(cache.app, name="cache")
app.add_typer(kb.app, name="kb")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(review.app, name="review")
app.add_typer(shadow.app, name="shadow")
app.command("explain")(explain.explain)
app.command("familiarity")(familiarity.show_familiarity)
app.command("init")(init.init)
app.command("generate")(score.generate)
app.command("key")(serve.key)
app.command("monitor")(monitor.monitor)
app.command("plan")(plan.plan)
app.command("retention")(retention.retention)
app.command("score")(score.score)
app.command("serve")(serve.serve)

NewHoldout = Annotated[
    str | None, typer.Option(metavar="REASON", help="why the hold-out, or the base model, was changed on purpose")
]


@app.command()
def demo() -> None:
    """Run the whole loop on the shipped sample, in a project of its own: ingest, retrain, promote, score."""
    from abstain_tasks.projects.demo_project import demo_project
    from abstain_tasks.server import server_for_run

    with server_for_run():
        from abstain_flows.demo import run_demo

    from abstain_cli.demo import make_summary

    with demo_project() as project, step_progress(console):
        result = run_demo()
    console.print(make_summary(result, project))


@app.command()
def ingest(
    files: Annotated[
        list[str] | None,
        typer.Argument(help="JSON Lines, CSV, Parquet, Markdown, HTML; folders or URLs of them; none: sources.yaml"),
    ] = None,
    mapping: Annotated[
        str | None,
        typer.Option(metavar="MAPPING", help="the files are exports of another tool, explained by this file"),
    ] = None,
    replace: Annotated[
        str | None,
        typer.Option(metavar="REASON", help="rows with a known id and other content replace the stored ones; why"),
    ] = None,
) -> None:
    """Validate feedback and documents and add accepted rows, as one commit."""
    if replace is not None and not replace.strip():
        raise AbstainError(Code.USAGE, "--replace: give a reason, it goes on record")
    if replace is not None and not files:
        raise AbstainError(Code.USAGE, "--replace corrects rows of files: name them; sources.yaml only adds rows")
    from abstain.data.store.dataset import is_review_queue
    from abstain_tasks.server import server_for_run

    for name in map(get_display_name, files or ()):
        if is_review_queue(name):  # its weights would count as sampled here
            raise AbstainError(
                Code.USAGE, f"{name}: such names are reserved for the reviews of `abstain review import`: rename it"
            )
    with server_for_run():
        from abstain_flows.ingest import ingest as flow

    with step_progress(console):
        report = flow([_without_secret(file) for file in files or ()] or None, mapping, replace)
    console.print(report.to_markdown())


@app.command()
def erase_user(
    user: Annotated[str, typer.Argument(help="the user's id, as the source gives it, or its pseudonym")],
    with_interactions: Annotated[
        bool,
        typer.Option("--with-interactions", help="also the interactions that they rated, with all thumbs and reviews"),
    ] = False,
) -> None:
    """Remove a user's rows from the current data, reject them from now on, and mark the versions trained on them."""
    from abstain_tasks.data.erasure import erase_user as erase
    from abstain_tasks.runs.workspace import open_workspace

    with open_workspace() as workspace:
        erasure = erase(workspace, user, with_interactions=with_interactions)
    console.print(f"removed: {', '.join(f'{count:,} {table}' for table, count in erasure.removed.items())}")
    trained = [version if certain else f"{version} (?)" for version, certain in erasure.versions.items()]
    console.print(f"versions trained on data that held them: {', '.join(trained) or 'none'}")
    if erasure.shadow_cleared:
        console.print("the shadow may have been trained on them: there is none any more")
    for copy in erasure.copies:
        console.print(f"left to you: {copy}", soft_wrap=True)
    console.print("earlier versions of data/ stay in the DVC cache and remote: docs/privacy.md has how to remove them")
    if erasure.registry.taint:
        console.print(
            f"in production: {_describe_production(erasure.registry)}; `abstain retrain` replaces it by a version "
            "without them unless "
            "that is worse"
        )


@app.command()
def retrain(
    promote: Annotated[bool, typer.Option(help="judge the candidate and promote it if it is better")] = True,
    accept_new_holdout: NewHoldout = None,
    force: Annotated[bool, typer.Option("--force", help="run cached stages too")] = False,
    params: plan.ParamsFile = None,
    choose_layer: Annotated[
        bool, typer.Option("--choose-layer", help="choose the probe's layer and site again, by out-of-fold AUROC")
    ] = False,
    refill_holdout: Annotated[
        bool, typer.Option("--refill-holdout", help="take what was asked since the freeze for a used-up hold-out")
    ] = False,
) -> None:
    """Run stale stages; promote the result if the promotion checks approve."""
    if refill_holdout and (params is not None or accept_new_holdout is not None or not promote):
        raise AbstainError(
            Code.USAGE,
            "--refill-holdout changes the hold-out of every later run, too: give it without --params, --no-promote and "
            "--accept-new-holdout",
        )
    from abstain_tasks.server import server_for_run

    with server_for_run():
        from abstain_flows.retrain import retrain as flow

    with step_progress(console):
        params_file = None if params is None else str(params)
        result = flow(promote, accept_new_holdout, force, params_file, choose_layer, refill_holdout)
    for stage in result.stages:
        console.print(f"{stage.stage:16} {stage.status:7} {stage.seconds:6.1f} s")
    console.print(f"report of this run: {result.report}", soft_wrap=True)
    if result.promotion:
        console.print(_describe_promotion(result.promotion), soft_wrap=True)


@app.command()
def status() -> None:
    """Show the version in production, since when, and its metrics on the hold-out."""
    from abstain.core.formatting import format_number, format_with_interval
    from abstain_tasks.release.status import read_status

    registry, holdout = read_status()
    if registry.production is None or holdout is None:
        console.print("nothing is in production yet: run `abstain retrain`")
        return
    served, point = holdout.served.name, holdout.at_threshold
    console.print(
        f"in production: {_describe_production(registry)}, by {registry.production.action} at "
        f"{registry.production.occurred_at:%Y-%m-%d %H:%M} UTC\n{served}: AUROC "
        f"{format_with_interval(holdout.scorers[served], 'auroc')} on {holdout.rows} answers; at threshold "
        f"{point.threshold:.3f} precision {format_number(point.precision)}, "
        f"shows {point.coverage:.1%}\nguarantee: {registry.production.guarantee.message}"
    )
    for event in reversed(registry.history):
        console.print(f"  {event.occurred_at:%Y-%m-%d %H:%M}  {event.action:8}  {event.version}  {event.reason}")
    for version, reason in registry.blocked.items():
        console.print(f"  blocked: {version} ({reason})")
    for version, taint in registry.tainted.items():
        console.print(f"  {version}: {taint}")


@app.command()
def promote(
    accept_new_holdout: NewHoldout = None,
    accept_erasure: Annotated[
        str | None,
        typer.Option(help="trained on erased or corrected rows: why a worse candidate replaces production"),
    ] = None,
    keep_tainted: Annotated[
        str | None,
        typer.Option(help="trained on erased or corrected rows: why production stays; judges nothing"),
    ] = None,
) -> None:
    """Judge the last candidate again, for instance after `retrain --no-promote`, and promote it if it passes."""
    for option, reason in (("--accept-erasure", accept_erasure), ("--keep-tainted", keep_tainted)):
        if reason is not None and not reason.strip():
            raise AbstainError(Code.USAGE, f"{option}: give a reason, it goes on record")
    if keep_tainted is not None:
        if accept_new_holdout is not None or accept_erasure is not None:
            raise AbstainError(Code.USAGE, "--keep-tainted promotes nothing: give it without the other options")
        _keep_tainted(keep_tainted)
        return
    from abstain_tasks.server import server_for_run

    with server_for_run():
        from abstain_flows.promote import promote as flow

    with step_progress(console):
        outcome = flow(accept_new_holdout, accept_erasure)
    console.print(_describe_promotion(outcome))


@app.command()
def rollback(
    version: Annotated[str | None, typer.Argument(help="the version to go back to; default: the one before")] = None,
    reason: Annotated[str, typer.Option(help="why; goes on record")] = "rolled back by hand",
) -> None:
    """Roll back to an earlier version and block the current one."""
    from abstain_tasks.release.promotion import roll_back
    from abstain_tasks.runs.workspace import open_workspace

    with open_workspace() as workspace:
        registry = roll_back(workspace, version, reason)
    console.print(f"in production: {_describe_production(registry)}")


def main() -> None:
    """Entry point of `abstain`."""
    run_app(app, "abstain", _prepare_environment)


def _without_secret(file: str) -> str:
    """Return `file` as a flow's parameter, which Prefect stores and shows: a URL with a secret becomes a variable."""
    if redact_url(file) == file:
        return file
    name = f"ABSTAIN_INGEST_{hashlib.sha256(file.encode()).hexdigest()[:8]}"
    os.environ[name] = file
    return f"${{{name}}}"


def _prepare_environment() -> None:
    """Set the environment of a run, and report early what prevents it; nothing for a command that explains."""
    if set(sys.argv[1:]) & {"--help"} or sys.argv[1:2] in ([], ["explain"]):
        return
    from abstain.config.settings import load_settings
    from abstain_tasks.runs.workspace import ensure_origin, project_root

    prepare_run()
    if sys.argv[1] in {"ingest", "retrain", "promote", "rollback", "plan", "monitor"}:
        ensure_origin(project_root(), load_settings())  # report a missing git or a dirty tree before a server starts


def _keep_tainted(reason: str) -> None:
    from abstain_tasks.release.promotion import keep_tainted
    from abstain_tasks.runs.workspace import open_workspace

    with open_workspace() as workspace:
        registry = keep_tainted(workspace, reason)
    console.print(f"in production: {_describe_production(registry)}")


def _describe_production(registry: Registry) -> str:
    """Describe the version in production with its notices: without a guarantee, trained on erased or corrected rows."""
    notices = [registry.production.notice if registry.production else "", str(registry.taint or "")]
    return ", ".join([f"probe {registry.production_version}", *filter(None, notices)])


def _describe_promotion(outcome: PromotionResult) -> str:
    if outcome.status == "promoted":
        return "\n  ".join(
            [f"promoted: probe {outcome.version} is in production", *map("guarantee: {}".format, outcome.reasons)]
        )
    live = f"probe {outcome.version} stays in production" if outcome.version else "nothing is in production"
    return "\n  ".join([f"{outcome.status}: {live}", *outcome.reasons])


if __name__ == "__main__":
    main()
