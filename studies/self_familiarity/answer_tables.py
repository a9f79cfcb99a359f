"""From the results of a project's answers to its table, as one JSON document. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from abstain.core.errors import AbstainError
from abstain.core.labels import Labels
from abstain.learning.estimators.fusion import fit_fusion
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import bootstrap, make_interval_columns, paired_difference
from studies.self_familiarity.answers import AnswerBatch
from studies.self_familiarity.declared import FamiliarityDeclaration
from studies.study import Outcome

THRESHOLD_PART = "threshold h"
LOG_PROBS, BOTH = "log-probabilities", "log-probabilities and familiarity"


def get_answer_title(batch: AnswerBatch, with_chunk: bool = False) -> str:
    """Return the title of the part that measures `batch`."""
    return f"familiarity of {batch.title}{' with the first chunk' if with_chunk else ''}"


def tabulate_answers(
    declared: FamiliarityDeclaration,
    model: str,
    batches: Sequence[AnswerBatch],
    informed_batches: Sequence[AnswerBatch],
    outcomes: Mapping[str, Outcome],
) -> dict[str, Any]:
    """Return the document: AUROCs of familiarity and log-probabilities against the reviews."""
    sections = [_compare("All answers", declared, batches, outcomes, with_chunk=False)]
    if informed_batches:
        sections.append(_compare("With the first chunk at hand", declared, informed_batches, outcomes, with_chunk=True))
    else:
        note = "no answers are wanted with their first chunk: give --size answers=NUMBER,NUMBER WITH CHUNK"
        sections.append({"title": "With the first chunk at hand", "missing": note})
    return {"title": declared.title, "model": model, "draws": declared.draws, "tables": {"answers": sections}}


def _compare(
    title: str,
    declared: FamiliarityDeclaration,
    batches: Sequence[AnswerBatch],
    outcomes: Mapping[str, Outcome],
    with_chunk: bool,
) -> dict[str, Any]:
    measured, results, reasons = [], [], []
    for batch in batches:
        names = [get_answer_title(batch), *([get_answer_title(batch, True)] if with_chunk else [])]
        parts = [outcomes.get(name, Outcome()) for name in names]
        missing = [outcome.reason for outcome in parts if outcome.result is None]
        if missing:
            reasons.append(missing[0])
        else:
            measured.append(batch)
            results.append([outcome.result or {} for outcome in parts])
    section: dict[str, Any] = {"title": title, "reason": reasons[0] if reasons else ""}
    if not measured:
        return section | {"missing": section["reason"] or "there are no reviewed answers"}
    correct, groups, weights = (
        np.concatenate([getattr(batch, name) for batch in measured]) for name in ("correct", "groups", "weights")
    )
    familiarity = _join([result[0]["familiarity"] for result in results])
    signals = {name: _join([result[0]["log_probs"][name] for result in results]) for name in results[0][0]["log_probs"]}
    labels = Labels(correct, weights, groups)
    try:
        scores = {
            "familiarity": familiarity,
            LOG_PROBS: fit_fusion(pd.DataFrame(signals), labels).out_of_fold,
            BOTH: fit_fusion(pd.DataFrame(signals | {"familiarity": familiarity}), labels).out_of_fold,
        }
    except AbstainError as error:
        return section | {"missing": str(error)}
    if with_chunk:
        informed = _join([result[1]["familiarity"] for result in results])
        scores |= {"familiarity with the chunk": informed, "rise with the chunk": informed - familiarity}
    statistics = {name: partial(metrics.auroc, correct, values) for name, values in scores.items()}
    estimates = bootstrap(statistics, groups, n_resamples=declared.draws, seed=declared.seed, weight=weights)
    h = outcomes.get(THRESHOLD_PART, Outcome()).result
    threshold = h["threshold"] if h else None
    return section | {
        "answers": len(correct),
        "total": sum(len(batch.interactions) for batch in batches),
        "groups": len(set(groups)),
        "correct": int(correct.sum()),
        "threshold": threshold,
        "below": None if threshold is None else float(np.mean(familiarity < threshold)),
        "rows": [{"score": name, **make_interval_columns("auroc", value)} for name, value in estimates.items()],
        **make_interval_columns("gain", paired_difference(estimates[BOTH], estimates[LOG_PROBS])),
    }


def _join(parts: Sequence[Sequence[float | None]]) -> np.ndarray:
    return np.concatenate([np.array(part, float) for part in parts])
