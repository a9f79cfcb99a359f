"""All scorers side by side: which one ranks answers best, how certain that is, and its cost.

The section also has the choice of the served scorer, the weights of the fusion, and whether the variants of the
Yes-score agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from abstain.core.formatting import DASH, format_count, format_number, format_percent, format_with_interval, join_words
from abstain.core.markdown import bold, document, heading, is_defined, paragraph, table
from abstain.core.scorer_names import PROBE
from abstain.reports.evaluation.evaluation_result import EvaluationResult, highlighted_table
from abstain.reports.page import plot

BY_CHANCE = 0.025
"""Probability that the whole 95 % interval lies above 0 if there is no difference."""
OTHER_METRICS = {"auprc": "AUPRC", "brier": "Brier", "ece": "ECE", "accuracy": "accuracy", "f1": "F1", "aurc": "AURC"}


def leaderboard_table(metrics: Mapping[str, Any], evaluation: Mapping[str, Any]) -> str:
    """Render the leaderboard.

    Args:
        metrics: Parsed file of this name.
        evaluation: Parsed file of this name.

    Returns:
        Markdown.
    """
    return document(_leaderboard(metrics["holdout"]["scorers"], evaluation))


def rank_scorers(scorers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of `scorers`, best AUROC first; those without an AUROC come last."""
    aurocs = {name: row["auroc"] if is_defined(row["auroc"]) else -math.inf for name, row in scorers.items()}
    return sorted(aurocs, key=lambda name: (-aurocs[name], name))


def ranking_section(result: EvaluationResult) -> list[str]:
    """Render the ranking of the scorers.

    Args:
        result: Measurements of the candidate.

    Returns:
        Markdown blocks.
    """
    return [
        heading(2, "Ranking of the scorers"),
        paragraph(*_summarize(result)),
        *_leaderboard_plot(result),
        *_roc_plot(result),
        *_leaderboard(result.scorers, result.evaluation),
        paragraph(_describe_unscored(result)),
        *_tabulate_kinds(result),
        *_describe_choice(result),
        *_describe_fusion(result.evaluation["fusion"]),
        *_describe_yes_scores(result.evaluation["rank_correlation"]),
    ]


def _summarize(result: EvaluationResult) -> list[str]:
    """Summarize the table in words: the best scorer, and those that are clearly better or worse than the served one."""
    scorers = result.scorers
    names = [name for name in rank_scorers(scorers) if is_defined(scorers[name]["auroc"])]
    if not names:
        return ["AUROC is not defined on this hold-out: its answers are all correct, or all incorrect."]
    parts: list[str] = [
        "Best on the hold-out: ",
        bold(f"{names[0]}, AUROC {format_number(scorers[names[0]]['auroc'])}"),
    ]
    served = result.served_scorer["name"]
    if names[0] != served and served in names:
        parts.append(f"; {served}, which is served, has {format_number(result.served_row['auroc'])}")
    parts.append(". ")
    comparable = {name: scorers[name] for name in names if is_defined(scorers[name]["auroc_difference_low"])}
    better = [name for name, row in comparable.items() if row["auroc_difference_low"] > 0]
    worse = [name for name, row in comparable.items() if row["auroc_difference_high"] < 0]
    alike = len(comparable) - len(better) - len(worse)
    if comparable:
        parts.append(
            "Clearly better than the served one (the whole interval of the difference): "
            f"{join_words(better) or 'none'}. "
        )
        parts.append(
            f"Clearly worse: {len(worse)} of {len(comparable)}; {alike} do not differ clearly from it on these "
            "answers. "
        )
        parts.append(
            f"Of {len(comparable)} that are as good as it, {BY_CHANCE * len(comparable):.1f} would look clearly "
            "better by "
            "chance. "
        )
    length = scorers.get("length_only")
    if length is not None and is_defined(length["auroc"]):
        parts.append(f"The answer's length alone has {format_number(length['auroc'])}: a signal has to beat that.")
    return parts


