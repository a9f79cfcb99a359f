"""The report of one candidate: Markdown for people and for the Prefect UI, and one HTML page without a network."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pandas as pd
from markdown_it import MarkdownIt

from abstain.params import Params

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; margin: 1rem 0 } td, th { border-bottom: 1px solid #ddd; padding: .3rem .8rem }
th { text-align: left } td { font-variant-numeric: tabular-nums } img { max-width: 48%; } code { background: #f3f3f3 }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e6e6e6 } img { filter: invert(.9) }
code { background: #2a2d33 } td, th { border-color: #333 } }
"""


def leaderboard_table(scorers: Mapping[str, Mapping[str, float | None]]) -> str:
    """The leaderboard as a Markdown table, best AUROC first."""
    ranked = sorted(scorers.items(), key=lambda item: -(item[1]["auroc"] or 0))
    rows = [
        {
            "scorer": name,
            "AUROC [95 %]": f"{figure(s['auroc'])} [{figure(s['auroc_low'])}, {figure(s['auroc_high'])}]",
            **{key.upper(): figure(s[key]) for key in ("auprc", "brier", "ece", "aurc")},
        }
        for name, s in ranked
    ]
    return markdown_table(pd.DataFrame(rows))


def threshold_markdown(table: pd.DataFrame) -> str:
    """The threshold table as Markdown, the tuned row in bold."""
    shown = pd.DataFrame(
        {
            "threshold": table["threshold"].map("{:.3f}".format),
            "precision": table["precision"].map("{:.3f}".format),
            "recall": table["recall"].map("{:.3f}".format),
            "masked": table["mask_rate"].map("{:.1%}".format),
        }
    )
    return markdown_table(shown.where(~table["tuned"], "**" + shown + "**"))


def figure(value: float | None, form: str = ".3f") -> str:
    """A figure as text; JSON's null is one that is not defined for the rows at hand."""
    return "not defined" if value is None else format(value, form)


def markdown_table(frame: pd.DataFrame) -> str:
    """A frame as a Markdown table; a cell without a value is said to be not defined."""
    cells = frame.map(lambda value: "not defined" if pd.isna(value) else str(value))
    lines = [list(frame.columns), ["---"] * len(frame.columns), *cells.values.tolist()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def render_markdown(
    params: Params, metrics: dict[str, Any], dataset: dict[str, Any], table: pd.DataFrame, plots: list[str]
) -> str:
    """The whole report. `plots` are image addresses, relative or inlined."""
    holdout, newest = metrics["holdout"], metrics["newest"]
    probe, at = holdout["scorers"]["probe"], holdout["at_threshold"]
    images = "\n".join(f"![{name}]({name})" for name in plots)
    uneven = _uneven(holdout)
    labels = ", ".join(f"{count} {name}" for name, count in dataset["labels"].items()).replace("_", " ")
    return f"""# Confidence probe: evaluation

On {holdout["rows"]} answers of the frozen hold-out (judged by: {holdout["label_source"]}), of which
{holdout["base_rate"]:.1%} are right, the probe reaches **AUROC {figure(probe["auroc"])}** (95 % interval
{figure(probe["auroc_low"])} to {figure(probe["auroc_high"])}, groups resampled).

At the threshold {at["threshold"]:.3f}, tuned on the validation split for a precision of
{params.threshold.target_precision:g}, it shows **{at["display_rate"]:.1%}** of the answers, of which
**{figure(at["precision"], ".1%")}** are right. On the newest window ({newest["rows"]} answers) its AUROC is
{figure(newest["auroc"])}.{uneven}

## Model card

| what | value |
| --- | --- |
| base model | {params.llm.model} |
| listens to | layer {params.llm.layer}, {params.llm.site}, answer and EOS tokens, layout {params.llm.layout} |
| probe | LSTM({params.probe.hidden}), cross-entropy + {params.probe.huber_lambda:g} x Huber, seed {params.probe.seed} |
| use | show an answer when its confidence is at or above the threshold, withhold it otherwise |
| not for | answers of another base model, another prompt layout, or another language than it was trained on |

## Data card

{markdown_table(pd.DataFrame(dataset["splits"]))}
Labels: {labels}. A label is the expert's where there is one, else the thumb's; only
experts' labels are tested on where there are any. No group stands in two splits.

{_thumbs(dataset)}

## Leaderboard, on the hold-out

{leaderboard_table(holdout["scorers"])}
AUROC and AUPRC: higher is better; Brier, ECE and AURC (area under risk-coverage): lower. `length_only` sees the
number of answer tokens alone.

## Thresholds, on the hold-out

{threshold_markdown(table)}
{images}
"""


def _thumbs(dataset: dict[str, Any]) -> str:
    """How far thumbs can be trusted, and what experts disagree about."""
    thumbs, conflicts = dataset["thumbs"], dataset["conflicts"]
    lines = [f"Weights of thumbs: {thumbs['weights']} ({thumbs['why']})."]
    rows = [
        {**{key: row[key] for key in ("thumb", "right", "wrong")}, "experts agree": _share(row["experts_agree"])}
        for row in thumbs.get("agreement", ())
    ]
    if rows:
        lines += ["", markdown_table(pd.DataFrame(rows))]
    disagreeing = len(conflicts["answers"]) + conflicts["more"]
    lines += [
        f"Reviews disagree on {disagreeing} answers (rule: {conflicts['rule']}); thumbs say the opposite of the "
        f"experts on {conflicts['thumbs_against_experts']}."
    ]
    return "\n".join(lines)


def _share(rate: Mapping[str, float]) -> str:
    return f"{rate['value']:.1%} ({rate['low']:.1%} to {rate['high']:.1%})"


def _uneven(holdout: Mapping[str, Any]) -> str:
    if not holdout["drawn_unevenly"]:
        return ""
    return (
        f"\n\n{holdout['drawn_unevenly']} of these answers had a higher chance of being reviewed than others, and "
        "count less by as much: every figure here is weighted by 1 / inclusion probability. Together they say as much "
        f"as {holdout['effective_rows']:.0f} equally weighted ones."
    )


def render_html(markdown: str, images: Mapping[str, bytes]) -> str:
    """`markdown` as one page: style and `images` (address -> PNG) inlined, nothing fetched."""
    body = MarkdownIt("commonmark").enable("table").render(markdown)
    for address, png in images.items():
        body = body.replace(f'src="{address}"', f'src="data:image/png;base64,{base64.b64encode(png).decode()}"')
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
    title = "<title>Abstain: evaluation</title>"
    return f'<!doctype html><html lang="en"><head>{title}{head}</head><body>{body}</body></html>'
