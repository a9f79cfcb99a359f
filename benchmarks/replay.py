"""Nine rounds of people's verdicts as nine weeks: `python -m benchmarks.replay FOLDER --plot docs/replay.svg`.

FOLDER holds `user_feedback.jsonl.gz` (see `benchmarks.real_verdicts`): answers of several systems in nine rounds, each
judged by the user who had asked; each round brings other versions of the systems, and from the sixth on there are two
systems instead of six. An answer is correct if the verdict is Correct. A gate starts after the second week: gradient
boosting on columns that need no base model (the writer's log-probabilities, lengths, shared words, whether it is a
refusal) is fitted to two thirds of the topics. The verdicts on the rest choose the threshold, by `control_risk` where a
guarantee can be had, else the heuristic one, and fit the calibrator. Three policies then see the same weeks:

* `never retrained`: that version stays.
* `recalibrated`: each week the threshold and the calibrator are of all verdicts that the scorer was not fitted to.
* `retrained`: each week all is fitted again, to all verdicts of the weeks before.

A verdict is known at the end of its week. The monitor judges the week then, as it does a window: the guarantee by the
verdicts on what was shown, in seven daily batches since the version went live; calibration; the expected precision; and
the drift of texts against the `COMPARED` answers before the week.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from abstain.config.params import Params, RegressorKind, load_params
from abstain.core.contracts import Interaction
from abstain.core.text import is_refusal
from abstain.knowledge.retrieval.encoder import SentenceEncoder
from abstain.learning.estimators.regressors.fitting import fit_regressor, make_regressor_fit
from abstain.learning.estimators.regressors.onnx_regressor import OnnxRegressor
from abstain.learning.metrics.calibration import Calibrator, fit_calibrator
from abstain.learning.thresholds.risk_control import ReviewedAnswers
from abstain.monitoring.drift import classifier_two_sample_test, combine_p_values, measure_novelty, permutation_test
from abstain.monitoring.expected_precision import (
    CalibrationCheck,
    ExpectedPrecision,
    check_calibration,
    estimate_precision,
)
from abstain.monitoring.live_guarantee import GuaranteedTarget, LiveGuaranteeResult, ReviewBatch, check_live_guarantee
from abstain.reports.plots import render_svg
from abstain.reports.theme import LIGHT, LINES, add_legend, set_percent_ticks
from benchmarks.guarantee import find_guaranteed_threshold, find_heuristic_threshold, make_threshold_params
from benchmarks.labelled_answers import FILE, ROOT, LabelledAnswers, read_labelled_answers
from benchmarks.real_verdicts import split_by_topic

Policy = Literal["never retrained", "recalibrated", "retrained"]
POLICIES: tuple[Policy, ...] = ("never retrained", "recalibrated", "retrained")
WEEKS = range(3, 10)
TARGET = 0.75
ALPHA = 0.05
DAYS = 7
MAX_COMPARED = 600
SEED = 3


@dataclass(frozen=True)
class LiveVersion:
    """The version that is live in a week."""

    regressor: OnnxRegressor
    calibrator: Calibrator
    threshold: float
    is_guaranteed: bool


@dataclass(frozen=True)
class WeekResult:
    """What a policy showed in a week, and the results of the monitor. `precision` is over all reviews, on average."""

    live: LiveVersion
    coverage: float
    precision: float
    expected: ExpectedPrecision
    guarantee: LiveGuaranteeResult
    calibration: CalibrationCheck

    @property
    def alarms(self) -> list[str]:
        """Names of the alarms."""
        raised_by_name = {
            "guarantee violated": self.guarantee.is_violated,
            "calibration off": self.calibration.p_value <= ALPHA,
        }
        return [name for name, is_raised in raised_by_name.items() if is_raised]


@dataclass
class Gate:
    """A policy: the version that is live, and the daily batches of reviews of what it showed."""

    policy: Policy
    live: LiveVersion | None = None
    batches: list[ReviewBatch] = field(default_factory=list)
    fitted: np.ndarray = field(default_factory=lambda: np.zeros(0, int))

    def start_week(self, replay: Replay, week: int) -> LiveVersion:
        """Load the version that the policy wants in `week`."""
        if self.live is None or self.policy == "retrained":
            self.fitted, tested = split_by_topic(replay.dataset, replay.get_past_rows(week), SEED)
            self.live = replay.train(self.fitted, tested)
        elif self.policy == "recalibrated":
            tested = np.setdiff1d(replay.get_past_rows(week), self.fitted)
            self.live = replay.tune(self.live.regressor, replay.score_fitted_rows(self.fitted, self.live), tested)
        if self.policy != "never retrained":
            self.batches.clear()  # another version has a guarantee of its own
        return self.live

    def run_week(self, replay: Replay, week: int) -> WeekResult:
        """Decide on the week's answers, and monitor them at its end."""
        live, rows = self.start_week(replay, week), replay.get_week_rows(week)
        confidence = live.regressor.predict(replay.columns.iloc[rows])
        probability, shown = live.calibrator.apply(confidence), confidence >= live.threshold
        correct, topic, coverage = replay.dataset.correct[rows], replay.dataset.topic[rows], float(shown.mean())
        for day in np.array_split(np.arange(len(rows)), DAYS):
            shown_of_day = day[shown[day]]
            self.batches.append(
                ReviewBatch(correct[shown_of_day] == 1, np.ones(len(shown_of_day)), topic[shown_of_day], coverage)
            )
        return WeekResult(
            live,
            coverage,
            float(correct[shown].mean()) if shown.any() else float("nan"),
            estimate_precision(probability[shown], topic[shown]),
            check_live_guarantee(self.batches, GuaranteedTarget("precision", TARGET), ALPHA),
            check_calibration(probability[shown], correct[shown], np.ones(int(shown.sum())), topic[shown]),
        )