def _leaderboard(scorers: Mapping[str, Mapping[str, Any]], evaluation: Mapping[str, Any]) -> list[str]:
    names, tokens, served = rank_scorers(scorers), evaluation["forward_tokens"], evaluation["served"]["name"]
    columns = (
        "scorer",
        "kind",
        "AUROC",
        "difference to the served",
        "chance that it is better",
        "error recall at 15 % withheld",
        "times random",
        "forward tokens",
        "unscored",
    )
    rows = []
    for name in names:
        row = scorers[name]
        difference, chance = _format_difference(row) if name != served else ("", "")
        rows.append(
            [
                name,
                _format_kind(name, evaluation),
                format_with_interval(row, "auroc"),
                difference,
                chance,
                format_percent(row["error_recall_at_15pct"]),
                format_with_interval(row, "error_recall_over_random", ".2f"),
                format_number(tokens.get(name), ",.0f"),
                f"{row['unscored']:,}",
            ]
        )
    rows += [[name, f"skipped: {reason}"] for name, reason in sorted(evaluation["skipped"].items())]
    other_rows = [[name, *(format_with_interval(scorers[name], metric) for metric in OTHER_METRICS)] for name in names]
    caption = "All scorers on the hold-out, best AUROC first, with 95 % intervals"
    other_caption = "The other figures; Brier, ECE, accuracy and F1 are of probabilities calibrated on validation"
    return [
        highlighted_table(columns, rows, caption, words=("kind",), marked=served),
        highlighted_table(("scorer", *OTHER_METRICS.values()), other_rows, other_caption, marked=served),
    ]


def _format_kind(name: str, evaluation: Mapping[str, Any]) -> str:
    kind = str(evaluation["kinds"].get(name, ""))
    return f"{kind}: {evaluation['probe']['exported']}" if name == PROBE else kind


def _format_difference(row: Mapping[str, Any]) -> tuple[str, str]:
    if not is_defined(row["auroc_difference"]):
        return format_number(None), format_number(None)
    return format_with_interval(row, "auroc_difference", "+.3f"), format_percent(row["chance_better"], 0)


def _describe_unscored(result: EvaluationResult) -> str:
    """Describe missing scores: answers without one, replies that were neither yes nor no, scorers that were skipped."""
    rows = result.holdout["rows"]
    unscored = [
        f"{name} {result.scorers[name]['unscored']:,}"
        for name in rank_scorers(result.scorers)
        if result.scorers[name]["unscored"]
    ]
    improbable = result.evaluation["improbable"]
    neither = [f"{name} {number:,}" for name, number in sorted(improbable.items()) if number]
    skipped = result.evaluation["skipped"]
    parts = [
        f"Answers without a score, of {rows:,}, which count as withheld: {join_words(unscored) or 'none'}.",
        *([f"In all splits, {unranked}."] if (unranked := result.evaluation["unranked"]) else []),
        *_describe_replies(result.evaluation["neither"]),
        f"Answers for which neither Yes nor No was probable, which count as 0.5: {join_words(neither) or 'none'}.",
        f"{format_count(len(skipped), 'scorer')} skipped." if skipped else "No scorer was skipped.",
        "Forward tokens: those of one answer that go through the whole base model, without those that perturb the "
        "context for the regressors; `python -m benchmarks.latency` measures the time on a machine.",
    ]
    return " ".join(parts)


def _tabulate_kinds(result: EvaluationResult) -> list[str]:
    """Return AUROCs for refusals separately: their likelihoods and their share of correct ones differ."""
    kinds = result.evaluation["by_kind"]
    if not kinds:
        return []
    rows = [
        [
            name,
            *(
                format_with_interval(kind["scorers"][name], "auroc") if kind["scorers"] else "too few to judge"
                for kind in kinds
            ),
        ]
        for name in rank_scorers(result.scorers)
    ]
    columns = ("scorer", *(f"{kind['slice']} ({kind['rows']:,})" for kind in kinds))
    caption = "AUROC by kind of answer, with 95 % intervals; refusals begin with one of labels.refusals"
    return [highlighted_table(columns, rows, caption, marked=result.served_scorer["name"])]


def _describe_replies(neither: Mapping[str, int] | None) -> list[str]:
    if neither is None:
        return []
    return [
        f"Replies to the Yes-score's question whose first word is neither yes nor no: {neither['neither']:,} of "
        f"{neither['replies']:,}; they are scored by how probable the two words were there."
    ]


