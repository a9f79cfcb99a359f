from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import betainc
from scipy.stats import binom

from abstain.config.params import Params
from abstain.learning.thresholds.risk_control import ReviewedAnswers
from benchmarks import real_verdicts
from benchmarks.labelled_answers import FILE, LabelledAnswers, read_labelled_answers
from benchmarks.real_verdicts import (
    Feedback,
    ThresholdOutcome,
    compute_p_value,
    divide_round,
    evaluate_division,
    fit_writer,
    format_means,
    format_shown_metrics,
    mean_division_ece,
    replay_rounds,
    simulate_feedback,
    split_by_topic,
)
from benchmarks.replay import Replay, replay_weeks
from tests.benchmarks.datasets.upstream import make_record, write_records
from tests.checkout import shipped_params

CORRECT, WRONG = "Correct", "Wrong"
PARAMS: Params = shipped_params()
WEEKS = (4, 5, 6)
TURNED = 5
"""The week since which verdicts are the opposite, in one of the replays."""


def make_records(rounds: Iterable[int], answers: int = 120) -> list[dict[str, Any]]:
    """Half of each round is of the long-term system, a third refusals; `log_prob` is informative."""
    drawn, made = np.random.default_rng(1), []
    for number in rounds:
        for at in range(answers):
            log_prob = drawn.normal()
            verdict = CORRECT if log_prob + 0.5 * drawn.normal() > -0.7 else WRONG
            changes = {"study": "long-term" if at % 2 else "parallel", "round": number, "title": f"{number}.{at // 4}"}
            changes |= {"log_prob": number * log_prob, "class_log_prob": drawn.normal()}
            changes |= {"model_answer": "[Unanswerable given the paragraph below]"} if at % 3 == 0 else {}
            made.append(make_record(f"{number}.{at}", verdict, **changes))
    return made


def flip_verdicts(records: list[dict[str, Any]], since: int) -> list[dict[str, Any]]:
    """With the opposite verdicts from round `since` on."""
    other = {CORRECT: WRONG, WRONG: CORRECT}
    return [row | {"user_feedback": other[row["user_feedback"]]} if row["round"] >= since else row for row in records]


def read_answers(folder: Path, rows: list[dict[str, Any]]) -> LabelledAnswers:
    return read_labelled_answers(write_records(folder / FILE.name, *rows))


