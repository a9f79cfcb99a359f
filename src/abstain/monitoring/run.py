"""The monitoring of one log: its windows, each with figures and alarms, from the log, data/ and the registry alone.

Notes:

* Nothing but its results is kept between two runs: the same inputs give the same windows.
* A window that is stored is compared with those before it once: what decisions were like does not change. What reviews
  say of it is brought up to date until it is `FINAL_AFTER` no more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

import numpy as np
import pandas as pd

from abstain.config.params import LLMParams, MonitoringParams
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.data.decision_log.monitoring_windows import MonitoringWindow
from abstain.data.store.splits import split_by_sampling
from abstain.monitoring import window_comparison as comparison
from abstain.monitoring import window_statistics as figures
from abstain.monitoring.alarms import WindowResult, raise_alarms
from abstain.monitoring.expected_precision import check_calibration
from abstain.monitoring.feed import measure_silence
from abstain.monitoring.live_guarantee import GuaranteedTarget, ReviewBatch, check_live_guarantee
from abstain.monitoring.reviewed_decisions import batch_reviews_by_day, select_countable_shown
from abstain.monitoring.traffic import Traffic
from abstain.monitoring.window_comparison import EXAMPLES, ComparisonResult, SampledAnswers, finite_or_none
from abstain.monitoring.windows import DayRange, make_day_ranges

FINAL_AFTER = timedelta(days=30)
"""A window that ended longer ago is final."""
SEED = 0


@dataclass(frozen=True)
class MonitoredVersion:
    """A version that was live: what it promises (None: nothing), and the base model whose states it reads."""

    name: str
    guarantee: GuaranteedTarget | None
    llm: LLMParams | None = None


class AnswerSource(Protocol):
    """Where texts, embeddings and states come from."""

    def interactions(self, ids: Sequence[str], /) -> Mapping[str, Interaction]: ...

    def embed(self, texts: Sequence[str], /) -> np.ndarray: ...

    def states(self, llm: LLMParams, rows: Sequence[Interaction], /) -> tuple[np.ndarray, np.ndarray]:
        """`comparison.States`. Raises `AbstainError` where the model is not on this machine."""
        ...


@dataclass(frozen=True)
class MonitoringInputs:
    """`reviewed`: `reviewed_answers` of `traffic`. `known_chunks`: ids; None where no handbook was ingested.
    `states_since`: hidden states of older decisions may be gone from the cache, but for those of answers in data/.
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
    """The windows that are not final, oldest first; of a version that is not stored, those that are young.

    `since`: windows that end later are computed again, final or not.
    """
    names = map(str, pd.unique(inputs.traffic.decisions["version"]))
    versions = [_VersionMonitor(inputs, name, stored, params, now, since) for name in names]
    ranges = [days for one in versions for days in one.ranges]
    newest = max(ranges, key=lambda days: (days.end, days.start), default=None)
    found = [window for one in versions for window in one.windows(newest)]
    return sorted(found, key=lambda window: (window.end, window.start))


