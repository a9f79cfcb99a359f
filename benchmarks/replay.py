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

A verdict is known at the end of its week. The monitor judges the week then, as it does a window: the promise by the
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
from abstain.learning.estimators.regressors.fitting import fit_regressor, regressor_fit
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
from abstain.reports.theme import LIGHT, LINES, legend, shares
from benchmarks.guarantee import asked, guaranteed, heuristic
from benchmarks.real_verdicts import by_topic
from benchmarks.scorers import FILE, ROOT, Judged, read_judged

Policy = Literal["never retrained", "recalibrated", "retrained"]
POLICIES: tuple[Policy, ...] = ("never retrained", "recalibrated", "retrained")
WEEKS = range(3, 10)
TARGET = 0.75
LEVEL = 0.05
DAYS = 7
COMPARED = 600
SEED = 3


@dataclass(frozen=True)
class Week:
    """What is live in a week."""

    regressor: OnnxRegressor
    calibrator: Calibrator
    threshold: float
    is_guaranteed: bool


@dataclass(frozen=True)
class Verdict:
    """What a policy showed in a week, and what the monitor said of it. `precision` is by all verdicts, on average."""

    live: Week
    coverage: float
    precision: float
    expected: ExpectedPrecision
    promise: LiveGuaranteeResult
    calibration: CalibrationCheck

    @property
    def alarms(self) -> list[str]:
        said = {"promise broken": self.promise.broken, "calibration off": self.calibration.p_value <= LEVEL}
        return [name for name, raised in said.items() if raised]


@dataclass
class Gate:
    """A policy: the version that is live, and the daily batches of verdicts on what it showed."""

    policy: Policy
    live: Week | None = None
    batches: list[ReviewBatch] = field(default_factory=list)
    fitted: np.ndarray = field(default_factory=lambda: np.zeros(0, int))

    def start(self, replay: Replay, week: int) -> Week:
        """Puts live what the policy wants in `week`."""
        if self.live is None or self.policy == "retrained":
            self.fitted, tested = by_topic(replay.judged, replay.before(week), SEED)
            self.live = replay.trained(self.fitted, tested)
        elif self.policy == "recalibrated":
            tested = np.setdiff1d(replay.before(week), self.fitted)
            self.live = replay.tuned(self.live.regressor, replay.scores_of(self.fitted, self.live), tested)
        if self.policy != "never retrained":
            self.batches.clear()  # another version has a promise of its own
        return self.live

    def judge(self, replay: Replay, week: int) -> Verdict:
        """The week's answers through the gate, and the monitor at its end."""
        live, rows = self.start(replay, week), replay.of(week)
        confidence = live.regressor.predict(replay.columns.iloc[rows])
        probability, shown = live.calibrator.apply(confidence), confidence >= live.threshold
        correct, topic, coverage = replay.judged.correct[rows], replay.judged.topic[rows], float(shown.mean())
        for day in np.array_split(np.arange(len(rows)), DAYS):
            of_day = day[shown[day]]
            self.batches.append(ReviewBatch(correct[of_day] == 1, np.ones(len(of_day)), topic[of_day], coverage))
        return Verdict(
            live,
            coverage,
            float(correct[shown].mean()) if shown.any() else float("nan"),
            estimate_precision(probability[shown], topic[shown]),
            check_live_guarantee(self.batches, GuaranteedTarget("precision", TARGET), LEVEL),
            check_calibration(probability[shown], correct[shown], np.ones(int(shown.sum())), topic[shown]),
        )


