"""DVC stage `features`: hidden states and signals for every labelled answer, computed together.

It writes the table of states that the exported probe reads, and a table of the scorers' signals, which are out of fold
for training answers. The other features (of the ablation grid and of the audits' counterfactuals) stay in the cache for
the stages that need them.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.core.labels import Labels
from abstain.core.scorer_names import FAMILIARITY, FUSION, PROBE, WRITER
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import select_reviewed_holdout
from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.features.extraction import NOTHING_FITS, FeatureSource, UnreadableInteraction
from abstain.llm.signals.base import FeatureBatch, Scorer, ScorerUnavailable
from abstain.llm.signals.compute_features import (
    COST_SAMPLE_SIZE,
    collect_feature_requests,
    compute_missing,
    estimate_forward_tokens,
    read_features,
)
from abstain.llm.signals.familiarity import QuestionFamiliarity
from abstain.llm.signals.feature_plan import LabelledAnswers, collect_signal_requests, plan_features
from abstain.llm.signals.out_of_fold import FittedScorer, fit_scorer
from abstain.llm.signals.registry import AvailableScorers, build_scorers
from abstain.llm.signals.servable import (
    explain_not_servable,
    get_servable_kind,
    list_servable_components,
    list_servable_fusions,
)
from abstain.llm.signals.writer import WriterScores
from abstain.llm.signals.yes_no import count_neither_replies
from abstain.stages.shared import artifacts


def stage(params: Params) -> None:
    frame, settings = artifacts.read_dataset_frame(), load_settings()
    rows = DataStore(paths.DATA).interactions(frame["interaction_id"])
    source = FeatureSource(params.llm, settings)
    refused: dict[str, str] = {}
    shortened: dict[str, int] = {}
    for row in rows:
        prepared = source.prepare(row)
        if isinstance(prepared, UnreadableInteraction):
            refused[row.interaction_id] = prepared.reason
            print(f"refused: interaction {row.interaction_id}: {Code.TOO_LONG}: {prepared.reason}", flush=True)
        elif prepared.dropped_chunks:
            shortened[row.interaction_id] = prepared.dropped_chunks
    if len(refused) == len(rows):
        raise AbstainError(Code.TOO_LONG, NOTHING_FITS)
    train = np.flatnonzero(frame["split"] == "train")
    labels = Labels(*(frame.iloc[train][name].to_numpy() for name in ("correct", "weight", "group")))
    folds = labels.assign_folds(params.probe.folds, params.probe.seed)  # first of all: too few labels cost no pass
    found = build_scorers(params, settings)
    labelled = LabelledAnswers(rows, select_reviewed_holdout(frame, rows), params.audits.run)
    cost = compute_missing(params.llm, settings, plan_features(params, found.scorers, labelled), artifacts.progress)
    print(
        f"{cost.rows} results were not in the cache: {cost.forward_tokens} tokens were run for passes of "
        f"{cost.pass_tokens}",
        flush=True,
    )
    source.save(rows, paths.FEATURES)
    readings = collect_feature_requests(found.scorers)
    asked = read_features(params.llm, settings, rows, readings)
    fitted, skipped = _fit(found, asked.take(train.tolist()), labels, folds)
    for name, why in skipped.items():
        print(f"skipped: scorer {name}: {why}", flush=True)
    scorers = [one.scorer for one in fitted]
    unranked = next((one.describe_unranked(asked) for one in scorers if isinstance(one, WriterScores)), "")
    if unranked:
        print(f"{WRITER}: {unranked}", flush=True)
    audits = {name: of for name, of in labelled.variants.items() if name != "asked"}
    answers = {name: read_features(params.llm, settings, of, readings) for name, of in audits.items()}
    tables = [_signals(scorers, name, of) for name, of in {"asked": asked, **answers}.items()]
    for one in fitted:
        tables[0].loc[train, one.scorer.name] = one.out_of_fold
    write_atomically(paths.SIGNALS, pd.concat(tables, ignore_index=True).to_parquet(index=False))
    parts = list_servable_components(params, scorers)
    fusions = list_servable_fusions(parts)
    costs = {one.name: one.requires for one in scorers} | parts
    costs |= {name: tuple(dict.fromkeys(one for part in of for one in parts[part])) for name, of in fusions.items()}
    costs[FUSION] = (*parts[PROBE], *collect_signal_requests(params, scorers))
    tokens = {name: estimate_forward_tokens(params.llm, settings, rows, readings) for name, readings in costs.items()}
    asked_rows = [row.question for row in rows[:COST_SAMPLE_SIZE]]
    tokens |= {
        one.name: one.familiarity.forward_tokens(asked_rows) for one in scorers if isinstance(one, QuestionFamiliarity)
    }
    tokens[FUSION] += tokens.get(FAMILIARITY, 0.0)  # it asks by prompts of its own
    listed = ", ".join(f"{name} {count:.0f}" for name, count in tokens.items() if count)
    print(f"tokens of an answer: {listed}", flush=True)
    writer = next((one.to_dict() for one in scorers if isinstance(one, WriterScores)), None)
    artifacts.write_json(paths.WRITER, writer)
    artifacts.write_json(
        paths.FEATURES_SUMMARY,
        {
            "rows": len(rows) - len(refused),
            "refused": refused,
            "chunks_dropped": shortened,
            "skipped_scorers": skipped,
            "unranked": unranked,
            "neither": count_neither_replies(load_tokenizer(find_model(params.llm.model, settings)), asked),
            "forward_tokens": tokens,
            "fusions": fusions,
            "servable": {name: get_servable_kind(name) for name in (*parts, *fusions)},
            "not_servable": explain_not_servable(params, scorers),
        },
    )


def _fit(
    found: AvailableScorers, train: FeatureBatch, labels: Labels, folds: np.ndarray
) -> tuple[list[FittedScorer], dict[str, str]]:
    """The scorers that can be fitted; of all others, by name, why they are unavailable."""
    fitted: list[FittedScorer] = []
    skipped = dict(found.unavailable)
    for scorer in found.scorers:
        try:
            fitted.append(fit_scorer(scorer, train, labels, folds))
        except ScorerUnavailable as why:
            skipped[scorer.name] = why.message_with_code
    return fitted, skipped


def _signals(scorers: Sequence[Scorer], variant: str, answers: FeatureBatch) -> pd.DataFrame:
    """One row per answer, one column per scorer."""
    named = {"interaction_id": [row.interaction_id for row in answers.interactions], "variant": variant}
    return pd.DataFrame(named | {one.name: one.score(answers) for one in scorers})


if __name__ == "__main__":
    artifacts.run_stage(stage)
