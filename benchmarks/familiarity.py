"""Self-Familiarity on Concept-7 (Luo et al., tables 2, 4 and 5): `python -m benchmarks.familiarity FOLDER`.

FOLDER has Concept-7's concepts, questions and common concepts as JSON Lines. Its labels say which concepts the paper's
own four models know; those do not hold for another model. What holds for every model is which concepts are fictional,
so a figure here is how well a score tells instructions about fictional concepts from those about real and common ones.

Printed: AUC, accuracy and F1 at the threshold h, and Pearson's correlation with the label, with 95 % intervals by
concept; for concepts alone (table 5), for questions (table 2, fictional against real), and the ablations (table 4). The
feature cache holds what the model wrote: a run that was ended goes on where it was.
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
DRAWS, SEED = 1000, 42
OWN = "Self-Familiarity"
PAPER = {
    "concepts": dict(
        zip(
            (*BASELINES, OWN),
            (
                *("0.536-0.718", "0.652-0.784", "0.659-0.758", "0.454-0.687"),
                *("0.802-0.920", "0.809-0.883", "0.564-0.902", "0.905-0.968"),
            ),
            strict=True,
        )
    ),
    "questions": dict(
        zip(
            (*BASELINES, OWN),
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
    """`concepts` and `questions`: text, domain, whether the concept is real, and its number."""

    concepts: list[tuple[str, str, bool, int]]
    questions: list[tuple[str, str, bool, int]]
    common: list[str]

    @classmethod
    def read(cls, folder: Path) -> Concept7:
        concepts = {row["concept_id"]: row for row in _rows(folder / "concepts.jsonl.gz")}
        questions = list(_rows(folder / "questions.jsonl.gz"))
        numbers = {name: at for at, name in enumerate(concepts)}
        return cls(
            [(row["concept"], row["domain"].lower(), row["real"], numbers[key]) for key, row in concepts.items()],
            [
                (row["question"], of["domain"].lower(), of["real"], numbers[row["concept_id"]])
                for row in questions
                for of in [concepts[row["concept_id"]]]
            ],
            [row["concept"] for row in _rows(folder / "common_concepts.jsonl.gz")],
        )

    def drawn(self, concepts: int | None, questions: int | None) -> Concept7:
        """So many concepts of each kind, fictional, real and common, and so many questions about any; None: all."""
        kinds = [[row for row in self.concepts if row[2] is real] for real in (False, True)]
        return Concept7(
            [row for kind in kinds for row in _drawn(kind, concepts)],
            _drawn(self.questions, questions),
            _drawn(self.common, concepts),
        )


@dataclass(frozen=True)
class Scored:
    """A method's scores of the judged instructions, (rows,), and its threshold h."""

    scores: np.ndarray
    threshold: float


