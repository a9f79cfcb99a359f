"""What is served and what it was made of: the model card and the data card; and what the figures mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abstain.core.codes import Code
from abstain.core.formatting import format_configured_share, format_count, format_number, format_percent, join_words
from abstain.core.markdown import bullet_list, format_labelled, heading, paragraph, table
from abstain.reports.evaluation.evaluation_result import EvaluationResult


def model_card(evaluated: EvaluationResult) -> list[str]:
    served, probe, threshold = evaluated.served, evaluated.evaluation["probe"], evaluated.threshold
    train = next((row for row in evaluated.dataset["splits"] if row["split"] == "train"), None)
    limit = "precision of at least" if evaluated.is_precision else "error rate (shown and incorrect, of all) of at most"
    guarantee = f"{limit} {format_configured_share(threshold['target'])}, confidence {format_configured_share(threshold['confidence'])}"
    if not threshold["guaranteed"]:
        guarantee = f"none ({guarantee}: asked for)"
    elif evaluated.too_few_shown:
        guarantee += f", not checked yet: {evaluated.too_few_shown}"
    rows = {
        "base model": served["model"],
        "scorer": served["name"] + (f", of {join_words(served['parts'])}" if served["kind"] == "fusion" else ""),
        "probe reads": f"layer {served['layer']}, {served['site']}, answer and EOS tokens",
        "prompt layout": served["layout"],
        "probe": f"{probe['exported']}: {probe['description']}",
        "trained on": f"{train['answers']:,} answers of {train['groups']:,} groups" if train else "not known",
        "calibration": f"{evaluated.evaluation['calibration']['method']}, on the validation split",
        "threshold": format_number(evaluated.at_threshold["threshold"], ".6f"),
        "guarantee": guarantee,
        "forward tokens": format_number(served["forward_tokens"], ",.0f") + " for one answer",
        "use": "show an answer when its confidence is at or above the threshold, withhold it otherwise",
        "not for": "answers of another base model, another prompt layout, or another language than it was trained on",
    }
    return [heading(2, "Model card"), table(("what", "value"), rows.items(), "The served version", words=("value",))]


def data_card(evaluated: EvaluationResult) -> list[str]:
    dataset = evaluated.dataset
    labels = join_words([f"{number:,} {name.replace('_', ' ')}" for name, number in dataset["labels"].items()])
    return [
        heading(2, "Data card"),
        _counts("split", dataset["splits"], "Labelled answers by split"),
        *_kinds(dataset["kinds"]),
        paragraph(f"Labels: {labels}. {_rules()}"),
        paragraph(_twins(dataset["twins"])),
        *_thumbs(dataset),
        paragraph(_weights(evaluated.holdout)),
    ]


def glossary() -> list[str]:
    return [heading(2, "Definitions"), bullet_list(format_labelled(what, meaning) for what, meaning in WORDS.items())]


WORDS = {
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


def _counts(by: str, parts: list[Mapping[str, Any]], caption: str) -> str:
    rows = [
        (row[by], f"{row['answers']:,}", f"{row['groups']:,}", format_percent(row["correct"]), f"{row['reviewed']:,}")
        for row in parts
    ]
    return table((by, "answers", "groups", "correct", "reviewed"), rows, caption)


def _kinds(kinds: list[Mapping[str, Any]]) -> list[str]:
    """Refusals apart: one text for many questions, which is correct where there is no answer."""
    caption = "Labelled answers by kind; refusals begin with one of labels.refusals"
    return [_counts("kind", kinds, caption)] if all(row["answers"] for row in kinds) else []


def _rules() -> str:
    return (
        "A label is the reviewer's where there is one, else the thumb's; only reviewed answers are tested on. No group "
        "stands in two splits."
    )


def _twins(twins: Mapping[str, int]) -> str:
    """Near-duplicates: equal questions or long answers, but for names and numbers."""
    return (
        f"Near-duplicates (equal but for names and numbers): {format_count(twins['joined_groups'], 'group')} joined with "
        f"another one, {format_count(twins['left_out'], 'answer')} left out of training, "
        f"{twins['holdout_in_training']:,} in the hold-out that have one in the training data, "
        f"{twins['validation_in_training']:,} in the validation split."
    )


def _thumbs(dataset: Mapping[str, Any]) -> list[str]:
    """How far thumbs can be trusted, and what reviewers disagree about."""
    thumbs, conflicts = dataset["thumbs"], dataset["conflicts"]
    disagreeing = len(conflicts["answers"]) + conflicts["more"]
    blocks = [
        paragraph(f"Weights of thumbs: {thumbs['weights']} ({thumbs['why']}). {_largest(thumbs['largest_share'])}")
    ]
    rows = [
        (row["thumb"], f"{row['correct']:,}", f"{row['incorrect']:,}", _share(row["reviewers_agree"]))
        for row in thumbs.get("agreement", ())
    ]
    if rows:
        columns = ("thumb", "correct", "incorrect", "reviewers agree (95 %)")
        blocks.append(table(columns, rows, "Thumbs against reviewers, on the same answers"))
    text = (
        f"Reviews disagree on {format_count(disagreeing, 'answer')} (rule: {conflicts['rule']}); thumbs contradict the "
        f"reviewers on {conflicts['thumbs_against_reviewers']:,}."
    )
    return [*blocks, paragraph(text), *_contradicting(dataset["contradicting"])]


def _contradicting(found: Mapping[str, Any]) -> list[str]:
    """Who contradicts the others beyond chance."""
    if found["named"]:
        title = f"{Code.CONTRADICTS_OTHERS} Judgements that contradict the others' beyond chance:"
        return [paragraph(title), bullet_list(one["message"] for one in found["named"])]
    enough = f"{found['judged']:,} users, reviewers and reviewers' batches with answers enough to tell"
    return [paragraph(f"Nobody contradicts the others beyond chance, of {enough}.")]


def _largest(largest: Mapping[str, Any]) -> str:
    """The user whose thumbs weigh most in training."""
    if not largest["users"]:
        return "No training label is by thumbs."
    text = (
        f"Of {format_count(largest['users'], 'user')} whose thumbs make training labels, the one with most has "
        f"{format_percent(largest['before'])} of their weight"
    )
    if largest["before"] <= largest["limit"]:
        return f"{text}, at most {format_percent(largest['limit'])} allowed (labels.max_user_share)."
    return f"{text}, cut to {format_percent(largest['after'])} (labels.max_user_share)."


def _share(rate: Mapping[str, float]) -> str:
    return f"{format_percent(rate['value'])} ({format_percent(rate['low'])} to {format_percent(rate['high'])})"


def _weights(holdout: Mapping[str, Any]) -> str:
    apart = f" (and {holdout['volunteered']['rows']:,} apart)" if holdout["volunteered"] else ""
    text = f"The hold-out has {format_count(holdout['rows'], 'answer')}{apart}, labelled by: {holdout['label_source']}."
    if not holdout["drawn_unevenly"]:
        return f"{text} All of them were equally likely to be reviewed."
    return (
        f"{text} {holdout['drawn_unevenly']:,} of these had a higher chance of being reviewed than others, and count "
        "less by as much: every figure here is weighted by 1 / inclusion probability. Their effective sample size is "
        f"{holdout['effective_sample_size']:.0f}."
    )
