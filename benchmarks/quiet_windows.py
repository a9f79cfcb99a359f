"""How often the monitoring raises an alarm although nothing has changed: `python -m benchmarks.quiet_windows`.

Logs of decisions about the sample, asked again and again in a random order, with reviews of half of them; windows of
five days as the flow judges them, texts embedded by the sentence encoder. The first window of a log has nothing before
it and is left out. Hidden states are not in it: no base model reads.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from abstain.config.params import load_params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.data.decision_log.database import LogDatabase
from abstain.data.decision_log.monitoring_windows import MonitoringWindow
from abstain.data.store.dataset import DataStore
from abstain.monitoring.answer_source import LoggedAnswers
from abstain.monitoring.live_guarantee import GuaranteedTarget
from abstain.monitoring.reviewed_decisions import join_reviews
from abstain.monitoring.run import MonitoredVersion, MonitoringInputs, compute_windows
from abstain.monitoring.traffic import read_traffic
from tests.monitoring.builders import PARAMS, traffic, write_data, write_log

START = datetime(2026, 11, 2, tzinfo=UTC)
DAYS = 30


def make_windows(folder: Path, seed: int) -> Sequence[MonitoringWindow]:
    """Return the monitored windows of one log, made in `folder`."""
    answers, now = traffic(START, DAYS, seed=seed), START + timedelta(days=DAYS, minutes=10)
    url, params = f"sqlite:///{folder / 'log.sqlite'}", load_params(paths.PARAMS)
    write_log(url, answers)
    write_data(folder / "data", answers)
    with closing(LogDatabase.open(url)) as database:
        traffic_read = read_traffic(database, now)
        reviewed = join_reviews(DataStore(folder / "data"), traffic_read, params.labels)
        version = MonitoredVersion("v1.0.0", GuaranteedTarget("precision", 0.9), params.llm)
        source = LoggedAnswers(database, load_settings())
        inputs = MonitoringInputs(traffic_read, reviewed, None, {version.name: version}, source, START)
        return compute_windows(inputs, [], PARAMS, now)[1:]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    alarms, windows, n_quiet = Counter[str](), 0, 0
    for seed in range(parser.parse_args(arguments).seeds):
        with tempfile.TemporaryDirectory() as folder:
            for window in make_windows(Path(folder), seed):
                windows, n_quiet = windows + 1, n_quiet + (not window.alarms)
                alarms.update(f"{alarm.code} {alarm.kind}" for alarm in window.alarms)
    print(
        f"{windows} windows in which nothing changed, {n_quiet / windows:.0%} without any alarm; alarms in 100 windows:"
    )
    for kind, count in sorted(alarms.items()):
        print(f"{kind:32} {100 * count / windows:.1f}")


if __name__ == "__main__":
    main()
