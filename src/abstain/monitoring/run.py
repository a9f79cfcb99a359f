"""Monitoring of one log: its windows with statistics and alarms, computed from the log, data/ and the registry.

Notes:

* Only results are kept between runs: the same inputs give the same windows.
* The decisions of a stored window are compared with earlier ones once, because they do not change. What reviews say
  about it is updated until `FINAL_AFTER` has passed since its end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Protocol

import numpy as np
import pandas as pd

from abstain.config.params import LLMParams, MonitoringParams
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.data.decision_log.monitoring_windows import (
    CheckedCalibration,
    CheckedGuarantee,
    Comparisons,
    DecisionSummary,
    FeedSilence,
    MonitoringWindow,
    ReviewSummary,
    TextComparisons,
    VectorComparison,
    WindowStatistics,
)
from abstain.data.store.splits import split_by_sampling
from abstain.monitoring import window_comparison, window_statistics
from abstain.monitoring.alarms import AlarmExamples, raise_alarms
from abstain.monitoring.expected_precision import check_calibration
from abstain.monitoring.feed import measure_silence
from abstain.monitoring.live_guarantee import GuaranteedTarget, ReviewBatch, check_live_guarantee
from abstain.monitoring.reviewed_decisions import batch_reviews_by_day, select_countable_shown
from abstain.monitoring.traffic import Traffic
from abstain.monitoring.window_comparison import EXAMPLES, SampledAnswers
from abstain.monitoring.windows import DayRange, make_day_ranges

FINAL_AFTER = timedelta(days=30)
"""A window is final if it ended longer ago."""
SEED = 0


@dataclass(frozen=True)
class MonitoredVersion:
    """A version that was live.

    Attributes:
        name: The version.
        guarantee: Its guaranteed target; None if it has no guarantee.
        llm: The base model that its scorer reads; None if unknown.
    """

    name: str
    guarantee: GuaranteedTarget | None
    llm: LLMParams | None = None


class AnswerSource(Protocol):
    """Provides texts, embeddings and cached hidden states."""

    def interactions(self, ids: Sequence[str], /) -> Mapping[str, Interaction]:
        """Read the interactions whose texts are kept, by id."""
        ...

    def embed(self, texts: Sequence[str], /) -> np.ndarray:
        """Embed n texts into (n, d)."""
        ...

    def states(self, llm: LLMParams, rows: Sequence[Interaction], /) -> tuple[np.ndarray, np.ndarray]:
        """Read cached states, as `window_comparison.ReadCachedStates`.

        Args:
            llm: The base model and its layer.
            rows: The answers.

        Returns:
            (n,) bool, which answers have cached states, and the (cached, d) means over their tokens.

        Raises:
            AbstainError: The base model is not on this machine.
        """
        ...


@dataclass(frozen=True)
class MonitoringInputs:
    """Inputs of one monitoring run.

    Attributes:
        traffic: Decisions and feedback of the log.
        reviewed: Reviewed decisions from `join_reviews`.
        known_chunks: Chunk ids in the knowledge base; None if no document was ingested.
        versions: Version name -> guarantee and base model.
        source: Provides texts, embeddings and cached hidden states.
        states_since: Hidden states of older decisions are ignored, because only those of answers in data/ stay in the
            cache and these are not representative.
    """

    traffic: Traffic
    reviewed: pd.DataFrame
    known_chunks: frozenset[str] | None
    versions: Mapping[str, MonitoredVersion]
    source: AnswerSource
    states_since: datetime


def compute_windows(
    inputs: MonitoringInputs,
    stored: Sequence[MonitoringWindow],
    params: MonitoringParams,
    now: datetime,
    since: datetime | None = None,
) -> list[MonitoringWindow]:
    """Compute the monitoring windows that are new or not yet final.

    Args:
        inputs: Decisions, reviews and versions.
        stored: Windows of earlier runs. For a version without any, only recent windows are computed.
        params: Window sizes and limits.
        now: Current time (UTC).
        since: Also recompute final windows that end after this time.

    Returns:
        Windows in order of time. A window is final 30 days after its end.
    """
    names = map(str, pd.unique(inputs.traffic.decisions["version"]))
    monitors = [_VersionMonitor(inputs, name, stored, params, now, since) for name in names]
    ranges = [days for monitor in monitors for days in monitor.ranges]
    newest = max(ranges, key=lambda days: (days.end, days.start), default=None)
    windows = [window for monitor in monitors for window in monitor.compute_windows(newest)]
    return sorted(windows, key=lambda window: (window.end, window.start))


class _VersionMonitor:
    """Computes the windows of one version."""

    def __init__(
        self,
        inputs: MonitoringInputs,
        name: str,
        stored: Sequence[MonitoringWindow],
        params: MonitoringParams,
        now: datetime,
        since: datetime | None,
    ) -> None:
        self._inputs, self._params, self._now, self._since = inputs, params, now, since
        self._version = inputs.versions.get(name, MonitoredVersion(name, None))
        self._stored = {(window.start, window.end): window for window in stored if window.version == name}
        self._others = [window for window in stored if window.version != name]
        self._decisions = inputs.traffic.decisions[inputs.traffic.decisions["version"] == name]
        self._reviewed = inputs.reviewed[inputs.reviewed["version"] == name]
        self._counted, self._n_excluded = select_countable_shown(self._reviewed)
        self._calibrating, _ = split_by_sampling(self._reviewed)
        self._batches = batch_reviews_by_day(self._counted, self._decisions)
        self.ranges = make_day_ranges(name, self._decisions["day"], self._reviewed["arrived"], params, now)

    def compute_windows(self, feed_days: DayRange | None) -> list[MonitoringWindow]:
        windows: list[MonitoringWindow] = []
        for days in filter(self._needs_update, self.ranges):
            earlier = {
                (window.version, window.start): window for window in (*self._others, *self._stored.values(), *windows)
            }
            ended = [window.statistics for window in earlier.values() if window.end <= days.start]
            windows.append(self._compute_window(days, ended, self._measure_silence() if days is feed_days else {}))
        return windows

    def _needs_update(self, days: DayRange) -> bool:
        if self._is_requested(days):
            return True
        stored = self._stored.get((days.start, days.end))
        return not stored.is_final if stored else days.end > self._now - FINAL_AFTER

    def _is_requested(self, days: DayRange) -> bool:
        return self._since is not None and days.end > self._since

    def _compute_window(
        self, days: DayRange, earlier: Sequence[WindowStatistics], feed: Mapping[str, FeedSilence]
    ) -> MonitoringWindow:
        decisions = self._decisions[days.contains(self._decisions["decided_at"])]
        arrived = self._reviewed[days.contains(self._reviewed["arrived"])]
        stored = self._stored.get((days.start, days.end))
        former = stored.statistics if stored else None
        if former and not self._is_requested(days) and former.decisions == len(decisions):
            decided: DecisionSummary = former
        else:
            earlier_decisions = self._decisions[self._decisions["decided_at"] < days.start]
            decided = self._summarize_decisions(decisions, earlier_decisions)
        until = None if days is self.ranges[-1] else days.end
        reviewed = self._summarize_reviews(days, decisions, arrived)
        fields = dict(decided) | dict(reviewed)
        fields["guarantee"] = self._check_guarantee(until, former.guarantee if former else None)
        fields["prediction_errors"] = window_statistics.summarize_prediction_errors(earlier)
        statistics = WindowStatistics.model_validate(fields | {"feed": feed})
        alarms = raise_alarms(statistics, _select_examples(decisions, arrived), self._params)
        is_final = days.end <= self._now - FINAL_AFTER
        return MonitoringWindow(days.version, days.start, days.end, statistics, alarms, is_final)

    def _summarize_decisions(self, decisions: pd.DataFrame, earlier_decisions: pd.DataFrame) -> DecisionSummary:
        """Summarize the window's decisions and compare them with earlier ones of this version."""
        source, known_chunks, notes = self._inputs.source, self._inputs.known_chunks, []
        window = window_comparison.sample_answers(decisions, source.interactions)
        reference = window_comparison.sample_answers(earlier_decisions, source.interactions)
        if known_chunks is None:
            notes.append("unknown chunks are not judged: no document was ingested")
        texts, coverage, states = TextComparisons(), None, None
        if len(earlier_decisions) < min(self._params.min_decisions, len(decisions)):
            notes.append("drift is not judged: too few decisions before under this version")
        elif not (reference.has_enough and window.has_enough):
            notes.append("drift is not judged: too few answers or documents whose texts are kept")
        else:
            texts = window_comparison.compare_texts(reference, window, source.embed, SEED)
            coverage = window_comparison.compare_coverage(reference, window, SEED)
            states = self._compare_states(earlier_decisions, window)
        compared = Comparisons(
            **dict(texts),
            coverage=coverage,
            states=states,
            chunks=None if known_chunks is None else window_comparison.measure_unknown_chunks(window, known_chunks),
            writers=window_comparison.compare_answer_models(reference, window),
        )
        expected = window_statistics.estimate_expected_precision(window)
        return window_statistics.summarize_decisions(decisions, earlier_decisions, expected, compared, notes)

    def _compare_states(self, earlier_decisions: pd.DataFrame, window: SampledAnswers) -> VectorComparison:
        """Compare hidden states with recent earlier ones.

        Of older answers only those in data/ have states: mostly withheld or disliked ones, which differ for that
        reason.
        """
        llm, source, since = self._version.llm, self._inputs.source, self._inputs.states_since
        if llm is None:
            return VectorComparison(note="not judged: the base model of this version is not known here")
        reference = window_comparison.sample_answers(
            earlier_decisions[earlier_decisions["decided_at"] >= since], source.interactions
        )
        recent = window.filter((window.decisions["decided_at"] >= since).to_numpy(bool))
        try:
            return window_comparison.compare_states(reference, recent, lambda rows: source.states(llm, rows), SEED)
        except AbstainError as error:
            return VectorComparison(note=f"not judged: {error.message_with_code}")

    def _summarize_reviews(self, days: DayRange, decisions: pd.DataFrame, arrived: pd.DataFrame) -> ReviewSummary:
        """Summarize the reviews that arrived in these days, and those of the window's decisions."""
        with_probability = arrived[arrived.index.isin(self._calibrating.index) & arrived["probability"].notna()]
        counted_arrived = self._counted[days.contains(self._counted["arrived"])]
        counted_own = self._counted[self._counted.index.isin(decisions.index)]
        return ReviewSummary(
            reviews=len(arrived),
            excluded_self_selected=self._n_excluded,
            self_selected=int((~self._counted["sampled"]).sum()),
            precision=window_statistics.compute_reviewed_precision(counted_arrived),
            reviewed_precision=window_statistics.compute_reviewed_precision(counted_own),
            calibration=_check_calibration(with_probability),
        )

    def _check_guarantee(self, until: datetime | None, former: CheckedGuarantee | None) -> CheckedGuarantee | None:
        """Test the guarantee on all reviews that arrived before `until`.

        `former` is an earlier result. It is reused if it is based on the same reviews, because a test takes a second.
        The result is None without a guarantee or without reviews.
        """
        target, alpha = self._version.guarantee, self._params.alpha
        batches = [batch for day, batch in self._batches if until is None or day < until]
        if target is None or not batches:
            return None
        inputs = _hash_guarantee_inputs(batches, target, alpha)
        if former and former.inputs == inputs:
            return former
        result = check_live_guarantee(batches, target, alpha)
        violated_on = None if result.violated_batch is None else f"{self._batches[result.violated_batch][0]:%Y-%m-%d}"
        return CheckedGuarantee(**asdict(target), **asdict(result), alpha=alpha, violated_on=violated_on, inputs=inputs)

    def _measure_silence(self) -> dict[str, FeedSilence]:
        """Measure the silence of decisions and feedback over all versions; a new version may have no window yet."""
        traffic = self._inputs.traffic
        times_by_kind = {"decisions": traffic.decisions["decided_at"], "feedback": traffic.feedback["recorded_at"]}
        silences = ((name, measure_silence(times, self._now)) for name, times in times_by_kind.items())
        return {name: silence for name, silence in silences if silence}


