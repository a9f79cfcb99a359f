"""`abstain quarantine`: what was refused and why; take it in after all, or do without it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(help="Decide on refused rows: list, release, drop.", no_args_is_help=True)
console = Console(markup=False, highlight=False)

Name = Annotated[str, typer.Argument(help="id of a file of refused rows, or its beginning; see `list`")]


@app.command(name="list")
def list_refused(
    rows: Annotated[bool, typer.Option("--rows", help="every row, with its place and reasons")] = False,
) -> None:
    """Say what is in quarantine, why, and what it holds back."""
    from abstain.core import paths
    from abstain.ingest.quarantine import Quarantine
    from tasks.workspace import open_workspace

    with open_workspace() as workspace:
        quarantine = Quarantine(workspace.path / paths.DATA)
        found = quarantine.listing()
        if not found:
            console.print("nothing is in quarantine")
        for one in found:
            console.print(f"{one.id}  {one.rows:,} rows of {', '.join(one.sources)}", soft_wrap=True)
            if one.blocking:
                console.print(f"    BLOCKS THE RETRAIN: {one.blocking}", soft_wrap=True)
            for reason, count in one.reasons.items():
                console.print(f"    {count:,} x {reason}", soft_wrap=True)
            for row in quarantine.rows(quarantine.find(one.id)) if rows else ():
                console.print(f"    {row.source} line {row.line}: {'; '.join(row.reasons)}", soft_wrap=True)


@app.command()
def release(name: Name) -> None:
    """Judge these rows again, under the rules and beside the data of now; what passes is accepted."""
    from tasks.server import server_for_run

    with server_for_run():
        from flows.ingest import release as flow

    console.print(flow(name).to_markdown())


@app.command()
def drop(name: Name) -> None:
    """Do without these rows for good; what they held back may go on."""
    from tasks.ingest import drop_quarantined
    from tasks.workspace import open_workspace

    with open_workspace() as workspace:
        count = drop_quarantined(workspace, name)
    console.print(f"{count:,} rows dropped")