def _describe_choice(result: EvaluationResult) -> list[str]:
    """Describe the scorers that can be served, and the probe architectures, out of fold."""
    served, probe = result.served_scorer, result.evaluation["probe"]
    choice = (
        f"the cheapest within one standard error of the best is asked for{_budget(served)}; the kind in production "
        "stays unless another gains more than that error"
        if served["requested"] == "best"
        else f"{served['requested']} is asked for"
    )
    text = (
        "Scorers are compared on reviewed training answers, each scored by one that saw no answer of its group (out of "
        f"fold), so that the hold-out chooses nothing; {choice} (serve.scorer)."
    )
    rows = [
        [
            row["scorer"],
            row["kind"].replace("_", "-"),
            format_number(row["forward_tokens"], ",.0f"),
            format_with_interval(row, "auroc"),
            "served" if row["scorer"] == served["name"] else DASH,
        ]
        for row in served["candidates"]
    ]
    columns = ("scorer", "kind", "forward tokens", "AUROC out of fold", "")
    caption = "What can be served, cheapest first, with 95 % intervals"
    candidates = highlighted_table(columns, rows, caption, words=("kind", ""), marked=served["name"])
    not_servable = [[name, reason] for name, reason in sorted(served["not_servable"].items()) if name in result.scorers]
    aurocs = probe["out_of_fold"]
    order = sorted(aurocs, key=lambda name: (-(aurocs[name] if is_defined(aurocs[name]) else -math.inf), name))
    architectures = [
        [name, format_number(aurocs[name]), "exported" if name == probe["exported"] else DASH] for name in order
    ]
    caption = "Probes by AUROC out of fold; the one in probe.export is exported, whatever is served"
    blocks = [heading(3, "Choice of what is served"), paragraph(text), candidates]
    if not_servable:
        blocks.append(table(("scorer", "why"), not_servable, "Not servable", text_columns=("why",)))
    return [
        *blocks,
        highlighted_table(
            ("probe", "AUROC out of fold", ""), architectures, caption, words=("",), marked=probe["exported"]
        ),
    ]


def _budget(served: Mapping[str, Any]) -> str:
    max_forward_tokens = served["max_forward_tokens"]
    return "" if max_forward_tokens is None else f", with at most {max_forward_tokens:,} forward tokens an answer"


def _describe_fusion(fusion: Mapping[str, Any] | None) -> list[str]:
    if not fusion or not fusion["coefficients"]:
        return []
    coefficients, missing = fusion["coefficients"], fusion["missing"]
    order = sorted(coefficients, key=lambda name: (-coefficients[name], name))
    rows = [
        (
            name,
            format_number(coefficients[name], ".3f"),
            format_number(math.exp(coefficients[name]), ".2f"),
            format_number(missing[name], "+.3f") if missing[name] else DASH,
        )
        for name in order
    ]
    text = (
        "Fusion is a logistic regression on all scores' log-odds, each in units of its own spread "
        f"(C = {format_number(fusion['strength'], '.2g')}), in which no score counts against an answer by being "
        "higher. A "
        "coefficient of 0: the others say as much, it says nothing, or it would have counted the other way round. Odds "
        "times: by what the odds of being correct are multiplied for one unit more. If missing: what is added to the "
        "log-odds where a score is missing."
    )
    if not any(coefficients.values()):
        text = f"The fusion uses no score: none separates correct training answers from incorrect ones. {text}"
    columns = ("score", "coefficient", "odds times", "if missing")
    weights = table(columns, rows, "Weights of the fusion, strongest first")
    return [heading(3, "Weights of the fusion"), paragraph(text), weights]


def _describe_yes_scores(correlation: Mapping[str, Any]) -> list[str]:
    names = list(correlation["names"])
    if len(names) < 2:
        return []
    rows = [
        (name, *(format_number(value, ".2f") for value in values))
        for name, values in zip(names, correlation["matrix"], strict=True)
    ]
    correlations = table(("variant", *names), rows, "Rank correlation (Spearman) of the Yes-score's variants")
    text = "1: both order the answers alike, so the cheaper one will do; 0: they have nothing in common."
    return [heading(3, "Agreement of the Yes-score's variants"), paragraph(text), correlations]


def _leaderboard_plot(result: EvaluationResult) -> list[str]:
    scorers = result.scorers
    items = [f"{name} {format_number(scorers[name]['auroc'])}" for name in rank_scorers(scorers)]
    return plot(
        "leaderboard",
        "AUROC of every scorer",
        f"AUROC on the hold-out, best first: {join_words(items)}.",
        "A line is the 95 % interval, when groups of answers are drawn again. 0.5 is what guessing has.",
    )


def _roc_plot(result: EvaluationResult) -> list[str]:
    items = []
    for name, curve in result.tables["roc"].groupby("scorer", sort=False):
        points = curve.dropna()
        if len(points):
            recall = np.interp(0.2, points["false_positive_rate"], points["true_positive_rate"])
            items.append(f"{name} {format_percent(float(recall))}")
    text = (
        f"Where 20 % of the incorrect answers get through, of the correct ones are shown by {join_words(items)}."
        if items
        else ""
    )
    return plot(
        "roc",
        "Correct answers shown against incorrect ones (ROC)",
        text or "Not defined: the answers are all correct, or all incorrect.",
        "The nearer to the upper left corner, the better; the dotted line is guessing.",
    )
