"""`abstain familiarity`: whether the base model knows the concepts of an instruction, before it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_cli.kb import knowledge_base, print_hits
from abstain_cli.progress_bar import show_progress
from abstain_cli.terminal import console

if TYPE_CHECKING:
    from abstain.llm.familiarity.guessing import GuessedConcept

_NO_KNOWLEDGE_BASE = (Code.NO_ROWS, Code.NO_CHECKOUT)


def show_familiarity(
    instruction: Annotated[str, typer.Argument(help="what is to be answered")],
    extraction: Annotated[
        Literal["ner", "llm"], typer.Option(help="who finds the concepts: spaCy's pipeline, or the base model")
    ] = "ner",
    domain: Annotated[str, typer.Option(help="of the concepts, for --extraction llm, such as medical")] = "",
    aggregation: Annotated[
        Literal["weighted", "minimum", "rarest"], typer.Option(help="how the concepts make one score")
    ] = "weighted",
    grouping: Annotated[bool, typer.Option("--grouping/--no-grouping", help="fuse adjacent concepts")] = True,
    filtering: Annotated[bool, typer.Option("--filtering/--no-filtering", help="drop everyday concepts")] = True,
    ranking: Annotated[bool, typer.Option("--ranking/--no-ranking", help="weigh by frequency, not by place")] = True,
    beams: Annotated[int, typer.Option(min=1, max=256, help="T_B: beams of a guess")] = 30,
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="h; default: from basic concepts, which are guessed once")
    ] = None,
    model: Annotated[str | None, typer.Option(help="the base model; default: params.yaml")] = None,
    entitlement: Annotated[
        list[str] | None, typer.Option("--entitlement", "-e", help="an entitlement of the user; repeatable")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="background chunks at most, a concept")] = 2,
) -> None:
    """Show how familiar the base model is with an instruction; offer background for what it does not know."""
    from abstain.config.params import load_params
    from abstain.config.settings import load_settings
    from abstain.llm.familiarity.familiarity import FamiliarityConfig, SelfFamiliarity

    if threshold != threshold:
        raise AbstainError(Code.USAGE, "--threshold nan: give a number from 0 to 1")
    if domain and extraction != "llm":
        raise AbstainError(Code.USAGE, "--domain is what the base model is told: give it with --extraction llm")
    if not instruction.strip():
        raise AbstainError(Code.USAGE, "INSTRUCTION is empty: give what is to be answered")
    params = load_params().llm
    method = FamiliarityConfig(extraction, domain, grouping, filtering, ranking, aggregation, beams=beams)
    scorer = SelfFamiliarity(model or params.model, params.layout, load_settings(), method)
    with show_progress(console, "concepts") as progress:
        (result,) = scorer.score([instruction], progress)
    unfamiliar: list[str] = []
    if result.score is None:
        reason = "none of its concepts fits into a guess" if result.concepts else "no concept found"
        console.print(f"{reason}: no score")
    else:
        if threshold is None:
            with show_progress(console, "basic concepts") as progress:
                threshold = scorer.estimate_threshold(progress)
        decision = "withhold" if result.score < threshold else "answer"
        console.print(f"familiarity {result.score:.3f}, threshold {threshold:.3f}: {decision}")
        unfamiliar = result.find_unfamiliar(threshold)
    if result.concepts:
        console.print(_table(result.concepts))
    if result.left_out:
        console.print(f"{result.left_out} more concepts, of more frequent words, were left out")
    if unfamiliar:
        console.print(f"unfamiliar: {', '.join(unfamiliar)}", soft_wrap=True)
        _offer_background(unfamiliar, entitlement or (), k)
    console.print(f"cost: {scorer.cost.forward_tokens:,} forward tokens; what was known from earlier costs none")


def _table(concepts: Sequence[GuessedConcept]) -> Table:
    table = Table("concept", "familiarity", "likeliest guess that contains it")
    for concept in concepts:
        table.add_row(concept.concept, "too long" if concept.score is None else f"{concept.score:.3f}", concept.guess)
    return table


def _offer_background(concepts: Sequence[str], entitlements: Sequence[str], k: int) -> None:
    """Show the chunks nearest to each concept that the user may read, if there is a knowledge base."""
    try:
        with knowledge_base() as base:
            hits_by_concept = {concept: base.retriever.search(concept, k, entitlements) for concept in concepts}
    except AbstainError as error:
        if error.code not in _NO_KNOWLEDGE_BASE:
            raise
        console.print("no knowledge base to take background from: `abstain ingest` documents into one")
        return
    for concept, hits in hits_by_concept.items():
        console.print(f"background on {concept}:", soft_wrap=True)
        print_hits(hits)
