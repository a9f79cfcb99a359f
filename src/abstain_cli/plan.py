"""`abstain plan`: what a retrain would run, one line a stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from abstain_tasks.training.plan import RetrainPlan

ParamsFile = Annotated[
    Path | None, typer.Option("--params", metavar="FILE", help="YAML of the parameters that differ from params.yaml")
]


def plan(
    params: ParamsFile = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="all reasons, and the base model's requests")
    ] = False,
) -> None:
    """Dry run: which stages a retrain would run, why, and the tokens and time to expect."""
    from abstain_tasks.runs.run_params import write_params
    from abstain_tasks.runs.workspace import open_workspace
    from abstain_tasks.training.plan import make_plan

    with open_workspace() as workspace:
        if params is not None:
            write_params(workspace, params)
        result = make_plan(workspace)
    for line in format_plan(result, verbose=verbose):
        print(line)


def format_plan(plan: RetrainPlan, *, verbose: bool) -> Iterator[str]:
    """Format a plan: what blocks it first, then one line for each stage.

    Args:
        plan: The plan.
        verbose: Add all reasons and the requests.

    Yields:
        The lines.
    """
    if plan.blocked:
        yield f"blocked: {plan.blocked}"
    width = max((len(stage.summary) for stage in plan.stages.values()), default=0)
    for name, stage in plan.stages.items():
        would = "runs" if stage.reasons else "cached"
        cost = [f"{_tokens(stage.tokens):>17}", f"{_duration(stage.seconds):>9}"] if stage.reasons else []
        yield f"{name:16}  {would:6}  {stage.summary:{width}}  {'  '.join(cost)}".rstrip()
        if verbose:
            yield from (f"    {reason}" for reason in stage.reasons)
    if plan.earlier:
        yield (
            f"cached, but first computed with another requirements.lock: {', '.join(plan.earlier)}; "
            "`abstain retrain --force` computes them again"
        )
    if verbose and plan.cost is not None:
        yield (
            f"{plan.cost.answers} labelled answers need {plan.cost.requests} results of the base model, "
            f"{plan.cost.missing} of which are not in the cache"
        )


def _tokens(tokens: int | None) -> str:
    return "" if tokens is None else f"{tokens:,} tokens"


def _duration(seconds: float | None) -> str:
    """Format a duration in the unit that reads best; a dash if it is unknown."""
    if seconds is None:
        return "-"
    unit, name = next((scale for scale in ((3600, "h"), (60, "min")) if seconds >= scale[0]), (1, "s"))
    return f"{seconds / unit:.1f} {name}" if unit == 3600 else f"{seconds / unit:.0f} {name}"
