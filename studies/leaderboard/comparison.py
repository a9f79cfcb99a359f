"""The declared comparison of all scorers, comparison.yaml: parameters of the stages, and the draw of answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from abstain.config.params import require_keys
from abstain.config.settings import Settings
from abstain.config.template import read_template
from abstain.config.yaml_editor import parse_yaml, update_yaml
from abstain.config.yaml_model import FrozenModel, load_yaml_model
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.requests import get_chosen_layer
from studies.leaderboard.sources import REVIEWS, AnswerSource, DrawnReviews, ProjectData, ReviewDraw
from studies.leaderboard.workspace import ROOT, StageWorkspace
from studies.study import StudySource

FULL_PARAMS = ROOT / "params.full.yaml"
COMPARISON = Path(__file__).with_name("comparison.yaml")


class Comparison(FrozenModel):
    """Content of comparison.yaml."""

    params: dict[str, dict[str, Any]]
    reviews: ReviewDraw


def make_workspace(
    source: StudySource, sizes: Mapping[str, tuple[int, int]], settings: Settings, file: Path = COMPARISON
) -> StageWorkspace:
    """Return the workspace of a study, as comparison.yaml declares it.

    Args:
        source: The project in the working directory, or the folder of the published reviews.
        sizes: Numbers of training and test answers that are drawn of these, as `reviews`; by default the file's.
        settings: Settings of this machine.
        file: The declaration.

    Returns:
        The workspace.

    Raises:
        AbstainError: a parameter is invalid, or a size has another name.
    """
    comparison = load_yaml_model(file, Comparison, "restore it with git")
    if wrong := sizes.keys() - {"reviews"}:
        raise AbstainError(Code.UNKNOWN_NAME, f"no size '{min(wrong)}': there is reviews, the answers drawn of --data")
    answers: AnswerSource
    if source.data is not None:
        train, test = sizes.get("reviews", (comparison.reviews.train, comparison.reviews.test))
        draw = comparison.reviews.model_copy(update={"train": train, "test": test})
        answers, text = DrawnReviews(source.data.resolve() / REVIEWS, draw), read_template(paths.PARAMS.name)
    else:
        answers, text = ProjectData(Path.cwd()), paths.PARAMS.read_text(encoding="utf-8")
    for values in (parse_yaml(FULL_PARAMS.read_text(encoding="utf-8")), comparison.params, answers.changes):
        text = update_yaml(text, values)
    workspace = StageWorkspace(answers, text, settings)
    require_keys(yaml.safe_load(text), paths.PARAMS)
    get_chosen_layer(workspace.params.llm)
    return workspace
