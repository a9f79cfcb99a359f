"""DVC stage `report`: the evaluation as an HTML page and as Markdown, its plots, and the page about the data."""

import pandas as pd

from abstain.config.params import Params
from abstain.core import paths
from abstain.data.labels.data_card import DataCard
from abstain.data.validation.results import ValidationResult
from abstain.learning.evaluation.evaluation_result import EvaluationResult
from abstain.reports.data_reports.validation import validation_report
from abstain.reports.evaluation import render_evaluation
from abstain.reports.page import render_html
from abstain.reports.plots import CURVES, PLOTS, plot_tables, render_plot
from abstain.stages.shared import artifacts


def stage(params: Params) -> None:
    """Write the reports."""
    result = EvaluationResult.from_files(artifacts.read_json(paths.METRICS), artifacts.read_json(paths.EVALUATION))
    curves = {name: pd.read_csv(paths.PLOTS / f"{name}.csv") for name in CURVES}
    tables = plot_tables(curves, result)
    markdown = render_evaluation(result, DataCard.from_dict(artifacts.read_json(paths.DATASET_SUMMARY)), tables)
    images = {name: render_plot(name, tables[name]) for name in PLOTS}
    files = (paths.VALIDATION, paths.QUALITY)
    validation = ValidationResult.merge(ValidationResult.from_dict(artifacts.read_json(file)) for file in files)
    _, page = validation_report(validation, f"data as of {validation.as_of}")
    artifacts.write_text(paths.VALIDATION_PAGE, page)
    with artifacts.atomic_folder(paths.REPORT) as folder:
        for name, svg in images.items():
            (folder / f"{name}.svg").write_bytes(svg)
        (folder / "report.md").write_text(markdown, encoding="utf-8")
        (folder / "report.html").write_text(render_html(markdown, images), encoding="utf-8")


if __name__ == "__main__":
    artifacts.run_stage(stage)
