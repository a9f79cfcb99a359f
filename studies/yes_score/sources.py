"""Questions with marked answers: of SQuAD's files, or of a project."""

from __future__ import annotations

from pathlib import Path

from abstain.core.contracts import Question
from abstain.learning.metrics.weighted_metrics import row_weights
from studies.model_inputs import make_llm_params
from studies.project_answers import ProjectAnswers
from studies.rows import hash_order, read_parts
from studies.yes_score.declared import YesScoreDeclaration
from studies.yes_score.responses import AnsweredQuestions


def read_questions(declared: YesScoreDeclaration, folder: Path) -> AnsweredQuestions:
    """Sample the questions of the files in `folder`.

    Raises:
        AbstainError: a file is missing or invalid, or there are too few questions.
    """
    files, counts = declared.files, declared.sizes["questions"]
    train, evaluation = read_parts(
        folder / files.train, folder / files.evaluation, (counts.train, counts.evaluation), declared.seed
    )
    both = train + evaluation
    return AnsweredQuestions(
        make_llm_params(declared.model, declared.layout),
        both.questions,
        tuple(references[0] for references in both.references),
        both.groups,
        (1.0,) * len(both),
    )


def sample_project(declared: YesScoreDeclaration, project: ProjectAnswers) -> AnsweredQuestions:
    """Sample reviewed answers of a project: a smaller sample is the beginning of a larger one."""
    counts, names = declared.sizes["questions"], list(project.table["interaction_id"])
    rows = hash_order(range(len(names)), names, declared.seed)[: counts.train + counts.evaluation]
    table, answers = project.table.iloc[rows], tuple(project.interactions[row] for row in rows)
    return AnsweredQuestions(
        project.params.llm,
        tuple(
            Question(interaction_id=answer.interaction_id, question=answer.question, contexts=answer.contexts)
            for answer in answers
        ),
        tuple(project.ideal_answers[row] for row in rows),
        tuple(map(str, table["group"])),
        tuple(map(float, row_weights(table["inclusion_probability"].to_numpy(float)))),
        answers,
        tuple(map(int, table["correct"])),
    )
