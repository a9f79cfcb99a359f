from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self
from zlib import crc32

import numpy as np
import pytest
import torch

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.data.decision_log import queries
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.monitoring_windows import MonitoringWindow
from abstain.data.store.dataset import DataStore
from abstain.llm.features.extraction import FeatureSource
from abstain.monitoring.answer_source import LoggedAnswers
from abstain.monitoring.live_guarantee import GuaranteedTarget
from abstain.monitoring.reviewed_decisions import join_reviews
from abstain.monitoring.run import FINAL_AFTER, MonitoredVersion, MonitoringInputs, compute_windows
from abstain.monitoring.traffic import read_traffic
from tests.checkout import shipped_params
from tests.data.decision_log.builders import url_of
from tests.factories import interaction
from tests.llm.builders import save_tiny_model
from tests.monitoring.builders import PARAMS, GateAnswer, traffic, write_data, write_log

pytestmark = pytest.mark.heavy

START = datetime(2026, 11, 2, tzinfo=UTC)
END = START + timedelta(days=10, minutes=10)
GUARANTEED = MonitoredVersion("v1.0.0", GuaranteedTarget("precision", 0.9), shipped_params().llm)


@dataclass
class WordCounts:
    """`run.AnswerSource` that embeds texts as word counts.

    `cached` is the share of the answers with states, `moved` those whose states differ. Of answers before
    `pruned_until`, only the latter have states.
    """

    database: LogDatabase
    cached: float = 0.0
    moved: frozenset[str] = frozenset()
    pruned_until: datetime = START
    embedded: list[str] = field(default_factory=list)

    def interactions(self, ids: Sequence[str]) -> Mapping[str, Interaction]:
        return queries.read_interactions(self.database, ids)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.embedded += texts
        counts = np.zeros((len(texts), 64), np.float32)
        for row, text in zip(counts, texts, strict=True):
            np.add.at(row, [crc32(word.encode()) % 64 for word in text.split()], 1)
        return counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1)

    def states(self, llm: LLMParams, rows: Sequence[Interaction]) -> tuple[np.ndarray, np.ndarray]:
        if not self.cached:
            raise AbstainError(Code.NO_MODEL, "no such model here")
        rng = np.random.default_rng(0)
        is_old = np.array([row.asked_at < self.pruned_until for row in rows], bool)
        is_moved = np.array([row.interaction_id in self.moved for row in rows], bool)
        has_states = (rng.random(len(rows)) < self.cached) & (is_moved | ~is_old)
        values = rng.normal(size=(len(rows), 8)) + 3.0 * is_moved[:, None]
        return has_states, values[has_states]


@dataclass(frozen=True)
class Log:
    database: LogDatabase
    folder: Path

    @classmethod
    def write(cls, folder: Path, answers: Sequence[GateAnswer], reviewed: Sequence[GateAnswer] | None = None) -> Self:
        """Log answers, and write those with reviews, by default the same, as data/."""
        write_log(url_of(folder), answers)
        write_data(folder / "data", answers if reviewed is None else reviewed)
        return cls(LogDatabase.open(url_of(folder)), folder)

    def read_inputs(
        self, now: datetime = END, known: frozenset[str] | None = None, states_since: datetime = START, **source: object
    ) -> MonitoringInputs:
        read = read_traffic(self.database, now)
        reviewed = join_reviews(DataStore(self.folder / "data"), read, shipped_params().labels)
        words = WordCounts(self.database, **source)
        return MonitoringInputs(read, reviewed, known, {"v1.0.0": GUARANTEED}, words, states_since)

    def compute(self, now: datetime = END, **changes: object) -> list[MonitoringWindow]:
        return compute_windows(self.read_inputs(now, **changes), [], PARAMS, now)


