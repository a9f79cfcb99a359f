import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstain.core.errors import AbstainError
from abstain.review.sampling import STRATA, ReviewDesign, allocate, draw_sample

SIZES = st.lists(st.integers(1, 200), min_size=1, max_size=12)


def population(rows: int, seed: int = 0, lines: int = 2) -> pd.DataFrame:
    """Answers that are the more often right, the surer the probe, and the more often wrong, the more they drift: `right`."""
    generator = np.random.default_rng(seed)
    product = generator.choice(["cards", "loans", None], rows, p=[0.6, 0.3, 0.1])
    thumb = generator.choice(["up", "down", "none"], rows, p=[0.2, 0.1, 0.7])
    confidence, drift = generator.beta(4, 2, rows), generator.random(rows)
    chance = np.clip(1.5 * confidence - 0.3 * drift - 0.3 * (thumb == "down") + 0.1 * (product == "cards"), 0.02, 0.98)
    columns = {
        "asked_at": pd.Timestamp("2026-11-01", tz="UTC") + pd.to_timedelta(np.arange(rows), unit="min"),
        "product": pd.Categorical(product),
        "line_of_business": pd.Categorical(generator.choice([f"line-{n}" for n in range(lines)], rows)),
        "display": None,
        "thumb": thumb,
        "reviewed": False,
        "queued": False,
        "recorded_probability": np.nan,
        "confidence": confidence,
        "drift": drift,
        "right": (generator.random(rows) < chance).astype(float),
    }
    return pd.DataFrame(columns, index=pd.Index([f"q-{n}" for n in range(rows)], name="interaction_id", dtype="string"))


def review_sample(frame: pd.DataFrame, design: ReviewDesign) -> pd.DataFrame:
    """`frame` after all of `design` was reviewed through the queue."""
    probability = frame["recorded_probability"].copy()
    probability[design.rows.index] = design.rows["probability"]
    known = frame.index.isin(design.rows.index)
    changed = {name: frame[name] | known for name in ("reviewed", "queued")}
    return frame.assign(recorded_probability=probability, **changed)


@given(SIZES, st.integers(0, 400))
def test_allocate_larger_total_takes_nothing_away(sizes: list[int], more: int) -> None:
    """Largest remainders would (the Alabama paradox), and a larger sample would not extend a smaller one."""
    smaller, larger = allocate(len(sizes) + more, sizes), allocate(len(sizes) + more + 1, sizes)
    assert sum(smaller) == min(len(sizes) + more, sum(sizes))
    assert all(1 <= a <= b <= size for a, b, size in zip(smaller, larger, sizes, strict=True))


@given(SIZES, st.integers(0, 60))
def test_allocate_has_the_least_variance(sizes: list[int], more: int) -> None:
    """With equal spread in all strata the variance of a mean is that of sum N^2 / n, which equal proportions minimize."""
    allocated = allocate(len(sizes) + more, sizes)
    lost = [size**2 * (1 / (n - 1) - 1 / n) for size, n in zip(sizes, allocated, strict=True) if n > 1]
    won = [size**2 * (1 / n - 1 / (n + 1)) for size, n in zip(sizes, allocated, strict=True) if n < size]
    assert max(won, default=0) <= min(lost, default=math.inf) * (1 + 1e-9)


def test_allocate_fewer_rows_than_strata_raises() -> None:
    with pytest.raises(ValueError, match="2 rows cannot come from 3 strata"):
        allocate(2, [5, 5, 5])


def test_draw_sample_is_half_random_a_quarter_doubt_and_drift() -> None:
    frame = population(3000)
    design = draw_sample(frame, 200, 0.5, seed=1, threshold=0.7)
    assert design.rows["reason"].value_counts().to_dict() == {"random": 100, "uncertain": 50, "drift": 50}
    assert (len(design.rows), design.n_extra, design.strata) == (200, 0, STRATA)
    unsure = (frame["confidence"] - 0.7).abs().nsmallest(50).index
    assert set(unsure) == set(design.rows.index[design.rows["reason"] == "uncertain"])
    drifted = frame["drift"].drop(unsure).nlargest(50).index
    assert set(drifted) == set(design.rows.index[design.rows["reason"] == "drift"])
    is_random = design.rows["reason"] == "random"
    assert (design.rows["probability"][~is_random] == 1).all()
    drawn, rest = design.rows[is_random], frame.drop(design.rows.index[~is_random])
    for key, group in rest.groupby(list(STRATA), dropna=False, observed=True):
        own = drawn[drawn.index.isin(group.index)]
        assert len(own) >= 1, key
        assert (own["n_population"] == len(group)).all() and (own["n_sampled"] == len(own)).all()
        assert own["probability"].tolist() == [len(own) / len(group)] * len(own)
    assert (1 / design.rows["probability"]).sum() == pytest.approx(len(frame))


