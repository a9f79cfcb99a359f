"""Self-Familiarity on Concept-7 (Luo et al., tables 2, 4 and 5): `python -m benchmarks.familiarity FOLDER`.

FOLDER has Concept-7's concepts, questions and common concepts as JSON Lines. Its labels say which concepts the paper's
own four models know; those do not hold for another model. What holds for every model is which concepts are fictional,
so a figure here is how well a score tells instructions about fictional concepts from those about real ones.

Printed: AUC, accuracy and F1 at the threshold h beside those of calling everything familiar, and Pearson's correlation
with the label, with 95 % intervals by concept; for concepts alone (table 5), for questions (table 2), and the ablations
(table 4). h is the 5th percentile of the common concepts, which are therefore judged apart, by AUC alone. The feature
cache holds what the model wrote: a run that was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from abstain.config.settings import load_settings
from abstain.learning.metrics import weighted_metrics as metrics
from abstain.learning.metrics.bootstrap import Estimate, Statistic, bootstrap, paired_difference
from abstain.llm.familiarity.aggregation import compute_threshold
from abstain.llm.familiarity.familiarity import FamiliarityConfig, SelfFamiliarity
from abstain.llm.features.feature_store import FeatureStore
from studies.familiarity_baselines import BASELINES, FamiliarityBaselines, Instruction

T = TypeVar("T")
N_RESAMPLES, SEED = 1000, 42
SELF_FAMILIARITY = "Self-Familiarity"
PAPER = {
    "concepts": dict(
        zip(
            (*BASELINES, SELF_FAMILIARITY),
            (
                *("0.536-0.718", "0.652-0.784", "0.659-0.758", "0.454-0.687"),
                *("0.802-0.920", "0.809-0.883", "0.564-0.902", "0.905-0.968"),
            ),
            strict=True,
        )
    ),
    "questions": dict(
        zip(
            (*BASELINES, SELF_FAMILIARITY),
            (
                *("0.639-0.867", "0.558-0.806", "0.591-0.760", "0.532-0.721"),
                *("0.650-0.872", "0.653-0.831", "0.511-0.809", "0.918-0.927"),
            ),
            strict=True,
        )
    ),
}
"""The lowest and the highest AUC of the paper's four models, by its own labels."""
ABLATIONS: Mapping[str, dict[str, Any]] = {
    "without grouping": {"grouping": False},
    "without filtering": {"filtering": False},
    "without ranking": {"ranking": False},
    "minimum only": {"aggregation": "minimum"},
    "most infrequent only": {"aggregation": "rarest"},
}


@dataclass(frozen=True)
class Concept7:
    """The data of Concept-7.

    Attributes:
        concepts: Text, domain, whether the concept is real, and its number.
        questions: Text, and domain, reality and number of the concept that it is about.
        common: Texts of common concepts.
    """

    concepts: list[tuple[str, str, bool, int]]
    questions: list[tuple[str, str, bool, int]]
    common: list[str]

    @classmethod
    def read(cls, folder: Path) -> Concept7:
        """Read the three files of `folder`."""
        concepts = {row["concept_id"]: row for row in _rows(folder / "concepts.jsonl.gz")}
        questions = list(_rows(folder / "questions.jsonl.gz"))
        numbers = {name: index for index, name in enumerate(concepts)}
        return cls(
            [(row["concept"], row["domain"].lower(), row["real"], numbers[key]) for key, row in concepts.items()],
            [
                (row["question"], concept["domain"].lower(), concept["real"], numbers[row["concept_id"]])
                for row in questions
                for concept in [concepts[row["concept_id"]]]
            ],
            [row["concept"] for row in _rows(folder / "common_concepts.jsonl.gz")],
        )

    def sample(self, concepts: int | None, questions: int | None) -> Concept7:
        """Return `concepts` of each kind (fictional, real, common), and `questions` about any; None returns all."""
        kinds = [[row for row in self.concepts if row[2] is real] for real in (False, True)]
        return Concept7(
            [row for kind in kinds for row in _sample_rows(kind, concepts)],
            _sample_rows(self.questions, questions),
            _sample_rows(self.common, concepts),
        )


@dataclass(frozen=True)
class MethodScores:
    """Scores of a method for the labelled instructions, (rows,), and its threshold h."""

    scores: np.ndarray
    threshold: float


