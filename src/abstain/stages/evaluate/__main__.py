"""DVC stage `evaluate`: every scorer on the frozen hold-out and on the newest window, as metrics, plots and scores."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import holdout_digest, reviewed
from abstain.data.store.state_table import StateTable
from abstain.learning.estimators.fusion import Fusion
from abstain.learning.estimators.onnx_probe import OnnxProbe
from abstain.learning.estimators.zoo import load_probe
from abstain.learning.evaluation import audits, curves
from abstain.learning.evaluation.examples import examples
from abstain.learning.evaluation.leaderboard import leaderboard
from abstain.learning.evaluation.reviewed_answers import ReviewedSplit, calibrate, calibration_rows
from abstain.learning.evaluation.score_table import FUSION, LENGTH_ONLY, SERVED, ScoreTable
from abstain.learning.evaluation.selective_prediction import at_threshold, at_tuned_threshold, threshold_table
from abstain.learning.evaluation.slices import Scored, slice_table, strata
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import Resamples
from abstain.learning.metrics.calibration import calibrator_from_dict
from abstain.llm.features.extraction import FeatureSource
from abstain.llm.signals.counterfactuals import COUNTERFACTUALS
from abstain.stages.shared import artifacts
from abstain.stages.shared.ideal_answers import read_ideal_answers, read_rouge
from abstain.stages.shared.states import read_base_model, read_labelled_states

YES_SCORES = ("yes_score", "yes_score_tokens", "yes_score_fused")
UNCALIBRATED = ("lstm", "lstm_no_huber")
"""Shown beside the calibrators: the effect of the paper's Huber term on an otherwise uncalibrated probe."""
KEPT = ["interaction_id", "split", "group", "product", "correct", "source", "inclusion_probability"]


def stage(params: Params) -> None:
    frame, states = read_labelled_states()
    scorers = _read_scorers(params, frame)
    parts = _judged(params, frame, states, scorers)
    holdout, newest = parts["holdout"], parts["newest"]
    if holdout.rows.empty:
        raise AbstainError("no answer of the hold-out was reviewed, and thumbs cannot test: ingest reviews of it")
    threshold = artifacts.read_json(paths.THRESHOLD)
    marked = _marked(threshold)
    rouge = read_rouge(holdout.rows)
    own, resamples = holdout.raw(SERVED), Resamples(params.gate.bootstrap, params.gate.seed)
    board = leaderboard(
        holdout.correct,
        holdout.scores,
        holdout.calibrated,
        holdout.groups,
        holdout.weight,
        params.gate.bootstrap,
        params.gate.seed,
        champion=SERVED,
    )
    at = {name: at_threshold(holdout.correct, own, value, holdout.weight, rouge) for name, value in marked.items()}
    used = next(iter(marked))
    figures = {
        **holdout.counts,
        "base_rate": metrics.mean(holdout.correct, holdout.weight),
        "label_source": "/".join(sorted(holdout.rows["source"].unique())),
        "digest": holdout_digest(list(holdout.rows["interaction_id"]), holdout.correct.tolist()),
        "scorers": {row.pop("scorer"): row for row in board.to_dict("records")},
        "at_threshold": {**at[used], **holdout.shown(SERVED, marked[used], resamples)},
        "at_heuristic": at.get("heuristic"),
    }
    auroc = metrics.auroc(newest.correct, newest.raw(SERVED), newest.weight)
    artifacts.write_json(paths.METRICS, {"holdout": figures, "newest": {**newest.counts, "auroc": auroc}})
    artifacts.write_json(paths.EVALUATION, _evaluation(params, parts, scorers, threshold, rouge))
    tables = curves.tables(holdout, SERVED, _drawn(board.set_index("scorer")["auroc"], scorers), params.gate.min_slice)
    tables["threshold"] = threshold_table(holdout.correct, own, marked, holdout.weight, rouge)
    with artifacts.whole_folder(paths.PLOTS) as folder:
        for name, table in tables.items():
            artifacts.write_text(folder / f"{name}.csv", table.to_csv(index=False))
    scores = [of.rows[KEPT].join(of.scores).assign(probability=of.probability(SERVED)) for of in (holdout, newest)]
    write_atomically(paths.SCORES, pd.concat(scores).to_parquet(index=False))


