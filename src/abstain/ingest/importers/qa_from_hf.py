"""`user_feedback.jsonl` of *Continually Improving Extractive QA via Human Feedback* (Gao et al., EMNLP 2023).

One record an answer that a model gave and the person who had asked judged, while seeing the passage: `id`, `study`,
`round`, `title`, `section`, `context`, `question`, `model_answer`, `user_feedback`.

The verdict becomes a review: it is about correctness, not about usefulness. It does not become a thumb as well, because
one person's two verdicts agree by nature, and would make thumbs look perfectly reliable; `verdict: thumb` makes it
only that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from abstain.config.yaml_model import Section
from abstain.core.timestamps import Timestamp
from abstain.ingest.importers import Importer, Item, Skipped
from abstain.ingest.importers.pages import doc_id, page
from abstain.ingest.importers.upstream import Record, records

ABSTENTION = "[Unanswerable given the paragraph below]"
"""What stands for the answer where the model gave none."""

ROUND = timedelta(days=30)
"""How far apart the rounds are put: the files say which came first, not when."""

_FLAGS = {
    "Correct": {"complete": True, "correct": True, "truthful": True},
    "Partially Correct": {"complete": False, "correct": False, "truthful": True},
    "Wrong": {"complete": False, "correct": False, "truthful": False},
}


class Options(Section):
    verdict: Literal["review", "thumb"] = "review"
    abstentions: Literal["skip", "keep"] = "skip"
    first_round_at: Timestamp = datetime(2023, 1, 1, tzinfo=UTC)


class _Judged(Record):
    id: str
    study: str
    round: int
    title: str
    section: str
    context: str
    question: str
    model_answer: str
    user_feedback: Literal["Correct", "Partially Correct", "Wrong"]


def read(files: Sequence[Path], options: Options) -> Iterator[Item]:
    """An interaction with its verdict a record; a document a Wikipedia article, of the passages asked about."""
    passages: dict[str, dict[tuple[str, str], int]] = {}
    for file in files:
        for one in records(file, _Judged):
            known = passages.setdefault(one.title, {})
            number = known.setdefault((one.section, one.context), len(known) + 1)
            if one.model_answer == ABSTENTION and options.abstentions == "skip":
                yield Skipped("the model abstained")
            elif not one.question.strip() or not one.model_answer.strip():
                yield Skipped("the question or the answer is empty")
            else:
                yield _row(one, number, options)
    for title, found in passages.items():
        # Passages of one section next to each other, in the order in which the sections were met.
        sections = list(dict.fromkeys(section for section, _ in found))
        ordered = sorted(found, key=lambda entry: sections.index(entry[0]))
        at = options.first_round_at.isoformat()
        yield page(doc_id("qa_from_hf", title), title, at, (((section,), text) for section, text in ordered))


def _row(one: _Judged, number: int, options: Options) -> dict[str, Any]:
    at = (options.first_round_at + (one.round - 1) * ROUND).isoformat()
    verdict: dict[str, Any]
    if options.verdict == "thumb":
        verdict = {"thumb": {"given_at": at, "thumb": "up" if one.user_feedback == "Correct" else "down"}}
    else:
        verdict = {"review": {"reviewed_at": at, "reviewer": "qa_from_hf-asker", **_FLAGS[one.user_feedback]}}
    return {
        "interaction_id": f"qa_from_hf-{one.id}",
        "asked_at": at,
        "question": one.question,
        "answer": one.model_answer,
        "contexts": [{"chunk_id": f"{doc_id('qa_from_hf', one.title)}#passage-{number}", "text": one.context}],
        "model": f"qa_from_hf-{one.study}@round-{one.round}",
        "product": one.study,
        "group": one.title,
        **verdict,
    }


IMPORTER = Importer("qa_from_hf", "judged answers of qa-from-hf: user_feedback.jsonl (.jsonl.gz)", Options, read)
