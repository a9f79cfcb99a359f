"""The sample that is shipped, as ingest and the demo take it; `tests/benchmarks/sample` has its generator."""

import json
import re
from collections import Counter
from hashlib import md5
from pathlib import Path

import pytest
import yaml

from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.data.labels.training_table import read_training_table
from abstain.data.store.dataset import DataStore, read_rows
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.quarantine import QuarantinedRow
from abstain.ingest.sources.files import make_explicit_sources
from abstain.sample.__main__ import main
from abstain.sample.files import EXPORTED, HANDBOOK, HISTORY, INCOMING
from benchmarks.sample.handbook import build_handbook
from benchmarks.sample.write import read_answered_questions
from tests.checkout import SHIPPED, shipped_params
from tests.factories import bytes_of

PARAMS = shipped_params()
WEEK = 38
"""The answers of the incoming week: its other rows are those that ingest has to detect."""


@pytest.mark.heavy
def test_sample_history_is_accepted_incoming_rows_rejected(tmp_path: Path) -> None:
    data = tmp_path / "data"
    history = ingest(make_explicit_sources([str(HANDBOOK), str(HISTORY)]), data, PARAMS.validation, EXPORTED[0])
    assert (history.duplicate, history.quarantined, history.ignored) == (0, 0, ())
    assert history.read == history.accepted == history.contracts["interactions"] + len(list(HANDBOOK.iterdir()))
    incoming = ingest(make_explicit_sources([str(INCOMING)]), data, PARAMS.validation, EXPORTED[1])
    assert (incoming.duplicate, incoming.quarantined, incoming.awaiting_documents) == (1, 5, 1)
    assert incoming.read == incoming.accepted + 1 + 5 + 1
    assert len(list(DataStore(data).iter_rows(Interaction))) == len(HISTORY.read_text().splitlines()) + WEEK
    assert incoming.quarantine
    rejected = list(read_rows(data / incoming.quarantine, QuarantinedRow))
    assert [row.line for row in rejected] == sorted(row.line for row in rejected)
    patterns = ["A103 line: ", "A103 asked_at: ", "A103 anwser: .*'answer'", "A104 interaction_id: 'q-00002' "]
    patterns += [r"A103 review\.\w+: ", "A104 contexts: .*'no-such-page#0'"]
    for row, pattern in zip(rejected, patterns, strict=True):
        assert row.reasons
        assert all(re.match(pattern, reason.message_with_code) for reason in row.reasons), row.reasons
    frame, _ = read_training_table(DataStore(data), PARAMS.labels, PARAMS.split)
    held = frame[(frame["split"] == "holdout") & (frame["source"] == "review")]
    answered = list(read_answered_questions(build_handbook()))
    about = {one.question.question_id: one.question.fact.product for one in answered}
    first = Counter(one.contexts[0].chunk_id for one in answered if one.contexts)
    assert sum(count for count in first.values() if count > 1) > len(answered) / 2
    assert len(frame) >= 600 and len(held) >= 120 and not frame["duplicate_in_training"].any()
    assert held["group"].nunique() >= 12 and held["interaction_id"].map(about).nunique() >= 20


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["."]])
def test_sample_command_wrong_arguments_raise(arguments: list[str]) -> None:
    with pytest.raises(AbstainError, match="^usage: python -m abstain.sample DATA"):
        main(arguments)


@pytest.mark.heavy
def test_sample_command_writes_recorded_data(tmp_path: Path) -> None:
    main([str(tmp_path / "data")])
    files = bytes_of(tmp_path / "data")
    listing = [{"md5": md5(content).hexdigest(), "relpath": name} for name, content in sorted(files.items())]
    made = {"md5": f"{md5(json.dumps(listing).encode()).hexdigest()}.dir", "hash": "md5", "path": "data"}  # as of DVC
    made |= {"size": sum(map(len, files.values())), "nfiles": len(files)}
    assert made == yaml.safe_load(SHIPPED["data.dvc"])["outs"][0]
