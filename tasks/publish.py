"""What a run leaves to be looked at in the Prefect UI: tables, plots and the validation result."""

from __future__ import annotations

import base64
import json
import re

import pandas as pd
from prefect import task
from prefect.artifacts import (
    create_image_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.cache_policies import NO_CACHE

from abstain import paths
from abstain.evaluate.plots import PLOTS
from abstain.evaluate.report import leaderboard_table
from tasks.workspace import Workspace

IMAGE = re.compile(r"^!\[.*\n", re.MULTILINE)


@task(cache_policy=NO_CACHE)
def publish_artifacts(workspace: Workspace) -> None:
    """Artifacts `validation`, `leaderboard`, `thresholds`, one plot each, `report`."""
    root = workspace.path
    metrics = json.loads((root / paths.METRICS).read_text())
    validation = json.loads((root / paths.VALIDATION).read_text())
    create_markdown_artifact(validation["markdown"], key="validation", description="Great Expectations")
    create_markdown_artifact(
        leaderboard_table(metrics["holdout"]["scorers"]), key="leaderboard", description="on the frozen hold-out"
    )
    table = pd.read_csv(root / paths.PLOTS / "threshold.csv").round(4)
    create_table_artifact(
        [{str(k): v for k, v in row.items()} for row in table.to_dict("records")],
        key="thresholds",
        description="on the frozen hold-out",
    )
    for name in PLOTS:
        png = base64.b64encode((root / paths.REPORT / f"{name}.png").read_bytes()).decode()
        create_image_artifact(f"data:image/png;base64,{png}", key=name.replace("_", "-"), description=name)
    # Without its plots, which are artifacts of their own: a browser opens no file from a page that a server sent.
    text = (root / paths.REPORT / "report.md").read_text(encoding="utf-8")
    create_markdown_artifact(IMAGE.sub("", text), key="report", description="the whole report")
