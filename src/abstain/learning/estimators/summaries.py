"""The exported probe and the served scorer, as their stages write them."""

from __future__ import annotations

from abstain.core.result_record import Auroc, ResultRecord, Value


class ProbeChoice(ResultRecord):
    """The exported probe, and the AUROC of each architecture out of fold; `requested` is that of params.yaml."""

    exported: str
    description: str
    requested: str
    out_of_fold: dict[str, Value]


class Candidate(Auroc):
    """A scorer that can decide, with its AUROC out of fold."""

    scorer: str
    forward_tokens: float


class ScorerChoice(ResultRecord):
    """The served scorer, and what it was chosen from.

    Attributes:
        name: Its name.
        requested: The scorer that params.yaml asks for, or "best".
        max_forward_tokens: Limit of its cost; None without one.
        forward_tokens: Tokens that the base model reads for an answer.
        components: The scorers that a fusion combines; itself for any other.
        candidates: What could have been served, the cheapest first.
    """

    name: str
    requested: str
    max_forward_tokens: int | None
    forward_tokens: float
    components: list[str]
    candidates: list[Candidate]
