from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from abstain.learning.evaluation.slices import KIND, SliceInput, build_slice_table, compute_auroc_by_slice, make_strata
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import BootstrapConfig, bootstrap
from tests.learning.evaluation.builders import grouped

CORRECT, CONFIDENCE, GROUPS = grouped(400, 60, 0)
WEIGHT = np.where(np.arange(400) % 3 == 0, 0.5, 1.0)
SCORED = SliceInput(CORRECT, np.log(CONFIDENCE), CONFIDENCE, CONFIDENCE >= 0.6, GROUPS, WEIGHT)
NO_REFUSAL = np.zeros(400, bool)
PRODUCT = pd.DataFrame({"product": pd.Categorical(np.array(["gold", "blue"])[np.arange(400) % 2], ["gold", "blue"])})


def table(scored: SliceInput = SCORED, by: pd.DataFrame = PRODUCT, min_n_eff: int = 20) -> pd.DataFrame:
    return build_slice_table(scored, by, BootstrapConfig(100, 3), min_n_eff).set_index("slice")


def test_every_figure_is_that_of_the_slices_own_rows() -> None:
    found = table()
    assert found["stratum"].tolist() == ["product"] * 2
    assert list(found.index) == ["gold", "blue"]
    for name in ("gold", "blue"):
        rows = (PRODUCT["product"] == name).to_numpy()
        correct, weight, shown = CORRECT[rows], WEIGHT[rows], SCORED.shown[rows]
        row = found.loc[name]
        assert (row["rows"], row["n_eff"]) == (200, pytest.approx(metrics.effective_sample_size(weight)))
        assert row["base_rate"] == pytest.approx(metrics.weighted_mean(correct, weight))
        assert row["auroc"] == pytest.approx(metrics.auroc(correct, SCORED.confidence[rows], weight))
        figure = {"": partial(metrics.auroc, correct, SCORED.confidence[rows])}
        expected = bootstrap(figure, GROUPS[rows], n_resamples=100, seed=3, weight=weight)[""].interval
        assert (row["auroc_low"], row["auroc_high"]) == pytest.approx(expected)
        assert row["ece"] == pytest.approx(metrics.ece(correct, CONFIDENCE[rows], weight))
        assert row["brier"] == pytest.approx(metrics.brier(correct, CONFIDENCE[rows], weight))
        assert row["shown"] == shown.sum()
        assert row["precision"] == pytest.approx(metrics.weighted_mean(correct[shown], weight[shown]))
        assert row["note"] == ""
    assert found.loc["gold", "auroc"] != found.loc["blue", "auroc"]


def sliced(*sizes: int) -> pd.DataFrame:
    """400 rows in slices a, b ... of these sizes, the rest in the last."""
    names = np.repeat(list("abcdef"[: len(sizes) + 1]), [*sizes, 400 - sum(sizes)])
    return pd.DataFrame({"by": pd.Categorical(names)})


def test_a_small_slice_is_shown_and_not_judged() -> None:
    found = table(replace(SCORED, weight=np.ones(400)), sliced(19, 20))
    row = found.loc["a"]
    assert (row["rows"], row["n_eff"], row["shown"]) == (19, 19, SCORED.shown[:19].sum())
    assert row[["auroc", "auroc_low", "auroc_high", "ece", "brier", "precision"]].isna().all()
    assert row["note"] == "fewer than 20 answers: not judged"
    assert row["base_rate"] == pytest.approx(CORRECT[:19].mean())
    assert np.isfinite(found.loc["b", "auroc"])
    assert found.loc["b", "note"] == "fewer than 20 shown answers: precision not judged"
    assert np.isnan(found.loc["b", "precision"])
    assert np.isfinite(found.loc["c", "precision"]) and found.loc["c", "note"] == ""


def test_many_answers_that_are_worth_few_are_a_small_slice() -> None:
    heavy = np.full(400, 0.01)
    heavy[:3] = 1
    row = table(replace(SCORED, weight=heavy), sliced(100)).loc["a"]
    assert (row["rows"], row["note"]) == (100, "effective sample size below 20 answers: not judged")
    assert np.isnan(row["auroc"])


def test_a_slice_of_one_class_has_no_auroc_and_says_so() -> None:
    correct = CORRECT.copy()
    correct[:100] = 1
    row = table(replace(SCORED, correct=correct), sliced(100)).loc["a"]
    assert row["note"] == "one class only"
    assert row[["auroc", "auroc_low", "auroc_high"]].isna().all()
    assert row[["ece", "brier", "precision"]].notna().all()
    assert row["precision"] == 1


def test_a_slice_of_one_group_has_no_interval_and_says_so() -> None:
    groups = GROUPS.copy()
    groups[:100] = 0
    row = table(replace(SCORED, groups=groups), sliced(100)).loc["a"]
    assert row["note"] == "one group only: no interval"
    assert np.isfinite(row["auroc"]) and np.isnan(row["auroc_low"]) and np.isnan(row["auroc_high"])


def test_a_slice_that_the_scorer_says_nothing_of_has_no_figures() -> None:
    silent = np.where(np.arange(400) < 100, np.nan, SCORED.confidence)
    unsure = np.where(np.arange(400) < 100, np.nan, CONFIDENCE)
    shown = unsure >= 0.6
    row = table(replace(SCORED, confidence=silent, probability=unsure, shown=shown), sliced(100)).loc["a"]
    assert row["note"] == (
        "no answer has a score; no answer has a probability; fewer than 20 shown answers: precision not judged"
    )
    assert row[["auroc", "auroc_low", "ece", "brier", "precision"]].isna().all()
    assert row["shown"] == 0