@dataclass(frozen=True)
class Replay:
    """All answers with their labels, in an order of arrival, and the columns that the scorer reads."""

    dataset: LabelledAnswers
    columns: pd.DataFrame
    params: Params
    kind: RegressorKind = "gradient_boosting"

    @classmethod
    def from_file(cls, file: Path, params: Params) -> Replay:
        """Read the answers of `file`."""
        dataset = read_labelled_answers(file)
        arrival = np.random.default_rng(SEED).permutation(len(dataset.correct))
        order = arrival[np.argsort(dataset.round[arrival], kind="stable")]
        dataset = LabelledAnswers(
            dataset.take(order), dataset.correct[order], dataset.topic[order], dataset.round[order]
        )
        columns = pd.DataFrame(
            [compute_columns(interaction, params.labels.refusals) for interaction in dataset.interactions]
        )
        return cls(dataset, columns, params)

    def get_week_rows(self, week: int) -> np.ndarray:
        """Return the indices of the answers of a week."""
        return np.flatnonzero(self.dataset.round == week)

    def get_past_rows(self, week: int) -> np.ndarray:
        """Return the indices of the answers before a week."""
        return np.flatnonzero(self.dataset.round < week)

    def train(self, rows: np.ndarray, tested: np.ndarray) -> LiveVersion:
        """Fit a version to the answers at `rows`, and tune it on those at `tested`."""
        correct, topic = self.dataset.correct[rows], self.dataset.topic[rows]
        fitted = fit_regressor(
            self.kind,
            "label",
            self.columns.iloc[rows],
            correct.astype(float),
            np.ones(len(rows)),
            topic,
            make_regressor_fit(self.params),
        )
        return self.tune(fitted.regressor, ReviewedAnswers(fitted.out_of_fold, correct, groups=topic), tested)

    def tune(self, regressor: OnnxRegressor, training: ReviewedAnswers, tested: np.ndarray) -> LiveVersion:
        """Return a version with the threshold and the calibrator by the labels of the answers at `tested`."""
        confidence = regressor.predict(self.columns.iloc[tested])
        reviewed = ReviewedAnswers(confidence, self.dataset.correct[tested], groups=self.dataset.topic[tested])
        guaranteed = find_guaranteed_threshold(reviewed, training, make_threshold_params(TARGET))
        threshold = (
            find_heuristic_threshold(reviewed, training, make_threshold_params(TARGET))
            if guaranteed is None
            else guaranteed
        )
        calibrator = fit_calibrator(self.params.calibration.method, confidence, reviewed.correct)
        return LiveVersion(regressor, calibrator, np.inf if threshold is None else threshold, guaranteed is not None)

    def score_fitted_rows(self, rows: np.ndarray, live: LiveVersion) -> ReviewedAnswers:
        """Score the answers that a version was fitted to. They only decide where the test of thresholds starts."""
        confidence = live.regressor.predict(self.columns.iloc[rows])
        return ReviewedAnswers(confidence, self.dataset.correct[rows], groups=self.dataset.topic[rows])