def test_compute_p_value_is_binomial_of_the_effective_number() -> None:
    def compute(correct: list[int], a_topic: int = 1, threshold: float = 0.5) -> float:
        """Of 100 answers, all equally confident, and those of a topic together."""
        reviewed = ReviewedAnswers(np.full(100, 0.5), np.array(correct), groups=np.arange(100) // a_topic)
        return compute_p_value(reviewed, reviewed, threshold, 0.8)

    thirty_wrong = [0] * 30 + [1] * 70
    assert compute(thirty_wrong) == pytest.approx(binom.sf(29, 100, 0.2))
    assert compute(thirty_wrong) < real_verdicts.REJECTED_BELOW
    assert compute(thirty_wrong, a_topic=10) == pytest.approx(binom.sf(2, 10, 0.2))
    assert compute(thirty_wrong, threshold=0.6) == 1, "nothing is shown"
    n_eff = 100 / (1 + (10 * 0.7**2 - 10 * 0.3 * 0.7 + 30 * 0.3**2) / 50 / (0.3 * 0.7))
    pairs = compute([0, 0] * 10 + [0, 1] * 10 + [1, 1] * 30, a_topic=2)
    assert pairs == pytest.approx(betainc(0.3 * n_eff, 0.7 * n_eff + 1, 0.2))


def test_divide_round_shares_no_topic(tmp_path: Path) -> None:
    rows = [*make_records((1, 2, 3)), make_record("again", title="3.0")]
    found = read_answers(tmp_path, rows)
    train, validation, drawn, others = divide_round(found, 3, 0)
    topics = [set(found.topic[rows]) for rows in (train, validation)]
    assert not topics[0] & topics[1] and len(topics[0]) > len(topics[1]) > 0
    assert not (topics[0] | topics[1]) & set(found.topic[found.round == 3])
    assert len(train) + len(validation) == 240, "all of the past but the one answer on a topic of the round"
    assert len(drawn) == len(others) == 60 and set(drawn) | set(others) == set(np.flatnonzero(found.round == 3))
    assert {*divide_round(found, 3, 1)[2]} != {*drawn}


@pytest.mark.heavy
def test_evaluate_division_only_fresh_reviews_use_the_round(tmp_path: Path) -> None:
    rows = make_records((1, 2, 3))
    before, after = (
        evaluate_division(read_answers(tmp_path, of), PARAMS, 3, 0) for of in (rows, flip_verdicts(rows, 3))
    )
    assert np.array_equal(before.confidence, after.confidence) and not np.isnan(before.confidence).any()
    assert np.array_equal(before.probability["past"], after.probability["past"])
    assert not np.allclose(before.probability["fresh"], after.probability["fresh"])
    guarantee = ("past", 0.8, "guaranteed")
    kept, broken = before.shown[guarantee], after.shown[guarantee]
    assert kept is not None and broken is not None and np.array_equal(kept.shown, broken.shown)
    assert broken.p_value < real_verdicts.REJECTED_BELOW <= kept.p_value
    assert after.shown["fresh", 0.8, "guaranteed"] is None, "and fresh reviews guarantee nothing"


def test_format_metrics_counts_withheld_answers(tmp_path: Path) -> None:
    verdicts = (CORRECT, CORRECT, WRONG, CORRECT, CORRECT, WRONG, WRONG)
    found = read_answers(
        tmp_path, [make_record(str(at), verdict, title=str(at)) for at, verdict in enumerate(verdicts)]
    )
    rows = np.arange(7)
    one = ThresholdOutcome(rows, rows < 3, 1.0)
    none = ThresholdOutcome(rows, np.zeros(7, bool), 0.01)
    assert format_means(found, [one, none]) == ["0.214", "0.667", "50%"], "the mean precision is of those that show any"
    shown = [figure[:5] for figure in format_shown_metrics(found, [one], rows >= 0)]
    assert shown == ["0.429", "0.667", "0.667", "0.500"]
    assert [figure[:5] for figure in format_shown_metrics(found, [one], rows < 2)] == ["1.000", "1.000", "-", "0.000"]


def test_mean_division_ece_does_not_cancel_errors() -> None:
    correct, probability, division = np.array([1, 0]), np.array([0.55, 0.55]), np.array([0, 1])
    weight = np.array([[1.0, 1.0], [2.0, 1.0], [1.0, 0.0]])
    assert mean_division_ece(correct, probability, division, weight) == pytest.approx([0.5, 0.5, np.nan], nan_ok=True)
    assert mean_division_ece(correct, probability, np.zeros(2), weight) == pytest.approx([0.05, 2 / 3 - 0.55, 0.45])
    assert mean_division_ece(correct, probability, division, weight[0]) == pytest.approx(0.5)


def test_simulate_feedback_has_its_probabilities() -> None:
    """The inclusion of two samples, and thumbs of shown answers alone, a tenth of which are wrong."""
    shown, correct = np.arange(200) < 120, np.arange(200) % 2
    drawn = [simulate_feedback(shown, correct, (0.3, 0.1), np.random.default_rng(seed)) for seed in range(500)]
    inclusion, thumb = (np.array([getattr(one, name) for one in drawn]) for name in ("inclusion", "thumb"))
    often = (inclusion > 0).mean(axis=0)
    assert often[shown].mean() == pytest.approx(0.25, abs=0.005)
    assert often[~shown].mean() == pytest.approx(1 - 0.75 * 0.95, abs=0.005)
    assert np.nansum(1 / inclusion[:, ~shown], axis=1).mean() == pytest.approx(80, rel=0.02), "they stand for all"
    liked = ~np.isnan(thumb)
    assert not liked[:, ~shown].any() and liked[:, shown].mean() == pytest.approx(0.3, abs=0.01)
    assert (thumb != correct)[liked].mean() == pytest.approx(0.1, abs=0.01)
    everything = simulate_feedback(shown, correct, None, np.random.default_rng(0))
    assert np.array_equal(everything.inclusion, np.ones(200)) and np.isnan(everything.thumb).all()


@pytest.mark.heavy
def test_fit_writer_thumbs_train_and_reviews_test(tmp_path: Path) -> None:
    found = read_answers(tmp_path, make_records((1, 2), answers=160))
    train, validation = split_by_topic(found, np.arange(320), 0)
    assert len(train) > len(validation) > 0 and not {*found.topic[train]} & {*found.topic[validation]}
    kind = np.random.default_rng(0).integers(16, size=320)  # of most topics nothing is known
    inclusion = np.where(kind, np.nan, np.where(found.round == 1, 0.5, 0.25))
    thumb = np.where(kind < 2, found.correct, np.nan)
    weights = np.select([kind == 0, kind == 1], [1.0, PARAMS.labels.thumb_weight])
    assert np.array_equal(Feedback(inclusion, thumb).make_labels(found, PARAMS.labels, np.arange(320)).weight, weights)

    def served(known: Feedback, judged: LabelledAnswers = found) -> tuple[np.ndarray, ReviewedAnswers, ReviewedAnswers]:
        one = fit_writer(judged, PARAMS, train, train[:0], known)
        return one.confidence(validation), one.training, one.get_reviewed(validation)

    confidence, training, tested = served(Feedback(inclusion, thumb))
    for rows, of in ((train, training), (validation, tested)):
        reviews = rows[~np.isnan(inclusion[rows])]
        assert np.array_equal(of.correct, found.correct[reviews])
        assert of.weight == pytest.approx(0.25 / inclusion[reviews]), "all have a score: the others give ranks"
    silent = np.isnan(inclusion) & np.isnan(thumb)
    others = replace(found, correct=found.correct ^ silent)
    assert np.array_equal(served(Feedback(inclusion, thumb), others)[0], confidence), "no other verdict is known"
    assert not np.allclose(served(Feedback(inclusion, 1 - thumb))[0], confidence)


@pytest.mark.heavy
def test_replay_rounds_thumbs_are_of_shown_answers(tmp_path: Path) -> None:
    found = read_answers(tmp_path, make_records((1, 2, 3, 4), answers=300))
    of = replay_rounds(found, PARAMS, 4, 0.8, (1.0, 0.0), 0)
    assert of[2].thumbs == 300, "round 1 has no gate"
    live = of[3].live
    assert live is not None and of[4].thumbs - of[3].thumbs == live.shown.sum() < 150
    everything = replay_rounds(found, PARAMS, 4, 0.8, None, 0)
    assert everything[4].thumbs == 0 and everything[4].reviews > 2 * of[4].reviews > 0


def run_main(folder: Path, rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> str:
    write_records(folder / FILE.name, *rows)
    real_verdicts.main([str(folder), "--splits", "4", "--divisions", "2", "--rounds", "3"])
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.soak(twin="test_divide_round_shares_no_topic")
def test_real_verdicts_later_rounds_do_not_change_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(real_verdicts, "N_RESAMPLES", 50)
    rows = make_records((1, 2, 3, 8))
    said = run_main(tmp_path, rows, capsys)
    assert said == run_main(tmp_path, flip_verdicts(rows, 8), capsys)
    assert said != run_main(tmp_path, flip_verdicts(rows, 3), capsys)
    for kind in ("answers", "refusals", "long-term", "parallel"):
        assert f"| {kind} |" in said


@pytest.mark.heavy
def test_replay_weeks_only_retrained_versions_follow(tmp_path: Path) -> None:
    rows = flip_verdicts(make_records(range(1, 7)), TURNED)
    replay = Replay.from_file(write_records(tmp_path / FILE.name, *rows), PARAMS)
    replay = replace(replay, kind="linear")  # a hundredth of the time
    turned = {(week, policy): found for week, policy, found in replay_weeks(replay, WEEKS)}
    before, after = turned[TURNED - 1, "never retrained"], turned[TURNED, "never retrained"]
    assert before.alarms == [] and before.precision > 0.65
    assert after.alarms == ["guarantee violated", "calibration off"] and after.precision < 0.5
    assert abs(after.expected.value - before.expected.value) < 0.1, "probabilities do not know it"
    first, last = ({policy: found.live for (of, policy), found in turned.items() if of == week} for week in (4, 6))
    assert first["never retrained"] is last["never retrained"]
    assert first["recalibrated"].regressor is last["recalibrated"].regressor
    assert first["recalibrated"].threshold != last["recalibrated"].threshold
    assert first["retrained"].regressor is not last["retrained"].regressor
    reviews = {policy: [turned[week, policy].guarantee.reviews for week in WEEKS] for _, policy in turned}
    assert reviews["never retrained"] == sorted(set(reviews["never retrained"])), "of the live version"
    assert max(reviews["retrained"]) <= 120, "the answers of a week"
