"""The parameters of a full comparison: params.yaml with the keys of params.full.yaml in place of its own."""

from pathlib import Path

import yaml

from abstain.config.params import Params
from tasks.run_params import replace_keys

ROOT = Path(__file__).parents[1]


def full_params() -> Params:
    """All scorers, sweeps, audits and regressors."""
    content = yaml.safe_load((ROOT / "params.yaml").read_text())
    replace_keys(content, yaml.safe_load((ROOT / "params.full.yaml").read_text()))
    return Params.model_validate(content)