def compute_columns(row: Interaction, refusals: tuple[str, ...]) -> dict[str, float]:
    """Return the features of an answer that need no base model."""
    question, answer, context = (_words(text) for text in (row.question, row.answer, row.contexts[0].text))
    return {
        **(row.writer_scores or {}),  # type: ignore[dict-item]
        "refusal": float(is_refusal(row.answer, refusals)),
        "question_words": len(question),
        "answer_words": len(answer),
        "context_words": len(context),
        "question_in_context": _compute_overlap(question, context),
        "answer_in_context": _compute_overlap(answer, context),
        "answer_in_question": _compute_overlap(answer, question),
    }


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _compute_overlap(part: Sequence[str], whole: Sequence[str]) -> float:
    return len(set(part) & set(whole)) / max(len(set(part)), 1)


TEXTS: dict[str, Callable[[Interaction], str]] = {
    "questions": lambda row: row.question,
    "answers": lambda row: row.answer,
    "contexts": lambda row: row.contexts[0].text,
}


@dataclass(frozen=True)
class TextDrift:
    """Drift of a week's texts.

    Attributes:
        p_values: p-value by kind of text.
        novel_share: Share of new questions.
        novel_p_value: p-value of the new questions.
    """

    p_values: dict[str, float]
    novel_share: float
    novel_p_value: float

    @property
    def alarms(self) -> list[str]:
        """Names of the alarms."""
        drifted = combine_p_values(self.p_values.values()) <= ALPHA
        return ["input drift"] * drifted + ["new topics"] * (self.novel_p_value <= ALPHA)


def measure_drift(replay: Replay, week: int, vectors: dict[str, np.ndarray]) -> TextDrift:
    """Measure the drift of the texts of `week` against the answers before it."""
    reference, window = replay.get_past_rows(week)[-MAX_COMPARED:], replay.get_week_rows(week)[:MAX_COMPARED]
    groups = replay.dataset.topic[reference], replay.dataset.topic[window]
    p_values = {}
    for name, values in vectors.items():
        pair = (
            test(values[reference], values[window], *groups, SEED).p_value
            for test in (permutation_test, classifier_two_sample_test)
        )
        p_values[name] = combine_p_values(pair)
    new = measure_novelty(vectors["questions"][reference], vectors["questions"][window], *groups, SEED)
    return TextDrift(p_values, new.share, new.p_value)


def embed_texts(replay: Replay) -> dict[str, np.ndarray]:
    """Embed each text of each answer, (rows, d) by kind; equal texts are embedded once."""
    encoder, vectors = SentenceEncoder(), {}
    for name, text in TEXTS.items():
        texts, indices = np.unique([text(row) for row in replay.dataset.interactions], return_inverse=True)
        vectors[name] = encoder.encode(texts.tolist())[indices]
    return vectors


def replay_weeks(replay: Replay, weeks: Sequence[int] = WEEKS) -> Iterator[tuple[int, Policy, WeekResult]]:
    """Yield the result of each week and policy; the first version goes live at the start of the first week."""
    gates = [Gate(policy) for policy in POLICIES]
    for week in weeks:
        for gate in gates:
            yield week, gate.policy, gate.run_week(replay, week)