def _read_scorers(params: Params, frame: pd.DataFrame) -> ScoreTable:
    train = frame[frame["split"] == "train"]
    return ScoreTable(
        served=OnnxProbe(paths.ONNX),
        zoo={name: load_probe(paths.PROBES / f"{name}.safetensors") for name in params.probe.zoo},
        fusion=Fusion.from_dict(artifacts.read_json(paths.FUSION)),
        base_rate=metrics.mean(train["correct"].to_numpy(float), train["weight"].to_numpy(float)),
        regressors=artifacts.read_json(paths.REGRESSOR_SUMMARY)["regressors"],
    )


def _judged(params: Params, frame: pd.DataFrame, states: StateTable, scorers: ScoreTable) -> dict[str, ReviewedSplit]:
    """The reviewed answers by split, scored by all scorers; probabilities are calibrated on those of `validation`."""
    signals = artifacts.read_signals("asked").reindex(frame["interaction_id"]).set_axis(frame.index)
    rows = {split: reviewed(frame[frame["split"] == split]) for split in ("validation", "holdout", "newest")}
    scores = {split: scorers.table(states.subset(of.index), signals.loc[of.index]) for split, of in rows.items()}
    validation = ReviewedSplit(rows["validation"], scores["validation"], scores["validation"])
    probabilities = calibrate(validation, scores, params.calibration.method, params.calibration.seed)
    shipped = calibrator_from_dict(artifacts.read_json(paths.CALIBRATION))  # fitted in the same way, to served scores
    for split, of in scores.items():
        probabilities[split][SERVED] = shipped.apply(of[SERVED].to_numpy(float))
    return {split: ReviewedSplit(of, scores[split], probabilities[split]) for split, of in rows.items()}


def _marked(threshold: Mapping[str, Any]) -> dict[str, float]:
    """The thresholds in the report, by name; the served one comes first."""
    if not threshold["guaranteed"]:
        return {"heuristic": threshold["threshold"]}
    heuristic = {"heuristic": threshold["heuristic"]["threshold"]} if threshold["heuristic"] else {}
    return {"guaranteed": threshold["threshold"], **heuristic}


def _evaluation(
    params: Params,
    parts: Mapping[str, ReviewedSplit],
    scorers: ScoreTable,
    threshold: Mapping[str, Any],
    rouge: np.ndarray,
) -> dict[str, Any]:
    """The report's content beside the metrics."""
    holdout, names = parts["holdout"], [str(name) for name in parts["holdout"].scores]
    features, ablations = artifacts.read_json(paths.FEATURES_SUMMARY), artifacts.read_json(paths.ABLATIONS)
    interactions = DataStore(paths.DATA).interactions(holdout.rows["interaction_id"])
    conditions, regressors = artifacts.read_json(paths.NLL_SUMMARY), artifacts.read_json(paths.REGRESSOR_SUMMARY)
    costs = dict.fromkeys(scorers.zoo, features["forward_tokens"][SERVED]) | features["forward_tokens"]
    costs |= dict.fromkeys(scorers.regressors, conditions["forward_tokens"])
    costs[FUSION] += conditions["forward_tokens"] if scorers.regressors else 0
    yes_scores = [name for name in YES_SCORES if name in names]
    calibration = calibration_rows(
        parts["validation"],
        holdout,
        SERVED,
        [name for name in UNCALIBRATED if name in names],
        params.calibration.seed,
        Resamples(params.gate.bootstrap, params.gate.seed),
    )
    served = {"architecture": scorers.architecture, "layer": params.llm.layer, "site": params.llm.site}
    served |= {"model": read_base_model(), "layout": params.llm.layout}
    return {
        "served": {**artifacts.read_json(paths.CHOICE), **served},
        "kinds": scorers.kinds(names),
        "forward_tokens": {name: costs.get(name, 0.0) for name in names},
        "skipped": features["skipped_scorers"] | regressors["skipped"],
        "regressors": {**regressors, "perturbed": conditions},
        "neither": features["neither"],
        "improbable": {name: int((holdout.scores[name] == 0.5).sum()) for name in yes_scores},
        "threshold": threshold,
        "min_rows": params.gate.min_slice,
        "calibration": {"method": params.calibration.method, "by_method": calibration},
        "at_own_threshold": {
            name: at_tuned_threshold(parts["validation"].said_by(name), holdout.said_by(name), params.threshold, rouge)
            for name in names
        },
        "slices": _slices(params, holdout, interactions, threshold["threshold"]),
        "audits": {**_audits(params, holdout, scorers, threshold), "left_out": ablations["left_out"]},
        "rank_correlation": curves.spearman(holdout.scores, yes_scores),
        "ablations": ablations["listening"],
        "fusion": {
            "strength": scorers.fusion.strength,
            "coefficients": scorers.fusion.coefficients,
            "missing": scorers.fusion.coefficients_if_missing,
        },
        "examples": _examples(holdout, interactions, threshold["threshold"]),
    }


