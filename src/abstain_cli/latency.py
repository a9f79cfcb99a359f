"""`abstain latency`: latency of each scorer, and of a probe at each layer and site, on this machine."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Column, Table

from abstain_cli.progress_bar import bar
from abstain_cli.terminal import console


def time_scorers(
    answers: Annotated[int, typer.Option(min=1, help="labelled answers to time, evenly spaced")] = 10,
) -> None:
    """Time one answer at a time, nothing cached: every scorer of params.yaml, and the probe by layer and chunks."""
    import numpy as np

    from abstain.config.settings import load_settings
    from abstain.llm.signals.registry import build_scorers
    from abstain.serving.latency import TELLING, latencies
    from tasks.demand import read_labelled
    from tasks.workspace import open_workspace

    settings = load_settings()
    with open_workspace() as workspace:
        params, labelled, _ = read_labelled(workspace)
    places = np.unique(np.linspace(0, len(labelled.rows), answers, endpoint=False, dtype=int))
    rows = [labelled.rows[at] for at in places if at < len(labelled.rows)]
    with bar(console, "latency") as progress:
        found = latencies(params, settings, rows, progress)
    figures = ("mean", "p99" if len(rows) >= TELLING else "longest")
    table = Table("ms for one answer", *(Column(name, justify="right") for name in figures))
    for name, of in found.items():
        table.add_row(name, f"{of.mean:,.0f}", f"{of.p99:,.0f}")
    console.print(table)
    for name, why in build_scorers(params, settings).skipped.items():
        console.print(f"skipped: {name}: {why}")
