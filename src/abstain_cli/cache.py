"""`abstain cache`: list, verify and prune the feature cache.

torch and fsspec are imported by the commands, as in `abstain_cli.app`: `--help` is instant.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from abstain_cli.progress_bar import show_progress
from abstain_cli.terminal import console, format_bytes

app = typer.Typer(help="Maintain the feature cache: stats, verify, prune.", no_args_is_help=True)


@app.command()
def stats() -> None:
    """Show the content of the feature cache, namespace by namespace; reads no features."""
    from abstain.config.settings import load_settings
    from abstain.llm.features.maintenance import collect_namespace_stats as read_stats

    root = load_settings().features
    namespaces = read_stats(root)
    if not namespaces:
        console.print(f"{root} holds no features yet")
        return
    for namespace in namespaces:
        key = namespace.namespace
        description = f"{key.operation} of {key.model}, {key.dtype}, engine {key.engine}" if key else "unreadable"
        twice = f" ({namespace.rows - namespace.distinct} twice)" if namespace.rows > namespace.distinct else ""
        unreadable = f" ({namespace.unreadable} unreadable)" if namespace.unreadable else ""
        console.print(f"{namespace.digest}  {description}", soft_wrap=True)
        console.print(
            f"    {namespace.distinct:,} rows{twice} in {namespace.shards:,} shards{unreadable}, "
            f"{format_bytes(namespace.bytes)}, "
            f"last written {namespace.written_at:%Y-%m-%d %H:%M} UTC",
            soft_wrap=True,
        )
    console.print(f"{format_bytes(sum(namespace.bytes for namespace in namespaces))} in {root}")


@app.command()
def verify() -> None:
    """Read every shard and check it against its checksum; damaged ones go to quarantine. Exit status 1 if any did."""
    from abstain.config.settings import load_settings
    from abstain.llm.features.maintenance import verify as check

    root = load_settings().features
    with show_progress(console, "verify") as progress:
        report = check(root, progress)
    for name in report.damaged:
        console.print(f"damaged: {name}, moved to quarantine; its features will be computed again", soft_wrap=True)
    console.print(f"{report.checked} shards checked, {len(report.damaged)} damaged")
    if report.damaged:
        raise typer.Exit(1)


@app.command()
def prune(
    older_than_days: Annotated[
        float, typer.Option(min=0, max=36_500, help="keep what was written since, needed or not")
    ] = 30,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only list what would be deleted")] = False,
) -> None:
    """Delete features that neither the current data and parameters nor the version in production can use."""
    from datetime import timedelta

    from abstain.config.settings import load_settings
    from abstain.llm.features.maintenance import prune as remove
    from abstain_tasks.data.feature_cache import collect_needed_keys

    root = load_settings().features
    gone = remove(root, collect_needed_keys(), timedelta(days=older_than_days), dry_run)
    if gone.names:
        table = Table("would go" if dry_run else "gone", "files")
        folders = [name.partition("/")[0] for name in gone.names]
        for folder in dict.fromkeys(folders):
            table.add_row(folder, str(folders.count(folder)))
        console.print(table)
    verb = "would be removed from" if dry_run else "removed from"
    console.print(f"{len(gone.names)} files, {format_bytes(gone.bytes)}, {verb} {root}")
