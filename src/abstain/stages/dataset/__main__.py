"""DVC stage `dataset`: the training table, one label and split per answer, validated before it is used."""

from abstain.config.params import Params
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.data.labels.training_table import read_training_table
from abstain.data.store.dataset import DataStore
from abstain.data.validation.quality import compute_text_digests, validate_training
from abstain.stages.shared import artifacts


def stage(params: Params) -> None:
    """Build and validate the training table.

    Args:
        params: All parameters.

    Raises:
        AbstainError: A check fails.
    """
    store = DataStore(paths.DATA).require_interactions()
    frame, card = read_training_table(store, params.labels, params.split)
    digests = compute_text_digests(store.iter_rows(Interaction))
    result = validate_training(
        frame, digests, card.near_duplicates.left_out, card.contradicting.messages, params.quality
    )
    artifacts.write_json(paths.QUALITY, result.to_dict())
    if not result.success:
        raise AbstainError(Code.LOW_QUALITY, f"the training table fails validation, {result.describe_first_failure()}")
    write_atomically(paths.DATASET, frame.to_parquet(index=False))
    artifacts.write_json(paths.DATASET_SUMMARY, card.to_dict())


if __name__ == "__main__":
    artifacts.run_stage(stage)
