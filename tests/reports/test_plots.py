import re
import warnings
from functools import lru_cache
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from abstain.learning.metrics import weighted_metrics as metrics
from abstain.reports.plots import CURVES, PLOTS, render_plot
from abstain.reports.theme import DARK, LIGHT
from tests.reports.builders import GUARANTEED, HEURISTIC, NASTY, evaluated

TABLES = evaluated().tables


@lru_cache
def draw(name: str) -> bytes:
    return render_plot(name, TABLES[name])


def read_texts(svg: bytes) -> list[str]:
    return [" ".join(node.itertext()) for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.heavy
@pytest.mark.parametrize("name", PLOTS)
def test_render_plot_is_small_svg_in_theme_colours(name: str) -> None:
    svg = draw(name)
    assert read_texts(svg)
    assert 5_000 < len(svg) < 40_000
    assert svg == render_plot(name, TABLES[name])
    assert re.findall(rb"<(?:script|image|a)\b|href=\"(?!#)|<metadata", svg) == []
    drawing = re.sub(rb"<style>.*?</style>", b"", svg, flags=re.DOTALL)
    used = {colour.decode() for colour in re.findall(rb"#[0-9a-f]{6}", drawing)}
    assert used <= set(LIGHT.values())
    assert len(used) >= 4


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_theme_contrast_meets_wcag(theme: dict[str, str]) -> None:
    """WCAG 2.1: 4.5 to 1 for text, 3 to 1 for what is drawn; a grid may be faint."""
    limits = {"text": 4.5, "soft": 4.5, "blue": 3, "orange": 3, "green": 3, "grey": 3}
    for name, limit in limits.items():
        dark, light = sorted(compute_luminance(theme[key]) for key in (name, "paper"))
        assert (light + 0.05) / (dark + 0.05) >= limit, name


def compute_luminance(colour: str) -> float:
    parts = to_rgb(colour)
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.heavy
@pytest.mark.parametrize("name", CURVES)
def test_render_plot_depends_on_table(name: str) -> None:
    table = TABLES[name]
    columns = {"threshold": "precision", "roc": "true_positive_rate", "risk_coverage": "risk", "confidence": "correct"}
    column = columns.get(name, "accuracy")
    assert render_plot(name, table.assign(**{column: table[column] * 0.9})) != draw(name)


def test_render_plot_threshold_labels() -> None:
    guarantee = "evaluation.threshold.guarantee"
    by_error_rate = {f"{guarantee}.metric": "error_rate", f"{guarantee}.target": 0.05}
    guaranteed, heuristic, error_rate = (
        set(read_texts(render_plot("threshold", evaluated(**options).tables["threshold"])))
        for options in ({}, {"guaranteed": False}, {"changed": by_error_rate})
    )
    lines = {f"heuristic: {HEURISTIC:.3f}", "aimed at: 80 %", "precision", "coverage"}
    assert {f"guaranteed: {GUARANTEED:.3f}", *lines} <= guaranteed
    assert lines <= heuristic and not any(text.startswith("guaranteed") for text in heuristic)
    assert {"shown and incorrect, of all", "aimed at: 5 %"} <= error_rate and "precision" not in error_rate


def test_render_plot_lines_differ_by_dashes() -> None:
    for name in ("roc", "risk_coverage"):
        svg = draw(name)
        assert {"probe", "fusion", "min_log_prob", "length_only"} <= set(read_texts(svg))
        dashes = set()
        for colour in ("blue", "orange", "green", "grey"):
            styles = re.findall(rf'style="fill: none; ([^"]*stroke: {LIGHT[colour]}[^"]*)"', svg.decode())
            assert len(styles) == 2, "one line, and one in the legend"
            found = re.search(r"stroke-dasharray: ([^;]+)", styles[0])
            dashes.add(found[1] if found else "solid")
        assert len(dashes) == 4


def test_render_plot_leaderboard_best_on_top() -> None:
    table, svg = TABLES["leaderboard"], draw("leaderboard")
    texts = read_texts(svg)
    names = [name for name in table["scorer"] if len(name) < 24]
    assert [text for text in texts if text in names] == names
    assert {f"{value:.3f}" for value in table["auroc"].dropna()} | {"not defined"} <= set(texts)
    assert table["auroc"].dropna().is_monotonic_decreasing
    first, last = (float(re.search(rf'y="([\d.]+)"[^>]*>{name}<', svg.decode())[1]) for name in (names[0], names[-1]))
    assert first < last


@pytest.mark.heavy
@pytest.mark.parametrize("text", [*NASTY, "$\\frac{", "$x^2$", "]]>", "名前"])
def test_render_plot_draws_name_as_written(text: str) -> None:
    aurocs = {"auroc": 0.7, "auroc_low": 0.6, "auroc_high": 0.8}
    table = pd.DataFrame({"scorer": ["probe", text], "kind": "signal", **aurocs})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        texts = read_texts(render_plot("leaderboard", table))
    assert any(" ".join(text.split())[:3] in drawn_text for drawn_text in texts)


@pytest.mark.parametrize("name", PLOTS)
def test_render_plot_empty_table_is_not_defined(name: str) -> None:
    assert read_texts(render_plot(name, TABLES[name].iloc[:0])) == ["not defined for these answers"]


def test_render_plot_undefined_value_is_gap() -> None:
    table = TABLES["threshold"].copy()
    table.loc[table["threshold"] > 0.7, "precision"] = np.nan
    svg = render_plot("threshold", table).decode()
    line = re.search(r'<g id="line2d_\d+">\s*<path d="([^"]*)" clip-path[^>]*stroke: #0072b2', svg)
    assert len(re.findall(r"[ML] ", line[1])) == table["precision"].notna().sum()


def test_render_plot_one_class_holdout() -> None:
    nothing = TABLES["roc"].assign(true_positive_rate=np.nan)
    assert "probe" in read_texts(render_plot("roc", nothing))
    board = TABLES["leaderboard"].assign(auroc=np.nan, auroc_low=np.nan, auroc_high=np.nan)
    assert read_texts(render_plot("leaderboard", board)).count("not defined") == len(board)
    empty = TABLES["confidence"].assign(correct=0.0, incorrect=0.0)
    assert "correct (up)" in read_texts(render_plot("confidence", empty))


def test_render_plot_large_holdout_stays_small() -> None:
    generator = np.random.default_rng(1)
    correct, parts = generator.integers(2, size=20_000), []
    for name in ("probe", "fusion", "yes_score", "length_only"):
        coverage, risk = metrics.risk_coverage(correct, generator.random(20_000))
        parts.append(pd.DataFrame({"scorer": name, "coverage": coverage, "risk": risk}))
    assert len(render_plot("risk_coverage", pd.concat(parts))) < 250_000
