from __future__ import annotations

import base64
import re
from copy import deepcopy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from abstain.evaluate import metrics
from abstain.evaluate.leaderboard import leaderboard, threshold_table
from abstain.evaluate.plots import PLOTS, draw
from abstain.evaluate.report import leaderboard_table, markdown_table, render_html, render_markdown, threshold_markdown
from abstain.params import Params, load_params

PARAMS: Params = load_params(Path(__file__).parents[2] / "params.yaml")
GENERATOR = np.random.default_rng(0)
CORRECT = GENERATOR.integers(2, size=300)
CONFIDENCE = np.clip(0.5 + 0.2 * (2 * CORRECT - 1) + 0.2 * GENERATOR.normal(size=300), 0, 1)
TABLE = threshold_table(CORRECT, CONFIDENCE, 0.6174)
BOARD = leaderboard(
    CORRECT, {"length_only": 1 - CONFIDENCE, "probe": CONFIDENCE}, np.arange(300), draws=100, seed=0
).to_dict("records")
METRICS: dict[str, Any] = {
    "holdout": {
        "rows": 300,
        "base_rate": float(CORRECT.mean()),
        "drawn_unevenly": 0,
        "effective_rows": 300.0,
        "label_source": "sme",
        "scorers": {row["scorer"]: {k: v for k, v in row.items() if k != "scorer"} for row in BOARD},
        "at_threshold": {"threshold": 0.6174, "precision": 0.8765, "display_rate": 0.4321},
    },
    "newest": {"rows": 17, "auroc": 0.7654},
}
DATASET = {
    "splits": [{"split": "train", "answers": 1234, "groups": 56, "right": 0.6, "by experts": 78}],
    "labels": {"sme": 9, "thumb": 8},
    "thumbs": {
        "weights": "estimated, agreement",
        "why": "40 answers have both",
        "agreement": [
            {
                "thumb": "up",
                "right": 31,
                "wrong": 7,
                "experts_agree": {"value": 0.8154, "low": 0.7, "high": 0.9, "effective": 38.0},
            }
        ],
    },
    "conflicts": {"rule": "latest", "answers": [{"interaction_id": "i-1"}], "more": 2, "thumbs_against_experts": 11},
}
CURVES = {
    "roc": pd.DataFrame({"false_positive_rate": [0, 0.2, 1], "true_positive_rate": [0, 0.8, 1]}),
    "threshold": TABLE,
    "reliability": pd.DataFrame(metrics.reliability(CORRECT, CONFIDENCE)),
    "risk_coverage": pd.DataFrame(
        dict(zip(("coverage", "risk"), metrics.risk_coverage(CORRECT, CONFIDENCE), strict=True))
    ),
}


def rendered(changed: dict[str, Any] = METRICS, dataset: dict[str, Any] = DATASET) -> str:
    return render_markdown(PARAMS, changed, dataset, TABLE, [f"{name}.png" for name in PLOTS])


