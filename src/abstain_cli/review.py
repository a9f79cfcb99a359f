"""`abstain review`: sample answers to review, on the gate's page or in a workbook, and import that into data/.

    abstain review export -n 200 --queue             sample, for the gate's page; `abstain ingest` takes the reviews
    abstain review export -n 200 -o reviews.xlsx     or into a workbook
    abstain review import reviews.xlsx               import its reviews into data/

pandas and torch are imported by the commands, as in `abstain_cli.app`: `--help` is instant.
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
from abstain_cli.progress_bar import show_progress
from abstain_cli.terminal import console

app = typer.Typer(help="Have answers reviewed: export, import.", no_args_is_help=True)

SEED = 0
"""Seed of the permanent random numbers; with another one, a larger sample would not extend an earlier one."""

Moment = Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"], help="in UTC")]


@app.command()
def export(
    size: Annotated[int, typer.Option("-n", min=1, help="rows of the sample, those reviewed already included")] = 200,
    output: Annotated[Path | None, typer.Option("-o", help="the workbook to write; default: reviews.xlsx")] = None,
    to_queue: Annotated[
        bool, typer.Option("--queue", help="no workbook: fill the review queue of the gate's page with the sample")
    ] = False,
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
    """Sample answers of the last 30 days, or of --since to --until, for reviewers: a workbook, or the gate's page."""
    from abstain.config.params import load_params
    from abstain.config.settings import get_decision_log_url, load_settings
    from abstain.core import paths
    from abstain.core.files import write_atomically
    from abstain.data.decision_log import queue
    from abstain.data.decision_log.database import LogDatabase
    from abstain.data.labels.training_table import find_uncounted_reviews
    from abstain.data.store.dataset import DataStore
    from abstain.ingest.privacy.pseudonyms import derive_seal_key
    from abstain.review.candidates import read_candidates
    from abstain.review.export import collect_sample, describe_sample, make_review_file
    from abstain.review.sampling import draw_sample
    from abstain.review.workbook import to_bytes
    from abstain_tasks.data.erasure_copies import record_export
    from abstain_tasks.runs.workspace import open_workspace

    if to_queue and output:
        raise AbstainError(Code.USAGE, "--queue writes no workbook: leave out -o, or --queue")
    output = output or Path("reviews.xlsx")
    if output.suffix.lower() != ".xlsx":
        raise AbstainError(Code.USAGE, f"-o {output}: the review file is a workbook: end its name in .xlsx")
    if output.exists() and not to_queue:
        raise AbstainError(
            Code.NOT_WRITABLE,
            f"{output} is there already, perhaps with reviews: import it, or name another file with -o",
        )
    threshold = None
    with open_workspace() as workspace:
        store = DataStore(workspace.path / paths.DATA)
        params, now = load_params(workspace.path / paths.PARAMS), datetime.now(UTC)
        begin, end = (moment and moment.replace(tzinfo=UTC) for moment in (since, until))
        oldest = now - timedelta(days=params.validation.max_feedback_delay_days)
        uncounted = find_uncounted_reviews(store, params.labels, params.split, now)
        url = get_decision_log_url(load_settings())
        log = LogDatabase.open(url) if to_queue else LogDatabase.open_existing(url)
        window = read_candidates(store, begin, end, oldest, uncounted, queue.find_reviewed_ids(log) if log else ())
        if random_share < 1:
            from abstain_tasks.data.review import add_sampling_priorities

            with show_progress(console, "read") as progress:
                threshold, messages = add_sampling_priorities(workspace, window, SEED, max_inference, progress)
            _print(messages)
        design = draw_sample(window.frame, size, random_share, SEED, threshold, withheld_share)
        _print(describe_sample(design, window))
        sample = collect_sample(design, window, store)
        if log and to_queue:
            count = queue.fill_queue(log, sample.list_open_answers(), sample.reweighted, now)
            after = f"{count} answers wait in the review queue: /review of the gate, for keys with the role review"
        else:
            write_atomically(output, to_bytes(make_review_file(sample, derive_seal_key(load_settings()))))
            record_export(output)
            after = f"{output}: open it in a spreadsheet, then run `abstain review import {output}`"
    _print([after])


@app.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(help="a file of `abstain review export`, filled in")],
    reviewer: Annotated[str | None, typer.Option(help="who reviewed the rows that name no one")] = None,
) -> None:
    """Import the reviews of a file into data/; rows not reviewed yet may follow later, from the same file."""
    from abstain.core.json_lines import to_json_lines
    from abstain.data.store.dataset import REVIEW_QUEUE_PREFIX
    from abstain.review.workbook import read_workbook
    from abstain_tasks.data.review import check_reviews
    from abstain_tasks.runs.workspace import open_workspace
    from abstain_tasks.server import server_for_run

    rows = read_workbook(file)
    with open_workspace() as workspace:
        imported = check_reviews(workspace, rows, datetime.now(UTC), reviewer)
    _print(imported.describe(file))
    if not imported.reviews:
        raise AbstainError(Code.NO_ROWS, f"{file}: there is no review to import")
    with server_for_run():
        from abstain_flows.ingest import ingest as flow

    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / f"{REVIEW_QUEUE_PREFIX}-{file.stem}.jsonl"
        lines.write_bytes(to_json_lines(imported.reviews))
        console.print(flow([str(lines)]).to_markdown())


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)
