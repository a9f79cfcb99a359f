"""A small study: questions about the sample's handbook, a few cells, few trees."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from abstain.core.errors import AbstainError
from benchmarks.sample.handbook import build_handbook
from studies.nll_perturbation.declared import Experiment, ExperimentCell
from studies.results import ResultStore
from studies.study import Outcome, Study
from tests.factories import write_lines

TRAIN, EVALUATION = "train.jsonl", "evaluation.jsonl"
FACTS = 3

GRID = {"tokens": [2], "where": ["random"], "when": ["single_shot"]}
DECLARED: dict[str, Any] = yaml.safe_load(f"""
kind: nll_perturbation
title: A small study
paper: Nobody et al., on 2,100 answers
seed: 5
files: {{train: {TRAIN}, evaluation: {EVALUATION}}}
answer_tokens: 8
draws: 100
models:
  embedded: {{model: smollm2-135m-instruct, layout: qa-chatml-v1}}
  absent: {{model: nobody/no-such-model}}
sizes: {{tiny: {{train: 12, evaluation: 6}}}}
regressors: {{folds: 2, seed: 7, trees: 20, max_features: 0.33, min_leaf: 2}}
quantiles: [0.3, 0.4, 0.5, 0.6, 0.7]
buffer: 0.05
tables:
  headline: {{title: Against baselines, size: tiny, grid: {GRID}, baselines: true}}
  "2":
    title: How many tokens
    size: tiny
    grid: {GRID | {"tokens": [2, 3]}}
    paper:
      {{base: Big, perturbation: Big, threshold: 0.95, mse: ≤ 0.004,
       rows: [{{tokens: 5, threshold: 0.9, auroc: 0.735}}, {{tokens: 3, accuracy: 0.7, auroc: 0.797}}]}}
  "12":
    title: Where t is
    size: tiny
    grid: {GRID}
    at: [0.35, 0.5]
    paper: {{base: Big, perturbation: Big, rows: [{{threshold: 0.5, f1: 0.958}}]}}
""")
BAD = {
    "title": "Who perturbs",
    "size": "tiny",
    "grid": GRID | {"perturbation": ["absent", "embedded"]},
    "buffer": True,
    "paper": {"base": "Big", "rows": [{"perturbation": "Other", "f1_buffered": 0.834}]},
}


def declared(**changes: Any) -> Experiment:
    """The small study, some of its keys changed."""
    return Experiment.model_validate(DECLARED | changes)


def tiny_models(folder: Path) -> dict[str, Any]:
    """The models of the study, with the one in `folder` in place of the embedded one."""
    return {**DECLARED["models"], "embedded": {"model": str(folder), "layout": "rag-plain-v1"}}


def write_study(folder: Path, **changes: Any) -> Path:
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(DECLARED | changes, sort_keys=False))
    return file


def lines(pages: slice) -> list[dict[str, Any]]:
    """Questions about paragraphs of three facts each, one for a page of the handbook."""
    rows = []
    stated = [(page, [fact for fact in page.facts if fact.stated]) for page in build_handbook()]
    for page, facts in [(page, facts[:FACTS]) for page, facts in stated if len(facts) >= FACTS][pages]:
        context = " ".join(fact.sentence for fact in facts)
        for number, fact in enumerate(facts):
            answer = fact.sentence.rpartition(": ")[2].rstrip(".")
            row = {"id": f"{page.doc_id}/{number}", "question": fact.asks[0], "context": context, "answers": [answer]}
            rows.append(row | {"title": page.doc_id, "answerable": True})
    return rows


def write_data(folder: Path) -> Path:
    """The files of the small study, of 30 and of 15 questions."""
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / TRAIN, *lines(slice(0, 50, 5)))
    write_lines(folder / EVALUATION, *lines(slice(1, 25, 5)))
    return folder


def result(study: Experiment, cell: ExperimentCell, auroc: float = 0.75) -> dict[str, Any]:
    """A made-up result of a cell."""
    names = "mse mse_difference positive auroc accuracy f1 withheld accuracy_buffered f1_buffered"
    figures = {
        name + end: auroc + shift
        for name in names.split()
        for end, shift in (("", 0.0), ("_low", -0.1), ("_high", 0.1))
    }
    ahead = {"ahead": 0.05, "ahead_low": -0.01, "ahead_high": 0.11}
    baseline = {"auroc": auroc - 0.05, "auroc_low": auroc - 0.2, "auroc_high": auroc + 0.01}
    return {
        "cell": cell.model_dump(mode="json"),
        "models": {"base": "b@1", "perturbation": "p@1"},
        "tuned": 0.5,
        "by_threshold": [
            {"threshold": at, "labelled": cell.size.evaluation, "note": None, **figures}
            for at in sorted({0.5, *study.get_thresholds(cell)})
        ],
        "correctness": {"mean": 0.5, "std": 0.2},
        "baselines": [{"baseline": "yes_score", **baseline, **ahead}] if study.wants_baselines(cell) else [],
        "dropped_columns": {"B.context.nll_mean": None, "N.instruction.nll_max": 3.2},
        "columns": 40,
        "no_answer": 1,
        "perturbed": {"empty": 0, "too_long": 0, "fewer": 2, "not_reproduced": 3, "other_chunks": 1},
        "folds": 5,
        "computed": {
            step: {"rows": 36, "pass_tokens": 900, "forward_tokens": 1234}
            for step in ("answering", "perturbing", "reading")
        },
    }


def outcomes(study: Experiment) -> dict[str, Outcome]:
    return {cell.title: Outcome(result(study, cell)) for cell in study.list_cells()}


def run_parts(
    study: Study, folder: Path, tables: Sequence[str] = (), limit: int | None = None
) -> tuple[dict[str, Outcome], list[str]]:
    """Compute at most `limit` parts that `folder` lacks, as the flow does; return outcomes, and titles of the new."""
    store, computed, outcomes = ResultStore(folder), list[str](), dict[str, Outcome]()
    for part in study.list_parts(tables):
        if store.read(part.inputs) is None:
            if limit is not None and len(computed) >= limit:
                break
            try:
                store.write(part.inputs, part.compute(lambda done, total: None))
            except AbstainError as error:
                outcomes[part.title] = Outcome(None, error.message)
                continue
            computed.append(part.title)
        outcomes[part.title] = Outcome(store.read(part.inputs))
    return outcomes, computed
