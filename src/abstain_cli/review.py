"""`abstain review`: who should look at what, a file or a page to do it in, and the verdicts on their way into data/.

    abstain review export -n 200 -o reviews.csv      draw, and write a file for a spreadsheet
    abstain review serve reviews.csv                 or review it in the browser
    abstain review import reviews.csv                take what is reviewed into data/

pandas, torch and the page's server are imported by the commands, as in `abstain_cli.app`: `--help` is instant.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from abstain.core.errors import AbstainError
from abstain_cli.progress_bar import bar
from abstain_cli.usage import UsageError

if TYPE_CHECKING:
    from abstain.review.sampling import Design
    from abstain.review.time_window import Window

app = typer.Typer(help="Have answers reviewed: export, serve, import.", no_args_is_help=True)
console = Console(markup=False, highlight=False)

SEED = 0
"""Of the permanent random numbers; another one would draw other rows where the same ones are to be extended."""
WHY = {"random": "at random", "uncertain": "that the probe is unsure of", "drift": "unlike the training data"}

Moment = Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"], help="in UTC")]


@app.command()
def export(
    size: Annotated[int, typer.Option("-n", min=1, help="rows of the sample, those reviewed already included")] = 200,
    output: Annotated[Path, typer.Option("-o", help="the file to write")] = Path("reviews.csv"),
    since: Moment = None,
    until: Moment = None,
    random_share: Annotated[
        float, typer.Option(min=0.01, max=1, help="drawn at random; the rest by the probe's doubt, and by drift")
    ] = 0.5,
    read_at_most: Annotated[
        int, typer.Option(min=0, help="answers without cached features that the base model may read to score them")
    ] = 500,
    delimiter: Annotated[str, typer.Option(help="; where the spreadsheet writes decimals with a comma")] = ",",
) -> None:
    """Draw answers of the last 30 days, or of --since to --until, and write them into a file for experts."""
    from abstain.config.params import load_params
    from abstain.core import paths
    from abstain.core.files import write_atomically
    from abstain.data.store.dataset import Store
    from abstain.review.export import make_sheet
    from abstain.review.sampling import draw
    from abstain.review.sheet import DELIMITERS
    from abstain.review.time_window import read_window
    from tasks.workspace import open_workspace

    if output.exists():
        raise AbstainError(f"{output} is there already, perhaps with verdicts: import it, or name another file with -o")
    if delimiter not in DELIMITERS:
        raise UsageError("--delimiter is a comma, a semicolon or a tab")
    threshold = None
    with open_workspace() as workspace:
        store = Store(workspace.path / paths.DATA)
        delay = load_params(workspace.path / paths.PARAMS).validation.max_feedback_delay_days
        begin, end = (moment and moment.replace(tzinfo=UTC) for moment in (since, until))
        window = read_window(store, begin, end, datetime.now(UTC) - timedelta(days=delay))
        if random_share < 1:
            from tasks.review import prioritise

            with bar(console, "read") as progress:
                threshold, says = prioritise(workspace, window, SEED, read_at_most, progress)
            for line in says:
                console.print(line, soft_wrap=True)
        design = draw(window.frame, size, random_share, SEED, threshold)
        sheet = make_sheet(design, window, store, delimiter)
    for line in _summary(design, window):
        console.print(line, soft_wrap=True)
    if not sheet.rows:
        raise AbstainError("every row of this sample is reviewed already: raise -n, or move --since and --until")
    write_atomically(output, sheet.to_bytes())
    console.print(f"{output}: open it in a spreadsheet, or run `abstain review serve {output}`", soft_wrap=True)


@app.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(help="a file of `abstain review export`, filled in")],
    reviewer: Annotated[str | None, typer.Option(help="who reviewed the rows that do not say")] = None,
) -> None:
    """Take the verdicts in a file into data/; what is not reviewed yet may follow later, from the same file."""
    from abstain.data.store.dataset import as_lines
    from abstain.review.cells import unguard
    from abstain.review.sheet import read_sheet
    from abstain.review.time_window import IMPORTED
    from abstain.review.verdicts import read_verdicts
    from tasks.review import known_reviews
    from tasks.server import server_for_run
    from tasks.workspace import open_workspace

    sheet = read_sheet(file)
    with open_workspace() as workspace:
        known, as_stored = known_reviews(workspace, {unguard(row["interaction_id"]) for row in sheet.rows.values()})
    found = read_verdicts(sheet, datetime.now(UTC), known, reviewer, as_stored)
    for problem in found.problems:
        console.print(f"not taken: {problem}", soft_wrap=True)
    counted = f"{len(found.reviews)} reviewed, {found.blank} not yet, {len(found.problems)} to be mended"
    console.print(f"{file}: {counted}", soft_wrap=True)
    if not found.reviews:
        raise AbstainError(f"{file}: there is no verdict to take in")
    with server_for_run():
        from flows.ingest import ingest as flow

    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / f"{IMPORTED}-{file.stem}.jsonl"
        lines.write_bytes(as_lines(found.reviews))
        console.print(flow([str(lines)]).to_markdown())


@app.command()
def serve(
    file: Annotated[Path, typer.Argument(help="a file of `abstain review export`")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="of this machine; 0: any that is free")] = 8765,
    browser: Annotated[bool, typer.Option(help="open the page in the browser")] = True,
) -> None:
    """Review a file in the browser, on this machine alone; every verdict is written into the file at once."""
    from abstain.review.page import HOST, listen
    from abstain.review.page import serve as run
    from abstain.review.review_file import open_desk

    desk = open_desk(file)
    with listen(port) as listening:
        url = f"http://{HOST}:{listening.getsockname()[1]}/"
        print(f"{file}: {url}   (Ctrl-C ends it; every verdict is saved as it is given)", flush=True)
        if browser:
            _open(url)
        run(desk, listening)
    done, rows = desk.reviewed()
    console.print(f"{done} of {rows} reviewed; take them in with `abstain review import {file}`", soft_wrap=True)


def _summary(design: Design, window: Window) -> Iterator[str]:
    """What was drawn, and what has to be known of it."""
    from abstain.review.sampling import STRATA

    counts = design.rows.loc[~design.rows["reviewed"], "why"].value_counts()
    drawn = ", ".join(f"{counts[why]} {says}" for why, says in WHY.items() if why in counts) or "none"
    before = int(design.rows["reviewed"].sum())
    yield (
        f"{len(window.frame):,} answers asked from {window.since:%Y-%m-%d %H:%M} to {window.until:%Y-%m-%d %H:%M} UTC, "
        f"{int(window.frame['reviewed'].sum()):,} reviewed"
    )
    yield f"to review now: {drawn}" + (f"; {before} drawn ones were reviewed before" if before else "")
    if len(design.strata) < len(STRATA):
        by = " and ".join(design.strata).replace("_", " ") or "nothing"
        yield f"so few rows are stratified by {by}: one a stratum of {', '.join(STRATA).replace('_', ' ')} takes more"
    if design.beyond:
        yield (
            f"{design.beyond} rows more than -n: a part of this window was sampled more densely before, and the rest "
            "has to catch up; a --since behind that part avoids it"
        )
    foreign = window.frame["reviewed"] & ~window.frame["queued"] & (window.frame["recorded_probability"] < 1)
    if foreign.any():
        yield f"{int(foreign.sum()):,} reviews of this window were sampled by other means, and keep their own weights"


def _open(url: str) -> None:
    """In a browser with a window: one that runs in the terminal would take the keyboard from this program."""
    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        import webbrowser

        webbrowser.open(url)