def _rows(file: Path) -> list[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _sample_rows(rows: list[T], number: int | None) -> list[T]:
    if number is None or number >= len(rows):
        return rows
    indices = np.random.default_rng(SEED).choice(len(rows), number, replace=False)
    return [rows[index] for index in sorted(indices)]


def make_instruction(concept: str) -> str:
    """Return the instruction to explain `concept`."""
    return f'Explain the "{concept}" within one short paragraph.'


def pearson(label: np.ndarray, scores: np.ndarray, weight: np.ndarray) -> Any:
    """Return Pearson's correlation for one weighting or for several; nan if either side is constant."""

    def mean(values: np.ndarray) -> np.ndarray:
        return np.atleast_1d(metrics.weighted_mean(values, weight))

    variance = [mean(values * values) - mean(values) ** 2 for values in (label, scores)]
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = (mean(label * scores) - mean(label) * mean(scores)) / np.sqrt(variance[0] * variance[1])
    return correlation if weight.ndim > 1 else float(correlation[0])


def make_metrics(label: np.ndarray, method: MethodScores) -> dict[str, Statistic]:
    """Return the metrics of a method by name; an instruction without a score counts as the least familiar."""
    scores = np.where(np.isnan(method.scores), np.nanmin(method.scores), method.scores)
    return {
        "AUC": partial(metrics.auroc, label, scores),
        "ACC": partial(metrics.accuracy, label, scores, threshold=method.threshold),
        "F1": partial(metrics.f1, label, scores, threshold=method.threshold),
        "Pearson": partial(pearson, label.astype(float), scores),
    }


def make_table(
    label: np.ndarray,
    groups: np.ndarray,
    methods: Mapping[str, MethodScores],
    paper: Mapping[str, str],
    columns: Sequence[str] = ("AUC", "ACC", "F1", "Pearson"),
) -> str:
    """Return a Markdown table of the metrics of all methods with 95 % intervals."""
    metrics_by_key = {
        (name, key): metric for name, method in methods.items() for key, metric in make_metrics(label, method).items()
    }
    estimates = bootstrap(metrics_by_key, groups, n_resamples=N_RESAMPLES, seed=SEED)
    head = ["method", *columns, "AUC ahead by", "paper's AUC"]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for name, method in methods.items():
        ahead = (
            ""
            if name == SELF_FAMILIARITY
            else format_estimate(paired_difference(estimates[SELF_FAMILIARITY, "AUC"], estimates[name, "AUC"]), "+.3f")
        )
        unscored = int(np.isnan(method.scores).sum())
        title = f"{name} ({unscored} without a score)" if unscored else name
        cells = [format_estimate(estimates[name, key], ".3f") for key in columns]
        lines.append(f"| {title} | " + " | ".join(cells) + f" | {ahead} | {paper.get(name, '')} |")
    return "\n".join(lines)


def describe_base_rate(label: np.ndarray) -> str:
    """Describe the labels, and the accuracy and F1 of calling everything familiar."""
    share = label.mean()
    return (
        f"{label.sum()} of {len(label)} are about real concepts. Calling everything familiar has ACC {share:.3f} and "
        f"F1 {2 * share / (1 + share):.3f}."
    )


def format_estimate(estimate: Estimate, spec: str) -> str:
    """Format an estimate with its interval."""
    low, high = estimate.interval
    return f"{estimate.value:{spec}} ({low:{spec}} to {high:{spec}})"


def run_experiment(data: Concept7, model: str, layout: str, say: Callable[[str], None]) -> None:
    """Print the tables of all methods on `data`."""
    settings = load_settings()
    method = SelfFamiliarity(model, layout, settings, FamiliarityConfig())
    baselines = FamiliarityBaselines(FeatureStore(model, settings), method.guesser.template)

    def progress(done: int, total: int) -> None:
        print(f"\r{done:,} of {total:,}  ", end="", file=sys.stderr, flush=True)

    common_instructions = [Instruction(make_instruction(concept), (concept,)) for concept in data.common]
    common_scores = baselines.score(common_instructions, progress)
    thresholds = {name: compute_threshold(scores[~np.isnan(scores)]) for name, scores in common_scores.items()}
    guesses = method.guesser.guess([*data.common, *(row[0] for row in data.concepts)], progress)
    common_familiarity = np.array([_score(guesses[concept].score) for concept in data.common])
    method_threshold = compute_threshold(common_familiarity[~np.isnan(common_familiarity)])

    concept_instructions = [
        Instruction(make_instruction(text), (text,)) for text, *_ in data.concepts
    ]  # as the common ones, without a domain
    concept_scores = baselines.score(concept_instructions, progress)
    concept_scores[SELF_FAMILIARITY] = np.array([_score(guesses[text].score) for text, *_ in data.concepts])
    common_scores[SELF_FAMILIARITY] = common_familiarity
    thresholds[SELF_FAMILIARITY] = method_threshold
    real = np.array([is_real for _, _, is_real, _ in data.concepts]).astype(int)
    methods = {name: MethodScores(concept_scores[name], thresholds[name]) for name in thresholds}
    say(f"## Fictional against real concepts (table 5)\n\n{describe_base_rate(real)}\n")
    say(make_table(real, np.arange(len(real)), _order_methods(methods), PAPER["concepts"]))
    label = np.array([0] * int((real == 0).sum()) + [1] * len(data.common))
    methods = {
        name: MethodScores(np.concatenate([concept_scores[name][real == 0], common_scores[name]]), thresholds[name])
        for name in thresholds
    }
    say(f"\n## Fictional against common concepts\n\n{len(data.common)} of {len(label)} are common.\n")
    say(make_table(label, np.arange(len(label)), _order_methods(methods), {}, ("AUC",)))

    questions = data.questions
    if not questions:
        return
    texts = [text for text, *_ in questions]
    results = method.score(texts, progress)
    question_instructions = [
        Instruction(text, tuple(concept.concept for concept in familiarity.concepts), domain)
        for (text, domain, _, _), familiarity in zip(questions, results, strict=True)
    ]
    scores = baselines.score(question_instructions, progress)
    scores[SELF_FAMILIARITY] = np.array([_score(result.score) for result in results])
    label = np.array([real for _, _, real, _ in questions]).astype(int)
    groups = np.array([number for *_, number in questions])
    say("\n## Questions about fictional and real concepts (table 2)\n")
    say(f"{describe_base_rate(label)}\n")
    say(
        make_table(
            label,
            groups,
            _order_methods({name: MethodScores(scores[name], thresholds[name]) for name in thresholds}),
            PAPER["questions"],
        )
    )

    variants = {SELF_FAMILIARITY: MethodScores(scores[SELF_FAMILIARITY], thresholds[SELF_FAMILIARITY])}
    for name, changes in ABLATIONS.items():
        variant = SelfFamiliarity(model, layout, settings, replace(FamiliarityConfig(), **changes))
        values = np.array([_score(result.score) for result in variant.score(texts, progress)])
        variants[name] = MethodScores(values, thresholds[SELF_FAMILIARITY])
    say("\n## Ablations, on the same questions (table 4)\n")
    say(make_table(label, groups, variants, {}))
    say(f"\nTokens that were run through the model for Self-Familiarity: {method.cost.forward_tokens:,}.")


def _order_methods(methods: Mapping[str, MethodScores]) -> dict[str, MethodScores]:
    return {SELF_FAMILIARITY: methods[SELF_FAMILIARITY], **{name: methods[name] for name in BASELINES}}


def _score(value: float | None) -> float:
    return float("nan") if value is None else value


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--layout", default="qa-chatml-v1", help="of the model: its prompts are in ChatML, or plain")
    parser.add_argument("--concepts", type=int, help="so many fictional, real and common ones, drawn by a seed")
    parser.add_argument("--questions", type=int, help="so many of the questions, drawn by a seed; 0: concepts alone")
    options = parser.parse_args(arguments)
    if not (options.folder / "concepts.jsonl.gz").is_file():
        parser.error(f"{options.folder} has no concepts.jsonl.gz: give the folder of Concept-7")
    if options.concepts is not None and options.concepts < 1:
        parser.error("--concepts: at least 1 of each kind")
    data = Concept7.read(options.folder).sample(options.concepts, options.questions)
    run_experiment(data, options.model, options.layout, partial(print, flush=True))


if __name__ == "__main__":
    main()
