"""Made-up records in the layouts of the published sets."""

import gzip
import json
from pathlib import Path
from typing import Any


def write_records(path: Path, *records: dict[str, Any]) -> Path:
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def squad(title: str, *paragraphs: tuple[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The official layout of an article of (context, questions)."""
    return {"data": [{"title": title, "paragraphs": [{"context": text, "qas": asked} for text, asked in paragraphs]}]}


def make_question(key: str, *answers: str, **changes: Any) -> dict[str, Any]:
    """A question of SQuAD, with `plausible_answers` one of those that cannot be answered."""
    own = {"id": key, "question": "What is the fee?", "answers": answers, "plausible_answers": (), **changes}
    marked = {
        name: [{"text": text, "answer_start": 0} for text in own[name]] for name in ("answers", "plausible_answers")
    }
    return {**own, **marked, "is_impossible": "plausible_answers" in changes}


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
