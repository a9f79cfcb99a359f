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
    """One answered question."""

    contexts: tuple[str, ...]
    question: str
    answer: str

    def pass_(self, layout: Layout, *, with_context: bool = True) -> PromptSegments:
        return layout.render(self.question, self.contexts if with_context else (), self.answer)


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--model` and `--squad`: what is read, and by which base model."""
    parser.add_argument("--model", default=MODEL, help="an embedded model, a Hugging Face id or a folder")
    parser.add_argument("--squad", type=Path, default=SQUAD)


def layout() -> Layout:
    return load_layout(LAYOUT)


def unrelated(file: Path, count: int) -> list[Row]:
    """Rows of two paragraphs each; no paragraph is in two rows."""
    by_context = _answered(file)
    contexts = list(by_context)
    pairs = zip(contexts[::2], contexts[1::2], strict=False)
    return [Row((one, other), *by_context[one][0]) for one, other in list(pairs)[:count]]


def repeated(file: Path, count: int, questions: int = 5) -> list[Row]:
    """Rows of one paragraph each, every one asked `questions` things: what a knowledge base's answers look like."""
    rich = {context: asked for context, asked in _answered(file).items() if len(asked) >= questions}
    rows = [Row((context,), *one) for context, asked in rich.items() for one in asked[:questions]]
    return rows[:count]


def _answered(file: Path) -> dict[str, list[tuple[str, str]]]:
    """Context -> its questions and their first gold answers."""
    found: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    if file.is_file():
        with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
            for row in map(json.loads, lines):
                if row["answers"]:
                    found[row["context"]].append((row["question"], row["answers"][0]))
        return found
    print(f"{file} is not there: the project's own sample stands in")
    for line in HISTORY.read_text().splitlines():
        row = json.loads(line)
        if row["contexts"]:
            found[row["contexts"][0]["text"]].append((row["question"], row["answer"]))
    return found
