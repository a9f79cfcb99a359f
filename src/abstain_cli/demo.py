"""The summary that `abstain demo` prints at its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from abstain_cli.guarantee_summary import summarize_holdout
from abstain_tasks.server import UI, find_running_server, with_login

if TYPE_CHECKING:
    from abstain_flows.demo import DemoResult


def make_summary(demo: DemoResult, project: Path) -> Table:
    """Make a small table of the demo's results.

    Args:
        demo: The results.
        project: Folder of the demo's project.

    Returns:
        The table.
    """
    ran = [stage.stage for stage in demo.retrained.stages if stage.status == "ran"]
    holdout = demo.holdout
    served, point = holdout.served, holdout.at_threshold
    metrics = holdout.scorers[served.name]
    outcome = demo.retrained.promotion
    assert outcome is not None
    table = Table(show_header=False, title="Abstain, on the sample")
    table.add_column()
    table.add_column(overflow="fold")  # a path is whole
    report = demo.report
    table.add_row(
        "ingested",
        f"{report.read} read = {report.accepted} accepted + {report.duplicate} duplicate + {report.pending} pending "
        f"+ {report.quarantined} quarantined",
    )
    table.add_row("stages run", ", ".join(ran) or f"none: all {len(demo.retrained.stages)} are cached, nothing changed")
    table.add_row("in production", f"probe {outcome.version} ({outcome.status})")
    for reason in outcome.reasons:
        table.add_row("", reason)
    table.add_row("served", f"{served.name}, {served.forward_tokens:.0f} tokens an answer")
    table.add_row("AUROC", f"{metrics.auroc:.3f}, 95 % interval {metrics.auroc_low:.3f} to {metrics.auroc_high:.3f}")
    table.add_row(f"at threshold {point.threshold:.3f}", f"precision {point.precision:.1%}, shows {point.coverage:.1%}")
    table.add_row("guaranteed there", demo.guarantee)
    table.add_row("", summarize_holdout(holdout))
    table.add_row("all answers", f"{holdout.base_rate:.1%} of {holdout.rows} on the frozen hold-out are correct")
    for row, decision in demo.examples:
        table.add_row(f"{decision.decision} ({decision.confidence:.2f})", f"{row.question}\n-> {row.answer}")
    costs = json.loads((demo.bundle / "evaluation.json").read_text())["forward_tokens"]
    by_cost = sorted((tokens, name) for name, tokens in costs.items() if tokens)
    table.add_row("tokens of an answer", ", ".join(f"{name} {tokens:.0f}" for tokens, name in by_cost))
    table.add_row("report", str(demo.bundle / "report.html"))
    table.add_row("go on with it", f"cd {project}")
    address = find_running_server()
    table.add_row("Prefect UI", with_login(address) if address else f"run `make up`, then {UI}")
    return table
