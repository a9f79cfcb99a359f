"""DVC stage `features`: hidden states and signals for every labelled answer, computed together.

It writes the table of states that the exported probe reads, and a table of the scorers' signals, which are out of fold
for training answers. The other features (of the ablation grid and of the audits' counterfactuals) stay in the cache for
the stages that need them.
"""

from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import pandas as pd

from abstain.config.params import Params
from abstain.config.settings import Settings, load_settings
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.core.labels import Labels
from abstain.core.scorer_names import WRITER
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import select_reviewed_holdout
from abstain.llm.engine.loading import find_model, load_tokenizer
from abstain.llm.features.extraction import NOTHING_FITS, FeatureSource, UnreadableInteraction
from abstain.llm.signals.base import FeatureBatch, RunsModel, Scorer, ScorerUnavailable
from abstain.llm.signals.compute_features import (
    COST_SAMPLE_SIZE,
    collect_feature_requests,
    compute_missing,
    estimate_forward_tokens,
    read_features,
)
from abstain.llm.signals.familiarity import QuestionFamiliarity
from abstain.llm.signals.feature_plan import LabelledAnswers, list_components, list_fusions, plan_features
from abstain.llm.signals.out_of_fold import FittedScorer, fit_scorer
from abstain.llm.signals.registry import AvailableScorers, build_scorers
from abstain.llm.signals.writer import WriterScores
from abstain.llm.signals.yes_no import count_neither_replies
from abstain.stages.shared import artifacts


def _prepare_rows(source: FeatureSource, rows: Sequence[Interaction]) -> tuple[dict[str, str], dict[str, int]]:
    """Find, by interaction, why a row cannot be read, and how many chunks were left out of one that was too long."""
    unreadable: dict[str, str] = {}
    shortened: dict[str, int] = {}
    for row in rows:
        prepared = source.prepare(row)
        if isinstance(prepared, UnreadableInteraction):
            unreadable[row.interaction_id] = prepared.reason
            print(f"unreadable: interaction {row.interaction_id}: {Code.TOO_LONG}: {prepared.reason}", flush=True)
        elif prepared.dropped_chunks:
            shortened[row.interaction_id] = prepared.dropped_chunks
    return unreadable, shortened


def _estimate_tokens(
    params: Params,
    settings: Settings,
    rows: Sequence[Interaction],
    scorers: Sequence[Scorer],
) -> tuple[dict[str, list[str]], dict[str, float]]:
    """Return the components of the fusions, and the tokens that each scorer has the base model read of an answer.

    Those of perturbed contexts are not known before they are perturbed; the stage `nll_features` adds them.
    """
    components = list_components(params, scorers)
    fusions = list_fusions(params, scorers, components)
    own_tokens = {
        scorer.name: scorer.estimate_forward_tokens(rows[:COST_SAMPLE_SIZE])
        for scorer in scorers
        if isinstance(scorer, RunsModel)
    }
    # Many read the same features, whose tokens are counted once.
    count_tokens = cache(partial(estimate_forward_tokens, params.llm, settings, rows))
    tokens = {}
    for name, parts in {**{name: [name] for name in components}, **fusions}.items():
        requests = frozenset(request for part in parts for request in components[part])
        tokens[name] = count_tokens(requests) + sum(own_tokens.get(part, 0.0) for part in parts)
    return fusions, tokens


