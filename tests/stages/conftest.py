import importlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

from abstain.config.params import Params
from abstain.core import paths
from abstain.data.store.splits import select_reviewed
from abstain.stages.shared import artifacts
from abstain.stages.shared.states import load_labelled_states
from tests.conftest import ROOT
from tests.llm.builders import save_speaking_model
from tests.stages.builders import bank_params, ingest_bank

torch.set_num_threads(1)  # tiny models: more threads only wait for each other

_DVC = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
STAGES: dict[str, dict] = _DVC["stages"]
PLOTS: list[dict[str, dict]] = _DVC["plots"]


@dataclass(frozen=True)
class Finished:
    """A folder in which stages have run, and what they ran with; to be copied, not to be changed."""

    root: Path
    home: Path
    params: Params


def use_home(patch: pytest.MonkeyPatch, home: Path) -> None:
    """The environment of a machine whose caches are in `home`, with arithmetic that others can repeat."""
    for name in ("ABSTAIN_FEATURES", "ABSTAIN_RUNNER", "ABSTAIN_BATCH_TOKENS"):
        patch.delenv(name, raising=False)
    for name, value in {"HOME": str(home), "DEVICE": "cpu", "DTYPE": "float32"}.items():
        patch.setenv(f"ABSTAIN_{name}", value)


def change(params: Params, section: str, **values: object) -> Params:
    return params.model_copy(update={section: getattr(params, section).model_copy(update=values)})


def run_stages(params: Params, *names: str) -> None:
    for name in names:
        importlib.import_module(f"abstain.stages.{name}.__main__").stage(params)


def write_labels(where: str, **values: object) -> None:
    """Set columns of the current data set in the rows of the expression `where`."""
    frame = artifacts.read_dataset_frame()
    for name, value in values.items():
        frame.loc[frame.eval(where), name] = value
    frame.to_parquet(paths.DATASET, index=False)


def read_reviewed(split: str) -> pd.DataFrame:
    frame = artifacts.read_dataset_frame()
    return select_reviewed(frame[frame["split"] == split])


def read_readable(split: str) -> pd.DataFrame:
    """The reviewed answers that the base model could read."""
    frame, _ = load_labelled_states()
    return select_reviewed(frame[frame["split"] == split])


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A bank's workspace in which every stage but the report has run, in the order of dvc.yaml."""
    root = tmp_path_factory.mktemp("bank")
    params = bank_params(save_speaking_model(root / "tiny-bank"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        use_home(patch, root / "home")
        ingest_bank(params)
        run_stages(params, *(name for name in STAGES if name != "report"))
    return Finished(root, root / "home", params)


def enter_copy(finished: Finished, root: Path, patch: pytest.MonkeyPatch) -> None:
    """Make a copy of a workspace in `root` the current folder, with its feature cache."""
    for folder in (paths.DATA, paths.ARTIFACTS):
        shutil.copytree(finished.root / folder, root / folder)
    patch.chdir(root)
    use_home(patch, finished.home)


@pytest.fixture
def bank(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    enter_copy(finished, tmp_path, monkeypatch)
    return finished.params
