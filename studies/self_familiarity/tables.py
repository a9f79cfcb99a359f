"""From the results of parts to the tables of Concept-7, as one JSON document. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from abstain.llm.familiarity.aggregation import compute_threshold
from studies.figures import draw_histogram
from studies.self_familiarity.baselines import BASELINES
from studies.self_familiarity.comparison import LabelledScores, compare_methods
from studies.self_familiarity.concept7 import COMMON, FICTIONAL, REAL, InstructionBatch
from studies.self_familiarity.declared import ConceptSource, FamiliarityDeclaration
from studies.self_familiarity.measures import ABLATIONS, SELF_FAMILIARITY
from studies.self_familiarity.plan import (
    CONCEPTS,
    QUESTIONS,
    WORKSHEET_PART,
    Measure,
    MeasuredInstructions,
    collect_results,
    get_judge_title,
)
from studies.study import Outcome

BOTH: tuple[Measure, ...] = ("familiarity", "baselines")
METHODS = (SELF_FAMILIARITY, *BASELINES)
Section = dict[str, Any]


@dataclass(frozen=True)
class ConceptTables:
    """The study, its instructions, and the outcomes of its parts by title."""

    declared: FamiliarityDeclaration
    batches: Mapping[str, Sequence[InstructionBatch]]
    outcomes: Mapping[str, Outcome]

    def tabulate(self, tables: Sequence[str]) -> dict[str, Any]:
        """Return the document: the sections of each table, and the paper's AUCs."""
        makers = {"5": self._list_concepts, "2": self._list_questions, "4": self._list_ablations}
        return {
            "title": self.declared.title,
            "paper": self.declared.paper,
            "model": self.declared.model,
            "draws": self.declared.draws,
            "rows": self.declared.rows,
            "tables": {name: list(self._list_judged() if name == "judged" else makers[name]()) for name in tables},
        }

    def draw_figures(self) -> dict[str, str]:
        """Return the histogram of Self-Familiarity by kind of concept, as SVG by file name; none without results."""
        results = {kind: self._collect((kind,), ("familiarity",)) for kind in (FICTIONAL, REAL, COMMON)}
        scores = {kind: result.scores[SELF_FAMILIARITY] for kind, result in results.items() if result.instructions}
        return {"familiarity.svg": draw_histogram(scores, SELF_FAMILIARITY)} if scores else {}

    def _list_concepts(self) -> Iterator[Section]:
        concepts, common = self._collect(CONCEPTS, BOTH), self._collect((COMMON,), BOTH)
        yield self._compare("Fictional against real concepts", concepts, METHODS)
        both = MeasuredInstructions(
            (*concepts.instructions, *common.instructions),
            np.append(concepts.fictional, common.fictional),
            {name: np.append(concepts.scores[name], common.scores[name]) for name in METHODS}
            if concepts.instructions and common.instructions
            else {},
            concepts.total + common.total,
            concepts.reason or common.reason,
        )
        is_common = np.append(np.zeros(len(concepts.instructions), bool), np.ones(len(common.instructions), bool))
        section = self._compare("Fictional against common concepts", both.select(both.fictional | is_common), METHODS)
        # h is set on the common concepts, so they are judged by AUC alone.
        yield section | {"total": None, "columns": ["auc"]}

    def _list_questions(self) -> Iterator[Section]:
        for source in self.declared.concepts:
            questions = self._collect(QUESTIONS, BOTH, source)
            yield self._compare(f"Questions about fictional and real concepts{_describe(source)}", questions, METHODS)

    def _list_ablations(self) -> Iterator[Section]:
        for source in self.declared.concepts:
            questions = self._collect(QUESTIONS, ("familiarity",), source)
            methods = [name for name in (SELF_FAMILIARITY, *ABLATIONS) if name in questions.scores]
            yield self._compare(f"Ablations, questions{_describe(source)}", questions, methods)

    def _list_judged(self) -> Iterator[Section]:
        title = "By a judge's labels"
        if self.declared.judge is None and self.declared.worksheet is None:
            yield {"title": title, "missing": "nobody judges: name judge or worksheet in the study's file"}
            return
        ratings, reason = self._read_ratings()
        if not ratings:
            yield {"title": title, "missing": reason}
            return
        ratings |= {
            concept.key: 1.0 for batch in self.batches[FICTIONAL] for concept in batch.instructions
        }  # as in the paper
        concepts = self._collect(CONCEPTS, BOTH)
        yield self._compare("Concepts by a judge's labels", concepts, METHODS, ratings) | {"judge_missing": reason}
        for source in self.declared.concepts:
            questions = self._collect(QUESTIONS, BOTH, source)
            title = f"Questions by a judge's labels of their concepts{_describe(source)}"
            yield self._compare(title, questions, METHODS, ratings)

    def _read_ratings(self) -> tuple[dict[str, float], str]:
        """Return the judge's scores by concept, and the reason why one is missing."""
        batches = self.batches[REAL]
        if self.declared.worksheet is not None:
            outcomes = [self.outcomes.get(WORKSHEET_PART, Outcome())]
            concepts = [[concept for batch in batches for concept in batch.instructions]]
        else:
            outcomes = [self.outcomes.get(get_judge_title(batch), Outcome()) for batch in batches]
            concepts = [list(batch.instructions) for batch in batches]
        ratings = {
            concept.key: rating
            for outcome, rows in zip(outcomes, concepts, strict=True)
            if outcome.result is not None
            for concept, rating in zip(rows, outcome.result["ratings"], strict=True)
            if rating is not None
        }
        reasons = [outcome.reason for outcome in outcomes if outcome.result is None]
        return ratings, reasons[0] if reasons else "" if ratings else "no concept has a score yet"

    def _compare(
        self,
        title: str,
        measured: MeasuredInstructions,
        methods: Sequence[str],
        ratings: Mapping[str, float] | None = None,
    ) -> Section:
        """Return a section: the metrics of `methods`, by what is real or by a judge's `ratings` of concepts."""
        concept_ids = np.array([instruction.concept_id for instruction in measured.instructions], object)
        rating = (~measured.fictional).astype(float)
        label = rating.astype(int)
        if ratings is not None:
            rating = np.array([ratings.get(name, np.nan) for name in concept_ids], float)
            label = (rating > self.declared.familiar_above).astype(int)
            rows = ~np.isnan(rating) & (rating != self.declared.familiar_above)
            measured, rating, label, concept_ids = measured.select(rows), rating[rows], label[rows], concept_ids[rows]
        section: Section = {"title": title, "instructions": len(label), "total": measured.total}
        section |= {"familiar": int(label.sum()), "by": "judge" if ratings is not None else "real"}
        section |= {"reason": measured.reason, "columns": ["auc", "accuracy", "f1", "pearson"]}
        if len(set(label)) < 2:
            return section | {"missing": measured.reason or "there are no instructions of both kinds"}
        scores = {name: measured.scores[name] for name in methods}
        table = LabelledScores(label, rating, concept_ids.astype(str), scores, self._estimate_thresholds(methods))
        return section | {"methods": compare_methods(table, self.declared.draws, self.declared.seed)}

    def _estimate_thresholds(self, methods: Sequence[str]) -> dict[str, float]:
        """Return h by method, from the common concepts; an ablation has that of Self-Familiarity."""
        measures: tuple[Measure, ...] = BOTH if set(methods) & set(BASELINES) else ("familiarity",)
        scores = self._collect((COMMON,), measures).scores
        names = {name: SELF_FAMILIARITY if name in ABLATIONS else name for name in methods}
        scored = {name: scores[key][~np.isnan(scores[key])] for name, key in names.items() if key in scores}
        return {name: compute_threshold(list(values)) for name, values in scored.items() if len(values)}

    def _collect(
        self, kinds: Sequence[str], measures: Sequence[Measure], source: ConceptSource = "data"
    ) -> MeasuredInstructions:
        return collect_results(self.batches, self.outcomes, kinds, measures, source)


def _describe(source: ConceptSource) -> str:
    return ", concepts as extracted" if source == "extracted" else ", concepts of the data"
