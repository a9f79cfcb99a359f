"""DVC stage `dataset`: one label an answer, and the split it belongs to; the table is validated before it is used."""

import pandas as pd

from abstain import paths
from abstain.config.params import Params, QualityParams
from abstain.contracts import Interaction
from abstain.errors import AbstainError
from abstain.feedback.dataset import training_table
from abstain.feedback.frames import read_frames
from abstain.feedback.pages.validation import validation_page
from abstain.feedback.quality import text_digests, validate_training
from abstain.feedback.store import Store
from abstain.files import write_atomically
from abstain.stages import common


def stage(params: Params) -> None:
    store = Store(paths.DATA).require_interactions()
    frames = read_frames(store)
    frame, summary = training_table(frames.interactions, frames.feedback, frames.reviews, params.labels, params.split)
    require_quality(frame, store, params.quality)
    write_atomically(paths.DATASET, frame.to_parquet(index=False))
    common.write_json(paths.DATASET_SUMMARY, summary)


def require_quality(frame: pd.DataFrame, store: Store, params: QualityParams) -> None:
    """Write what the table's suites found, and the page about it. Raises `AbstainError` where one of them fails."""
    result = validate_training(frame, text_digests(store.rows(Interaction)), params)
    found = {**result.to_dict(), "markdown": result.to_markdown("Training table")}
    common.write_json(paths.QUALITY, found)
    rows = common.read_json(paths.VALIDATION)
    common.write_text(paths.VALIDATION_PAGE, validation_page([rows, found], f"data as of {rows['as_of']}"))
    if not result.success:
        raise AbstainError(f"the training table fails validation, {result.first_failure()}")


if __name__ == "__main__":
    common.run(stage)