def test_draw_sample_missing_scores_are_replaced_at_random() -> None:
    frame = population(1000)
    design = draw_sample(frame.drop(columns=["confidence", "drift"]), 100, 0.5, 1)
    assert set(design.rows["reason"]) == {"random"} and len(design.rows) == 100
    frame.loc[frame.index[10:], "drift"] = np.nan
    counts = draw_sample(frame, 100, 0.5, 1, 0.7).rows["reason"].value_counts()
    assert (counts["uncertain"] + counts["drift"], counts["random"]) == (50, 50) and counts["drift"] <= 10
    frame.loc[frame.index[5:], "confidence"] = np.nan
    counts = draw_sample(frame, 100, 0.5, 1, 0.7).rows["reason"].value_counts()
    assert counts["random"] >= 85 and counts.sum() == 100


def test_draw_sample_few_rows_are_stratified_by_less() -> None:
    frame = population(2000, lines=40)
    assert draw_sample(frame, 400, 1.0, 1).strata == STRATA
    assert draw_sample(frame, 100, 1.0, 1).strata == ("display", "product", "thumb")
    assert draw_sample(frame, 5, 1.0, 1).strata == ("display", "thumb")
    assert draw_sample(frame, 1, 1.0, 1).strata == ("display",)  # of one kind here
    for size in (1, 5, 100):
        assert (1 / draw_sample(frame, size, 1.0, 1).rows["probability"]).sum() == pytest.approx(2000)
    everything = draw_sample(frame[:50], 200, 0.5, 1, 0.7).rows
    assert len(everything) == 50 and (everything["probability"] == 1).all()


def withhold(rows: int, withheld_every: int, **options: int) -> tuple[pd.DataFrame, pd.Series]:
    """A `population` of which the assistant withheld one in so many, and which these are: nobody rated them."""
    frame = population(rows, **options)
    withheld = pd.Series(np.arange(rows) % withheld_every == 0, frame.index)
    frame["display"] = np.where(withheld, "withheld", "shown")
    frame.loc[withheld, "thumb"] = "none"
    return frame, withheld


@pytest.mark.parametrize(("random_share", "drawn"), [(1.0, 100), (0.5, 50)])
@pytest.mark.parametrize("withheld_every", [50, 2])
def test_draw_sample_has_the_stated_share_of_withheld(withheld_every: int, random_share: float, drawn: int) -> None:
    frame, withheld = withhold(2000, withheld_every)
    for lines in (1, 40):
        frame["line_of_business"] = [f"line-{n % lines}" for n in range(2000)]
        design = draw_sample(frame, 100, random_share, 1, 0.7, withheld_share=0.2)
        rows = design.rows[design.rows["reason"] == "random"]
        own = int(withheld[rows.index].sum())
        assert own == drawn // 5 if withheld_every == 50 else own > drawn / 3, "their own part is more"
        assert (len(rows), design.n_missing) == (drawn, 0)
        for kind in (withheld, ~withheld):
            open_rows = kind & ~kind.index.isin(design.rows.index.difference(rows.index))
            assert (1 / rows["probability"][kind[rows.index]]).sum() == pytest.approx(open_rows.sum())


def test_draw_sample_includes_withheld_answers_if_few_all() -> None:
    frame, withheld = withhold(2000, withheld_every=50)
    for size in (2, 30, 200):
        rows = draw_sample(frame, size, 1.0, 1).rows
        own = rows[withheld[rows.index]]
        assert len(own) >= 1 and (1 / own["probability"]).sum() == pytest.approx(40)
    frame, withheld = withhold(2000, withheld_every=200)
    design = draw_sample(frame, 100, 1.0, 1, withheld_share=0.15)
    assert set(frame.index[withheld]) < set(design.rows.index) and len(design.rows) == 100
    assert (design.rows.loc[frame.index[withheld], "probability"] == 1).all() and design.n_missing == 5
    everything = draw_sample(frame, 20, 1.0, 1, withheld_share=1.0)
    assert withheld[everything.rows.index].sum() == 10 and everything.n_missing == 10
    assert (1 / everything.rows["probability"]).sum() == pytest.approx(2000), "shown ones keep their chance"


@pytest.mark.parametrize(
    ("size", "share", "withheld"), [(0, 0.5, 0.1), (10, 0.0, 0.1), (10, 1.1, 0.1), (10, 0.5, -0.1), (10, 0.5, 1.1)]
)
def test_draw_sample_impossible_size_or_share_raises(size: int, share: float, withheld: float) -> None:
    with pytest.raises(AbstainError, match="-n .* --random-share .* --withheld-share"):
        draw_sample(population(10), size, share, 1, 0.5, withheld_share=withheld)


