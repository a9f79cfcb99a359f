"""Model card and data card of the served version, and definitions of the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abstain.core.codes import Code
from abstain.core.formatting import format_count, format_number, format_percent, join_words
from abstain.core.markdown import bullet_list, format_labelled, heading, paragraph, table
from abstain.reports.evaluation.evaluation_result import EvaluationResult


def model_card(result: EvaluationResult) -> list[str]:
    """Render the model card.

    Args:
        result: Measurements of the candidate.

    Returns:
        Markdown blocks.
    """
    served, probe = result.served_scorer, result.evaluation["probe"]
    train = next((row for row in result.dataset["splits"] if row["split"] == "train"), None)
    rows = {
        "base model": served["model"],
        "scorer": served["name"] + (f", of {join_words(served['components'])}" if served["kind"] == "fusion" else ""),
        "probe reads": f"layer {served['layer']}, {served['site']}, answer and EOS tokens",
        "prompt layout": served["layout"],
        "probe": f"{probe['exported']}: {probe['description']}",
        "trained on": f"{train['answers']:,} answers of {train['groups']:,} groups" if train else "not known",
        "calibration": f"{result.evaluation['calibration']['method']}, on the validation split",
        "threshold": format_number(result.at_threshold["threshold"], ".6f"),
        "guarantee": result.guarantee.message,
        "forward tokens": format_number(served["forward_tokens"], ",.0f") + " for one answer",
        "use": "show an answer when its confidence is at or above the threshold, withhold it otherwise",
        "not for": "answers of another base model, another prompt layout, or another language than it was trained on",
    }
    return [
        heading(2, "Model card"),
        table(("what", "value"), rows.items(), "The served version", text_columns=("value",)),
    ]


def data_card(result: EvaluationResult) -> list[str]:
    """Render the data card.

    Args:
        result: Measurements of the candidate.

    Returns:
        Markdown blocks.
    """
    dataset = result.dataset
    labels = join_words([f"{number:,} {name.replace('_', ' ')}" for name, number in dataset["labels"].items()])
    return [
        heading(2, "Data card"),
        _make_count_table("split", dataset["splits"], "Labelled answers by split"),
        *_make_kind_table(dataset["kinds"]),
        paragraph(f"Labels: {labels}. {_describe_label_rules()}"),
        paragraph(_describe_near_duplicates(dataset["near_duplicates"])),
        *_describe_thumbs(dataset),
        paragraph(_describe_weights(result.holdout)),
    ]


def glossary() -> list[str]:
    """Render the definitions of the metrics."""
    return [
        heading(2, "Definitions"),
        bullet_list(format_labelled(what, meaning) for what, meaning in DEFINITIONS.items()),
    ]


DEFINITIONS = {
    "AUROC": "how often a correct answer has a higher confidence than an incorrect one; 0.5 is guessing, 1 is perfect.",
    "AUPRC": "precision averaged over all thresholds; guessing has the share of correct answers.",
    "Precision": "the share of the shown answers that is correct. Recall: the share of correct answers that is shown.",
    "Brier": "the mean squared error of a probability; 0 is perfect.",
    "ECE": "by how much a probability is off, on average over ten classes of it. Of fewer answers it comes out higher, "
    "so its interval, which is of draws, may lie above it.",
    "AURC": "the share of errors among the shown, averaged over all thresholds; lower is better.",
    "Error recall at 15 % withheld": "the share of all incorrect answers among the least confident 15 % of answers.",
    "95 % interval": "where a figure lies in 95 % of draws of the hold-out's groups; answers of a group stay together.",
    "Not defined": "these answers do not define that figure, e.g. an AUROC where all are correct. It is not 0.",
}


def _make_count_table(by: str, parts: list[Mapping[str, Any]], caption: str) -> str:
    rows = [
        (row[by], f"{row['answers']:,}", f"{row['groups']:,}", format_percent(row["correct"]), f"{row['reviewed']:,}")
        for row in parts
    ]
    return table((by, "answers", "groups", "correct", "reviewed"), rows, caption)


def _make_kind_table(kinds: list[Mapping[str, Any]]) -> list[str]:
    """Return the counts of answers and refusals separately: a refusal is one text for many questions.

    It is correct if there is no answer.
    """
    caption = "Labelled answers by kind; refusals begin with one of labels.refusals"
    return [_make_count_table("kind", kinds, caption)] if all(row["answers"] for row in kinds) else []


def _describe_label_rules() -> str:
    return (
        "A label is the reviewer's where there is one, else the thumb's; only reviewed answers are tested on. No group "
        "stands in two splits."
    )


def _describe_near_duplicates(counts: Mapping[str, int]) -> str:
    """Describe near-duplicates: questions or long answers that are equal except for names and numbers."""
    return (
        f"Near-duplicates (equal but for names and numbers): {format_count(counts['joined_groups'], 'group')} joined "
        f"with another one, {format_count(counts['left_out'], 'answer')} left out of training, "
        f"{counts['holdout_in_training']:,} in the hold-out that have one in the training data, "
        f"{counts['validation_in_training']:,} in the validation split."
    )


def _describe_thumbs(dataset: Mapping[str, Any]) -> list[str]:
    """Describe how reliable thumbs are, and what reviewers disagree about."""
    thumbs, conflicts = dataset["thumbs"], dataset["conflicts"]
    disagreeing = len(conflicts["answers"]) + conflicts["more"]
    blocks = [
        paragraph(
            f"Weights of thumbs: {thumbs['weights']} ({thumbs['reason']}). "
            f"{_describe_largest_share(thumbs['largest_share'])}"
        )
    ]
    rows = [
        (row["thumb"], f"{row['correct']:,}", f"{row['incorrect']:,}", _format_rate(row["reviewers_agree"]))
        for row in thumbs.get("agreement", ())
    ]
    if rows:
        columns = ("thumb", "correct", "incorrect", "reviewers agree (95 %)")
        blocks.append(table(columns, rows, "Thumbs against reviewers, on the same answers"))
    text = (
        f"Reviews disagree on {format_count(disagreeing, 'answer')} (rule: {conflicts['rule']}); thumbs contradict the "
        f"reviewers on {conflicts['thumbs_against_reviewers']:,}."
    )
    return [*blocks, paragraph(text), *_describe_contradictions(dataset["contradicting"])]


def _describe_contradictions(contradictions: Mapping[str, Any]) -> list[str]:
    """Describe who contradicts the others beyond chance."""
    if contradictions["named"]:
        title = f"{Code.CONTRADICTS_OTHERS} Judgements that contradict the others' beyond chance:"
        return [paragraph(title), bullet_list(party["message"] for party in contradictions["named"])]
    checked = f"{contradictions['tested']:,} users, reviewers and reviewers' batches with answers enough to tell"
    return [paragraph(f"Nobody contradicts the others beyond chance, of {checked}.")]


def _describe_largest_share(largest: Mapping[str, Any]) -> str:
    """Describe the user whose thumbs have the largest weight in training."""
    if not largest["users"]:
        return "No training label is by thumbs."
    text = (
        f"Of {format_count(largest['users'], 'user')} whose thumbs make training labels, the one with most has "
        f"{format_percent(largest['before'])} of their weight"
    )
    if largest["before"] <= largest["limit"]:
        return f"{text}, at most {format_percent(largest['limit'])} allowed (labels.max_user_share)."
    return f"{text}, cut to {format_percent(largest['after'])} (labels.max_user_share)."


def _format_rate(rate: Mapping[str, float]) -> str:
    return f"{format_percent(rate['value'])} ({format_percent(rate['low'])} to {format_percent(rate['high'])})"


def _describe_weights(holdout: Mapping[str, Any]) -> str:
    self_selected = f" (and {holdout['self_selected']['rows']:,} self-selected)" if holdout["self_selected"] else ""
    text = (
        f"The hold-out has {format_count(holdout['rows'], 'answer')}{self_selected}, labelled by: "
        f"{holdout['label_source']}."
    )
    if not holdout["sampled_unevenly"]:
        return f"{text} All of them were equally likely to be reviewed."
    return (
        f"{text} {holdout['sampled_unevenly']:,} of these had a higher chance of being reviewed than others, and count "
        "less by as much: every figure here is weighted by 1 / inclusion probability. Their effective sample size is "
        f"{holdout['effective_sample_size']:.0f}."
    )
