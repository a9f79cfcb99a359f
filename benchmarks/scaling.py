"""What a retrain costs as data grows: `python -m benchmarks.scaling`.

Notes:

* A warm run is compared with a cold one by tokens run through the base model, which do not depend on the load.
* The cost of everything but the base model (keys, cache, table) is measured at sizes up to 100,000 interactions, with
  random states.
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
from benchmarks.rows import LAYOUT, Row, add_options, repeated, unrelated

ANSWER_TOKENS = 8


class Drawn:
    """Writes random states, so that the cost of everything but the base model remains."""

    def __init__(self, settings: Settings, width: int) -> None:
        self._store = FileStore(settings.features)
        self._row = torch.randn(ANSWER_TOKENS, width).bfloat16()

    def run(self, shards: Iterable[ShardJob]) -> Iterator[JobStats]:
        for work in shards:
            rows = {row_key(request): self._row for request in work.requests}
            write_rows(self._store, work.space(work.requests[0].operation), dict(sorted(rows.items())))
            yield JobStats(len(rows), 0, 0)


def interactions(rows: Iterable[Row]) -> list[Interaction]:
    """`rows` as a team's data would have them."""
    now = datetime.now(UTC)
    return [
        Interaction(
            interaction_id=f"i-{at}",
            asked_at=now,
            question=row.question,
            answer=row.answer,
            contexts=tuple(Context(chunk_id=f"d-{at}#{n}", text=text) for n, text in enumerate(row.contexts)),
            model="m@1",
        )
        for at, row in enumerate(rows)
    ]


def at(folder: Path, **changes: object) -> Settings:
    """This machine's settings, with a feature cache of its own."""
    return load_settings().model_copy(update={"features_url": str(folder), **changes})


def warm(llm: LLMParams, folder: Path, rows: list[Interaction]) -> str:
    """Benchmark 6: forward tokens of a retrain with 1 % new interactions, against the first."""
    source = FeatureSource(llm, at(folder))
    new = max(len(rows) // 101, 1)
    cold, again = source.compute_missing(rows[:-new]), source.compute_missing(rows)
    share = again.forward_tokens / cold.forward_tokens
    return (
        f"{cold.rows} interactions: {cold.forward_tokens:,} tokens run; {again.rows} new ones: "
        f"{again.forward_tokens:,}, {share:.2%} of that"
    )


def sizes(llm: LLMParams, folder: Path, rows: list[Row], counts: Iterable[int], width: int) -> Iterator[str]:
    """Benchmark 7: what an interaction costs but for the base model, in CPU time."""
    for count in counts:
        settings = at(folder / f"rows-{count}")
        rounds = range(count // len(rows) + 1)
        many = interactions(Row(row.contexts, f"{row.question} ({n})", row.answer) for n in rounds for row in rows)
        source, table = FeatureSource(llm, settings), folder / "table.npy"
        start = time.process_time()
        source.compute_missing(many[:count], runner=Drawn(settings, width))
        source.save(many[:count], table)
        yield f"| {count:,} | {1000 * (time.process_time() - start) / count:.2f} |"
        table.unlink()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling")
    add_options(parser)
    parser.add_argument("--rows", type=int, default=505, help="interactions that the base model really reads")
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--width", type=int, default=576, help="of the states that are drawn")
    asked = parser.parse_args(arguments)
    llm = LLMParams(model=asked.model, layout=LAYOUT, layer=16, site="residual", too_long="refuse", includes_eos=True)
    rows = repeated(asked.squad, asked.rows, questions=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(warm(llm, folder / "warm", interactions(rows)), flush=True)
        print("\n| interactions | CPU ms for each, the base model left out |\n| --: | --: |", flush=True)
        for line in sizes(llm, folder, unrelated(asked.squad, 64), asked.sizes, asked.width):
            print(line, flush=True)


if __name__ == "__main__":
    main()
