"""`python -m studies.perturb TEXT`: show the effect of a perturbation on a text, as a diff."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_cli.entry import prepare_run, run_app
from abstain_cli.terminal import console

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def perturb_text(
    text: Annotated[str, typer.Argument(help="what is to be perturbed")],
    selection: Annotated[str | None, typer.Option(help="entropy or random; default: params.yaml")] = None,
    schedule: Annotated[str | None, typer.Option(help="single_shot or iterative; default: params.yaml")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="K; default: params.yaml")] = None,
    model: Annotated[str | None, typer.Option(help="the perturbation model; default: params.yaml")] = None,
) -> None:
    """Show a text perturbed by the settings of params.yaml or of the options, and every replacement."""
    from datetime import UTC, datetime

    from pydantic import ValidationError

    from abstain.config.params import PerturbationParams, load_params
    from abstain.config.settings import load_settings
    from abstain.core.contracts import Context, Interaction
    from abstain.llm.features.context_perturbation import ContextPerturber
    from abstain.llm.perturbation.text import format_diff

    if not text.strip():
        raise AbstainError(Code.USAGE, "TEXT is empty: give the text that is to be perturbed")
    params = load_params()
    options = {"selection": selection, "schedule": schedule, "tokens": tokens, "model": model}
    changes = {name: value for name, value in options.items() if value is not None}
    try:
        perturbation_params = PerturbationParams.model_validate(
            params.perturbation.model_dump() | {"n_copies": 1} | changes
        )
    except ValidationError as error:
        problem = error.errors()[0]
        raise AbstainError(Code.USAGE, f"--{problem['loc'][0]}: {problem['msg']}") from None
    perturber = ContextPerturber(perturbation_params, perturbation_params.model or params.llm.model, load_settings())
    row = Interaction(
        interaction_id="text",
        asked_at=datetime.now(UTC),
        question="?",
        answer="?",
        contexts=(Context(chunk_id="text", text=text),),
        model=perturber.model,
    )
    if perturber.count_remarks([row])["too_long"]:
        raise AbstainError(
            Code.TOO_LONG, f"the text is longer than {perturber.model} reads at once: give a shorter one"
        )
    (parts,), replacements = perturber.diff_contexts(row), perturber.list_replacements(row)
    console.print(format_diff(parts), soft_wrap=True)
    table = Table("", "old", "new", "log-likelihood of old", "of new")
    for number, (old, new, step) in enumerate(replacements, 1):
        table.add_row(
            str(number), repr(old), repr(new), f"{step.old_log_likelihood:.2f}", f"{step.new_log_likelihood:.2f}"
        )
    console.print(table)
    if len(replacements) < perturbation_params.tokens:
        console.print(
            f"only {len(replacements)} tokens can be replaced, of the {perturbation_params.tokens} that were wanted"
        )


if __name__ == "__main__":
    run_app(app, "python -m studies.perturb", prepare_run)
