"""`abstain retention`: what has been kept for long enough, and its deletion."""

from __future__ import annotations

from typing import Annotated

import typer

from abstain_cli.terminal import console, format_bytes


def retention(
    apply: Annotated[bool, typer.Option("--apply", help="delete it; else nothing is deleted")] = False,
) -> None:
    """Say what the policy in params.yaml (section `retention`) lets go, with its bytes; delete it with --apply."""
    from abstain_tasks.runs.progress import register_observer
    from abstain_tasks.server import server_for_run

    with server_for_run():
        from abstain_flows.retention import retention as flow

    with register_observer(lambda _, message: console.print(f"... {message}", soft_wrap=True)):
        result = flow(apply)
    for item in result:
        weight = "" if item.bytes is None else f", {format_bytes(item.bytes)}"
        console.print(f"{item.kind:34} {item.count:8,}{weight}{f'; {item.note}' if item.note else ''}", soft_wrap=True)
    total = format_bytes(sum(item.bytes or 0 for item in result))
    console.print(f"{total} deleted" if apply else f"{total} would go: `abstain retention --apply` deletes it")
