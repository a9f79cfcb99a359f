import re

import pytest

from studies.nll_perturbation.declared import Experiment
from studies.nll_perturbation.markdown import to_markdown
from studies.nll_perturbation.tables import tabulate
from studies.study import Outcome
from tests.studies.builders import BAD, DECLARED, declared, outcomes, result

pytestmark = pytest.mark.soak(twin="test_study_computes_its_cells_and_writes_its_report")

FILES = {"train.jsonl": "a" * 64, "evaluation.jsonl": "b" * 64}


@pytest.fixture
def study() -> Experiment:
    return declared(tables={**DECLARED["tables"], "11": BAD})


def section(markdown: str, title: str) -> str:
    """The part of `markdown` under the heading that begins with `title`, up to the next of its level."""
    (found,) = re.findall(rf"^## {title}.*?(?=^## |\Z)", markdown, re.MULTILINE | re.DOTALL)
    return found


def grid(text: str) -> list[dict[str, str]]:
    """The first Markdown table of `text`."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows if len(row) == len(head)]


def test_tabulate_figures_have_intervals_withheld_with_a_buffer(study: Experiment) -> None:
    markdown = to_markdown(tabulate(study, (), outcomes(study), FILES))
    text, text_with_buffer = section(markdown, "Table 2"), section(markdown, "Table 11")
    assert "Trained on 12 answers and evaluated on 6 others" in text and "withheld" not in text
    two, three, *papers = grid(text)
    assert two["BM by PM"] == "smollm2-135m-instruct by itself" and (two["K"], three["K"]) == ("2", "3")
    assert (
        two["t"] == "0.5"
        and two["MSE"] == "0.7500 (0.6500 to 0.8500)"
        and two["over the constant"] == "+0.7500 (+0.6500 to +0.8500)"
    )
    assert two["accuracy"] == two["F1"] == two["AUROC"] == "0.750 (0.650 to 0.850)"
    assert two["correct at t"] == "75.0 %"
    assert [row["K"] for row in papers] == ["3", "5"]
    _, buffered, *_, paper = grid(text_with_buffer)
    assert (buffered["withheld"], buffered["F1, rest"]) == ("75.0 %", "0.750 (0.650 to 0.850)")
    assert (paper["withheld"], paper["F1, rest"]) == ("not stated", "0.834")
    assert "within 0.05 of t nothing is said" in text_with_buffer


def test_tabulate_paper_rows_follow_the_same_setting(study: Experiment) -> None:
    report = tabulate(study, (), outcomes(study), FILES)
    rows = [(row["of"], row["tokens"]) for row in report["tables"]["2"]["rows"]]
    assert rows == [("here", 2), ("here", 3), ("paper", 3), ("paper", 5)]
    markdown = to_markdown(report)
    paper, other = grid(section(markdown, "Table 2"))[2:]
    assert other["t"] == "0.9", "a row's own value, where it has one"
    assert paper["BM by PM"] == "paper: Big by itself"
    assert (paper["t"], paper["MSE"], paper["accuracy"], paper["AUROC"]) == ("0.95", "≤ 0.004", "0.700", "0.797")
    assert paper["F1"] == paper["over the constant"] == paper["correct at t"] == "not stated"
    at = report["tables"]["12"]["rows"]
    assert [(row["of"], row["threshold"]) for row in at] == [("here", 0.35), ("here", 0.5), ("paper", 0.5)]
    # Of other models than ours no row is of the same setting.
    assert [row["of"] for row in report["tables"]["11"]["rows"]] == ["here", "here", "paper"]
    assert "Nobody et al., on 2,100 answers" in markdown


def test_tabulate_missing_or_undefined_figures_are_named(study: Experiment) -> None:
    found = outcomes(study)
    bad, (cell, _) = study.list_table_cells("11")[0], study.list_table_cells("2")
    found[bad.title] = Outcome(None, "the model is not installed: pip install it")
    figures = result(study, cell)
    for row in figures["by_threshold"]:
        row |= {"auroc": None, "auroc_low": None, "auroc_high": None, "note": "no answers reach t = 0.5"}
    found[cell.title] = Outcome(figures)
    report = tabulate(study, (), found, FILES)
    assert report["missing"] == {bad.title: "the model is not installed: pip install it"}
    markdown = to_markdown(report)
    text, other = section(markdown, "Table 11"), section(markdown, "Table 2")
    assert "**Missing: 1 of 2 cells.**" in text and "the model is not installed: pip install it" in text
    assert grid(text)[0]["AUROC"] == grid(text)[0]["t"] == grid(text)[0]["withheld"] == "missing"
    assert grid(other)[0]["AUROC"] == "not defined" and "Missing" not in other
    assert "Where a figure is not defined: no answers reach t = 0.5." in other
    assert bad.title not in section(markdown, "What was counted")
    markdown = to_markdown(tabulate(study, ("2", "headline"), {}, FILES))
    assert "**Missing: 2 of 2 cells.**" in markdown and "it was not computed" in markdown
    assert "Table 12" not in markdown and "What was counted" not in markdown


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.01, 0.1, "ahead"), (-0.1, -0.01, "behind"), (-0.1, 0.1, "not to be told from it"), (None, None, "not comparable")],
)  # fmt: skip
def test_tabulate_headline_compares_with_the_best_baseline(
    study: Experiment, low: float | None, high: float | None, verdict: str
) -> None:
    (cell,) = study.list_table_cells("headline")
    figures = result(study, cell)
    figures["baselines"][0] |= {"ahead_low": low, "ahead_high": high}
    text = section(to_markdown(tabulate(study, ("headline",), {cell.title: Outcome(figures)}, FILES)), "Headline")
    assert f"The regressor is {verdict} at 95 %" in text and f"| {verdict} |" in text
    assert "yes_score: 0.700 (0.550 to 0.760)" in text


def test_tabulate_counts_cells_tokens_and_dropped_columns(study: Experiment) -> None:
    text = section(to_markdown(tabulate(study, (), outcomes(study), FILES)), "What was counted")
    cells = study.list_cells()
    assert all(cell.title in text for cell in cells)
    assert [*grid(text)[0].values()][1:] == ["0", "2", "0", "3", "1", "1", "5", "40", "2"]
    assert f"| all cells | {1234 * len(cells):,} |" in text
    assert "missing in all training rows: B.context (nll_mean) (all cells)" in text
    assert "the same in all training answers: N.instruction (nll_max) (all cells)" in text
