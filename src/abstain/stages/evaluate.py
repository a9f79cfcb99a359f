"""DVC stage `evaluate`: every scorer on the frozen hold-out and on the newest window, as metrics, plots and scores."""

import numpy as np
import pandas as pd
from sklearn.metrics import roc_curve

from abstain import paths
from abstain.errors import AbstainError
from abstain.evaluate import metrics
from abstain.evaluate.leaderboard import fit_baselines, leaderboard, reviewed, threshold_table
from abstain.feedback.splits import holdout_digest
from abstain.files import write_atomically
from abstain.models.onnx_probe import OnnxProbe
from abstain.params import Params
from abstain.stages import common


def stage(params: Params) -> None:
    frame, states = common.read_labelled_states()
    frame["answer_tokens"] = states.lengths - 1
    train = frame[frame["split"] == "train"]
    baselines = fit_baselines(*(train[name].to_numpy() for name in ("answer_tokens", "correct", "weight")))
    judged = pd.concat([reviewed(frame[frame["split"] == split]) for split in ("holdout", "newest")])
    scores = {"probe": OnnxProbe(paths.ONNX).confidence(states.subset(judged.index)).astype(float)}
    scores |= baselines.scores(judged["answer_tokens"].to_numpy())
    judged = judged.assign(**scores)
    holdout = judged[judged["split"] == "holdout"]
    if holdout.empty:
        raise AbstainError("no expert reviewed an answer of the hold-out, and thumbs are no test: ingest reviews of it")
    correct, weight = _correct_and_weight(holdout)
    threshold = float(common.read_json(paths.THRESHOLD)["threshold"])

    board = leaderboard(
        correct,
        {name: holdout[name].to_numpy() for name in scores},
        holdout["group"].to_numpy(),
        params.gate.bootstrap,
        params.gate.seed,
        weight,
    )
    table = threshold_table(correct, holdout["probe"].to_numpy(), threshold, weight)
    at_tuned = table[table["tuned"]].iloc[0]
    newest = judged[judged["split"] == "newest"]
    newest_correct, newest_weight = _correct_and_weight(newest)
    common.write_json(
        paths.METRICS,
        {
            "holdout": {
                "rows": len(holdout),
                "base_rate": metrics.mean(correct, weight),
                "drawn_unevenly": int((weight < 1).sum()),
                "effective_rows": metrics.effective_rows(weight),
                "label_source": "/".join(sorted(holdout["source"].unique())),
                "digest": holdout_digest(list(holdout["interaction_id"]), correct.tolist()),
                "scorers": {row.pop("scorer"): row for row in board.to_dict("records")},
                "at_threshold": {key: float(at_tuned[key]) for key in at_tuned.index if key != "tuned"},
            },
            "newest": {
                "rows": len(newest),
                "drawn_unevenly": int((newest_weight < 1).sum()),
                "effective_rows": metrics.effective_rows(newest_weight),
                "auroc": metrics.auroc(newest_correct, newest["probe"].to_numpy(), newest_weight),
            },
        },
    )
    _write_plots(correct, holdout["probe"].to_numpy(), weight, table)
    columns = ["interaction_id", "split", "group", "product", "correct", "source", "inclusion_probability", *scores]
    write_atomically(paths.SCORES, judged[columns].to_parquet(index=False))


def _correct_and_weight(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    return rows["correct"].to_numpy(int), metrics.row_weights(rows["inclusion_probability"].to_numpy(float))


def _write_plots(correct: np.ndarray, confidence: np.ndarray, weight: np.ndarray, table: pd.DataFrame) -> None:
    false_positive, true_positive, _ = roc_curve(correct, confidence, sample_weight=weight)
    coverage, risk = metrics.risk_coverage(correct, confidence, weight)
    curves = {
        "roc": pd.DataFrame({"false_positive_rate": false_positive, "true_positive_rate": true_positive}),
        "threshold": table,
        "reliability": pd.DataFrame(metrics.reliability(correct, confidence, weight)),
        "risk_coverage": pd.DataFrame({"coverage": coverage, "risk": risk}),
    }
    for name, curve in curves.items():
        common.write_text(paths.PLOTS / f"{name}.csv", curve.to_csv(index=False))


if __name__ == "__main__":
    common.run(stage)
