"""`abstain score` and `abstain generate`: the version in production decides about one answer, or about a file of them.

torch and ONNX Runtime are imported by the commands, as in `abstain_cli.app`: `--help` is instant.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

if TYPE_CHECKING:
    from abstain.core.contracts import Interaction, Question
    from abstain.serving.gate import Gate

AT_ONCE = 64
"""Rows of a file that are scored or answered before any is printed."""

Context = Annotated[list[str] | None, typer.Option("--context", "-c", help="a retrieved chunk; repeatable")]
NoContext = Annotated[bool, typer.Option("--no-context", help="rows without any context are meant, so decide on them")]


def score(
    file: Annotated[Path | None, typer.Argument(help="JSON Lines of interactions; `-` reads standard input")] = None,
    question: Annotated[str | None, typer.Option("--question", "-q")] = None,
    answer: Annotated[str | None, typer.Option("--answer", "-a")] = None,
    context: Context = None,
    no_context: NoContext = False,
) -> None:
    """Show or abstain? One answer from flags, or a file of them; one JSON line each."""
    _require_one_input(file, (question, answer), context, no_context, "--question and --answer")
    from abstain.config.serve_settings import load_serve_settings
    from abstain.config.settings import load_settings
    from abstain.serving.gate import DecisionInput, Gate
    from abstain.serving.request_files import make_interaction_from_texts, read_interactions
    from abstain_tasks.release.bundles import fetch_production

    requests = (
        read_interactions(file) if file else [make_interaction_from_texts(question or "", answer or "", context or [])]
    )
    bundle, _ = fetch_production()
    gate = Gate.open(bundle, load_settings(), load_serve_settings().on_unavailable)
    _warn_about_missing_context(gate, requests, no_context)
    for start in range(0, len(requests), AT_ONCE):
        rows = requests[start : start + AT_ONCE]
        for decision in gate.decide_all([DecisionInput(row.interaction_id, row, no_context) for row in rows]):
            print(json.dumps(decision.to_dict()), flush=True)


def generate(
    file: Annotated[Path | None, typer.Argument(help="JSON Lines of questions; `-` reads standard input")] = None,
    question: Annotated[str | None, typer.Option("--question", "-q")] = None,
    context: Context = None,
    no_context: NoContext = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="longest answer")] = 48,
    temperature: Annotated[float, typer.Option(min=0, max=100, help="0: the likeliest answer; above: a sample")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="sample from this much of the probability")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="of the sample")] = 0,
    familiarity: Annotated[
        Literal["off", "withhold", "background"] | None,
        typer.Option(help="for questions that the base model does not know; default: ABSTAIN_SERVE_FAMILIARITY"),
    ] = None,
    entitlement: Annotated[
        list[str] | None, typer.Option("--entitlement", "-e", help="of the asker, for background; repeatable")
    ] = None,
) -> None:
    """Answer questions from retrieved chunks and decide about the answers; one JSON line each."""
    _require_one_input(file, (question,), context, no_context, "--question")
    from abstain.llm.engine.requests import Generate

    try:
        ask = Generate(max_new_tokens, temperature, top_p, seed=seed)
    except ValueError as error:
        raise AbstainError(Code.USAGE, str(error)) from None
    from abstain.config.serve_settings import load_serve_settings
    from abstain.config.settings import load_settings
    from abstain.serving.gate import Gate
    from abstain.serving.generate import add_familiarity_check, explain_no_room, generate_answers
    from abstain.serving.request_files import make_question_from_texts, read_questions
    from abstain_cli.kb import open_if_enabled
    from abstain_cli.progress_bar import show_progress
    from abstain_cli.terminal import console
    from abstain_tasks.release.bundles import fetch_production

    serving = load_serve_settings()
    mode = familiarity or serving.familiarity
    if entitlement and mode != "background":
        raise AbstainError(Code.USAGE, "--entitlement is for background: give it with --familiarity background")
    questions = read_questions(file) if file else [make_question_from_texts(question or "", context or [])]
    bundle, _ = fetch_production()
    gate = Gate.open(bundle, load_settings(), serving.on_unavailable)
    if excess := explain_no_room(gate.predictor, ask):
        raise AbstainError(Code.USAGE, f"--max-new-tokens {max_new_tokens} leaves no room for any question: {excess}")
    _warn_about_missing_context(gate, questions, no_context or mode == "background")
    with open_if_enabled(mode == "background") as base:
        if base:
            gate = replace(gate, chunks=base.chunk_by_id)
        if mode != "off":
            with show_progress(console, "basic concepts") as progress:
                gate = add_familiarity_check(gate, mode, base.find_contexts if base else None, progress)
        for start in range(0, len(questions), AT_ONCE):
            rows = questions[start : start + AT_ONCE]
            for answer in generate_answers(
                gate, rows, ask, allow_no_context=no_context, entitlements=tuple(entitlement or ())
            ):
                print(json.dumps({"answer": answer.text, **answer.decision.to_dict()}), flush=True)


def _require_one_input(
    file: Path | None, texts: Sequence[str | None], context: Sequence[str] | None, no_context: bool, flags: str
) -> None:
    """Raise `AbstainError` unless there is either a file or every text, with contexts or --no-context."""
    if (file is None) == (None in texts) or (file and (context or any(text is not None for text in texts))):
        raise AbstainError(Code.USAGE, f"give either a FILE, or {flags} (and --context, once a chunk)")
    if context and no_context:
        raise AbstainError(Code.USAGE, "--context and --no-context contradict each other: leave one of them out")


def _warn_about_missing_context(gate: Gate, rows: Sequence[Interaction | Question], no_context: bool) -> None:
    without_context = sum(gate.is_context_missing(item, no_context) for item in rows)
    if without_context:
        which = f"{without_context:,} of {len(rows):,} rows have" if len(rows) > 1 else "the answer has"
        print(
            f"warning {Code.NOTHING_TO_SCORE}: {which} no context, so the decision is unavailable: give what was "
            "retrieved, or --no-context if that is intended",
            file=sys.stderr,
        )
