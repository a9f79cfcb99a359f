"""A retrain's stages, up to the evaluation, for a study: under its own parameters, in a folder of the home.

Nothing of a project's history, registry or release changes. DVC, with the cache of the project's own runs, runs only
what has changed, and a run that was stopped continues after the last finished stage; what the base model has read is in
the feature cache.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from abstain.config.params import Params, load_params
from abstain.config.settings import Settings
from abstain.config.yaml_model import validate_yaml
from abstain.core import paths
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.llm.features.feature_store import OnProgress
from abstain_tasks.runs.shell import run
from abstain_tasks.runs.workspace import hold_lock
from abstain_tasks.training.pipeline import PROGRESS
from studies.leaderboard.sources import AnswerSource
from studies.study import Part

ROOT = Path(__file__).parents[2]
CODE = ("src/abstain", "studies/leaderboard", "studies/activation_probe")
LAST = "evaluate"
"""The stage before the report of a retrain."""
DVC_CONFIG = """[core]
    no_scm = true
    analytics = false
    check_update = false
[cache]
    dir = {cache}
"""


@dataclass
class StageWorkspace:
    """The folder in which the stages run.

    Attributes:
        source: The answers.
        text: Content of params.yaml.
        settings: Settings of this machine.
    """

    source: AnswerSource
    text: str
    settings: Settings
    _failure: AbstainError | None = field(default=None, init=False)
    _is_done: bool = field(default=False, init=False)

    @property
    def folder(self) -> Path:
        """The folder, in the home."""
        return self.settings.home.resolve() / "studies" / "workspaces" / self.source.name

    @property
    def params(self) -> Params:
        """The parsed parameters."""
        return validate_yaml(yaml.safe_load(self.text), paths.PARAMS, Params)

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """Everything that the stages depend on, as JSON. Raises `AbstainError` if there are no answers."""
        code = hashlib.sha256()
        for folder in CODE:
            for file in sorted((ROOT / folder).rglob("*.py")):
                code.update(file.read_bytes())
        return {
            "answers": self.source.describe(),
            "params": self.params.model_dump(mode="json"),
            "code": code.hexdigest(),
        }

    @contextmanager
    def open(self, progress: OnProgress) -> Iterator[Params]:
        """Run the stages that are to be run, and run the block in their folder.

        Args:
            progress: Called with the progress of a stage.

        Yields:
            The parameters.

        Raises:
            AbstainError: a stage failed, also in an earlier call.
        """
        if self._failure:
            raise self._failure
        with hold_lock(self.folder.with_name(f"{self.folder.name}.lock")):
            try:
                if not self._is_done:
                    self._prepare()
                    self._run(progress)
                    self._is_done = True
            except AbstainError as error:
                self._failure = error
                raise
            with chdir(self.folder):
                yield load_params(paths.PARAMS)

    def _prepare(self) -> None:
        """Bring code, parameters and answers of the folder up to date."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("dvc.yaml", ".dvcignore"):
            shutil.copy(ROOT / name, self.folder / name)
        code = self.folder / "src" / "abstain"
        shutil.rmtree(code, ignore_errors=True)
        shutil.copytree(ROOT / "src" / "abstain", code, ignore=shutil.ignore_patterns("__pycache__"))
        config = DVC_CONFIG.format(cache=self.settings.home.resolve() / "dvc-cache")
        write_atomically(self.folder / ".dvc" / "config", config.encode())
        write_atomically(self.folder / paths.PARAMS, self.text.encode())
        stamp, content = self.folder / "answers.json", json.dumps(self.inputs["answers"], sort_keys=True).encode()
        if not stamp.is_file() or stamp.read_bytes() != content:
            stamp.unlink(missing_ok=True)
            shutil.rmtree(self.folder / paths.DATA, ignore_errors=True)
            self.source.write(self.folder / paths.DATA, load_params(self.folder / paths.PARAMS).validation)
            write_atomically(stamp, content)

    def _run(self, progress: OnProgress) -> None:
        def on_line(line: str) -> None:
            if match := PROGRESS.fullmatch(line):
                progress(int(match["done"]), int(match["total"]))

        run(["dvc", "repro", LAST], self.folder, on_line, name="the stages of a retrain")


def make_part(
    workspace: StageWorkspace,
    title: str,
    inputs: Mapping[str, Any],
    compute: Callable[[Params, OnProgress], Mapping[str, Any]],
) -> Part:
    """Return a part of a study that is computed in the folder of the stages, after these.

    Args:
        workspace: The stages.
        title: Title of the part.
        inputs: What it depends on besides the stages.
        compute: Returns its result, given the parameters of the stages.

    Returns:
        The part.

    Raises:
        AbstainError: there are no answers.
    """

    def run_in_folder(progress: OnProgress) -> Mapping[str, Any]:
        with workspace.open(progress) as params:
            return compute(params, progress)

    return Part(title, {**workspace.inputs, **inputs}, run_in_folder)
