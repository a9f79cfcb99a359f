import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from abstain.config.params import load_params
from abstain.config.settings import Settings
from abstain.core.contracts import Context
from abstain.core.errors import AbstainError
from studies.nll_perturbation import load_study, project
from studies.project_answers import ProjectAnswers
from studies.study import Outcome, StudySource
from tests.checkout import TEMPLATE
from tests.factories import interaction
from tests.studies.builders import lines, write_study


def make_answers(model: Path, ideal: int) -> ProjectAnswers:
    """54 reviewed answers of three splits, of which every `ideal`-th has an ideal answer; 0 for none."""
    params = load_params(TEMPLATE / "params.yaml")
    llm = params.llm.model_copy(update={"model": str(model), "layout": "rag-plain-v1"})
    rows = lines(slice(0, 90, 5))
    interactions = [
        interaction(
            row["id"],
            question=row["question"],
            answer=row["answers"][0] if number % 2 else "I do not know.",
            contexts=(Context(chunk_id=row["title"], text=row["context"]),),
            group=row["title"],
        )
        for number, row in enumerate(rows)
    ]
    splits = ["train"] * 30 + ["validation"] * 6 + ["holdout"] * 12 + ["newest"] * 6
    table = pd.DataFrame(
        {
            "interaction_id": [row.interaction_id for row in interactions],
            "group": [row.group for row in interactions],
            "split": splits[: len(rows)],
            "correct": [number % 2 for number in range(len(rows))],
        }
    )
    ideal_answers = [row["answers"][0] if ideal and number % ideal == 0 else None for number, row in enumerate(rows)]
    return ProjectAnswers(params.model_copy(update={"llm": llm}), table, interactions, ideal_answers)


def load(tmp_path: Path, answers: ProjectAnswers, monkeypatch: pytest.MonkeyPatch, least: tuple[int, int]) -> Any:
    monkeypatch.setattr(project, "read_project_answers", lambda: answers)
    monkeypatch.setattr(project, "MIN_SIZE", project.Size(train=least[0], evaluation=least[1]))
    settings = Settings(home=tmp_path, device="cpu", dtype="float32")
    file = write_study(tmp_path, sizes={"tiny": {"train": 500, "evaluation": 15}})
    return load_study(file, StudySource(project=tmp_path), {}, settings, None)


@pytest.mark.heavy
def test_project_without_ideal_answers_takes_the_labels(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load(tmp_path, make_answers(model, ideal=0), monkeypatch, (20, 10))
    (part,) = study.list_parts(("headline",))
    assert re.fullmatch(r"project's by project's, K = 2, .*label.*30 \+ 15", part.title)
    result = part.compute(lambda done, total: None)
    assert result["tuned"] == 0.5 and "answering" not in result["computed"]
    (row,) = (row for row in result["by_threshold"] if row.threshold == 0.5)
    assert row.labelled == 15 and 0 < row.mse < 1 and 0 < row.positive < 1
    rows = [row.model_dump() for row in result["by_threshold"]]
    text = study.make_report(("headline",), {part.title: Outcome({**result, "by_threshold": rows})}).markdown
    assert "Trained on 30 answers and evaluated on 15 others" in text and "the MSE is the Brier score" in text
    assert "30 answers for training and 18 for evaluation" in text and "Missing" not in text


def test_project_ideal_answers_are_the_target_where_enough(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = make_answers(model, ideal=2)
    reviewed = load(tmp_path, answers, monkeypatch, (10, 5)).runner.project
    assert (len(reviewed.train), len(reviewed.evaluation)) == (15, 9)
    target = reviewed.get_target("rouge1_f1", reviewed.train)
    assert np.isfinite(target).all() and "ideal answer" in reviewed.remark
    digest = reviewed.digest
    assert load(tmp_path, answers, monkeypatch, (10, 5)).runner.project.digest == digest
    changed = replace(answers, ideal_answers=["other", *answers.ideal_answers[1:]])
    assert load(tmp_path, changed, monkeypatch, (10, 5)).runner.project.digest != digest


def test_project_of_few_reviews_is_one_line(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        AbstainError, match=r"^30 \+ 18 reviewed answers to train and .*: review more, 40 \+ 20 are needed"
    ):
        load(tmp_path, make_answers(model, ideal=1), monkeypatch, (40, 20))
