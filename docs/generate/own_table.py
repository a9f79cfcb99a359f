"""A table as another system would export it, for the tutorial on own data: a part of the shipped sample.

    python docs/generate/own_table.py FOLDER

Its columns, its words for verdicts and its times without a zone are none of Abstain's.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

from abstain.sample.files import HISTORY

EVERY = 4


def main(folder: Path) -> None:
    history = HISTORY.read_text(encoding="utf-8").splitlines()
    tickets = [ticket(json.loads(line)) for line in history[::EVERY]]
    folder.mkdir(parents=True)
    with (folder / "tickets.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(tickets[0]))
        table.writeheader()
        table.writerows(tickets)


def ticket(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the import format as a row of the other system's table."""
    thumb, review = row.get("thumb") or {}, row.get("review") or {}
    verdict = (
        "right" if review.get("correct") and review.get("complete") else "partly" if review.get("correct") else "wrong"
    )
    return {
        "ticket": row["interaction_id"].upper(),
        "opened": local(row["asked_at"]),
        "customer asks": row["question"],
        "reply": row["answer"],
        "sources": json.dumps(
            [{"ref": context["chunk_id"], "passage": context["text"]} for context in row["contexts"]]
        ),
        "bot": row["model"],
        "team": row["product"],
        "topic": row["group"],
        "smiley": {"up": ":-)", "down": ":-("}.get(thumb.get("thumb", ""), ""),
        "rated": local(thumb.get("given_at")),
        "customer": thumb.get("user") or "",
        "checked by": review.get("reviewer", ""),
        "checked": local(review.get("reviewed_at")),
        "result": verdict if review else "",
    }


def local(time: str | None) -> str:
    """Return a time without a zone."""
    return time[:19].replace("T", " ") if time else ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
