"""Cost of a retrain as data grows: `python -m benchmarks.scaling`.

Notes:

* A warm run is compared with a cold one by tokens run through the base model, which do not depend on the load.
* The cost of everything except the base model (keys, cache, table) is measured at sizes up to 100,000 interactions,
  with random states.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from abstain.config.params import LLMParams
from abstain.config.settings import Settings, load_settings
from abstain.core.contracts import Context, Interaction
from abstain.llm.features.cache import write_rows
from abstain.llm.features.extraction import FeatureSource
from abstain.llm.features.file_store import FileStore
from abstain.llm.features.shard_job import JobStats, ShardJob, row_key
from benchmarks.rows import LAYOUT, Row, add_options, read_repeated, read_unrelated

ANSWER_TOKENS = 8


class RandomStates:
    """Writes random states, so that the cost of everything except the base model remains."""

    def __init__(self, settings: Settings, width: int) -> None:
        self._store = FileStore(settings.features)
        self._row = torch.randn(ANSWER_TOKENS, width).bfloat16()

    def run(self, shards: Iterable[ShardJob]) -> Iterator[JobStats]:
        for work in shards:
            rows = {row_key(request): self._row for request in work.requests}
            write_rows(self._store, work.get_namespace(work.requests[0].operation), dict(sorted(rows.items())))
            yield JobStats(len(rows), 0, 0)


def make_interactions(rows: Iterable[Row]) -> list[Interaction]:
    """Return `rows` as interactions of a user's data."""
    now = datetime.now(UTC)
    return [
        Interaction(
            interaction_id=f"i-{index}",
            asked_at=now,
            question=row.question,
            answer=row.answer,
            contexts=tuple(Context(chunk_id=f"d-{index}#{n}", text=text) for n, text in enumerate(row.contexts)),
            model="m@1",
        )
        for index, row in enumerate(rows)
    ]


def make_settings(folder: Path, **changes: object) -> Settings:
    """Return this machine's settings with a feature cache of its own."""
    return load_settings().model_copy(update={"features_url": str(folder), **changes})


def measure_warm_run(llm: LLMParams, folder: Path, rows: list[Interaction]) -> str:
    """Measure benchmark 6: forward tokens of a retrain with 1 % new interactions, against the first."""
    source = FeatureSource(llm, make_settings(folder))
    n_new = max(len(rows) // 101, 1)
    cold, warm = source.compute_missing(rows[:-n_new]), source.compute_missing(rows)
    share = warm.forward_tokens / cold.forward_tokens
    return (
        f"{cold.rows} interactions: {cold.forward_tokens:,} tokens run; {warm.rows} new ones: "
        f"{warm.forward_tokens:,}, {share:.2%} of that"
    )


def measure_sizes(llm: LLMParams, folder: Path, rows: list[Row], counts: Iterable[int], width: int) -> Iterator[str]:
    """Measure benchmark 7: CPU time of an interaction without the base model."""
    for count in counts:
        settings = make_settings(folder / f"rows-{count}")
        rounds = range(count // len(rows) + 1)
        many = make_interactions(Row(row.contexts, f"{row.question} ({n})", row.answer) for n in rounds for row in rows)
        source, table = FeatureSource(llm, settings), folder / "table.npy"
        start = time.process_time()
        source.compute_missing(many[:count], runner=RandomStates(settings, width))
        source.save(many[:count], table)
        yield f"| {count:,} | {1000 * (time.process_time() - start) / count:.2f} |"
        table.unlink()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling")
    add_options(parser)
    parser.add_argument("--rows", type=int, default=505, help="interactions that the base model really reads")
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--width", type=int, default=576, help="of the states that are drawn")
    options = parser.parse_args(arguments)
    llm = LLMParams(model=options.model, layout=LAYOUT, layer=16, site="residual", too_long="refuse", includes_eos=True)
    rows = read_repeated(options.squad, options.rows, questions=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(measure_warm_run(llm, folder / "warm", make_interactions(rows)), flush=True)
        print("\n| interactions | CPU ms for each, the base model left out |\n| --: | --: |", flush=True)
        for line in measure_sizes(llm, folder, read_unrelated(options.squad, 64), options.sizes, options.width):
            print(line, flush=True)


if __name__ == "__main__":
    main()
