"""DVC stage `validate`: everything that was accepted, against the Great Expectations suites, as of its newest row."""

from abstain import paths
from abstain.errors import AbstainError
from abstain.feedback.store import read_dataset, require_interactions
from abstain.feedback.validation import validate
from abstain.params import Params
from abstain.stages import common


def stage(params: Params) -> None:
    data = require_interactions(read_dataset(paths.DATA))
    result = validate(data, params.validation, now=data.newest())
    if not result.success:
        key, reasons = next(iter(sorted(result.reasons.items())))
        raise AbstainError(f"{len(result.reasons)} rows of data/ fail validation, {key} first: {'; '.join(reasons)}")
    common.write_json(paths.VALIDATION, {**result.to_dict(), "markdown": result.to_markdown()})


if __name__ == "__main__":
    common.run(stage)
