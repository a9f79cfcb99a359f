"""The parameters of a full comparison on the sample: those that are shipped, with the keys of params.full.yaml."""

from pathlib import Path

import yaml

from abstain.config.params import Params
from abstain.config.yaml_editor import parse_yaml, update_yaml
from abstain.core import paths
from abstain.sample.shipped import make_shipped_files

ROOT = Path(__file__).parents[1]


def full_params() -> Params:
    """Return the parameters with all scorers, sweeps, audits and regressors."""
    full = parse_yaml((ROOT / "params.full.yaml").read_text())
    return Params.model_validate(yaml.safe_load(update_yaml(make_shipped_files()[paths.PARAMS], full)))
