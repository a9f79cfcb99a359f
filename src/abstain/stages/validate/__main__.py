"""DVC stage `validate`: all accepted rows, against the Great Expectations suites, as of the newest batch."""

from dataclasses import replace

from abstain.config.params import Params
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import DataStore
from abstain.data.validation.drift import validate_drift
from abstain.data.validation.results import ValidationResult
from abstain.data.validation.store_validation import validate_store
from abstain.stages.shared import artifacts


def stage(params: Params) -> None:
    """Validate all accepted rows, and write the results.

    Raises:
        AbstainError: A check fails, or the record of the batches is missing.
    """
    store = DataStore(paths.DATA).require_interactions()
    batches = store.read_batches()
    if not batches:
        raise AbstainError(
            Code.DAMAGED_DATA, "data/batches.jsonl has no record of the rows' batches: restore it with `dvc checkout`"
        )
    as_of = max(batch.arrived_at for batch in batches)
    drift = validate_drift([batch.profile for batch in batches], params.quality)
    rows = replace(validate_store(store, params.validation, as_of), as_of=as_of.isoformat())
    result = ValidationResult.merge([rows, drift])
    # Written even if it fails: the page about a failed run is made from it.
    artifacts.write_json(paths.VALIDATION, result.to_dict())
    if not result.success:
        raise AbstainError(
            Code.FAILED_CHECK,
            f"{result.n_failed_rows} rows of data/ fail validation, {result.describe_first_failure()}",
        )


if __name__ == "__main__":
    artifacts.run_stage(stage)
