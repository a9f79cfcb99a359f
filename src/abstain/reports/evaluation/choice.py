"""Which probe of the zoo is served and why, the weights of the fusion, and whether the Yes-score's variants agree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from abstain.core.markdown import bold_row, defined, heading, paragraph, table
from abstain.reports.evaluation.evaluated import Evaluated
from abstain.reports.formatting import NOTHING, figure


def chosen(evaluated: Evaluated) -> list[str]:
    """The zoo, out of fold."""
    served, found = evaluated.served, evaluated.served["out_of_fold"]
    asked = "the best of them is asked for" if served["asked_for"] == "best" else f"{served['asked_for']} is asked for"
    text = (
        "Probes are compared on reviewed training answers, each scored by a probe that saw no answer of "
        f"its group (out of fold), so that the hold-out chooses nothing; {asked} (probe.serve)."
    )
    order = sorted(found, key=lambda name: (-(found[name] if defined(found[name]) else -math.inf), name))
    rows = [
        bold_row([name, figure(found[name]), "served"])
        if name == served["architecture"]
        else [name, figure(found[name]), NOTHING]
        for name in order
    ]
    probes = table(("probe", "AUROC out of fold", ""), rows, "Probes by AUROC out of fold", words=("",))
    return [heading(3, "Choice of the served probe"), paragraph(text), probes]


def fused(fusion: Mapping[str, Any] | None) -> list[str]:
    if not fusion or not fusion["coefficients"]:
        return []
    coefficients, missing = fusion["coefficients"], fusion["missing"]
    order = sorted(coefficients, key=lambda name: (-coefficients[name], name))
    rows = [
        (
            name,
            figure(coefficients[name], ".3f"),
            figure(math.exp(coefficients[name]), ".2f"),
            figure(missing[name], "+.3f") if missing[name] else NOTHING,
        )
        for name in order
    ]
    text = (
        "Fusion is a logistic regression on all scores' log-odds, each in units of its own spread "
        f"(C = {figure(fusion['strength'], '.2g')}), in which no score counts against an answer by being higher. A "
        "coefficient of 0: the others say as much, it says nothing, or it would have counted the other way round. Odds "
        "times: by what the odds of being correct are multiplied for one unit more. If missing: what is added to the "
        "log-odds where a score is missing."
    )
    if not any(coefficients.values()):
        text = f"The fusion uses no score: none separates correct training answers from incorrect ones. {text}"
    columns = ("score", "coefficient", "odds times", "if missing")
    weights = table(columns, rows, "Weights of the fusion, strongest first")
    return [heading(3, "Weights of the fusion"), paragraph(text), weights]


def yes_scores(correlation: Mapping[str, Any]) -> list[str]:
    names = list(correlation["names"])
    if len(names) < 2:
        return []
    rows = [
        (name, *(figure(value, ".2f") for value in values))
        for name, values in zip(names, correlation["matrix"], strict=True)
    ]
    correlations = table(("variant", *names), rows, "Rank correlation (Spearman) of the Yes-score's variants")
    text = "1: both order the answers alike, so the cheaper one will do; 0: they have nothing in common."
    return [heading(3, "Agreement of the Yes-score's variants"), paragraph(text), correlations]
