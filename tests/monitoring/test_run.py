"""The windows of a log, with word counts in place of a sentence encoder: what is judged, what is not, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from abstain.config.params import LLMParams
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.data.decision_log import queries
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.monitoring_windows import MonitoringWindow, VectorComparison
from abstain.data.store.dataset import DataStore
from abstain.monitoring.live_guarantee import GuaranteedTarget
from abstain.monitoring.reviewed_decisions import join_reviews
from abstain.monitoring.run import FINAL_AFTER, MonitoredVersion, MonitoringInputs, compute_windows
from abstain.monitoring.traffic import read_traffic
from abstain.reports.monitoring_window import format_statistics, history_rows, render_window
from tests.checkout import shipped_params
from tests.data.decision_log.builders import url_of
from tests.monitoring.builders import PARAMS, GateAnswer, traffic, write_data, write_log

pytestmark = pytest.mark.heavy

START = datetime(2026, 11, 2, tzinfo=UTC)
END = START + timedelta(days=10, minutes=10)
GUARANTEED = MonitoredVersion("v1.0.0", GuaranteedTarget("precision", 0.9), shipped_params().llm)


@dataclass
class WordCounts:
    """`run.AnswerSource` of a log. `cached`: the share of the answers whose states are; `moved`: those whose states
    are elsewhere; `pruned_until`: of answers before it those alone are cached."""

    database: LogDatabase
    cached: float = 0.0
    moved: frozenset[str] = frozenset()
    pruned_until: datetime = START
    embedded: list[str] = field(default_factory=list)

    def interactions(self, ids: Sequence[str]) -> Mapping[str, Interaction]:
        return queries.read_interactions(self.database, ids)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.embedded += texts
        found = np.zeros((len(texts), 64), np.float32)
        for at, text in enumerate(texts):
            for word in text.split():
                found[at, crc32(word.encode()) % 64] += 1
        return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1)

    def states(self, llm: LLMParams, rows: Sequence[Interaction]) -> tuple[np.ndarray, np.ndarray]:
        if not self.cached:
            raise AbstainError(Code.NO_MODEL, "no such model here")
        rng = np.random.default_rng(0)
        is_old = np.array([row.asked_at < self.pruned_until for row in rows], bool)
        is_moved = np.array([row.interaction_id in self.moved for row in rows], bool)
        has = (rng.random(len(rows)) < self.cached) & (is_moved | ~is_old)
        values = rng.normal(size=(len(rows), 8)) + 3.0 * is_moved[:, None]
        return has, values[has]


@dataclass(frozen=True)
class Watched:
    """A log, and what the monitoring finds in it."""

    database: LogDatabase
    folder: Path

    def inputs(
        self,
        now: datetime = END,
        known: frozenset[str] | None = None,
        states_since: datetime = START,
        **source: object,
    ) -> MonitoringInputs:
        seen = read_traffic(self.database, now)
        reviewed = join_reviews(DataStore(self.folder / "data"), seen, shipped_params().labels)
        words = WordCounts(self.database, **source)  # type: ignore[arg-type]
        return MonitoringInputs(seen, reviewed, known, {"v1.0.0": GUARANTEED}, words, states_since)

    def windows(self, **changes: object) -> list[MonitoringWindow]:
        return compute_windows(self.inputs(**changes), [], PARAMS, END)  # type: ignore[arg-type]


def watched(folder: Path, answers: Sequence[GateAnswer], reviewed: Sequence[GateAnswer] | None = None) -> Watched:
    """`reviewed`: what data/ has; by default the same."""
    write_log(url_of(folder), answers)
    write_data(folder / "data", answers if reviewed is None else reviewed)
    return Watched(LogDatabase.open(url_of(folder)), folder)


@pytest.fixture(scope="module")
def ten_days(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """Two windows of five days each, between which nothing changes."""
    return watched(tmp_path_factory.mktemp("log"), traffic(START, 10, seed=2))


@pytest.fixture(scope="module")
def judged(ten_days: Watched) -> list[MonitoringWindow]:
    return ten_days.windows()


def say_everything(window: MonitoringWindow) -> str:
    assert history_rows([window])
    return render_window(window) + str(format_statistics(window))


def test_without_a_change_both_windows_are_quiet_and_the_second_is_judged(judged: list[MonitoringWindow]) -> None:
    first, second = judged
    assert (first.headline, second.headline) == ("Quiet", "Quiet")
    assert (second.start, second.end) == (START + timedelta(days=5), START + timedelta(days=10))
    assert second.statistics.decisions == 350 and 0.6 < second.statistics.coverage < 0.8
    assert second.statistics.guarantee.reviews > second.statistics.precision.reviews > 80
    assert first.statistics.guarantee.reviews == first.statistics.precision.reviews  # those that came by then
    assert first.statistics.compared.contexts is None and second.statistics.compared.contexts.p_value > 0.05
    assert second.statistics.prediction_errors.windows == 1 and second.statistics.prediction_errors.mean_error < 0.06
    assert "A201" in second.statistics.compared.states.note
    say_everything(second)


def test_the_same_inputs_give_the_same_windows_and_what_is_stored_is_not_compared_again(
    ten_days: Watched, judged: list[MonitoringWindow]
) -> None:
    windows, inputs = judged, ten_days.inputs()
    assert compute_windows(inputs, windows, PARAMS, END) == windows
    assert isinstance(inputs.source, WordCounts) and inputs.source.embedded == []
    asked = compute_windows(inputs, windows, PARAMS, END, since=windows[1].start + timedelta(days=1))
    assert asked[-1] == windows[1] and inputs.source.embedded


def test_a_window_is_final_when_it_is_young_no_more(ten_days: Watched, judged: list[MonitoringWindow]) -> None:
    windows, inputs = judged, ten_days.inputs()
    later = windows[0].end + FINAL_AFTER
    found = compute_windows(inputs, windows, PARAMS, later)
    assert [one.is_final for one in found] == [True, False]
    assert [one.start for one in compute_windows(inputs, found, PARAMS, later)] == [windows[1].start]
    assert compute_windows(inputs, [], PARAMS, windows[1].end + FINAL_AFTER) == []
    assert [one.start for one in compute_windows(inputs, found, PARAMS, later, since=START)] == [
        one.start for one in windows
    ]


def test_reviews_that_come_later_are_in_the_statistics_of_a_young_window(tmp_path: Path) -> None:
    answers = traffic(START, 5, seed=2)
    seen = watched(tmp_path, answers, reviewed=answers[:100])
    before = compute_windows(seen.inputs(), [], PARAMS, END)
    write_data(tmp_path / "data", answers)
    (after,) = compute_windows(seen.inputs(), before, PARAMS, END)
    for get in (attrgetter("reviewed_precision"), attrgetter("guarantee")):
        assert 20 < get(before[0].statistics).reviews < 60 and get(after.statistics).reviews > 80
    assert after.statistics.compared == before[0].statistics.compared


def test_wrong_answers_violate_the_guarantee_and_the_calibration(tmp_path: Path) -> None:
    answers = [
        one if one.review is None else replace(one, review=one.review.model_copy(update={"correct": number % 3 > 0}))
        for number, one in enumerate(traffic(START, 5, seed=2))
    ]
    (window,) = watched(tmp_path, answers).windows()
    assert {Code.GUARANTEE_VIOLATED, Code.CALIBRATION_OFF} <= {alarm.code for alarm in window.alarms}
    assert window.statistics.guarantee.violated_on is not None
    assert window.statistics.guarantee.alpha == PARAMS.alpha
    wrong = {one.decision.interaction_id for one in answers if one.review and not one.review.correct}
    examples = {alarm.code: alarm.examples for alarm in window.alarms}[Code.GUARANTEE_VIOLATED]
    assert examples and set(examples) <= wrong
    say_everything(window)


def test_reviews_of_another_version_count_for_that_one_alone(tmp_path: Path) -> None:
    old, new = traffic(START, 5, seed=2), traffic(START + timedelta(days=5), 5, version="v1.1.0", seed=3)
    new = [replace(one, decision=renamed(one)) for one in new]
    found = {one.version: one for one in watched(tmp_path, [*old, *new], reviewed=old).windows()}
    assert found["v1.0.0"].statistics.guarantee.reviews > 80
    assert found["v1.1.0"].statistics.reviews == 0 and found["v1.1.0"].statistics.guarantee is None
    assert "too few decisions before under this version" in str(found["v1.1.0"].statistics.notes)
    say_everything(found["v1.1.0"])


def renamed(one: GateAnswer) -> object:
    """The same decision under another id."""
    key = f"new-{one.decision.interaction_id}"
    assert one.decision.interaction
    interaction = one.decision.interaction.model_copy(update={"interaction_id": key})
    return replace(one.decision, interaction_id=key, interaction=interaction)


def test_a_window_without_a_decision_has_the_statistics_of_its_reviews(tmp_path: Path) -> None:
    seen = watched(tmp_path, traffic(START, 5, seed=2), reviewed=[])
    answers = traffic(START, 5, seed=2)
    write_data(tmp_path / "data", answers)
    batches = (tmp_path / "data" / "batches.jsonl").read_text()
    (tmp_path / "data" / "batches.jsonl").write_text(batches.replace("2026-11-0", "2026-11-1"))  # ten days late
    params = PARAMS.model_copy(update={"min_reviews": 150})
    windows = compute_windows(seen.inputs(END + timedelta(days=10)), [], params, END + timedelta(days=10))
    empty = windows[-1]
    assert empty.statistics.decisions == 0 and empty.statistics.coverage is None
    assert empty.statistics.precision.reviews > 80 and empty.statistics.expected is None
    assert [alarm.code for alarm in empty.alarms] in ([], [Code.FEED_SILENT])
    say_everything(empty)


def test_a_window_of_one_document_is_not_judged_by_it(tmp_path: Path) -> None:
    first, *_ = traffic(START, 1, seed=2)
    assert first.decision.interaction
    contexts = first.decision.interaction.contexts
    late = START + timedelta(days=5)
    answers = [
        one
        if one.decision.decided_at < late
        else replace(one, decision=replace(one.decision, interaction=about(one, contexts)))
        for one in traffic(START, 10, seed=2)
    ]
    window = watched(tmp_path, answers).windows()[-1]
    assert window.statistics.compared.contexts is None
    assert "too few answers or documents" in str(window.statistics.notes)
    assert Code.INPUT_DRIFT not in {alarm.code for alarm in window.alarms}
    say_everything(window)


def about(one: GateAnswer, contexts: object) -> Interaction:
    assert one.decision.interaction
    return one.decision.interaction.model_copy(update={"contexts": contexts})


def test_chunks_that_data_does_not_know_are_alarmed(ten_days: Watched) -> None:
    named = {
        context.chunk_id
        for one in traffic(START, 10, seed=2)
        if one.decision.interaction
        for context in one.decision.interaction.contexts
    }
    window = ten_days.windows(known=frozenset(named))[-1]
    assert Code.UNKNOWN_CHUNKS not in {alarm.code for alarm in window.alarms}
    window = ten_days.windows(known=frozenset(sorted(named)[::2]))[-1]
    assert Code.UNKNOWN_CHUNKS in {alarm.code for alarm in window.alarms}


def test_hidden_states_are_judged_where_enough_are_cached(ten_days: Watched) -> None:
    late = frozenset(f"i-{number:05}" for number in range(350, 700))

    def codes(**source: object) -> set[Code]:
        return {alarm.code for alarm in ten_days.windows(**source)[-1].alarms}

    assert Code.STATE_DRIFT in codes(cached=0.8, moved=late)
    assert Code.STATE_DRIFT not in codes(cached=0.8)
    assert Code.STATE_DRIFT not in codes(cached=0.02, moved=late)


def test_old_answers_of_which_the_cache_keeps_some_alone_are_no_drift(ten_days: Watched) -> None:
    pruned = START + timedelta(days=4)
    others = frozenset(f"i-{number:05}" for number in range(0, 700, 3))

    def states(since: datetime) -> VectorComparison:
        inputs = ten_days.inputs(cached=1.0, moved=others, pruned_until=pruned, states_since=since)
        return compute_windows(inputs, [], PARAMS, END)[-1].statistics.compared.states

    assert (states(pruned).p_value or 0) > PARAMS.alpha
    assert (states(START).p_value or 1) < PARAMS.alpha, "what is compared with them is"


def test_another_writer_and_a_dead_feed_are_alarmed(tmp_path: Path) -> None:
    answers = [
        one if number % 700 < 350 else replace(one, decision=replace(one.decision, interaction=by(one, "m@2")))
        for number, one in enumerate(traffic(START, 10, seed=2))
    ]
    seen = watched(tmp_path, answers)
    (alarm,) = [one for one in seen.windows()[-1].alarms if one.code is Code.MODEL_CHANGED]
    assert "m@2" in alarm.message and alarm.examples[-1] == "i-00699"
    later = END + timedelta(days=3)
    windows = compute_windows(seen.inputs(later), [], PARAMS, later)
    assert [Code.FEED_SILENT in {alarm.code for alarm in one.alarms} for one in windows] == [False, True]


def test_a_feed_that_died_before_a_new_version_had_a_window_is_alarmed(tmp_path: Path) -> None:
    new = traffic(START + timedelta(days=10), 1, version="v1.1.0", seed=3)
    seen = watched(tmp_path, [*traffic(START, 10, seed=2), *(replace(one, decision=renamed(one)) for one in new)])
    later = END + timedelta(days=5)
    windows = compute_windows(seen.inputs(later), [], PARAMS, later)
    assert {one.version for one in windows} == {"v1.0.0"}
    assert [Code.FEED_SILENT in {alarm.code for alarm in one.alarms} for one in windows] == [False, True]


def by(one: GateAnswer, model: str) -> Interaction:
    assert one.decision.interaction
    return one.decision.interaction.model_copy(update={"model": model})