def _rows(file: Path) -> list[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _drawn(rows: list[T], number: int | None) -> list[T]:
    if number is None or number >= len(rows):
        return rows
    picked = np.random.default_rng(SEED).choice(len(rows), number, replace=False)
    return [rows[at] for at in sorted(picked)]


def explain(concept: str) -> str:
    return f'Explain the "{concept}" within one short paragraph.'


def pearson(label: np.ndarray, scores: np.ndarray, weight: np.ndarray) -> Any:
    """Of one weighting or of each of several; nan where either is constant."""

    def mean(values: np.ndarray) -> np.ndarray:
        return np.atleast_1d(metrics.weighted_mean(values, weight))

    variance = [mean(one * one) - mean(one) ** 2 for one in (label, scores)]
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (mean(label * scores) - mean(label) * mean(scores)) / np.sqrt(variance[0] * variance[1])
    return found if weight.ndim > 1 else float(found[0])


def figures_of(label: np.ndarray, one: Scored) -> dict[str, Statistic]:
    """An instruction without a score counts as the least familiar."""
    scores = np.where(np.isnan(one.scores), np.nanmin(one.scores), one.scores)
    return {
        "AUC": partial(metrics.auroc, label, scores),
        "ACC": partial(metrics.accuracy, label, scores, threshold=one.threshold),
        "F1": partial(metrics.f1, label, scores, threshold=one.threshold),
        "Pearson": partial(pearson, label.astype(float), scores),
    }


def table(label: np.ndarray, groups: np.ndarray, of: Mapping[str, Scored], paper: Mapping[str, str]) -> str:
    figures = {(name, key): figure for name, one in of.items() for key, figure in figures_of(label, one).items()}
    found = bootstrap(figures, groups, DRAWS, SEED)
    columns = ("AUC", "ACC", "F1", "Pearson")
    lines = ["| method | " + " | ".join(columns) + " | AUC ahead by | paper's AUC |", "| --- " * 7 + "|"]
    for name, one in of.items():
        ahead = "" if name == OWN else shown(paired_difference(found[OWN, "AUC"], found[name, "AUC"]), "+.3f")
        unscored = int(np.isnan(one.scores).sum())
        title = f"{name} ({unscored} without a score)" if unscored else name
        cells = [shown(found[name, key], ".3f") for key in columns]
        lines.append(f"| {title} | " + " | ".join(cells) + f" | {ahead} | {paper.get(name, '')} |")
    return "\n".join(lines)


def shown(one: Estimate, form: str) -> str:
    low, high = one.interval
    return f"{one.value:{form}} ({low:{form}} to {high:{form}})"


def study(data: Concept7, model: str, layout: str, say: Callable[[str], None]) -> None:
    settings = load_settings()
    own = SelfFamiliarity(model, layout, settings, FamiliarityConfig())
    baselines = FamiliarityBaselines(FeatureStore(model, settings), own.guesser.template)

    def progress(done: int, total: int) -> None:
        print(f"\r{done:,} of {total:,}  ", end="", file=sys.stderr, flush=True)

    everyday = [Instruction(explain(one), (one,)) for one in data.common]
    of_everyday = baselines.scores(everyday, progress)
    h = {name: compute_threshold(scores[~np.isnan(scores)]) for name, scores in of_everyday.items()}
    guessed = own.guesser.guess([*data.common, *(one[0] for one in data.concepts)], progress)
    known = np.array([_score(guessed[one].score) for one in data.common])
    h_own = compute_threshold(known[~np.isnan(known)])

    asked = [Instruction(explain(text), (text,)) for text, *_ in data.concepts]  # as the common ones, without a domain
    of_concepts = baselines.scores(asked, progress)
    of_concepts[OWN] = np.array([_score(guessed[text].score) for text, *_ in data.concepts])
    of_everyday[OWN] = known
    h[OWN] = h_own
    label = np.array([real for _, _, real, _ in data.concepts] + [True] * len(data.common)).astype(int)
    everything = {name: Scored(np.concatenate([of_concepts[name], of_everyday[name]]), h[name]) for name in h}
    say(
        f"## Fictional against real and common concepts (table 5)\n\n{label.sum()} of {len(label)} are not fictional.\n"
    )
    say(table(label, np.arange(len(label)), _own_first(everything), PAPER["concepts"]))

    questions = data.questions
    if not questions:
        return
    texts = [text for text, *_ in questions]
    found = own.score(texts, progress)
    asked = [
        Instruction(text, tuple(one.concept for one in familiarity.concepts), domain)
        for (text, domain, _, _), familiarity in zip(questions, found, strict=True)
    ]
    scores = baselines.scores(asked, progress)
    scores[OWN] = np.array([_score(one.score) for one in found])
    label = np.array([real for _, _, real, _ in questions]).astype(int)
    groups = np.array([number for *_, number in questions])
    say("\n## Questions about fictional and real concepts (table 2)\n")
    say(f"{label.sum()} of {len(label)} are about real ones.\n")
    say(table(label, groups, _own_first({name: Scored(scores[name], h[name]) for name in h}), PAPER["questions"]))

    variants = {OWN: Scored(scores[OWN], h[OWN])}
    for name, change in ABLATIONS.items():
        changed = SelfFamiliarity(model, layout, settings, replace(FamiliarityConfig(), **change))
        values = np.array([_score(one.score) for one in changed.score(texts, progress)])
        variants[name] = Scored(values, h[OWN])
    say("\n## Ablations, on the same questions (table 4)\n")
    say(table(label, groups, variants, {}))
    say(f"\nTokens that were run through the model for Self-Familiarity: {own.cost.forward_tokens:,}.")


def _own_first(of: Mapping[str, Scored]) -> dict[str, Scored]:
    return {OWN: of[OWN], **{name: of[name] for name in BASELINES}}


def _score(value: float | None) -> float:
    return float("nan") if value is None else value


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--layout", default="qa-chatml-v1", help="of the model: its prompts are in ChatML, or plain")
    parser.add_argument("--concepts", type=int, help="so many fictional, real and common ones, drawn by a seed")
    parser.add_argument("--questions", type=int, help="so many of the questions, drawn by a seed; 0: concepts alone")
    chosen = parser.parse_args(arguments)
    if not (chosen.folder / "concepts.jsonl.gz").is_file():
        parser.error(f"{chosen.folder} has no concepts.jsonl.gz: give the folder of Concept-7")
    if chosen.concepts is not None and chosen.concepts < 1:
        parser.error("--concepts: at least 1 of each kind")
    data = Concept7.read(chosen.folder).drawn(chosen.concepts, chosen.questions)
    study(data, chosen.model, chosen.layout, partial(print, flush=True))


if __name__ == "__main__":
    main()
