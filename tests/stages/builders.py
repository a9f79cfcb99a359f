"""A small bank: answers that were asked about, thumbed and reviewed, and a base model with random weights that reads them.

What is right can be told from the answer's words most of the time, so that a probe has something to learn; two answers
are longer than the base model's context length, and one has a chunk too many.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from abstain.config.params import Params
from abstain.core import paths
from abstain.data.store.splits import hash_to_unit_interval
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.sources.files import make_explicit_sources
from tests.checkout import SHIPPED
from tests.factories import NOW, later, row, thumb, verdict, write_lines
from tests.llm.builders import WINDOW

GROUPS, OF_A_GROUP = 64, 5
PRODUCTS = ("cards",) * 4 + ("loans",) * 3 + ("vault",)
NEW_VERSION, OF_NEW_VERSION = "m@2", range(2)
ONE_CHUNK_TOO_MANY = "q-013"
SIGNALS = ["sequence_log_prob", "context_gain", "yes_score_fused", "verbalized", "writer", "length_only"]
REGRESSORS = ["random_forest_label", "linear_label", "random_forest_cosine", "linear_cosine"]
FUSIONS = ["fusion", "fusion_free", "fusion_one_pass", "fusion_two_passes"]
SHORTENED: Mapping[str, Mapping[str, Any]] = {
    "split": {"seed": 11, "holdout_frozen_at": "2026-10-15T00:00:00Z"},
    "labels": {"refusals": ["PERHAPS "]},
    "llm": {"layout": "rag-plain-v1", "layer": 2, "site": "residual", "too_long": "drop_chunks"},
    "probe": {"architectures": ["linear", "lstm"], "export": "best", "folds": 3, "hidden": 8, "max_epochs": 3},
    "scorers": {
        "enabled": ["sequence_log_prob", "context_gain", "yes_score_fused", "verbalized", "entailment", "writer"]
    },
    "perturbation": {"tokens": 3, "n_copies": 1},
    "regressors": {"kinds": ["random_forest", "linear"], "targets": ["label", "cosine"], "folds": 3, "trees": 20},
    "sweep": {"architecture": "linear", "layers": [1, 3], "sites": ["residual"], "contexts": [1]},
    "audits": {"enabled": ["context_removed", "answers_shuffled", "product_left_out"]},
    "serve": {"scorer": "probe"},
    "calibration": {"method": "isotonic"},
    "threshold": {"metric": "precision", "target": 0.75, "confidence": 0.8, "min_shown": 10},
    "evaluation": {"min_n_eff": 15},
}


def bank_params(model: Path) -> Params:
    """This project's parameters, shortened for a base model of four layers."""
    raw = yaml.safe_load(SHIPPED["params.yaml"])
    for section, values in (*SHORTENED.items(), ("llm", {"model": str(model)})):
        raw[section] |= values
    return Params.model_validate(raw)


def ingest_bank(params: Params) -> None:
    file = write_lines(Path("bank.jsonl"), *bank_rows(params))
    report = ingest(make_explicit_sources([str(file)]), paths.DATA, params.validation, NOW, quality=params.quality)
    assert report.accepted == GROUPS * OF_A_GROUP, report


def bank_rows(params: Params) -> list[dict[str, Any]]:
    """Five answers a group, the last of them asked after the hold-out was frozen.

    Hedged answers were always reviewed, others every other time; a few are thumbed instead, or reviewed for a reason
    that nobody wrote down. Every third review says what it should have been. The assistant marked nine of ten answers;
    a new version, which gave ten of them, marks a hundred times as high.
    """
    drawn = np.random.default_rng(0)
    rows = []
    for number in range(GROUPS * OF_A_GROUP):
        group, place = divmod(number, OF_A_GROUP)
        right, told, kind = drawn.random(3)
        correct = right < 0.6
        sure = correct if told < 0.85 else not correct
        euros = int(drawn.integers(100, 1000))
        days = 49.0 if place == OF_A_GROUP - 1 else number / 20
        rows.append(
            row(
                f"q-{number:03d}",
                asked_at=later(days).isoformat(),
                question=f"Fee {number:03d}?",
                answer=right_answer(euros) if sure else f"Perhaps {euros}?",
                contexts=_contexts(number, euros),
                product=PRODUCTS[group % len(PRODUCTS)],
                group=f"g-{group}",
                model=NEW_VERSION if group in OF_NEW_VERSION else "m@1",
                writer_scores={"judge": (100 if group in OF_NEW_VERSION else 1) * (2 * kind - right)}
                if number % 10
                else None,
                thumb=thumb("up" if correct else "down", days + 1) if kind > 0.7 else None,
                review=_review(number, bool(correct), bool(sure), euros, days + 2) if kind < 0.85 else None,
            )
        )
    for split, sentence in {"train": "It is free. ", "holdout": "No fee is due. "}.items():
        at = next(number for number in range(len(rows)) if number % OF_A_GROUP == 1 and _split(params, number) == split)
        rows[at] |= {"answer": sentence * (WINDOW // 10), "review": _review(at, False, True, 100, at / 20 + 2)}
    return rows


def _contexts(number: int, euros: int) -> list[dict[str, str]]:
    texts = [f"Fee {number:03d} is {euros} euros.", "Fees are due in May.", "Ask us."][: 2 + number % 2]
    if f"q-{number:03d}" == ONE_CHUNK_TOO_MANY:
        texts[-1] *= WINDOW // len(texts[-1])
    return [{"chunk_id": f"d-{number}#{at}", "text": text} for at, text in enumerate(texts)]


def right_answer(euros: int) -> str:
    return f"It is {euros} euros."


def _review(number: int, correct: bool, sure: bool, euros: int, days: float) -> dict[str, Any]:
    known = {} if number % 20 == 0 else {"inclusion_probability": 0.5 if sure else 1.0}
    ideal = {"ideal_answer": right_answer(euros)} if number % 3 == 0 else {}
    return verdict(correct, days, **known, **ideal)


def _split(params: Params, number: int) -> str:
    at = hash_to_unit_interval(params.split.seed, f"g-{number // OF_A_GROUP}")
    if at < params.split.holdout:
        return "holdout"
    return "validation" if at < params.split.holdout + params.split.validation else "train"