@pytest.fixture(scope="module")
def ten_days(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """Two windows of five days each, between which nothing changes."""
    return Log.write(tmp_path_factory.mktemp("log"), traffic(START, 10, seed=2))


@pytest.fixture(scope="module")
def windows(ten_days: Log) -> list[MonitoringWindow]:
    return ten_days.compute()


def change(answer: GateAnswer, **fields: object) -> GateAnswer:
    """Change fields of the answer's interaction; an id changes the decision's as well."""
    interaction = answer.decision.interaction.model_copy(update=fields)
    decision = replace(answer.decision, interaction=interaction, interaction_id=interaction.interaction_id)
    return replace(answer, decision=decision)


def make_version(start: datetime, days: int) -> list[GateAnswer]:
    """Make the traffic of v1.1.0, with ids of its own."""
    answers = traffic(start, days, version="v1.1.0", seed=3)
    return [change(answer, interaction_id=f"new-{answer.decision.interaction_id}") for answer in answers]


def list_codes(window: MonitoringWindow) -> set[Code]:
    return {alarm.code for alarm in window.alarms}


def test_compute_windows_without_a_change_is_quiet(windows: list[MonitoringWindow]) -> None:
    first, second = (window.statistics for window in windows)
    assert [window.headline for window in windows] == ["Quiet", "Quiet"]
    assert (windows[1].start, windows[1].end) == (START + timedelta(days=5), START + timedelta(days=10))
    assert second.decisions == 350 and 0.6 < second.coverage < 0.8
    assert second.guarantee.reviews > second.precision.reviews > 80
    assert first.guarantee.reviews == first.precision.reviews, "only those that arrived by then"
    assert first.compared.contexts is None and second.compared.contexts.p_value > 0.05
    assert second.prediction_errors.windows == 1 and second.prediction_errors.mean_error < 0.06
    assert "A201" in second.compared.states.note


def test_compute_windows_does_not_compare_stored_ones_again(ten_days: Log, windows: list[MonitoringWindow]) -> None:
    inputs = ten_days.read_inputs()
    assert compute_windows(inputs, windows, PARAMS, END) == windows and inputs.source.embedded == []
    requested = compute_windows(inputs, windows, PARAMS, END, since=windows[1].start + timedelta(days=1))
    assert requested[-1] == windows[1] and inputs.source.embedded


def test_compute_windows_leaves_final_ones_unless_requested(ten_days: Log, windows: list[MonitoringWindow]) -> None:
    inputs, starts = ten_days.read_inputs(), [window.start for window in windows]
    later = windows[0].end + FINAL_AFTER
    stored = compute_windows(inputs, windows, PARAMS, later)
    assert [window.is_final for window in stored] == [True, False]
    assert [window.start for window in compute_windows(inputs, stored, PARAMS, later)] == starts[1:]
    assert [window.start for window in compute_windows(inputs, stored, PARAMS, later, since=START)] == starts
    assert compute_windows(inputs, [], PARAMS, windows[1].end + FINAL_AFTER) == []


def test_compute_windows_counts_later_reviews_of_young_ones(tmp_path: Path) -> None:
    answers = traffic(START, 5, seed=2)
    log = Log.write(tmp_path, answers, reviewed=answers[:100])
    before = log.compute()
    write_data(tmp_path / "data", answers)
    (after,) = compute_windows(log.read_inputs(), before, PARAMS, END)
    for name in ("reviewed_precision", "guarantee"):
        assert 20 < getattr(before[0].statistics, name).reviews < 60 and getattr(after.statistics, name).reviews > 80
    assert after.statistics.compared == before[0].statistics.compared


def test_compute_windows_incorrect_answers_violate_the_guarantee(tmp_path: Path) -> None:
    answers = traffic(START, 5, seed=2)
    for number, answer in enumerate(answers):
        if answer.review:
            verdict = answer.review.model_copy(update={"correct": number % 3 > 0})
            answers[number] = replace(answer, review=verdict)
    (window,) = Log.write(tmp_path, answers).compute()
    assert {Code.GUARANTEE_VIOLATED, Code.CALIBRATION_OFF} <= list_codes(window)
    assert window.statistics.guarantee.violated_on and window.statistics.guarantee.alpha == PARAMS.alpha
    incorrect = {answer.review.interaction_id for answer in answers if answer.review and not answer.review.correct}
    (examples,) = (alarm.examples for alarm in window.alarms if alarm.code is Code.GUARANTEE_VIOLATED)
    assert examples and set(examples) <= incorrect


def test_compute_windows_counts_reviews_by_version(tmp_path: Path) -> None:
    first = traffic(START, 5, seed=2)
    log = Log.write(tmp_path, [*first, *make_version(START + timedelta(days=5), 5)], reviewed=first)
    statistics = {window.version: window.statistics for window in log.compute()}
    assert statistics["v1.0.0"].guarantee.reviews > 80
    assert statistics["v1.1.0"].reviews == 0 and statistics["v1.1.0"].guarantee is None
    assert any("too few decisions" in note for note in statistics["v1.1.0"].notes)


def test_compute_windows_without_decisions_has_reviews(tmp_path: Path) -> None:
    answers = traffic(START, 5, seed=2)
    log = Log.write(tmp_path, answers)
    batches = (tmp_path / "data" / "batches.jsonl").read_text()
    (tmp_path / "data" / "batches.jsonl").write_text(batches.replace("2026-11-0", "2026-11-1"))  # ten days late
    now = END + timedelta(days=10)
    params = PARAMS.model_copy(update={"min_reviews": 150})
    *_, window = compute_windows(log.read_inputs(now), [], params, now)
    assert window.statistics.decisions == 0 and window.statistics.coverage is None
    assert window.statistics.precision.reviews > 80 and window.statistics.expected is None
    assert list_codes(window) <= {Code.FEED_SILENT}


def test_compute_windows_unknown_chunks_raise_an_alarm(ten_days: Log) -> None:
    answers = traffic(START, 10, seed=2)
    chunks = sorted({context.chunk_id for answer in answers for context in answer.decision.interaction.contexts})
    for known, is_raised in ((chunks, False), (chunks[::2], True)):
        assert (Code.UNKNOWN_CHUNKS in list_codes(ten_days.compute(known=frozenset(known))[-1])) is is_raised


@pytest.mark.parametrize(("cached", "first", "is_raised"), [(0.8, 350, True), (0.8, 700, False), (0.02, 350, False)])
def test_windows_judge_states_if_enough_cached(ten_days: Log, cached: float, first: int, is_raised: bool) -> None:
    moved = frozenset(f"i-{number:05}" for number in range(first, 700))
    window = ten_days.compute(cached=cached, moved=moved)[-1]
    assert (Code.STATE_DRIFT in list_codes(window)) is is_raised


def test_compute_windows_ignores_states_before_the_pruning(ten_days: Log) -> None:
    """The states that the pruning has left are those of other kinds of answers."""
    pruned, moved = START + timedelta(days=4), frozenset(f"i-{number:05}" for number in range(0, 700, 3))
    p_values = []
    for since in (pruned, START):
        window = ten_days.compute(states_since=since, cached=1.0, moved=moved, pruned_until=pruned)[-1]
        p_values.append(window.statistics.compared.states.p_value)
    assert p_values[0] > PARAMS.alpha > p_values[1]


def test_compute_windows_new_model_and_silence_raise_alarms(tmp_path: Path) -> None:
    """All answers of the new model are from one document, which says nothing of drift."""
    first, *_ = answers = traffic(START, 10, seed=2)
    contexts = first.decision.interaction.contexts
    answers[350:] = [change(answer, model="m@2", contexts=contexts) for answer in answers[350:]]
    log = Log.write(tmp_path, answers)
    windows = log.compute(END + timedelta(days=3))
    assert [Code.FEED_SILENT in list_codes(window) for window in windows] == [False, True]
    (alarm,) = [alarm for alarm in windows[1].alarms if alarm.code is Code.MODEL_CHANGED]
    assert "m@2" in alarm.message and alarm.examples[-1] == "i-00699"
    statistics = windows[1].statistics
    assert statistics.compared.contexts is None and Code.INPUT_DRIFT not in list_codes(windows[1])
    assert any("too few answers or documents" in note for note in statistics.notes)


def test_compute_windows_silence_before_a_new_versions_window(tmp_path: Path) -> None:
    log = Log.write(tmp_path, [*traffic(START, 10, seed=2), *make_version(START + timedelta(days=10), 1)])
    windows = log.compute(END + timedelta(days=5))
    assert {window.version for window in windows} == {"v1.0.0"}
    assert [Code.FEED_SILENT in list_codes(window) for window in windows] == [False, True]


def test_states_are_means_over_tokens_of_cached_answers(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "tiny-bank")
    settings = Settings(home=tmp_path / "home", device="cpu", dtype="float32")
    llm = shipped_params().llm.model_copy(update={"model": str(model), "layer": 1, "layout": "rag-plain-v1"})
    rows = [interaction(f"i-{n}", answer=text) for n, text in enumerate(("fee", "no fee", "the card has no fee"))]
    source = FeatureSource(llm, settings)
    with closing(LogDatabase.open(url_of(tmp_path))) as database:
        is_cached, states = LoggedAnswers(database, settings).states(llm, rows)
        assert not is_cached.any() and len(states) == 0
        source.compute_missing([rows[0], rows[2]])
        is_cached, states = LoggedAnswers(database, settings).states(llm, rows)
    assert is_cached.tolist() == [True, False, True]
    expected = {index: torch.mean(row.float(), dim=0).numpy() for index, row in source.read([rows[0], rows[2]])}
    np.testing.assert_allclose(states, [expected[0], expected[1]], rtol=1e-6)
    assert source.count_missing(rows) == 1
