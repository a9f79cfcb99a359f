"""DVC stage `evaluate`: every scorer on the frozen hold-out and on the newest split, as metrics, plots and scores."""

from collections.abc import Mapping

import pandas as pd

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import select_reviewed, split_by_sampling
from abstain.data.store.state_table import StateTable
from abstain.learning.estimators.fusion import Fusion
from abstain.learning.estimators.onnx_probe import OnnxProbe
from abstain.learning.estimators.probe_registry import load_probe
from abstain.learning.estimators.regressors.summary import RegressorSummary
from abstain.learning.estimators.summaries import ProbeChoice, ScorerChoice
from abstain.learning.evaluation.evaluation_result import FeatureSummary, Perturbation
from abstain.learning.evaluation.records import Ablations
from abstain.learning.evaluation.reviewed_split import ReviewedSplit, calibrate_scores
from abstain.learning.evaluation.score_table import ScoreTable
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.calibration import calibrator_from_dict
from abstain.learning.thresholds.threshold_result import ThresholdResult
from abstain.llm.features.extraction import FeatureSource
from abstain.llm.signals.counterfactuals import COUNTERFACTUALS
from abstain.stages.evaluate.evaluation import CandidateArtifacts, Evaluation, evaluate
from abstain.stages.shared import artifacts
from abstain.stages.shared.ideal_answers import read_ideal_answers, read_rouge
from abstain.stages.shared.states import load_labelled_states, read_base_model

SCORE_COLUMNS = ["interaction_id", "split", "group", "product", "correct", "source", "inclusion_probability", "sampled"]


def stage(params: Params) -> None:
    """Evaluate the candidate."""
    frame, states = load_labelled_states()
    scorers = _read_scorers(params, frame)
    splits = _read_reviewed_splits(params, frame, states, scorers)
    _write(evaluate(params, _read_candidate(params, scorers, splits)), scorers.served, splits)


def _read_candidate(params: Params, scorers: ScoreTable, splits: Mapping[str, ReviewedSplit]) -> CandidateArtifacts:
    if splits["holdout"].rows.empty:
        raise AbstainError(
            Code.TOO_FEW_LABELS, "no answer of the hold-out was reviewed, and thumbs cannot test: ingest reviews of it"
        )
    threshold = ThresholdResult.model_validate(artifacts.read_json(paths.THRESHOLD))
    is_sampled = threshold.guarantee.evidence.sampled
    holdout, self_selected = splits["holdout"].split_by_sampling(is_sampled)
    newest, _ = splits["newest"].split_by_sampling(is_sampled)
    rows = holdout.rows
    ideal_answers = read_ideal_answers()
    return CandidateArtifacts(
        scorers=scorers,
        validation=splits["validation"],
        holdout=holdout,
        self_selected=self_selected,
        newest=newest,
        interactions=DataStore(paths.DATA).read_interactions(rows["interaction_id"]),
        ideal_answers=[ideal_answers.get(name) for name in rows["interaction_id"]],
        rouge=read_rouge(rows),
        counterfactual_scores={
            name: _read_counterfactual_scores(params, name, rows, scorers)
            for name in params.audits.enabled
            if name in COUNTERFACTUALS
        },
        base_model=read_base_model(),
        calibration=artifacts.read_json(paths.CALIBRATION)["method"],
        threshold=threshold,
        choice=ProbeChoice.model_validate(artifacts.read_json(paths.PROBE_CHOICE)),
        served=ScorerChoice.model_validate(artifacts.read_json(paths.SCORER_CHOICE)),
        ablations=Ablations.model_validate(artifacts.read_json(paths.ABLATIONS)),
        features=FeatureSummary.model_validate(artifacts.read_json(paths.FEATURES_SUMMARY)),
        perturbation=Perturbation.model_validate(artifacts.read_json(paths.NLL_SUMMARY)),
        regressors=RegressorSummary.model_validate(artifacts.read_json(paths.REGRESSOR_SUMMARY)),
    )