def test_draw_sample_any_beginning_is_a_fair_part() -> None:
    """Whoever stops halfway has reviewed about half of every stratum, and half of what was taken with certainty."""
    frame = population(5000)
    rows = draw_sample(frame, 300, 0.5, 1, 0.7).rows.join(frame[list(STRATA)])
    half = rows.iloc[:150]
    assert (half["reason"] == "random").mean() == pytest.approx(0.5, abs=0.05)
    random = rows[rows["reason"] == "random"]
    for _, group in random.groupby(list(STRATA), dropna=False, observed=True):
        assert abs(half.index.isin(group.index).sum() - len(group) / 2) <= 1


def test_draw_sample_is_independent_of_row_order() -> None:
    frame = population(2000)
    sample, again = (draw_sample(rows, 100, 0.5, 1, 0.7).rows for rows in (frame, frame.sample(frac=1, random_state=3)))
    pd.testing.assert_frame_equal(sample, again)
    assert set(draw_sample(frame, 100, 1.0, 1).rows.index) != set(draw_sample(frame, 100, 1.0, 2).rows.index)


@pytest.mark.heavy
@given(st.integers(2, 30), st.sampled_from([0.0, 0.1, 0.33, 0.5, 1.0]), st.integers(2, 8))
@settings(max_examples=20)
def test_draw_sample_larger_extends_smaller_for_any_share(size: int, share: float, withheld_every: int) -> None:
    frame = withhold(300, withheld_every)[0].assign(product=None, line_of_business=None, thumb="none")
    small, large = (draw_sample(frame, n, 1.0, 1, withheld_share=share) for n in (size, size + 1))
    assert set(small.rows.index) < set(large.rows.index)
    after = draw_sample(review_sample(frame, small), size + 1, 1.0, 1, withheld_share=share)
    assert after.rows["probability"].to_dict() == large.rows["probability"].to_dict() and after.n_extra == 0


def test_draw_sample_certain_row_is_not_asked_for_again() -> None:
    frame = population(2000)
    first = draw_sample(frame, 100, 0.5, 1, 0.7)
    after = draw_sample(review_sample(frame, first), 160, 0.5, 1, 0.7)
    new = after.rows[~after.rows["reviewed"]]
    assert not set(new.index) & set(first.rows.index)
    assert new["reason"].isin(["uncertain", "drift"]).sum() == 30
    assert 25 <= (new["reason"] == "random").sum() <= 35
    # If reviewed rows were passed over, the most unsure of the others would be missing from what is drawn at random.
    again = draw_sample(review_sample(frame, draw_sample(frame, 200, 1.0, 1)), 400, 0.5, 1, 0.7)
    unsure = (frame["confidence"] - 0.7).abs().nsmallest(100).index
    assert (again.rows.loc[unsure, "reason"] == "uncertain").all() and again.rows.loc[unsure, "reviewed"].any()


def test_draw_sample_row_reviewed_by_other_means_is_left_out() -> None:
    frame = population(2000)
    frame.loc[frame.index[:100], "reviewed"] = True
    frame.loc[frame.index[100:200], ["reviewed", "recorded_probability"]] = [True, 0.25]
    design = draw_sample(frame, 100, 0.5, 1, 0.7)
    assert not set(design.rows.index) & set(frame.index[:200])
    assert (1 / design.rows["probability"]).sum() == pytest.approx(1800)


@pytest.fixture(scope="module")
def answers() -> pd.DataFrame:
    return population(900, seed=5)


@pytest.fixture(scope="module")
def designs(answers: pd.DataFrame) -> list[ReviewDesign]:
    """A sample for each of many seeds."""
    return [draw_sample(answers, 120, 0.5, seed, 0.5) for seed in range(120)]


@pytest.mark.slow
def test_draw_sample_draws_row_as_often_as_its_probability(answers: pd.DataFrame, designs: list[ReviewDesign]) -> None:
    times = pd.concat([design.rows for design in designs]).groupby(level=0).size().reindex(answers.index, fill_value=0)
    expected = designs[0].rows["probability"].reindex(answers.index)
    for design in designs:
        expected = expected.fillna(design.rows["probability"])
    share, expected = times / len(designs), expected.fillna(0)
    drawn = expected < 1
    error = (share - expected)[drawn] / np.sqrt((expected * (1 - expected) / len(designs))[drawn])
    assert error.abs().max() < 5 and error.std() == pytest.approx(1, abs=0.25)
    assert (share[~drawn] == 1).all()


@pytest.mark.slow
def test_draw_sample_overlapping_windows_add_up(answers: pd.DataFrame) -> None:
    """Two windows that share a part: with the weights of the later one in it, the sample is one of both together."""
    estimates = []
    for seed in range(60):
        known = answers.copy()
        for window in (answers.index[:600], answers.index[300:]):
            part = known.loc[window]
            known.loc[window] = review_sample(part, draw_sample(part, 120, 0.5, seed, 0.5))
        reviewed = known[known["reviewed"]]
        estimates.append((reviewed["right"] / reviewed["recorded_probability"].fillna(1)).sum() / len(known))
    standard_error = np.std(estimates, ddof=1) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - answers["right"].mean()) < 3 * standard_error
