"""DVC stage `report`: the evaluation as a page and as Markdown, its plots, and the page about the data."""

import pandas as pd

from abstain.config.params import Params
from abstain.core import paths
from abstain.reports.data_reports.validation import validation_page
from abstain.reports.evaluation import Evaluated, compose, render_html, render_markdown
from abstain.reports.plots import CURVES, PLOTS, draw, plot_tables
from abstain.stages.shared import artifacts


def stage(params: Params) -> None:
    metrics, evaluation = artifacts.read_json(paths.METRICS), artifacts.read_json(paths.EVALUATION)
    curves = {name: pd.read_csv(paths.PLOTS / f"{name}.csv") for name in CURVES}
    tables = plot_tables(curves, metrics, evaluation)
    report = compose(Evaluated(params.probe, metrics, evaluation, artifacts.read_json(paths.DATASET_SUMMARY), tables))
    images = {name: draw(name, tables[name]) for name in PLOTS}
    rows, table = artifacts.read_json(paths.VALIDATION), artifacts.read_json(paths.QUALITY)
    artifacts.write_text(paths.VALIDATION_PAGE, validation_page([rows, table], f"data as of {rows['as_of']}"))
    with artifacts.whole_folder(paths.REPORT) as folder:
        for name, svg in images.items():
            (folder / f"{name}.svg").write_bytes(svg)
        (folder / "report.md").write_text(render_markdown(report), encoding="utf-8")
        (folder / "report.html").write_text(render_html(report, images), encoding="utf-8")


if __name__ == "__main__":
    artifacts.run(stage)
