"""`abstain shadow`: a candidate that decides on the same traffic as production, and its comparison by reviews."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.table import Table

from abstain_cli.terminal import console

if TYPE_CHECKING:
    from abstain.release.promotion_record import ShadowRecord
    from abstain.release.shadow import Shadow

app = typer.Typer(
    help="Let a candidate decide on the same traffic as production, without effect: set, show, clear, compare.",
    no_args_is_help=True,
)
OUTCOME_MEANINGS = {
    "better": "it ranks answers better than production; no version was changed: `abstain promote` judges the candidate",
    "worse": "it ranks answers worse than production: `abstain shadow clear`",
    "inconclusive": "chance explains the difference; more reviews may tell them apart, and are one more comparison",
}


@app.command("set")
def set_() -> None:
    """Make the last candidate the shadow, rejected or not, in place of another."""
    from abstain_tasks.release.promotion import require_candidate
    from abstain_tasks.release.shadow import set_shadow
    from abstain_tasks.runs.workspace import open_workspace

    with open_workspace() as workspace:
        require_candidate(workspace)
        shadow = set_shadow(workspace)
    console.print(
        f"{_describe_shadow(shadow)}; a gate with ABSTAIN_SERVE_SHADOW=shared or full lets it decide", soft_wrap=True
    )


@app.command()
def show() -> None:
    """Show which candidate is the shadow, and about how many answers it has decided; no review is looked at."""
    from abstain_tasks.release.shadow import list_shadow_pairs, read_shadow
    from abstain_tasks.runs.workspace import fetch_origin_snapshot

    shadow = read_shadow(*fetch_origin_snapshot())
    if shadow is None:
        console.print("there is no shadow: `abstain shadow set` makes the last candidate one")
        return
    pairs = list_shadow_pairs(shadow)
    alike = sum(pair.shown == pair.would_show for pair in pairs)
    console.print(f"{_describe_shadow(shadow)}, since {shadow.created_at:%Y-%m-%d %H:%M} UTC", soft_wrap=True)
    console.print(f"decided about by both: {len(pairs):,} answers, {alike:,} of them alike")


@app.command()
def clear() -> None:
    """Have no shadow any more. What it would have decided stays in the log until its days are over."""
    from abstain_tasks.release.shadow import clear_shadow
    from abstain_tasks.runs.workspace import open_workspace

    with open_workspace() as workspace:
        was_there = clear_shadow(workspace)
    console.print("there is no shadow any more" if was_there else "there was no shadow")


@app.command()
def compare() -> None:
    """Compare the shadow with production by reviews of answers that both decided about; it counts on the hold-out."""
    from abstain_tasks.release.shadow import review_shadow
    from abstain_tasks.runs.workspace import open_workspace

    with open_workspace() as workspace:
        review = review_shadow(workspace)
    record = review.record
    console.print(_make_table(record))
    for name, counts in sorted(record.shown_counts.items()):  # as a record that is read again has them
        console.print(f"shown by {name}: {counts['answers']:,} answers, {counts['correct']:,} correct")
    console.print(f"{record.outcome}: {record.checks[0].message}", soft_wrap=True)
    console.print(OUTCOME_MEANINGS[record.outcome], soft_wrap=True)
    if review.is_repeat:
        console.print("nothing was reviewed since: this is the record of that comparison, and no other was made")


def _describe_shadow(shadow: Shadow) -> str:
    return f"{shadow.version} is the shadow of {shadow.production_version}, without effect on what is shown"


def _make_table(record: ShadowRecord) -> Table:
    from abstain.core.formatting import NO_INTERVAL, format_number
    from abstain.core.markdown import is_defined

    table = Table("metric", record.shadow, record.champion, "difference (95 %)")
    for row in record.champion_comparison:
        difference, low, high = (format_number(value, "+.3f") for value in (row.difference, row.low, row.high))
        interval = f"{low} to {high}" if is_defined(row.low) and is_defined(row.high) else NO_INTERVAL
        table.add_row(
            row.metric, format_number(row.candidate), format_number(row.champion), f"{difference} ({interval})"
        )
    return table
