from functools import partial

import numpy as np
import pandas as pd
import pytest

from abstain.core.contracts import MIN_INCLUSION_PROBABILITY
from abstain.data.labels.training_table import build_training_table
from abstain.learning.metrics.bootstrap import bootstrap
from abstain.learning.metrics.weighted_metrics import precision, row_weights
from tests.data.frames import BY_GROUP, LABELS, reviews, thumbs

LOGS, ANSWERS, THRESHOLD = 40, 1500, 0.6
ASKED = pd.Timestamp("2026-09-01", tz="UTC")


@pytest.fixture(scope="module")
def answers() -> pd.DataFrame:
    """The same answers in every `log`, each shown by chance, the more likely the `easier` it is.

    An easy answer is more often correct, whatever the `confidence` of a new scorer is.
    """
    generator = np.random.default_rng(3)
    easy, confidence = generator.random((2, ANSWERS))
    one = pd.DataFrame({"confidence": confidence, "propensity": 0.05 + 0.9 * easy})
    one["correct"] = generator.random(ANSWERS) < 0.7 * easy + 0.3 * confidence
    rows = pd.concat([one.assign(log=log) for log in range(LOGS)], ignore_index=True)
    shown = generator.random(len(rows)) < rows["propensity"]
    return rows.assign(
        interaction_id=[f"i-{at:06d}" for at in range(len(rows))],
        asked_at=ASKED + pd.to_timedelta(np.arange(len(rows)), unit="s"),
        group=[f"g-{at % 500}" for at in range(len(rows))],
        product=None,
        line_of_business=None,
        display=np.where(shown, "shown", "withheld"),
        batch="000001",
        refusal=False,
        question_duplicate=pd.array([pd.NA] * len(rows), "Int64"),
        answer_duplicate=pd.array([pd.NA] * len(rows), "Int64"),
    )


def make_reviews(answers: pd.DataFrame) -> pd.DataFrame:
    """Make an unsampled review of each answer."""
    criteria = dict.fromkeys(("complete", "correct", "truthful"), answers["correct"])
    own = {"reviewed_at": ASKED + pd.Timedelta(days=1), "reviewer": "a", "inclusion_probability": np.nan, "batch": "1"}
    return pd.DataFrame({"interaction_id": answers["interaction_id"], **own, **criteria})


def build_labelled_table(answers: pd.DataFrame, by: str) -> pd.DataFrame:
    """Build the table of shown answers, by thumbs or by unsampled reviews."""
    shown = answers[answers["display"] == "shown"]
    up = {"given_at": ASKED + pd.Timedelta(days=1), "thumb": np.where(shown["correct"], "up", "down"), "user": None}
    up_rows = pd.DataFrame({"interaction_id": shown["interaction_id"], **up})
    given = (up_rows, reviews([])) if by == "thumb" else (thumbs([]), make_reviews(shown))
    table, _ = build_training_table(answers, *given, LABELS, BY_GROUP)
    return table.merge(answers[["interaction_id", "confidence", "log"]], on="interaction_id")


def count_standard_errors(found: list[float], truth: float) -> float:
    """Return the distance of the mean estimate from the truth in standard errors."""
    return abs(np.mean(found) - truth) / (np.std(found, ddof=1) / np.sqrt(len(found)))


@pytest.mark.parametrize("by", ["thumb", "review"])
def test_training_table_propensity_undoes_selection(answers: pd.DataFrame, by: str) -> None:
    all_answers = answers[answers["log"] == 0]
    truth = all_answers.loc[all_answers["confidence"] >= THRESHOLD, "correct"].mean()
    weighted, unweighted, holds = [], [], []
    for _, log in build_labelled_table(answers, by).groupby("log"):
        weight = row_weights(log["inclusion_probability"].to_numpy())
        figure = partial(precision, log["correct"].to_numpy(), log["confidence"].to_numpy(), threshold=THRESHOLD)
        found = bootstrap({"": figure}, np.arange(len(log)), n_resamples=200, seed=1, weight=weight)[""]
        weighted.append(found.value)
        unweighted.append(figure(np.ones(len(log))))
        low, high = found.interval
        holds.append(low <= truth <= high)
    assert count_standard_errors(weighted, truth) < 3 and np.mean(holds) >= 0.85
    assert count_standard_errors(unweighted, truth) > 20 and np.mean(unweighted) > truth + 0.08


def test_training_table_propensity_of_shown_answers_only(answers: pd.DataFrame) -> None:
    few = answers[answers["log"] == 0].copy()
    few.loc[few.index[:10], ["display", "propensity"]] = ["shown", 1e-9]
    known = build_labelled_table(few, "review").merge(
        few[["interaction_id", "display", "propensity"]], on="interaction_id"
    )
    expected = known["propensity"].clip(lower=MIN_INCLUSION_PROBABILITY)
    assert (known["inclusion_probability"] == expected).all() and not known["sampled"].any()
    assert (known["inclusion_probability"] == MIN_INCLUSION_PROBABILITY).sum() == 10
    withheld = few.assign(display=np.where(few["display"] == "shown", "withheld", "shown"))
    table, _ = build_training_table(withheld, thumbs([]), make_reviews(few), LABELS, BY_GROUP)
    joined = table.merge(withheld[["interaction_id", "display"]], on="interaction_id")
    assert (joined["inclusion_probability"].isna() == (joined["display"] == "withheld")).all()
