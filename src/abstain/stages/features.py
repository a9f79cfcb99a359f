"""DVC stage `features`: all that is asked of the base model about the labelled answers, in one fill.

What comes out is the table of the states that the served probe listens to, and a table of the scorers' signals. The
rest (where else a probe might listen, answers changed for the audits) waits in the cache for the stages that need it.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from abstain import paths
from abstain.contracts import Interaction
from abstain.errors import AbstainError
from abstain.features.extract import FeatureSource, Refused
from abstain.feedback.splits import reviewed_holdout
from abstain.feedback.store import Store
from abstain.files import write_atomically
from abstain.params import Params
from abstain.scorers.asked import everything, served
from abstain.scorers.base import Scorer
from abstain.scorers.catalogue import compared
from abstain.scorers.labels import Labels
from abstain.scorers.reading import fill, forward_tokens, read_answers, readings_of
from abstain.scorers.variants import VARIANTS
from abstain.settings import load_settings
from abstain.stages import common


def stage(params: Params) -> None:
    frame, settings = common.read_dataset_frame(), load_settings()
    rows = Store(paths.DATA).interactions(frame["interaction_id"])
    source = FeatureSource(params.llm, settings)
    refused: dict[str, str] = {}
    shortened: dict[str, int] = {}
    for row in rows:
        prepared = source.prepare(row)
        if isinstance(prepared, Refused):
            refused[row.interaction_id] = prepared.reason
            print(f"refused: interaction {row.interaction_id}: {prepared.reason}", flush=True)
        elif prepared.dropped:
            shortened[row.interaction_id] = prepared.dropped
    if len(refused) == len(rows):
        raise AbstainError("no answer fits the base model's window: take a model that reads more, or retrieve less")
    found = compared(params, settings)
    for name, why in found.skipped.items():
        print(f"skipped: scorer {name}: {why}", flush=True)
    holdout = reviewed_holdout(frame, rows)
    cost = fill(params.llm, settings, everything(params, found.scorers, rows, holdout), common.progress)
    print(
        f"{cost.rows} results were not in the cache: {cost.forward_tokens} tokens were run for passes of "
        f"{cost.pass_tokens}",
        flush=True,
    )
    source.save(rows, paths.FEATURES)
    fitted = _fitted(params, found.scorers, frame, rows)
    tables = [_signals(params, fitted, "asked", rows)]
    tables += [_signals(params, fitted, name, variant(holdout)) for name, variant in VARIANTS.items()]
    write_atomically(paths.SIGNALS, pd.concat(tables, ignore_index=True).to_parquet(index=False))
    probe = (served(params).reading,)
    costs = {one.name: one.readings for one in found.scorers} | {"probe": probe}
    costs["fusion"] = (*probe, *readings_of(found.scorers))
    common.write_json(
        paths.FEATURES_SUMMARY,
        {
            "rows": len(rows) - len(refused),
            "refused": refused,
            "chunks_dropped": shortened,
            "skipped_scorers": dict(found.skipped),
            "forward_tokens": {
                name: forward_tokens(params.llm, settings, rows, readings) for name, readings in costs.items()
            },
        },
    )


def _fitted(
    params: Params, scorers: Sequence[Scorer], frame: pd.DataFrame, rows: Sequence[Interaction]
) -> list[Scorer]:
    """`scorers`, those fitted that have something to fit: to the training answers."""
    train = np.flatnonzero(frame["split"] == "train")
    columns = (frame.iloc[train][name].to_numpy() for name in ("correct", "weight", "group"))
    labels = Labels(*columns)
    answers = read_answers(params.llm, load_settings(), [rows[at] for at in train.tolist()], readings_of(scorers))
    return [one.fit(answers, labels) for one in scorers]


def _signals(params: Params, scorers: Sequence[Scorer], variant: str, rows: Sequence[Interaction]) -> pd.DataFrame:
    """A row an answer, a column a scorer."""
    answers = read_answers(params.llm, load_settings(), rows, readings_of(scorers))
    named = {"interaction_id": [row.interaction_id for row in rows], "variant": variant}
    return pd.DataFrame(named | {one.name: one.score(answers) for one in scorers})


if __name__ == "__main__":
    common.run(stage)