def test_strata_are_named_for_people_and_ordered() -> None:
    found = make_strata(
        ["gold", None, "blue", "gold"],
        [None, None, float("nan"), None],
        np.array([10, 2, 0, 2]),
        np.array([5, 6, 7, 80]),
        NO_REFUSAL[:4],
    )
    categories = {name: list(found[name].cat.categories) for name in found}
    assert categories == {
        "product": ["blue", "gold", "not given"],
        "line of business": ["not given"],
        "retrieved chunks": ["0", "2", "10"],
        "answer length": ["5 to 5 characters", "6 to 6 characters", "7 to 7 characters", "80 to 80 characters"],
    }
    assert found["product"].tolist() == ["gold", "not given", "blue", "gold"]
    assert found["retrieved chunks"].tolist() == ["10", "2", "0", "2"]


def test_lengths_fall_into_quartiles_of_all_rows() -> None:
    lengths = np.random.default_rng(0).permutation(np.arange(1, 401))
    none = [None] * 400
    found = make_strata(none, none, np.zeros(400, int), lengths, NO_REFUSAL)["answer length"]
    assert found.value_counts(sort=False).tolist() == [100] * 4
    assert list(found.cat.categories) == [f"{n + 1} to {n + 100} characters" for n in (0, 100, 200, 300)]
    first = found == "1 to 100 characters"
    assert sorted(lengths[first]) == list(range(1, 101))
    alike = np.where(lengths < 300, 8, lengths)
    many_alike = make_strata(none, none, np.zeros(400, int), alike, NO_REFUSAL)["answer length"]
    assert next(iter(many_alike.cat.categories)) == "8 to 8 characters"
    assert many_alike.value_counts()["8 to 8 characters"] == 299
    equal = make_strata(none, none, np.zeros(400, int), np.full(400, 8), NO_REFUSAL)["answer length"]
    assert list(equal.cat.categories) == ["8 to 8 characters"]
    assert make_strata([], [], np.array([], int), np.array([], int), NO_REFUSAL[:0]).empty


def test_refusals_are_a_slice_apart() -> None:
    none, refusals = [None] * 400, np.arange(400) % 4 == 0
    by = make_strata(none, none, np.zeros(400, int), np.full(400, 8), refusals)
    found = table(by=by[["kind of answer"]])
    assert found["stratum"].tolist() == ["kind of answer"] * 2 and list(found.index) == ["answers", "refusals"]
    for name, rows in (("answers", ~refusals), ("refusals", refusals)):
        assert found.loc[name, "rows"] == rows.sum()
        assert found.loc[name, "auroc"] == pytest.approx(
            metrics.auroc(CORRECT[rows], SCORED.confidence[rows], WEIGHT[rows])
        )


def test_every_scorer_is_measured_on_each_slice_that_is_large_enough() -> None:
    refusals, silent = np.arange(400) < 15, np.where(np.arange(400) % 5 == 0, np.nan, CONFIDENCE)
    kinds = make_strata([None] * 400, [None] * 400, np.zeros(400, int), np.full(400, 8), refusals)[KIND]
    scores = pd.DataFrame({"sure": CONFIDENCE, "silent": silent})
    few, many = (
        compute_auroc_by_slice(CORRECT, scores, GROUPS, WEIGHT, kinds, BootstrapConfig(100, 3), n)[1] for n in (20, 5)
    )
    assert few == {"slice": "refusals", "rows": 15, "n_eff": many["n_eff"], "scorers": {}}
    answers = compute_auroc_by_slice(CORRECT, scores, GROUPS, WEIGHT, kinds, BootstrapConfig(100, 3), 20)[0]
    assert (answers["slice"], answers["rows"]) == ("answers", 385)
    for name in scores:
        own = answers["scorers"][name]
        values = scores[name].to_numpy()[~refusals]
        assert own["auroc"] == pytest.approx(metrics.auroc(CORRECT[~refusals], values, WEIGHT[~refusals]))
        assert own["auroc_low"] < own["auroc"] < own["auroc_high"]
    assert answers["scorers"]["silent"]["auroc"] < answers["scorers"]["sure"]["auroc"]


def test_all_strata_together_hold_every_row_once_each() -> None:
    generator = np.random.default_rng(1)
    by = make_strata(
        list(generator.choice(["gold", "blue", "red"], 400)),
        list(generator.choice(["cards", "loans"], 400)),
        generator.integers(0, 8, 400),
        generator.integers(3, 120, 400),
        NO_REFUSAL,
    )
    found = build_slice_table(SCORED, by, BootstrapConfig(50, 0), 20)
    assert found.groupby("stratum", sort=False)["rows"].sum().tolist() == [400] * 4
    assert found.groupby("stratum", sort=False)["shown"].sum().tolist() == [SCORED.shown.sum()] * 4
    judged = found[found["auroc"].notna()]
    assert len(judged) >= 12
    assert ((judged["auroc_low"] < judged["auroc"]) & (judged["auroc"] < judged["auroc_high"])).all()
