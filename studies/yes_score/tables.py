"""From the scores of responses to the tables of the study, as one JSON document, and its figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from abstain.learning.evaluation.curves import make_roc_table
from abstain.reports.plots import PLOTS, render_svg
from studies.figures import draw_histogram
from studies.study import Outcome
from studies.yes_score.declared import YesScoreDeclaration
from studies.yes_score.pairs import PAIRS, compare_scores, compute_precision, get_scores, make_pair
from studies.yes_score.responses import KINDS, AnsweredQuestions

KINDS_PART, EXAMPLE_PART, EXTRACTIVE_PART = (
    "Yes-scores of all responses",
    "responses of the example",
    "scores of the extractive QA model",
)
NEEDS = {
    "kinds": (KINDS_PART,),
    "separation": (KINDS_PART,),
    "precision": (KINDS_PART,),
    "example": (EXAMPLE_PART,),
    "extractive_qa": (KINDS_PART, EXTRACTIVE_PART),
}
"""The parts that a table needs."""
EXTRACTIVE = "extractive_qa"
PEAK = 0.05
"""A score within this distance is near 0, 0.5 or 1."""


def tabulate(
    declared: YesScoreDeclaration,
    data: AnsweredQuestions,
    tables: Sequence[str],
    outcomes: Mapping[str, Outcome],
    extractive_qa_model: str | None,
    setting: str,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return `tables` of the study as JSON, and its figures as SVG by file name.

    Args:
        declared: The study.
        data: The questions.
        tables: Names of tables.
        outcomes: Outcome by title of the part.
        extractive_qa_model: The extractive QA model; None if none is named.
        setting: Name of the parameter that names it.

    Returns:
        The document and the figures. A table without a result has `missing`, the reason.
    """
    document: dict[str, Any] = {
        "title": declared.title,
        "paper": declared.paper,
        "draws": declared.draws,
        "model": data.llm.model,
        "questions": len(data.questions),
        "groups": len(set(data.groups)),
        "marked": sum(marked is not None for marked in data.marked),
        "project": bool(data.answers),
        "tables": {},
    }
    groups, weights = np.array(data.groups), np.array(data.weights)
    figures: dict[str, str] = {}
    for name in tables:
        table: dict[str, Any]
        if name == EXTRACTIVE and extractive_qa_model is None:
            table = {"missing": f"no extractive QA model is named: set {setting} to a model of that kind"}
        elif reasons := [outcome.reason for outcome in _get_outcomes(name, outcomes) if outcome.result is None]:
            table = {"missing": reasons[0]}
        else:
            results = [outcome.result or {} for outcome in _get_outcomes(name, outcomes)]
            if name == "kinds":
                table = {"rows": _describe_kinds(results[0], declared.variants)}
                figures |= _draw_histograms(results[0], declared.variants)
            elif name == "separation":
                table, roc = _separate(results[0], declared, groups, weights, declared.variants)
                figures |= roc
            elif name == "precision":
                table = _make_precision_table(results[0], declared, groups, weights)
            elif name == "example":
                table = _make_example_table(results[0], declared)
            else:
                joined = _join_results(*results)
                table, _ = _separate(joined, declared, groups, weights, (*declared.variants, EXTRACTIVE))
                table["model"] = extractive_qa_model
        document["tables"][name] = table
    return document, figures


def _get_outcomes(table: str, outcomes: Mapping[str, Outcome]) -> list[Outcome]:
    return [outcomes.get(title, Outcome()) for title in NEEDS[table]]


def _select_kinds(result: Mapping[str, Any], variant: str) -> dict[str, Any]:
    """Return the kinds of which there are responses, by what they are; without an ideal answer, three have none."""
    return {
        what: result["kinds"][kind] for kind, what in KINDS.items() if len(get_scores(result["kinds"][kind], variant))
    }


def _describe_kinds(result: Mapping[str, Any], variants: Sequence[str]) -> list[dict[str, Any]]:
    """Return for each variant and kind the number of responses, and where their scores peak."""
    rows = []
    for variant in variants:
        for what, content in _select_kinds(result, variant).items():
            scores = get_scores(content, variant)
            scored = scores[~np.isnan(scores)]
            row: dict[str, Any] = {"scorer": variant, "kind": what, "responses": len(scores), "scored": len(scored)}
            if len(scored):
                row |= {"mean": float(scored.mean()), "median": float(np.median(scored))}
                row |= {f"near_{peak:g}": float((np.abs(scored - peak) <= PEAK).mean()) for peak in (0, 0.5, 1)}
            neither = {key: content[key] for key in ("neither", "replies") if key in content}
            rows.append(row | (neither if variant in ("yes_score", "yes_score_tokens") else {}))
    return rows


def _draw_histograms(result: Mapping[str, Any], variants: Sequence[str]) -> dict[str, str]:
    return {
        f"histogram_{variant}.svg": draw_histogram(
            {what: get_scores(content, variant) for what, content in _select_kinds(result, variant).items()}, variant
        )
        for variant in variants
    }


def _separate(
    result: Mapping[str, Any],
    declared: YesScoreDeclaration,
    groups: np.ndarray,
    weights: np.ndarray,
    scorers: tuple[str, ...],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the table of all pairs, and their ROC curves."""
    rows, figures = [], {}
    for name, what in PAIRS.items():
        pair = make_pair(name, result, groups, weights, scorers)
        if len(set(pair.label)) < 2:
            continue
        comparisons = compare_scores(pair, declared.draws, declared.seed)
        rows += [{"pair": what, "post": declared.post.auroc.get(name), **comparison} for comparison in comparisons]
        curves = make_roc_table(pair.label, pd.DataFrame(dict(pair.scores)), pair.weights)
        figures[f"roc_{name}.svg"] = render_svg(PLOTS["roc"], curves).decode()
    if not rows:
        return {"missing": "there are no two kinds of responses to compare"}, {}
    return {"rows": rows}, figures


def _make_precision_table(
    result: Mapping[str, Any], declared: YesScoreDeclaration, groups: np.ndarray, weights: np.ndarray
) -> dict[str, Any]:
    pair = make_pair("generated", result, groups, weights, declared.variants)
    if not len(pair.label):
        return {"missing": "nobody has judged the model's answers"}
    rows = compute_precision(pair, declared.thresholds, declared.draws, declared.seed)
    return {"rows": rows, "answers": len(pair.label), "correct": int(pair.label.sum()), "post": declared.post.precision}


def _make_example_table(result: Mapping[str, Any], declared: YesScoreDeclaration) -> dict[str, Any]:
    responses = [response.model_dump(mode="json") for response in declared.example.responses]
    rows = [
        {**response, "scores": {variant: scores[index] for variant, scores in result["scores"].items()}}
        for index, response in enumerate(responses)
    ]
    return {"context": declared.example.context, "question": declared.example.question, "rows": rows}


def _join_results(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first result with the scores of both."""
    kinds = {
        kind: {**content, "scores": content["scores"] | second["kinds"][kind]["scores"]}
        for kind, content in first["kinds"].items()
    }
    return {"kinds": kinds, "correct": first["correct"]}
