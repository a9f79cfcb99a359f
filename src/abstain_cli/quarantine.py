"""`abstain quarantine`: list rejected rows with their reasons, judge them again, or discard them."""

from __future__ import annotations

from typing import Annotated

import typer

from abstain_cli.terminal import console

app = typer.Typer(help="Decide on rejected rows: list, retry, discard.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="id of a file of rejected rows, or its beginning; see `list`")]


@app.command(name="list")
def list_rejected(
    rows: Annotated[bool, typer.Option("--rows", help="every row, with its place and reasons")] = False,
) -> None:
    """List what is in quarantine, why, and what it blocks."""
    from abstain.core import paths
    from abstain.ingest.quarantine import Quarantine
    from abstain_tasks.runs.workspace import open_workspace

    with open_workspace() as workspace:
        quarantine = Quarantine(workspace.path / paths.DATA)
        files = quarantine.list_files()
        if not files:
            console.print("nothing is in quarantine")
        for file in files:
            console.print(f"{file.id}  {file.rows:,} rows of {', '.join(file.sources)}", soft_wrap=True)
            if file.blocking:
                console.print(f"    BLOCKS THE RETRAIN: {file.blocking}", soft_wrap=True)
            for reason, count in file.reasons.items():
                console.print(f"    {count:,} x {reason}", soft_wrap=True)
            for row in quarantine.iter_rows(quarantine.get_file(file.id)) if rows else ():
                reasons = "; ".join(reason.message_with_code for reason in row.reasons)
                console.print(f"    {row.source} line {row.line}: {reasons}", soft_wrap=True)


@app.command()
def retry(name: Name) -> None:
    """Validate these rows again, by the current rules and data; valid rows are accepted."""
    from abstain_tasks.server import server_for_run

    with server_for_run():
        from abstain_flows.ingest import retry as flow

    console.print(flow(name).to_markdown())


@app.command()
def discard(name: Name) -> None:
    """Delete these rows for good; the sources that they blocked may continue."""
    from abstain_tasks.data.ingest import discard_quarantined
    from abstain_tasks.runs.workspace import open_workspace

    with open_workspace() as workspace:
        count = discard_quarantined(workspace, name)
    console.print(f"{count:,} rows discarded")
