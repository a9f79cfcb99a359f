"""The fan-out on Dask: the bytes are those of one process, and a worker that dies costs the shard that it was at."""

from __future__ import annotations

import contextvars
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from abstain.config.settings import Settings
from abstain.core.errors import AbstainError
from abstain.llm.features.extraction import FeatureSource
from abstain.llm.features.shard_job import LocalRunner, ShardJob
from tasks.fan_out import runner_for
from tasks.stopping import Stopped, stopping_together
from tests.fan_out import contents, rows, shards, source_in
from tests.llm.builders import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny-bank")


@pytest.fixture
def source(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureSource:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return source_in(tmp_path / "dask", model, runner="dask", workers=2)


def test_only_what_is_asked_for_is_imported(tmp_path: Path) -> None:
    runner = runner_for(Settings(home=tmp_path))
    assert isinstance(runner, LocalRunner)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_one_line_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delitem(sys.modules, "tasks.fan_out.on_dask", raising=False)
    with pytest.raises(AbstainError, match=r'^ABSTAIN_RUNNER=dask needs .* `pip install "abstain\[dask\]"`$'):
        runner_for(Settings(home=tmp_path, runner="dask"))


@pytest.mark.slow
def test_a_killed_worker_costs_one_shard_and_the_bytes_are_those_of_one_process(
    source: FeatureSource, model: Path, tmp_path: Path
) -> None:
    alone = source_in(tmp_path / "local", model)
    alone.compute_missing(rows(5 * 64))
    seen: list[tuple[int, int]] = []
    before: dict[str, tuple[bytes, int]] = {}

    def kill_one(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 2 * 64:
            before.update(shards(source))
            os.kill(workers()[0].pid, signal.SIGKILL)

    wrong = replace(next(source.shards(rows(3))), revision="tiny-bank@0")
    with closing(runner_for(source.settings)) as runner:
        cost = source.compute_missing(rows(5 * 64), kill_one, runner)
        with pytest.raises(
            AbstainError, match=r"^the shard wants tiny-bank@0, but this machine has tiny-bank@\w+: fetch"
        ):
            list(runner.run([wrong]))
    assert seen == [(64 * n, 5 * 64) for n in range(6)] and cost.rows == 5 * 64
    after = shards(source)
    assert len(before) >= 2 and before.items() <= after.items()  # not written again: the time is in it, too
    assert contents(source) == contents(alone)
    assert [path.name for path in Path(source.settings.features).iterdir()] == [source.space().digest]
    assert workers() == []
    assert logging.getLogger("distributed").level == logging.CRITICAL


@pytest.mark.slow
def test_a_stopped_run_leaves_no_worker(source: FeatureSource) -> None:
    works = list(source.shards(rows(4 * 64)))
    single = source.settings.model_copy(update={"workers": 1})

    def run() -> None:
        with closing(runner_for(single)) as runner:
            list(runner.run(works))

    with ThreadPoolExecutor() as threads:
        with pytest.raises(KeyboardInterrupt), stopping_together():
            at_work = threads.submit(contextvars.copy_context().run, run)
            while not workers():
                assert not at_work.done(), at_work.exception()
                time.sleep(0.1)
            raise KeyboardInterrupt
        with pytest.raises(Stopped):
            at_work.result(100)
    assert workers() == []


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer_is_one_line(source: FeatureSource) -> None:
    import dask

    nowhere = source.settings.model_copy(update={"dask_scheduler": "tcp://127.0.0.1:9"})
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        closing(runner_for(nowhere)) as runner,
        pytest.raises(AbstainError, match=r"^no Dask scheduler answers at tcp://127.0.0.1:9: .*ABSTAIN_DASK_SCHEDULER"),
    ):
        list(runner.run([]))


@pytest.mark.slow
def test_a_cluster_that_runs_takes_a_shard_for_each_gpu_and_not_all_at_once(
    source: FeatureSource, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import LocalCluster

    monkeypatch.setenv("ABSTAIN_DEVICE", "cpu")
    drawn: list[int] = []

    def draw(works: list[ShardJob]) -> Iterator[ShardJob]:
        for n, work in enumerate(works):
            drawn.append(n)
            yield work

    works = list(source.shards(rows(5 * 64)))
    with LocalCluster(
        n_workers=1, threads_per_worker=4, processes=False, resources={"GPU": 1}, dashboard_address=None
    ) as cluster:
        there = source.settings.model_copy(update={"dask_scheduler": cluster.scheduler_address})
        with closing(runner_for(there)) as runner:
            found = runner.run(draw(works))
            assert next(found).rows == 64 and len(drawn) == 2
            assert len(list(found)) == 4
        assert source.missing(rows(5 * 64)) == 0


def workers() -> list[psutil.Process]:
    """The workers that this process has started."""
    found = []
    for child in psutil.Process().children():
        try:
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found