@dataclass(frozen=True)
class Replay:
    """All answers with their verdicts, in an order of arrival, and the columns that the scorer reads."""

    judged: Judged
    columns: pd.DataFrame
    params: Params
    kind: RegressorKind = "gradient_boosting"

    @classmethod
    def of_file(cls, file: Path, params: Params) -> Replay:
        judged = read_judged(file)
        arrival = np.random.default_rng(SEED).permutation(len(judged.correct))
        order = arrival[np.argsort(judged.round[arrival], kind="stable")]
        judged = Judged(judged.take(order), judged.correct[order], judged.topic[order], judged.round[order])
        columns = pd.DataFrame([columns_of(one, params.labels.refusals) for one in judged.interactions])
        return cls(judged, columns, params)

    def of(self, week: int) -> np.ndarray:
        return np.flatnonzero(self.judged.round == week)

    def before(self, week: int) -> np.ndarray:
        return np.flatnonzero(self.judged.round < week)

    def trained(self, rows: np.ndarray, tested: np.ndarray) -> Week:
        correct, topic = self.judged.correct[rows], self.judged.topic[rows]
        fitted = fit_regressor(
            self.kind,
            "verdict",
            self.columns.iloc[rows],
            correct.astype(float),
            np.ones(len(rows)),
            topic,
            regressor_fit(self.params),
        )
        return self.tuned(fitted.regressor, ReviewedAnswers(fitted.out_of_fold, correct, groups=topic), tested)

    def tuned(self, regressor: OnnxRegressor, training: ReviewedAnswers, tested: np.ndarray) -> Week:
        """With the threshold and the calibrator of the verdicts on the answers at `tested`."""
        confidence = regressor.predict(self.columns.iloc[tested])
        reviewed = ReviewedAnswers(confidence, self.judged.correct[tested], groups=self.judged.topic[tested])
        safe = guaranteed(reviewed, training, asked(TARGET))
        threshold = heuristic(reviewed, training, asked(TARGET)) if safe is None else safe
        calibrator = fit_calibrator(self.params.calibration.method, confidence, reviewed.correct)
        return Week(regressor, calibrator, np.inf if threshold is None else threshold, safe is not None)

    def scores_of(self, rows: np.ndarray, live: Week) -> ReviewedAnswers:
        """The answers that a version was fitted to. They only decide where the test of thresholds starts."""
        confidence = live.regressor.predict(self.columns.iloc[rows])
        return ReviewedAnswers(confidence, self.judged.correct[rows], groups=self.judged.topic[rows])


def columns_of(row: Interaction, refusals: tuple[str, ...]) -> dict[str, float]:
    """What is known of an answer without a base model."""
    question, answer, context = (_words(text) for text in (row.question, row.answer, row.contexts[0].text))
    return {
        **(row.writer or {}),  # type: ignore[dict-item]
        "refusal": float(is_refusal(row.answer, refusals)),
        "question_words": len(question),
        "answer_words": len(answer),
        "context_words": len(context),
        "question_in_context": _share(question, context),
        "answer_in_context": _share(answer, context),
        "answer_in_question": _share(answer, question),
    }


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _share(part: Sequence[str], whole: Sequence[str]) -> float:
    return len(set(part) & set(whole)) / max(len(set(part)), 1)


TEXTS: dict[str, Callable[[Interaction], str]] = {
    "questions": lambda row: row.question,
    "answers": lambda row: row.answer,
    "contexts": lambda row: row.contexts[0].text,
}


@dataclass(frozen=True)
class Inputs:
    """What the monitor says of a week's texts: a p-value of each kind, that of the alarm, and the new questions."""

    p_values: dict[str, float]
    new: float
    new_p: float

    @property
    def alarms(self) -> list[str]:
        drifted = combine_p_values(self.p_values.values()) <= LEVEL
        return ["input drift"] * drifted + ["new topics"] * (self.new_p <= LEVEL)


def inputs_of(replay: Replay, week: int, vectors: dict[str, np.ndarray]) -> Inputs:
    before, now = replay.before(week)[-COMPARED:], replay.of(week)[:COMPARED]
    groups = replay.judged.topic[before], replay.judged.topic[now]
    found = {}
    for name, of in vectors.items():
        both = (
            test(of[before], of[now], *groups, SEED).p_value for test in (permutation_test, classifier_two_sample_test)
        )
        found[name] = combine_p_values(both)
    new = measure_novelty(vectors["questions"][before], vectors["questions"][now], *groups, SEED)
    return Inputs(found, new.share, new.p_value)


def embedded(replay: Replay) -> dict[str, np.ndarray]:
    """The sentence embedding of each text of each answer, (rows, d) by kind; equal texts are embedded once."""
    encoder, found = SentenceEncoder(), {}
    for name, text in TEXTS.items():
        texts, at = np.unique([text(row) for row in replay.judged.interactions], return_inverse=True)
        found[name] = encoder.encode(texts.tolist())[at]
    return found


def rows_of(replay: Replay, weeks: Sequence[int] = WEEKS) -> Iterator[tuple[int, Policy, Verdict]]:
    """Each of `weeks` by each policy, whose first version goes live at the start of the first of them."""
    gates = [Gate(policy) for policy in POLICIES]
    for week in weeks:
        for gate in gates:
            yield week, gate.policy, gate.judge(replay, week)