def stage(params: Params) -> None:
    """Compute the features and signals of all labelled answers.

    Raises:
        AbstainError: No answer fits into the context length, or there are too few labels.
    """
    frame, settings = artifacts.read_dataset_frame(), load_settings()
    rows = DataStore(paths.DATA).read_interactions(frame["interaction_id"])
    source = FeatureSource(params.llm, settings)
    unreadable, shortened = _prepare_rows(source, rows)
    if len(unreadable) == len(rows):
        raise AbstainError(Code.TOO_LONG, NOTHING_FITS)
    train = np.flatnonzero(frame["split"] == "train")
    labels = Labels(*(frame.iloc[train][name].to_numpy() for name in ("correct", "weight", "group")))
    folds = labels.assign_folds(
        params.probe.folds, params.probe.seed
    )  # first of all: with too few labels no model is run
    available = build_scorers(params, settings)
    labelled = LabelledAnswers(rows, select_reviewed_holdout(frame, rows), params.audits.enabled)
    cost = compute_missing(
        params.llm, settings, plan_features(params, available.scorers, labelled), artifacts.report_progress
    )
    print(
        f"{cost.rows} results were not in the cache: {cost.forward_tokens} tokens were run for passes of "
        f"{cost.pass_tokens}",
        flush=True,
    )
    for scorer in available.scorers:
        if isinstance(scorer, QuestionFamiliarity):  # takes minutes: the concepts of all questions together
            scorer.familiarity.score([row.question for row in rows], artifacts.report_progress)
    source.save(rows, paths.FEATURES)
    requests = collect_feature_requests(available.scorers)
    batch = read_features(params.llm, settings, rows, requests)
    fitted, skipped = _fit_scorers(available, batch.take(train.tolist()), labels, folds)
    for name, reason in skipped.items():
        print(f"skipped: scorer {name}: {reason}", flush=True)
    scorers = [fit.scorer for fit in fitted]
    ranked_apart = next((scorer.describe_apart() for scorer in scorers if isinstance(scorer, WriterScores)), "")
    if ranked_apart:
        print(f"{WRITER}: {ranked_apart}", flush=True)
    tables = [_make_signal_table(rows, "asked", _score_answers(fitted, batch, train))]
    for name, variants in labelled.variants.items():
        if name != "asked":
            features = read_features(params.llm, settings, variants, requests)
            scores = {scorer.name: scorer.score(features) for scorer in scorers}
            tables.append(_make_signal_table(variants, name, scores))
    write_atomically(paths.SIGNALS, pd.concat(tables, ignore_index=True).to_parquet(index=False))
    fusions, tokens = _estimate_tokens(params, settings, rows, scorers)
    listed = ", ".join(f"{name} {count:.0f}" for name, count in tokens.items() if count)
    print(f"tokens of an answer: {listed}", flush=True)
    writer = next((scorer.to_dict() for scorer in scorers if isinstance(scorer, WriterScores)), None)
    artifacts.write_json(paths.WRITER, writer)
    artifacts.write_json(
        paths.FEATURES_SUMMARY,
        {
            "rows": len(rows) - len(unreadable),
            "unreadable": unreadable,
            "chunks_dropped": shortened,
            "skipped_scorers": skipped,
            "ranked_apart": ranked_apart,
            "neither": count_neither_replies(load_tokenizer(find_model(params.llm.model, settings)), batch),
            "forward_tokens": tokens,
            "fusions": fusions,
        },
    )


def _fit_scorers(
    available: AvailableScorers, train: FeatureBatch, labels: Labels, folds: np.ndarray
) -> tuple[list[FittedScorer], dict[str, str]]:
    """Return the scorers that can be fitted, and for all others, by name, the reason for which they are unavailable."""
    fitted_scorers: list[FittedScorer] = []
    skipped = dict(available.unavailable)
    for scorer in available.scorers:
        try:
            fitted_scorers.append(fit_scorer(scorer, train, labels, folds))
        except ScorerUnavailable as error:
            skipped[scorer.name] = error.message_with_code
    return fitted_scorers, skipped


def _score_answers(fitted: Sequence[FittedScorer], batch: FeatureBatch, train: np.ndarray) -> dict[str, np.ndarray]:
    """Return the scores of all answers by scorer, those of the rows `train` out of fold."""
    unseen = np.setdiff1d(np.arange(len(batch)), train)
    unseen_batch = batch.take(unseen.tolist())
    scores = {fit.scorer.name: np.empty(len(batch)) for fit in fitted}
    for fit in fitted:
        scores[fit.scorer.name][train] = fit.out_of_fold
        scores[fit.scorer.name][unseen] = fit.scorer.score(unseen_batch)
    return scores


def _make_signal_table(answers: Sequence[Interaction], variant: str, scores: dict[str, np.ndarray]) -> pd.DataFrame:
    """Make a table with one row per answer and one column per scorer."""
    return pd.DataFrame({"interaction_id": [answer.interaction_id for answer in answers], "variant": variant} | scores)


if __name__ == "__main__":
    artifacts.run_stage(stage)
