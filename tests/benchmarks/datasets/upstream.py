"""Made-up records in the layouts of the published sets."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

SHARED = ROOT.parent / "shared" / "data"
"""The published sets themselves, where a checkout has them beside it."""


def write_json(path: Path, content: Any) -> Path:
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def write_records(path: Path, *records: dict[str, Any]) -> Path:
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def squad(*articles: tuple[str, list[tuple[str, list[dict[str, Any]]]]]) -> dict[str, Any]:
    """The official layout of (title, paragraphs), a paragraph being (context, questions)."""
    return {
        "version": "v2.0",
        "data": [
            {
                "title": title,
                "paragraphs": [{"context": context, "qas": questions} for context, questions in paragraphs],
            }
            for title, paragraphs in articles
        ],
    }


def make_question(
    key: str, *answers: str, question: str = "What is the fee?", plausible: list[str] | None = None
) -> dict[str, Any]:
    """A question of SQuAD; `plausible` makes it one of those that cannot be answered."""
    record = {"id": key, "question": question, "answers": [{"text": text, "answer_start": 0} for text in answers]}
    if plausible is None:
        return record
    return record | {
        "is_impossible": True,
        "plausible_answers": [{"text": text, "answer_start": 0} for text in plausible],
    }


def make_record(key: str = "lt-1", verdict: str = "Correct", **changes: Any) -> dict[str, Any]:
    """A record of qa_from_hf."""
    own = {"id": key, "study": "long-term", "round": 1, "title": "Zoë Bank", "section": "Fees"}
    own |= {"log_prob": -0.5, "class_log_prob": -0.25}
    own |= {"context": "The card is free.", "question": "What does it cost?", "model_answer": "nothing"}
    return {**own, "user_feedback": verdict, **changes}


def make_passage(number: int = 1, **changes: Any) -> dict[str, Any]:
    """What feedbackqa says of a passage."""
    own = {"domain": "WHO", "uri": "https://who.example/fees", "page_title": "Fees", "section_headers": ["Cards"]}
    return {**own, "text": f"Passage {number}.", "reference_type": "FAQ", **changes}


def make_rating(key: str = "fb-1", *ratings: str, **changes: Any) -> dict[str, Any]:
    """A record of feedbackqa's human_feedback."""
    own = {"id": key, "domain": "WHO", "split": "valid", "question": "What does it cost?", "explanations": []}
    return {**own, "answer_passage": {"passage_id": 7, **make_passage()}, "ratings": ratings, **changes}


FORMATS: dict[str, Callable[[Path], Path]] = {
    "squad": lambda folder: write_json(
        folder / "squad.json", squad(("Bank", [("The card is free.", [make_question("q-1", "free")])]))
    ),
    "qa_from_hf": lambda folder: write_records(folder / "qa.jsonl", make_record()),
    "feedbackqa": lambda folder: write_records(folder / "fb.jsonl.gz", make_rating("fb-1", "Excellent", "Bad")),
}
"""Writes a small file of each format into a folder."""
