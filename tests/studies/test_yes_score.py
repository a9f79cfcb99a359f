"""The study of the Yes-score: its responses and pairs, and its report by a tiny model."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from abstain.config.params import LLMParams
from abstain.config.settings import Settings
from abstain.core.contracts import Context, Question
from abstain.core.errors import AbstainError
from benchmarks.full_params import full_params
from studies.project_answers import ProjectAnswers
from studies.study import Outcome, StudySource
from studies.yes_score import load_study
from studies.yes_score.pairs import PAIRS, KindPair, compare_scores, compute_precision, make_pair
from studies.yes_score.report import write_report
from studies.yes_score.responses import (
    KINDS,
    AnsweredQuestions,
    contains_answer,
    draw_span,
    make_interaction,
    make_random,
    make_responses,
)
from studies.yes_score.sources import sample_project
from studies.yes_score.study import YesScoreStudy
from studies.yes_score.tables import KINDS_PART, tabulate
from tests.checkout import ROOT
from tests.studies.builders import EVALUATION, TRAIN, run_parts, write_data

DECLARED = yaml.safe_load((ROOT / "studies" / "yes_score.yaml").read_text())
PASSAGES = ("The fee of the gold card is five euros a year.", "Call the hotline, day or night, to block a lost card.")
MARKED = ("five euros", "the hotline")


def make_questions(*marked: str | None) -> AnsweredQuestions:
    questions = [
        Question(interaction_id=f"q{n}", question="What?", contexts=(Context(chunk_id=f"c{n}", text=text),))
        for n, text in enumerate(PASSAGES)
    ]
    llm = LLMParams(model="m", layout="qa-chatml-v1", layer=1, site="residual", too_long="refuse", includes_eos=True)
    return AnsweredQuestions(llm, tuple(questions), marked, ("a", "b"), (1.0, 1.0))


def load(folder: Path, model: Path, sizes: dict[str, tuple[int, int]] | None = None) -> YesScoreStudy:
    content = DECLARED | {
        "model": str(model),
        "layout": "rag-plain-v1",
        "files": {"train": TRAIN, "evaluation": EVALUATION},
        "answer_tokens": 4,
        "draws": 100,
        "sizes": {"questions": {"train": 1, "evaluation": 5}},
    }
    file = folder / "yes_score.yaml"
    file.write_text(yaml.safe_dump(content))
    settings = Settings(home=folder / "home", device="cpu", dtype="float32")
    return load_study(file, StudySource(data=write_data(folder / "data")), sizes or {}, settings, None)


def test_span_has_the_length_and_no_word_of_the_answer() -> None:
    for seed in range(20):
        span = draw_span(PASSAGES[0], "five euros", make_random(seed, "q"))
        assert span is not None and span in PASSAGES[0] and len(span.split()) == 2
        assert not {"five", "euros"} & set(span.split())
    assert draw_span("one two three", "two three four", make_random(0, "q")) == "one two three"
    assert draw_span("five euros", "five euros", make_random(0, "q")) is None


def test_responses_are_of_four_kinds() -> None:
    data = make_questions(*MARKED)
    answers = [make_interaction(question, "It is five euros.", "m") for question in data.questions]
    responses = make_responses(data, answers, seed=5)
    assert responses["marked"] == [*MARKED] and responses["other_passage"] == [*MARKED[::-1]]
    assert responses["generated"] == ["It is five euros."] * 2
    assert make_responses(data, answers, seed=5) == responses
    without = make_responses(make_questions("five euros", None), answers, seed=5)
    assert without["span"][1] is without["other_passage"][1] is without["marked"][1] is None


@pytest.mark.parametrize(
    ("text", "answer", "contained"),
    [
        ("It broke the keeper's lantern!", "keepers lantern", True),
        ("A fee of 45 euros.", "the fee of 45 euros", True),
        ("It costs 450 euros.", "45", False),
    ],
)
def test_answer_is_contained_as_whole_words(text: str, answer: str, contained: bool) -> None:
    assert contains_answer(text, answer) is contained


def test_pair_holds_both_kinds_with_their_groups() -> None:
    kinds = {
        "marked": {"rows": [0, 1], "scores": {"s": [0.9, 0.8]}},
        "span": {"rows": [1], "scores": {"s": [None]}},
        "generated": {"rows": [0, 1], "scores": {"s": [0.4, 0.3]}},
    }
    result, groups, weights = {"kinds": kinds, "correct": [None, 1]}, np.array(["a", "b"]), np.array([1.0, 2.0])
    pair = make_pair("span", result, groups, weights, ("s",))
    assert pair.label.tolist() == [1, 1, 0] and pair.groups.tolist() == ["a", "b", "b"]
    assert pair.weights.tolist() == [1, 2, 2] and np.isnan(pair.scores["s"][2])
    generated = make_pair("generated", result, groups, weights, ("s",))
    assert generated.label.tolist() == [1] and generated.scores["s"].tolist() == [0.3]


def test_scores_are_compared_on_the_same_resamples() -> None:
    label, groups = np.tile([1, 0], 20), np.repeat(np.arange(20), 2)
    good = np.where(label == 1, 0.8, 0.2)
    pair = KindPair(label, groups, np.ones(40), {"yes_score": good, "other": 1 - good})
    first, second = compare_scores(pair, 100, 0)
    assert first["auroc"] == pytest.approx(1) and second["auroc"] == pytest.approx(0)
    assert second["ahead"] == second["ahead_high"] == pytest.approx(-1) and "ahead" not in first
    rows = {(row["scorer"], row["threshold"]): row for row in compute_precision(pair, (0.0, 0.5), 100, 0)}
    assert rows["yes_score", 0.5]["precision"] == pytest.approx(1) and rows["yes_score", 0.5]["shown"] == 20
    assert rows["other", 0.0]["precision"] == pytest.approx(0.5) and rows["other", 0.5]["precision"] == 0


@pytest.mark.heavy
def test_yes_score_study_reports_every_table(tmp_path: Path, model: Path) -> None:
    study = load(tmp_path, model)
    outcomes, computed = run_parts(study, tmp_path / "parts")
    assert len(computed) == 2 and run_parts(load(tmp_path, model), tmp_path / "parts")[1] == []
    report = study.make_report((), outcomes)
    tables = report.document["tables"]
    assert report.document["questions"] == 6 and "extractive_qa_model" in tables["extractive_qa"]["missing"]
    assert len(tables["kinds"]["rows"]) == 12 and all(row["scored"] for row in tables["kinds"]["rows"])
    pairs = {row["pair"] for row in tables["separation"]["rows"]}
    assert {"marked answer against random span", "marked answer against answer to another passage"} <= pairs
    assert len(tables["example"]["rows"]) == 8
    assert {"histogram_yes_score.svg", "roc_span.svg"} <= report.figures.keys()
    assert all(f"({name})" in report.markdown for name in report.figures)
    assert "6 + 6" in report.markdown
    (example,) = study.list_parts(["example"])
    partly = study.make_report((), {example.title: outcomes[example.title]}).document["tables"]
    assert partly["kinds"] == {"missing": "it was not computed"} and "rows" in partly["example"]


@pytest.mark.heavy
def test_yes_score_of_a_project_without_ideal_answers(tmp_path: Path, model: Path) -> None:
    """Its reviews say which of its answers are correct; nothing else can be compared."""
    params = full_params()
    answers = [make_interaction(question, "Call.", "m") for question in make_questions(*MARKED).questions]
    table = pd.DataFrame(
        {
            "interaction_id": ["q0", "q1"],
            "group": ["a", "b"],
            "correct": [1, 0],
            "inclusion_probability": [0.5, np.nan],
        }
    )
    llm = params.llm.model_copy(update={"model": str(model), "layout": "rag-plain-v1"})
    project = ProjectAnswers(params.model_copy(update={"llm": llm}), table, answers, [None, None])
    study = load(tmp_path, model)
    data = sample_project(study.declared, project)
    rows = [int(answer.interaction_id[1]) for answer in data.answers]
    assert [data.correct[row] for row in np.argsort(rows)] == [1, 0]
    assert [data.weights[row] for row in np.argsort(rows)] == pytest.approx([1, 0.5])
    result = study.scorer.score_kinds(data, lambda done, total: None)
    outcomes = {KINDS_PART: Outcome(result)}
    document, _ = tabulate(study.declared, data, ["kinds", "separation", "precision"], outcomes, None, "")
    assert {row["kind"] for row in document["tables"]["kinds"]["rows"]} == {KINDS["generated"]}
    assert {row["pair"] for row in document["tables"]["separation"]["rows"]} == {PAIRS["generated"]}
    assert document["tables"]["precision"]["answers"] == 2
    assert "No review has an ideal answer" in write_report(document)


def test_yes_score_study_refuses_wrong_names(tmp_path: Path, model: Path) -> None:
    with pytest.raises(AbstainError, match="no size 'answers'"):
        load(tmp_path, model, {"answers": (1, 1)})
    with pytest.raises(AbstainError, match="at least 2 questions"):
        load(tmp_path, model, {"questions": (0, 1)})
    with pytest.raises(AbstainError, match="no table '9': there are kinds"):
        load(tmp_path, model).list_parts(["9"])
