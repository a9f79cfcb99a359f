"""DVC stage `report`: what was measured, as a page for people, its twin in Markdown, and the plots."""

import pandas as pd

from abstain import paths
from abstain.config.params import Params
from abstain.evaluate.plots import CURVES, PLOTS, draw, plot_tables
from abstain.evaluate.report import Evaluated, compose, render_html, render_markdown
from abstain.stages import common


def stage(params: Params) -> None:
    metrics, evaluation = common.read_json(paths.METRICS), common.read_json(paths.EVALUATION)
    curves = {name: pd.read_csv(paths.PLOTS / f"{name}.csv") for name in CURVES}
    tables = plot_tables(curves, metrics, evaluation)
    report = compose(Evaluated(params.probe, metrics, evaluation, common.read_json(paths.DATASET_SUMMARY), tables))
    images = {name: draw(name, tables[name]) for name in PLOTS}
    with common.whole_folder(paths.REPORT) as folder:
        for name, svg in images.items():
            (folder / f"{name}.svg").write_bytes(svg)
        (folder / "report.md").write_text(render_markdown(report), encoding="utf-8")
        (folder / "report.html").write_text(render_html(report, images), encoding="utf-8")


if __name__ == "__main__":
    common.run(stage)