def _slices(
    params: Params, holdout: ReviewedSplit, interactions: list[Interaction], threshold: float
) -> list[dict[Any, Any]]:
    sliced = strata(
        holdout.rows["product"],
        holdout.rows["line_of_business"],
        np.array([len(one.contexts) for one in interactions]),
        np.array([len(one.answer) for one in interactions]),
    )
    raw, probability = holdout.raw(SERVED), holdout.probability(SERVED)
    scored = Scored(holdout.correct, raw, probability, raw >= threshold, holdout.groups, holdout.weight)
    table = slice_table(scored, sliced, params.gate.bootstrap, params.gate.seed, params.gate.min_slice)
    return table.rename(columns={"stratum": "by"}).to_dict("records")


def _audits(
    params: Params, holdout: ReviewedSplit, scorers: ScoreTable, threshold: Mapping[str, Any]
) -> dict[str, Any]:
    """All scores of the hold-out's counterfactual answers, against those of the original ones.

    An answer whose counterfactual does not fit the base model's window is left out, and so is one without a
    counterfactual: without any chunks, or the only answer about its product.
    """
    source = FeatureSource(params.llm, load_settings())
    # Includes unreadable answers: which answer a question gets depends on all changed ones.
    frame = artifacts.read_dataset_frame()
    interactions = DataStore(paths.DATA).interactions(reviewed(frame[frame["split"] == "holdout"])["interaction_id"])
    arguments, groups = {}, {}
    for name, variant in COUNTERFACTUALS.items():
        changed_rows = variant(interactions)
        states = {
            changed_rows[at].interaction_id: row.float()
            for at, row in source.read(changed_rows)
            if changed_rows[at] != interactions[at]
        }
        kept = holdout.rows["interaction_id"].isin(list(states))
        names = holdout.rows.loc[kept, "interaction_id"]
        signals = artifacts.read_signals(name).loc[names].set_axis(names.index)
        changed = scorers.table([states[one] for one in names], signals)
        arguments[name] = holdout.correct[kept], holdout.scores[kept], changed, holdout.weight[kept]
        groups[name] = holdout.groups[kept]
    return {
        "context_removed": audits.context_removed(
            *arguments["context_removed"],
            groups["context_removed"],
            Resamples(params.gate.bootstrap, params.gate.seed),
        ),
        "answers_shuffled": audits.answers_shuffled(
            *arguments["answers_shuffled"], {SERVED: float(threshold["threshold"])}
        ),
    }


def _examples(holdout: ReviewedSplit, interactions: list[Interaction], threshold: float) -> Any:
    ideal = read_ideal_answers()
    rows = holdout.rows.assign(
        question=[one.question for one in interactions],
        answer=[one.answer for one in interactions],
        ideal_answer=pd.Series([ideal.get(one.interaction_id) for one in interactions], holdout.rows.index, object),
        confidence=holdout.raw(SERVED),
        probability=holdout.probability(SERVED),
    )
    return examples(rows, threshold)


def _drawn(auroc: pd.Series, scorers: ScoreTable) -> list[str]:
    """The scorers in the plots: the served one, the fusion, the best signal, the answer's length."""
    signals = [name for name, kind in scorers.kinds(list(map(str, auroc.index))).items() if kind == "signal"]
    best = auroc[signals].dropna().nlargest(1).index
    return [name for name in (SERVED, FUSION, *best, LENGTH_ONLY) if name in auroc.index]


if __name__ == "__main__":
    artifacts.run(stage)