def _read_scorers(params: Params, frame: pd.DataFrame) -> ScoreTable:
    train = frame[frame["split"] == "train"]
    return ScoreTable(
        served=artifacts.read_json(paths.SCORER_CHOICE)["name"],
        exported=OnnxProbe(paths.ONNX),
        probes={name: load_probe(paths.PROBES / f"{name}.safetensors") for name in params.probe.architectures},
        fusions={name: Fusion.from_dict(content) for name, content in artifacts.read_json(paths.FUSIONS).items()},
        base_rate=metrics.weighted_mean(train["correct"].to_numpy(float), train["weight"].to_numpy(float)),
        regressors=artifacts.read_json(paths.REGRESSOR_SUMMARY)["regressors"],
    )


def _read_reviewed_splits(
    params: Params, frame: pd.DataFrame, states: StateTable, scorers: ScoreTable
) -> dict[str, ReviewedSplit]:
    """Return the reviewed answers by split, scored by all scorers.

    The validation answers are those that the threshold was tuned on; probabilities are calibrated on them.
    """
    signals = artifacts.read_signals("asked").reindex(frame["interaction_id"]).set_axis(frame.index)
    rows = {split: select_reviewed(frame[frame["split"] == split]) for split in ("validation", "holdout", "newest")}
    rows["validation"], _ = split_by_sampling(rows["validation"])
    scores = {
        split: scorers.build_table(states.subset(table.index), signals.loc[table.index])
        for split, table in rows.items()
    }
    validation = ReviewedSplit(rows["validation"], scores["validation"], scores["validation"])
    shipped = calibrator_from_dict(artifacts.read_json(paths.CALIBRATION))  # fitted in the same way
    probabilities = calibrate_scores(validation, scores, shipped.method)
    for split, table in scores.items():
        probabilities[split][scorers.served] = shipped.apply(table[scorers.served].to_numpy(float))
    return {split: ReviewedSplit(table, scores[split], probabilities[split]) for split, table in rows.items()}


def _read_counterfactual_scores(params: Params, name: str, holdout: pd.DataFrame, scorers: ScoreTable) -> pd.DataFrame:
    """Compute all scores of the counterfactual answers `name` of the hold-out, by row of `holdout`.

    An answer is left out if its counterfactual does not fit into the base model's context length, or if it has none:
    without any chunks, or as the only answer about its product.
    """
    # Includes unreadable answers: which answer a question gets depends on all changed ones.
    frame = artifacts.read_dataset_frame()
    interactions = DataStore(paths.DATA).read_interactions(
        select_reviewed(frame[frame["split"] == "holdout"])["interaction_id"]
    )
    changed = COUNTERFACTUALS[name](interactions)
    states = {
        changed[index].interaction_id: row.float()
        for index, row in FeatureSource(params.llm, load_settings()).read(changed)
        if changed[index] != interactions[index]
    }
    names = holdout.loc[holdout["interaction_id"].isin(list(states)), "interaction_id"]
    signals = artifacts.read_signals(name).loc[names].set_axis(names.index)
    return scorers.build_table([states[interaction_id] for interaction_id in names], signals)


def _write(evaluation: Evaluation, served: str, splits: Mapping[str, ReviewedSplit]) -> None:
    """Write metrics, report content and plots, and the scores of the reviewed hold-out and newest answers."""
    artifacts.write_json(paths.METRICS, evaluation.result.metrics.to_dict())
    artifacts.write_json(paths.EVALUATION, evaluation.result.evaluation.to_dict())
    with artifacts.atomic_folder(paths.PLOTS) as folder:
        for name, table in evaluation.plots.items():
            artifacts.write_text(folder / f"{name}.csv", table.to_csv(index=False))
    scores = [
        split.rows[SCORE_COLUMNS]
        .join(split.scores)
        .assign(confidence=split.get_raw_scores(served), probability=split.get_probabilities(served))
        for split in (splits["holdout"], splits["newest"])
    ]
    write_atomically(paths.SCORES, pd.concat(scores).to_parquet(index=False))


if __name__ == "__main__":
    artifacts.run_stage(stage)