def format_row(week: int, policy: Policy, result: WeekResult) -> str:
    """Format a row of the table."""
    threshold = f"{result.live.threshold:.3f} ({'guaranteed' if result.live.is_guaranteed else 'heuristic'})"
    expected, guarantee, check = result.expected, result.guarantee, result.calibration
    cells = [
        f"{week} | {policy} | {threshold} | {result.coverage:.0%} | {result.precision:.3f}",
        f"{expected.value:.3f} ({expected.low:.3f} to {expected.high:.3f})",
        f"{guarantee.e_value:.2g} ({guarantee.low:.2f} to {guarantee.high:.2f})",
        f"{check.difference:+.3f} (p {check.p_value:.2g})",
        ", ".join(result.alarms) or "quiet",
    ]
    return f"| {' | '.join(cells)} |"


def plot_policies(axes: Axes, table: pd.DataFrame) -> None:
    """Plot the precision of shown answers by week and policy, with the coverage in thinner lines."""
    for (policy, rows), (colour, dashes) in zip(table.groupby("policy", sort=False), LINES, strict=False):
        axes.plot(rows["week"], rows["precision"], color=LIGHT[colour], linestyle=dashes, marker="o", markersize=4)
        axes.plot(rows["week"], rows["coverage"], color=LIGHT[colour], linestyle=dashes, linewidth=0.9)
        axes.plot([], [], color=LIGHT[colour], linestyle=dashes, label=str(policy))
        rows_with_alarm = rows[rows["alarmed"]]
        axes.plot(
            rows_with_alarm["week"], rows_with_alarm["precision"], "x", color=LIGHT["text"], markersize=9, label="_"
        )
    axes.plot([], [], "x", color=LIGHT["text"], markersize=8, label="alarm of the monitor")
    axes.axhline(TARGET, color=LIGHT["soft"], linewidth=1.2, linestyle=":", label=f"guaranteed: {100 * TARGET:g} %")
    for height, label in ((0.94, "precision of what was shown"), (0.06, "share shown")):
        axes.text(0.99, height, label, ha="right", va="center", color=LIGHT["soft"], transform=axes.transAxes)
    axes.set(xlabel="week", ylim=(0, 1))
    set_percent_ticks(axes, y=True)
    add_legend(axes)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="holds user_feedback.jsonl.gz")
    parser.add_argument("--plot", type=Path, help="the file of the plot, SVG")
    parser.add_argument("--without-texts", action="store_true", help="no drift of texts: embedding them takes minutes")
    options = parser.parse_args(arguments)
    replay = Replay.from_file(options.folder / FILE.name, load_params(ROOT / "params.yaml"))
    print("| week | policy | threshold | shown | precision | expected | e-value (precision) | calibration | alarms |")
    print("| --: | --- | --- | --: | --: | --- | --- | --- | --- |")
    table = []
    for week, policy, result in replay_weeks(replay):
        print(format_row(week, policy, result), flush=True)
        table.append((week, policy, result.precision, result.coverage, bool(result.alarms)))
    frame = pd.DataFrame(table, columns=["week", "policy", "precision", "coverage", "alarmed"])
    print("\n| policy | shown, mean | precision, mean | weeks below the target | weeks with an alarm |")
    print("| --- | --: | --: | --: | --: |")
    for policy, rows in frame.groupby("policy", sort=False):
        below, alarms = int((rows["precision"] < TARGET).sum()), int(rows["alarmed"].sum())
        print(f"| {policy} | {rows['coverage'].mean():.0%} | {rows['precision'].mean():.3f} | {below} | {alarms} |")
    if options.plot:
        options.plot.write_bytes(render_svg(plot_policies, frame))
    if not options.without_texts:
        print_drift(replay)


def print_drift(replay: Replay) -> None:
    """Print the table of text drift."""
    vectors = embed_texts(replay)
    print(f"\n| week | answers | correct | {' | '.join(f'{name}, p' for name in TEXTS)} | new questions | alarms |")
    print("| --: | --: | --: | --: | --: | --: | --: | --- |")
    for week in WEEKS:
        drift, rows = measure_drift(replay, week, vectors), replay.get_week_rows(week)
        p_values = " | ".join(f"{value:.2g}" for value in drift.p_values.values())
        alarms = ", ".join(drift.alarms) or "quiet"
        correct = replay.dataset.correct[rows].mean()
        print(f"| {week} | {len(rows)} | {correct:.1%} | {p_values} | {drift.novel_share:.1%} | {alarms} |", flush=True)


if __name__ == "__main__":
    main()
