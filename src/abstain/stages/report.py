"""DVC stage `report`: what was measured, as a page for people."""

import shutil

import pandas as pd

from abstain import paths
from abstain.evaluate.plots import PLOTS, draw
from abstain.evaluate.report import render_html, render_markdown
from abstain.params import Params
from abstain.stages import common


def stage(params: Params) -> None:
    tables = {name: pd.read_csv(paths.PLOTS / f"{name}.csv") for name in PLOTS}
    images = {f"{name}.png": draw(name, table) for name, table in tables.items()}
    markdown = render_markdown(
        params,
        common.read_json(paths.METRICS),
        common.read_json(paths.DATASET_SUMMARY),
        tables["threshold"],
        list(images),
    )
    scratch = paths.REPORT.with_name(f".{paths.REPORT.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    for name, png in images.items():
        (scratch / name).write_bytes(png)
    (scratch / "report.md").write_text(markdown, encoding="utf-8")
    (scratch / "report.html").write_text(render_html(markdown, images), encoding="utf-8")
    shutil.rmtree(paths.REPORT, ignore_errors=True)
    scratch.rename(paths.REPORT)


if __name__ == "__main__":
    common.run(stage)
