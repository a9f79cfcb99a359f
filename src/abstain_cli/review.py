"""`abstain review`: sample answers to review, review them in a file or a page, and import the verdicts into data/.

    abstain review export -n 200 -o reviews.xlsx     sample, and write a workbook
    abstain review serve reviews.xlsx                or review it in the browser
    abstain review import reviews.xlsx               import the verdicts into data/

pandas, torch and the page's server are imported by the commands, as in `abstain_cli.app`: `--help` is instant.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_cli.progress_bar import bar
from abstain_cli.terminal import console

app = typer.Typer(help="Have answers reviewed: export, serve, import.", no_args_is_help=True)

SEED = 0
"""Seed of the permanent random numbers; with another one, a larger sample would not extend an earlier one."""

Moment = Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"], help="in UTC")]


@app.command()
def export(
    size: Annotated[int, typer.Option("-n", min=1, help="rows of the sample, those reviewed already included")] = 200,
    output: Annotated[Path, typer.Option("-o", help="the workbook to write")] = Path("reviews.xlsx"),
    since: Moment = None,
    until: Moment = None,
    random_share: Annotated[
        float, typer.Option(min=0.01, max=1, help="drawn at random; the rest by the live scorer's doubt, and by drift")
    ] = 0.5,
    withheld_share: Annotated[
        float, typer.Option(min=0, max=1, help="of those drawn at random at least: answers withheld from users")
    ] = 0.15,
    max_inference: Annotated[
        int, typer.Option(min=0, help="answers without cached features that the base model may read to score them")
    ] = 500,
) -> None:
    """Sample answers of the last 30 days, or of --since to --until, and write them into a workbook for reviewers."""
    from abstain.config.params import load_params
    from abstain.config.settings import load_settings
    from abstain.core import paths
    from abstain.core.files import write_atomically
    from abstain.data.labels.training_table import uncounted_verdicts
    from abstain.data.store.dataset import DataStore
    from abstain.ingest.privacy.pseudonyms import seal_key
    from abstain.review.export import describe_sample, export_sample
    from abstain.review.sampling import draw
    from abstain.review.time_window import read_time_window
    from abstain.review.workbook import to_bytes
    from tasks.copies import remember_export
    from tasks.workspace import open_workspace

    if output.suffix.lower() != ".xlsx":
        raise AbstainError(Code.USAGE, f"-o {output}: the review file is a workbook: end its name in .xlsx")
    if output.exists():
        raise AbstainError(
            Code.NOT_WRITABLE,
            f"{output} is there already, perhaps with verdicts: import it, or name another file with -o",
        )
    threshold = None
    with open_workspace() as workspace:
        store = DataStore(workspace.path / paths.DATA)
        params, now = load_params(workspace.path / paths.PARAMS), datetime.now(UTC)
        begin, end = (moment and moment.replace(tzinfo=UTC) for moment in (since, until))
        oldest = now - timedelta(days=params.validation.max_feedback_delay_days)
        uncounted = uncounted_verdicts(store, params.labels, params.split, now)
        window = read_time_window(store, begin, end, oldest, uncounted)
        if random_share < 1:
            from tasks.review import prioritise

            with bar(console, "read") as progress:
                threshold, messages = prioritise(workspace, window, SEED, max_inference, progress)
            _print(messages)
        design = draw(window.frame, size, random_share, SEED, threshold, withheld_share)
        _print(describe_sample(design, window))
        write_atomically(output, to_bytes(export_sample(design, window, store, seal_key(load_settings()))))
        remember_export(output)
    _print([f"{output}: open it in a spreadsheet, or run `abstain review serve {output}`"])


@app.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(help="a file of `abstain review export`, filled in")],
    reviewer: Annotated[str | None, typer.Option(help="who reviewed the rows that name no one")] = None,
) -> None:
    """Import the verdicts of a file into data/; rows not reviewed yet may follow later, from the same file."""
    from abstain.core.json_lines import as_lines
    from abstain.data.store.dataset import REVIEW_QUEUE
    from abstain.review.workbook import read_workbook
    from tasks.review import check_verdicts
    from tasks.server import server_for_run
    from tasks.workspace import open_workspace

    _, rows = read_workbook(file)
    with open_workspace() as workspace:
        verdicts = check_verdicts(workspace, rows, datetime.now(UTC), reviewer)
    _print(verdicts.describe(file))
    if not verdicts.reviews:
        raise AbstainError(Code.NO_ROWS, f"{file}: there is no verdict to take in")
    with server_for_run():
        from flows.ingest import ingest as flow

    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / f"{REVIEW_QUEUE}-{file.stem}.jsonl"
        lines.write_bytes(as_lines(verdicts.reviews))
        console.print(flow([str(lines)]).to_markdown())


@app.command()
def serve(
    file: Annotated[Path, typer.Argument(help="a file of `abstain review export`")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="of this machine; 0: any that is free")] = 8765,
    browser: Annotated[bool, typer.Option(help="open the page in the browser")] = True,
) -> None:
    """Review a file in the browser, on this machine alone; every verdict is written into the file at once."""
    from abstain.review import page
    from abstain.review.review_file import open_review_file

    review_file = open_review_file(file)
    token = page.make_token()
    with page.listen(port) as listening, tempfile.TemporaryDirectory() as private:  # mode 0700
        url = f"http://{page.HOST}:{listening.getsockname()[1]}/#{token}"
        print(f"{file}: {url}   (Ctrl-C ends it; every verdict is saved as it is given)", flush=True)
        if browser:
            page.open_browser(url, Path(private))
        page.serve(review_file, listening, token)
    done, rows = review_file.progress()
    _print([f"{done} of {rows} reviewed; take them in with `abstain review import {file}`"])


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)