class _VersionMonitor:
    """The windows of one version."""

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
        self._stored = {(one.start, one.end): one for one in stored if one.version == name}
        self._others = [one for one in stored if one.version != name]
        self._decisions = inputs.traffic.decisions[inputs.traffic.decisions["version"] == name]
        self._reviewed = inputs.reviewed[inputs.reviewed["version"] == name]
        self._counted, self._apart = select_countable_shown(self._reviewed)
        self._calibrating, _ = split_by_sampling(self._reviewed)
        self._batches = batch_reviews_by_day(self._counted, self._decisions)
        self.ranges = make_day_ranges(name, self._decisions["day"], self._reviewed["arrived"], params, now)

    def windows(self, with_feed: DayRange | None) -> list[MonitoringWindow]:
        found: list[MonitoringWindow] = []
        for days in filter(self._needs_update, self.ranges):
            earlier = {(one.version, one.start): one for one in (*self._others, *self._stored.values(), *found)}
            ended = [one.figures for one in earlier.values() if one.end <= days.start]
            found.append(self._window(days, ended, self._measure_silence() if days is with_feed else {}))
        return found

    def _needs_update(self, days: DayRange) -> bool:
        if self._is_requested(days):
            return True
        known = self._stored.get((days.start, days.end))
        return not known.is_final if known else days.end > self._now - FINAL_AFTER

    def _is_requested(self, days: DayRange) -> bool:
        return self._since is not None and days.end > self._since

    def _window(
        self, days: DayRange, earlier: Sequence[Mapping[str, Any]], feed: Mapping[str, Any]
    ) -> MonitoringWindow:
        own = self._decisions[days.contains(self._decisions["decided_at"])]
        arrived = self._reviewed[days.contains(self._reviewed["arrived"])]
        known = self._stored.get((days.start, days.end))
        if known and not self._is_requested(days) and known.figures["decisions"] == len(own):
            compared = {name: ComparisonResult.from_json(of) for name, of in known.figures["compared"].items()}
            told = dict(known.figures)
        else:
            before = self._decisions[self._decisions["decided_at"] < days.start]
            told, compared = self._summarize_decisions(own, before)
        until = None if days is self.ranges[-1] else days.end
        promise = self._check_guarantee(until, known.figures["promise"] if known else None)
        told |= {"promise": promise, "feed": feed, "record": figures.summarize_prediction_errors(earlier)}
        told |= self._summarize_reviews(days, own, arrived)
        told |= {"compared": {name: asdict(one) for name, one in compared.items()}}
        alarms = raise_alarms(WindowResult(told, compared, _select_examples(own, arrived)), self._params)
        as_stored = json.loads(json.dumps(told, allow_nan=False))
        return MonitoringWindow(
            days.version, days.start, days.end, as_stored, alarms, days.end <= self._now - FINAL_AFTER
        )

    def _summarize_decisions(
        self, own: pd.DataFrame, before: pd.DataFrame
    ) -> tuple[dict[str, Any], dict[str, ComparisonResult]]:
        """The figures of the decisions `own`, and how they differ from those `before`."""
        source = self._inputs.source
        window = comparison.sample_answers(own, source.interactions)
        told = figures.summarize_decisions(own, before) | {
            "expected": figures.estimate_expected_precision(window),
            "notes": [],
        }
        reference = comparison.sample_answers(before, source.interactions)
        compared = {"writers": comparison.compare_answer_models(reference, window)}
        if self._inputs.known_chunks is not None:
            compared["chunks"] = comparison.measure_unknown_chunks(window, self._inputs.known_chunks)
        else:
            told["notes"].append("unknown chunks are not judged: no handbook was ingested")
        if len(before) < min(self._params.min_decisions, len(own)):
            told["notes"].append("drift is not judged: too few decisions before under this version")
        elif not (reference.has_enough and window.has_enough):
            told["notes"].append("drift is not judged: too few answers or documents whose texts are kept")
        else:
            compared["coverage"] = comparison.compare_share("shown", reference, window, SEED)
            compared |= comparison.compare_texts(reference, window, source.embed, SEED)
            compared["states"] = self._compare_states(before, window)
        return told, compared

    def _compare_states(self, before: pd.DataFrame, window: SampledAnswers) -> ComparisonResult:
        """Of old answers those in data/ alone have states: mostly withheld or disliked ones, which differ by that."""
        llm, source, since = self._version.llm, self._inputs.source, self._inputs.states_since
        if llm is None:
            return ComparisonResult(note="not judged: the base model of this version is not known here")
        reference = comparison.sample_answers(before[before["decided_at"] >= since], source.interactions)
        recent = window.filter((window.decisions["decided_at"] >= since).to_numpy(bool))
        try:
            return comparison.compare_states(reference, recent, lambda rows: source.states(llm, rows), SEED)
        except AbstainError as error:
            return ComparisonResult(note=f"not judged: {error.message_with_code}")

    def _summarize_reviews(self, days: DayRange, own: pd.DataFrame, arrived: pd.DataFrame) -> dict[str, Any]:
        """What reviews say: those that arrived in these days, and those of these decisions."""
        judged = arrived[arrived.index.isin(self._calibrating.index) & arrived["probability"].notna()]
        return {
            "reviews": len(arrived),
            "left_out": self._apart,
            "volunteers": int((~self._counted["drawn"]).sum()),
            "precision": figures.compute_reviewed_precision(self._counted[days.contains(self._counted["arrived"])]),
            "calibration": _check_calibration(judged),
            "came_of_it": figures.compute_reviewed_precision(self._counted[self._counted.index.isin(own.index)]),
        }

    def _check_guarantee(self, until: datetime | None, known: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The test of the promise by all reviews that arrived before `until`; None where nothing was promised, or no
        review came. `known`: a former result, which is taken where it is of the same reviews: each costs a second."""
        promise = self._version.guarantee
        batches = [batch for day, batch in self._batches if until is None or day < until]
        if promise is None or not batches:
            return None
        inputs = _hash_guarantee_inputs(batches, promise, self._params.level)
        if known and known["inputs"] == inputs:
            return dict(known)
        found = check_live_guarantee(batches, promise, self._params.level)
        broken_on = None if found.broken_at is None else f"{self._batches[found.broken_at][0]:%Y-%m-%d}"
        judged = {**asdict(promise), "level": self._params.level}
        numbers = {
            name: finite_or_none(getattr(found, name)) for name in ("e_value", "peak", "estimate", "low", "high")
        }
        counts = {"reviews": found.reviews, "documents": found.documents, "inputs": inputs}
        return {**judged, **numbers, **counts, "broken": found.broken, "broken_on": broken_on}

    def _measure_silence(self) -> dict[str, Any]:
        """The silence of decisions and of feedback, whatever the version: a new one may have no window yet."""
        traffic = self._inputs.traffic
        sides = {"decisions": traffic.decisions["decided_at"], "feedback": traffic.feedback["recorded_at"]}
        found = {name: measure_silence(moments, self._now) for name, moments in sides.items()}
        return {name: asdict(one) for name, one in found.items() if one}


def _hash_guarantee_inputs(batches: Sequence[ReviewBatch], promise: GuaranteedTarget, level: float) -> str:
    """16 hex digits that differ where the test of the promise may."""
    told = [(one.correct.tolist(), one.weight.tolist(), one.groups.tolist(), one.coverage) for one in batches]
    return hashlib.sha256(repr((told, promise, level)).encode()).hexdigest()[:16]


def _check_calibration(rows: pd.DataFrame) -> dict[str, Any] | None:
    """The check of the probabilities of reviewed answers; None for too few."""
    if len(rows) < figures.MIN_REVIEWED or rows["document"].nunique() < comparison.MIN_DOCUMENTS:
        return None
    columns = (rows[name].to_numpy() for name in ("probability", "correct", "weight", "document"))
    found = {name: finite_or_none(value) for name, value in asdict(check_calibration(*columns)).items()}
    return None if found["p_value"] is None else {**found, "reviews": len(rows)}


def _select_examples(own: pd.DataFrame, arrived: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """Ids of answers of a window that show something, by what they show."""
    wrong = arrived[(arrived["decision"] == "show") & ~arrived["correct"].astype(bool)]
    difference = (arrived["probability"] - arrived["correct"].astype(float)).abs()
    found = {
        "incorrect": wrong.index[-EXAMPLES:],
        "miscalibrated": difference.sort_values(ascending=False).index[:EXAMPLES],
        "unavailable": own.index[own["decision"] == "unavailable"][-EXAMPLES:],
    }
    return {name: tuple(map(str, ids)) for name, ids in found.items()}