class References(HTMLParser):
    """Everything that a page would fetch, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]


def test_the_report_holds_the_figures() -> None:
    text = rendered()
    probe = METRICS["holdout"]["scorers"]["probe"]
    for figure in (
        f"**AUROC {probe['auroc']:.3f}**",
        f"{probe['auroc_low']:.3f} to {probe['auroc_high']:.3f}",
        "threshold 0.617",
        "**43.2%**",
        "**87.6%**",
        "(17 answers)",
        "0.765",
        f"{CORRECT.mean():.1%}",
        "9 sme, 8 thumb",
        "| train | 1234 | 56 | 0.6 | 78 |",
        PARAMS.llm.model,
        f"layer {PARAMS.llm.layer}, {PARAMS.llm.site}",
        f"seed {PARAMS.probe.seed}",
    ):
        assert figure in text


def test_answers_that_were_drawn_unevenly_are_told() -> None:
    assert "inclusion probability" not in rendered()
    changed = deepcopy(METRICS)
    changed["holdout"] |= {"drawn_unevenly": 42, "effective_rows": 217.4}
    text = rendered(changed)
    assert "42 of these answers had a higher chance of being reviewed" in text
    assert "as 217 equally weighted ones" in text


def test_the_leaderboard_puts_the_best_first_with_every_metric() -> None:
    scorers = METRICS["holdout"]["scorers"]
    lines = leaderboard_table(scorers).splitlines()
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == [
        "scorer",
        "AUROC [95 %]",
        "AUPRC",
        "BRIER",
        "ECE",
        "AURC",
    ]
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["probe", "length_only"]
    assert [f"{scorers['probe'][m]:.3f}" in lines[2] for m in ("auroc", "auprc", "brier", "ece", "aurc")] == [True] * 5


def test_the_tuned_threshold_is_bold_and_no_other() -> None:
    lines = threshold_markdown(TABLE).splitlines()[2:]
    bold = [line for line in lines if "**" in line]
    assert len(lines) == 11
    assert len(bold) == 1
    assert bold[0].startswith("| **0.617** | **")


def test_figures_that_are_not_defined_say_so() -> None:
    """As `metrics.json` holds them: nothing shown on the hold-out, one class, an empty newest window."""
    changed = deepcopy(METRICS)
    changed["newest"] = {"rows": 0, "auroc": None}
    changed["holdout"]["at_threshold"]["precision"] = None
    changed["holdout"]["scorers"]["probe"] |= {"auroc": None, "auroc_low": None, "auroc_high": None, "auprc": None}
    empty = {"split": "newest", "answers": 0, "groups": 0, "right": None, "by experts": 0}
    text = rendered(changed, {**DATASET, "splits": [*DATASET["splits"], empty]})
    assert "| newest | 0 | 0 | not defined | 0 |" in text
    assert "**AUROC not defined**" in text
    assert "**not defined** are right" in text
    assert re.search(r"newest window \(0 answers\) its AUROC is\s+not defined", text)
    assert "| probe | not defined [not defined, not defined] | not defined |" in text


def test_a_markdown_table_has_one_line_a_row() -> None:
    table = markdown_table(pd.DataFrame({"a": [1, 2], "b": ["x", "y"], "c": [0.25, None]}))
    assert table.splitlines() == [
        "| a | b | c |",
        "| --- | --- | --- |",
        "| 1 | x | 0.25 |",
        "| 2 | y | not defined |",
    ]


def test_the_page_holds_the_figures_and_fetches_nothing() -> None:
    images = {f"{name}.png": draw(name, CURVES[name]) for name in PLOTS}
    page = render_html(rendered(), images)
    references = References(page)
    assert len(references.found) == len(images) == 4
    assert all(found.startswith("data:image/png;base64,") for found in references.found)
    assert [base64.b64decode(found.partition(",")[2]) for found in references.found] == list(images.values())
    assert not re.search(r"url\(|@import|https?://", page)
    assert "script" not in references.tags
    assert {"table", "h1", "h2", "img"} <= references.tags
    assert f"<strong>AUROC {METRICS['holdout']['scorers']['probe']['auroc']:.3f}</strong>" in page
    assert page.count("<table>") == rendered().count("| --- |\n")


@pytest.mark.parametrize("name", list(PLOTS))
def test_plots_are_small_pngs_and_the_same_each_time(name: str) -> None:
    png = draw(name, CURVES[name])
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert 2_000 < len(png) < 100_000
    assert png == draw(name, CURVES[name])


def test_a_plot_shows_its_table() -> None:
    other = CURVES["roc"].assign(true_positive_rate=[0, 0.5, 1])
    assert draw("roc", other) != draw("roc", CURVES["roc"])


def test_the_curves_of_a_large_holdout_stay_small() -> None:
    generator = np.random.default_rng(1)
    correct, confidence = generator.integers(2, size=20_000), generator.random(20_000)
    coverage, risk = metrics.risk_coverage(correct, confidence)
    assert len(draw("risk_coverage", pd.DataFrame({"coverage": coverage, "risk": risk}))) < 100_000


def test_the_report_says_how_far_thumbs_are_trusted() -> None:
    text = rendered()
    assert "Weights of thumbs: estimated, agreement (40 answers have both)." in text
    assert "| up | 31 | 7 | 81.5% (70.0% to 90.0%) |" in text
    assert "Reviews disagree on 3 answers (rule: latest); thumbs say the opposite of the experts on 11." in text
    fixed = {**DATASET, "thumbs": {"weights": "fixed", "why": "2 answers have both"}}
    assert "experts agree" not in rendered(dataset=fixed)
