"""`python -m benchmarks.datasets FORMAT FILE... -o FOLDER`: convert a published set for `abstain ingest`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from abstain_cli.entry import run_app
from abstain_cli.terminal import console
from benchmarks.datasets import feedbackqa, qa_from_hf, squad
from benchmarks.datasets.convert import convert

app = typer.Typer(
    help="Turn a published set of feedback into rows and documents in a new folder (docs/importers.md).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def parse_time(text: str) -> datetime:
    """Parse an option that is a time.

    Raises:
        typer.BadParameter: the text is no time, or has no time zone.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.min
    if moment.tzinfo is None:
        raise typer.BadParameter(f"'{text}': write it in UTC, as in 2026-01-31T12:00:00Z")
    return moment


Files = Annotated[list[Path], typer.Argument(help="the files as they were published, also packed (.gz)")]
Output = Annotated[Path, typer.Option("--output", "-o", help="a new folder, for `abstain ingest`")]
AskedAt = Annotated[
    datetime | None, typer.Option(parser=parse_time, metavar="TIME", help="of all rows, because the set has none")
]


@app.command("squad")
def import_squad(
    files: Files,
    output: Output,
    unanswerable: Annotated[
        Literal["plausible", "skip"], typer.Option(help="what becomes of a question that cannot be answered")
    ] = "plausible",
    asked_at: AskedAt = None,
) -> None:
    """SQuAD v1.1 or v2.0, the official JSON."""
    _convert(squad.read, files, output, unanswerable=unanswerable, asked_at=asked_at)


@app.command("qa_from_hf")
def import_qa_from_hf(
    files: Files,
    output: Output,
    verdict: Annotated[Literal["review", "thumb"], typer.Option(help="what a verdict becomes")] = "review",
    abstentions: Annotated[Literal["skip", "keep"], typer.Option(help="answers that the model refused")] = "skip",
    first_round_at: Annotated[
        datetime | None,
        typer.Option(parser=parse_time, metavar="TIME", help="of the first round; the others follow monthly"),
    ] = None,
) -> None:
    """Judged answers of qa-from-hf: user_feedback.jsonl."""
    _convert(qa_from_hf.read, files, output, verdict=verdict, abstentions=abstentions, first_round_at=first_round_at)


@app.command("feedbackqa")
def import_feedbackqa(files: Files, output: Output, asked_at: AskedAt = None) -> None:
    """FeedbackQA: human_feedback.jsonl and kb_passages.jsonl."""
    _convert(feedbackqa.read, files, output, asked_at=asked_at)


def _convert(read: Callable[..., Iterator[Any]], files: list[Path], output: Path, **options: Any) -> None:
    chosen = {option: value for option, value in options.items() if value is not None}
    counts = convert(read(files, **chosen), output)
    console.print(
        f"{counts.interactions:,} interactions, {counts.feedback:,} thumbs, {counts.reviews:,} reviews and "
        f"{counts.documents:,} documents in {output}"
    )
    for reason, count in counts.skipped.items():
        console.print(f"{count:,} records skipped: {reason}")
    console.print(f"next: abstain ingest {output}", soft_wrap=True)


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.datasets", lambda: None)