def verdict_line(week: int, policy: Policy, found: Verdict) -> str:
    chosen = f"{found.live.threshold:.3f} ({'guaranteed' if found.live.is_guaranteed else 'heuristic'})"
    expected, promise, check = found.expected, found.promise, found.calibration
    cells = [
        f"{week} | {policy} | {chosen} | {found.coverage:.0%} | {found.precision:.3f}",
        f"{expected.value:.3f} ({expected.low:.3f} to {expected.high:.3f})",
        f"{promise.e_value:.2g} ({promise.low:.2f} to {promise.high:.2f})",
        f"{check.difference:+.3f} (p {check.p_value:.2g})",
        ", ".join(found.alarms) or "quiet",
    ]
    return f"| {' | '.join(cells)} |"


def plotted(axes: Axes, table: pd.DataFrame) -> None:
    """Precision of what was shown by week and policy, with the share shown in thinner lines."""
    for (policy, rows), (colour, dashes) in zip(table.groupby("policy", sort=False), LINES, strict=False):
        axes.plot(rows["week"], rows["precision"], color=LIGHT[colour], linestyle=dashes, marker="o", markersize=4)
        axes.plot(rows["week"], rows["coverage"], color=LIGHT[colour], linestyle=dashes, linewidth=0.9)
        axes.plot([], [], color=LIGHT[colour], linestyle=dashes, label=str(policy))
        alarmed = rows[rows["alarmed"]]
        axes.plot(alarmed["week"], alarmed["precision"], "x", color=LIGHT["text"], markersize=9, label="_")
    axes.plot([], [], "x", color=LIGHT["text"], markersize=8, label="alarm of the monitor")
    axes.axhline(TARGET, color=LIGHT["soft"], linewidth=1.2, linestyle=":", label=f"promised: {100 * TARGET:g} %")
    for height, said in ((0.94, "precision of what was shown"), (0.06, "share shown")):
        axes.text(0.99, height, said, ha="right", va="center", color=LIGHT["soft"], transform=axes.transAxes)
    axes.set(xlabel="week", ylim=(0, 1))
    shares(axes, y=True)
    legend(axes)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="holds user_feedback.jsonl.gz")
    parser.add_argument("--plot", type=Path, help="the file of the plot, SVG")
    parser.add_argument("--without-texts", action="store_true", help="no drift of texts: embedding them takes minutes")
    chosen = parser.parse_args(arguments)
    replay = Replay.of_file(chosen.folder / FILE.name, load_params(ROOT / "params.yaml"))
    print("| week | policy | threshold | shown | precision | expected | e-value (precision) | calibration | alarms |")
    print("| --: | --- | --- | --: | --: | --- | --- | --- | --- |")
    table = []
    for week, policy, found in rows_of(replay):
        print(verdict_line(week, policy, found), flush=True)
        table.append((week, policy, found.precision, found.coverage, bool(found.alarms)))
    frame = pd.DataFrame(table, columns=["week", "policy", "precision", "coverage", "alarmed"])
    print("\n| policy | shown, mean | precision, mean | weeks below the promise | weeks with an alarm |")
    print("| --- | --: | --: | --: | --: |")
    for policy, rows in frame.groupby("policy", sort=False):
        below, alarms = int((rows["precision"] < TARGET).sum()), int(rows["alarmed"].sum())
        print(f"| {policy} | {rows['coverage'].mean():.0%} | {rows['precision'].mean():.3f} | {below} | {alarms} |")
    if chosen.plot:
        chosen.plot.write_bytes(render_svg(plotted, frame))
    if not chosen.without_texts:
        print_inputs(replay)


def print_inputs(replay: Replay) -> None:
    vectors = embedded(replay)
    print(f"\n| week | answers | correct | {' | '.join(f'{name}, p' for name in TEXTS)} | new questions | alarms |")
    print("| --: | --: | --: | --: | --: | --: | --: | --- |")
    for week in WEEKS:
        found, rows = inputs_of(replay, week, vectors), replay.of(week)
        p_values = " | ".join(f"{value:.2g}" for value in found.p_values.values())
        alarms = ", ".join(found.alarms) or "quiet"
        correct = replay.judged.correct[rows].mean()
        print(f"| {week} | {len(rows)} | {correct:.1%} | {p_values} | {found.new:.1%} | {alarms} |", flush=True)


if __name__ == "__main__":
    main()
