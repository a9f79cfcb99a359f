"""The prompts that are measured: paragraphs and questions of SQuAD, which is not the project's to ship.

`--squad` names a JSON Lines file (`context`, `question`, `answers`, gzipped or not), by default the one beside a
checkout. Where there is none, the project's own sample stands in: its prompts are shorter and resemble each other.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from abstain.llm.engine.prompts import Layout, PromptSegments, load_layout
from abstain.sample.files import HISTORY

SQUAD = Path(__file__).parents[1].parent / "shared/data/squad/squad2_dev_cs224n.jsonl.gz"
LAYOUT = "rag-chatml-v1"
MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True)
class Row:
    """An answered question."""

    contexts: tuple[str, ...]
    question: str
    answer: str

    def render_prompt(self, layout: Layout, *, with_context: bool = True) -> PromptSegments:
        """Render the row as a prompt."""
        return layout.render(self.question, self.contexts if with_context else (), self.answer)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `--model` and `--squad`: the base model and the file of prompts."""
    parser.add_argument("--model", default=MODEL, help="an embedded model, a Hugging Face id or a folder")
    parser.add_argument("--squad", type=Path, default=SQUAD)


def layout() -> Layout:
    """Return the layout of the prompts."""
    return load_layout(LAYOUT)


def read_unrelated(file: Path, count: int) -> list[Row]:
    """Return rows of two paragraphs each; no paragraph is in two rows."""
    by_context = _read_answered(file)
    contexts = list(by_context)
    pairs = zip(contexts[::2], contexts[1::2], strict=False)
    return [Row((first, second), *by_context[first][0]) for first, second in list(pairs)[:count]]


def read_repeated(file: Path, count: int, questions: int = 5) -> list[Row]:
    """Return rows of one paragraph each, each with `questions` questions, as in a knowledge base."""
    pairs_by_context = {context: pairs for context, pairs in _read_answered(file).items() if len(pairs) >= questions}
    rows = [Row((context,), *pair) for context, pairs in pairs_by_context.items() for pair in pairs[:questions]]
    return rows[:count]


def _read_answered(file: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the questions and their first gold answers by context."""
    pairs_by_context: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    if file.is_file():
        with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
            for row in map(json.loads, lines):
                if row["answers"]:
                    pairs_by_context[row["context"]].append((row["question"], row["answers"][0]))
        return pairs_by_context
    print(f"{file} is not there: the project's own sample stands in")
    for line in HISTORY.read_text().splitlines():
        row = json.loads(line)
        if row["contexts"]:
            pairs_by_context[row["contexts"][0]["text"]].append((row["question"], row["answer"]))
    return pairs_by_context