def _hash_guarantee_inputs(batches: Sequence[ReviewBatch], target: GuaranteedTarget, alpha: float) -> str:
    """Return 16 hex digits that differ if the inputs of the guarantee test differ."""
    content = [
        (batch.correct.tolist(), batch.weight.tolist(), batch.groups.tolist(), batch.coverage) for batch in batches
    ]
    return hashlib.sha256(repr((content, target, alpha)).encode()).hexdigest()[:16]


def _check_calibration(rows: pd.DataFrame) -> CheckedCalibration | None:
    """Check the calibration of reviewed answers; None if there are too few."""
    if len(rows) < window_statistics.MIN_REVIEWED or rows["document"].nunique() < window_comparison.MIN_DOCUMENTS:
        return None
    check = check_calibration(*(rows[name].to_numpy() for name in ("probability", "correct", "weight", "document")))
    return None if np.isnan(check.p_value) else CheckedCalibration(**asdict(check), reviews=len(rows))


def _select_examples(decisions: pd.DataFrame, arrived: pd.DataFrame) -> AlarmExamples:
    """Select ids of answers in a window as examples, by what they show."""
    incorrect = arrived[(arrived["decision"] == "show") & ~arrived["correct"].astype(bool)]
    difference = (arrived["probability"] - arrived["correct"].astype(float)).abs()
    ids = (
        incorrect.index[-EXAMPLES:],
        difference.sort_values(ascending=False).index[:EXAMPLES],
        decisions.index[decisions["decision"] == "unavailable"][-EXAMPLES:],
    )
    return AlarmExamples(*(tuple(map(str, group)) for group in ids))
