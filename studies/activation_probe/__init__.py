"""The study of Huang et al.: its tables for any scorer, and one that the paper lacks, of its Huber term."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from abstain.config.params import Params
from abstain.config.settings import Settings
from abstain.config.yaml_model import load_yaml_model
from abstain.core.formatting import format_with_interval
from abstain.core.markdown import document, heading, paragraph
from abstain.llm.features.feature_store import OnProgress
from abstain.llm.features.shard_job import ShardRunner
from studies.activation_probe import markdown
from studies.activation_probe.declared import DeclaredProbeStudy
from studies.activation_probe.huber import compare_terms, fit_term, list_terms
from studies.activation_probe.sites import compute_latency, compute_sites
from studies.activation_probe.thresholds import compute_board, compute_thresholds
from studies.leaderboard.comparison import make_workspace
from studies.leaderboard.results import draw_curves, select_answers
from studies.leaderboard.tables import describe_counts, render_table
from studies.leaderboard.workspace import StageWorkspace, make_part
from studies.study import REMEDY, Outcome, Part, StudyReport, StudySource, select_tables

BOARD, THRESHOLDS, SITES, LATENCY, HUBER = "1", "2", "4", "5", "huber"


@dataclass(frozen=True)
class ProbeStudy:
    """The declared tables on the answers of a workspace."""

    declared: DeclaredProbeStudy
    workspace: StageWorkspace
    runner: ShardRunner | None

    @property
    def title(self) -> str:
        """The title of its report."""
        return self.declared.title

    def list_parts(self, tables: Sequence[str]) -> list[Part]:
        """Return the parts of `tables`; the Huber term has one for each of its settings.

        Raises:
            AbstainError: there is no such table, or there are no answers.
        """
        return [part for name in select_tables(tables, self.declared.tables) for part in self._list_parts(name)]

    def _list_parts(self, table: str) -> Iterator[Part]:
        declared, settings = self.declared, self.workspace.settings
        make = partial(make_part, self.workspace)
        if table == BOARD:
            inputs = declared.model_dump(mode="json", include={"pair", "thresholds_for"})
            yield make("every scorer", inputs, partial(_compute_board, declared))
        elif table == THRESHOLDS:
            yield make("thresholds", {"part": table}, compute_thresholds)
        elif table == SITES:
            probe = {"architecture": declared.architecture, "sites": declared.sites, "layers": declared.layers}
            for chunks in declared.chunks:
                compute = partial(
                    compute_sites, declared.list_sites(chunks), declared.architecture, settings, self.runner
                )
                yield make(f"layers, k = {chunks or 'all'}", {**probe, "chunks": chunks}, compute)
        elif table == LATENCY:
            timed = declared.model_dump(mode="json", include={"layers", "sites", "chunks", "timed", "runs"})
            yield make("latency", timed, self._compute_latency)
        else:
            for term in list_terms(declared.huber):
                fit_inputs = {"architecture": declared.architecture, "term": term, "seeds": declared.seeds}
                yield make(_name_term(term), fit_inputs, partial(fit_term, term, declared.architecture, declared.seeds))

    def _compute_latency(self, params: Params, progress: OnProgress) -> dict[str, Any]:
        first, *_ = self.declared.sites
        every = (site for chunks in self.declared.chunks for site in self.declared.list_sites(chunks))
        sites = [site for site in every if site.site == first]
        answers = select_answers(self.declared.timed)
        return compute_latency(sites, answers, self.declared.runs, self.workspace.settings, params)

    def make_report(self, tables: Sequence[str], outcomes: Mapping[str, Outcome]) -> StudyReport:
        """Return the report of `tables`."""
        names = select_tables(tables, self.declared.tables)
        content: dict[str, Any] = {"title": self.title, "answers": self.workspace.inputs["answers"], "tables": {}}
        blocks, figures, missing = [heading(1, self.title)], dict[str, str](), dict[str, str]()
        for name in names:
            parts = [part.title for part in self._list_parts(name)]
            failed = {title: outcomes[title].reason for title in parts if outcomes[title].result is None}
            results: list[Mapping[str, Any]] = [
                result for title in parts if (result := outcomes[title].result) is not None
            ]
            missing |= failed
            if name == HUBER:
                results = self._compare_terms(results)
            records, remarks = self._format_table(name, results) if results else ([], [])
            content["tables"][name] = {"results": results, "paper": list(self.declared.tables[name].paper)}
            blocks += [*render_table(self.declared.tables[name], records, list(failed.values()))]
            blocks += [paragraph(remark) for remark in remarks]
            if name == BOARD and results:
                figures = dict(results[0]["figures"])
        return StudyReport({**content, "missing": missing}, document(blocks), figures)

    def _format_table(self, name: str, results: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, str]], list[str]]:
        """Return the rows of a table, and what is to be said about it."""
        result = results[0]
        if name == BOARD:
            return markdown.format_board(result["rows"]), [
                describe_counts(result["counts"]),
                self._describe_pair(result),
            ]
        if name == THRESHOLDS:
            count = result["ideal_answers"]
            remark = f"{count} of the test answers have an ideal answer." if count else NO_IDEAL_ANSWERS
            return list(markdown.format_thresholds(result["tables"], self.declared.thresholds_for)), [remark]
        if name == SITES:
            rows = [row for result in results for row in result["rows"]]
            return list(markdown.format_sites(rows)), markdown.list_notes(rows)
        if name == LATENCY:
            runs = f"in each of {self.declared.runs} runs, the least and the greatest of which are in brackets"
            remark = f"{result['answers']} test answers {runs}."
            return list(markdown.format_latencies(result["rows"])), [remark]
        remark = f"{result['answers']} test answers; seeds {', '.join(map(str, self.declared.seeds))}."
        return list(markdown.format_terms(result["terms"])), [remark]

    def _compare_terms(self, results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the comparison of all Huber terms as the only result; none if a term is missing."""
        terms = list_terms(self.declared.huber)
        if len(results) < len(terms):
            return []
        compared = compare_terms(list(zip(terms, results, strict=True)))
        return [{"terms": compared, "answers": len(results[0]["correct"])}]

    def _describe_pair(self, result: Mapping[str, Any]) -> str:
        first, second = self.declared.pair
        if result["difference"] is None:
            return f"{first} and {second} were not both trained."
        difference = format_with_interval(result["difference"], "difference", "+.3f")
        return f"AUROC of {first} less that of {second}, on the same resamples: {difference}."


NO_IDEAL_ANSWERS = "No test answer has an ideal answer, so there is no ROUGE-L."


def _compute_board(declared: DeclaredProbeStudy, params: Params, progress: OnProgress) -> dict[str, Any]:
    board = compute_board(declared.pair, params, progress)
    scorers = {row["scorer"] for row in board["rows"]}
    return {**board, "figures": draw_curves([name for name in declared.thresholds_for if name in scorers])}


def _name_term(term: Mapping[str, float]) -> str:
    return ", ".join(f"{key} = {value:g}" for key, value in term.items())


def load_study(
    file: Path,
    source: StudySource,
    sizes: Mapping[str, tuple[int, int]],
    settings: Settings,
    runner: ShardRunner | None = None,
) -> ProbeStudy:
    """Return the study of `file` on the answers of `source`.

    Raises:
        AbstainError: the file is invalid, or there is no such size.
    """
    declared = load_yaml_model(file, DeclaredProbeStudy, REMEDY)
    return ProbeStudy(declared, make_workspace(source, sizes, settings), runner)
