"""The sample that is shipped, as ingest and the demo take it; `tests/benchmarks/sample` has its generator."""

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from abstain.config.settings import Settings
from abstain.core.contracts import ImportedInteraction, Interaction
from abstain.core.errors import AbstainError
from abstain.data.labels.training_table import read_training_table
from abstain.data.store.dataset import DataStore, read_rows
from abstain.ingest.pipeline.run import IngestReport, ingest
from abstain.ingest.quarantine import QuarantinedRow
from abstain.ingest.sources.files import make_explicit_sources
from abstain.llm.features.feature_store import FeatureStore
from abstain.llm.signals.compute_features import expand_requests
from abstain.llm.signals.feature_plan import LabelledAnswers, plan_features
from abstain.llm.signals.registry import build_scorers
from abstain.sample.__main__ import main
from abstain.sample.files import EXPORTED, HANDBOOK, HISTORY, INCOMING
from benchmarks.sample.handbook import build_handbook
from benchmarks.sample.write import read_answered_questions
from tests.checkout import SHIPPED, shipped_params
from tests.conftest import MODELS, ROOT, Project

PARAMS = shipped_params()
WEEK = 38
"""The answers of the incoming week: its other rows are those that ingest has to detect."""


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> tuple[IngestReport, IngestReport, Path]:
    """The reports on history and on the week after it, and the data folder."""
    data = tmp_path_factory.mktemp("ingested") / "data"
    first = ingest(make_explicit_sources([str(HANDBOOK), str(HISTORY)]), data, PARAMS.validation, EXPORTED[0])
    return first, ingest(make_explicit_sources([str(INCOMING)]), data, PARAMS.validation, EXPORTED[1]), data


@pytest.mark.heavy
def test_sample_history_is_accepted(taken: tuple[IngestReport, IngestReport, Path]) -> None:
    history, _, _ = taken
    assert (history.duplicate, history.quarantined, history.ignored) == (0, 0, ())
    assert history.read == history.accepted == history.contracts["interactions"] + len(list(HANDBOOK.iterdir()))


@pytest.mark.heavy
def test_sample_incoming_rows_cover_rejections(taken: tuple[IngestReport, IngestReport, Path]) -> None:
    _, incoming, data = taken
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


@pytest.mark.heavy
def test_sample_holdout_is_large_with_many_topics(
    taken: tuple[IngestReport, IngestReport, Path],
) -> None:
    frame, _ = read_training_table(DataStore(taken[2]), PARAMS.labels, PARAMS.split)
    held = frame[(frame["split"] == "holdout") & (frame["source"] == "review")]
    answered = list(read_answered_questions(build_handbook()))
    cited = {one.question.question_id: [context.chunk_id for context in one.contexts] for one in answered}
    about = {one.question.question_id: one.question.fact.product for one in answered}
    assert len(frame) >= 600 and len(held) >= 120
    assert held["group"].nunique() >= 12 and held["interaction_id"].map(about).nunique() >= 20
    first = Counter(chunks[0] for chunks in cited.values() if chunks)
    assert sum(count for count in first.values() if count > 1) > len(cited) / 2
    assert not frame["duplicate_in_training"].any()


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["."]])
def test_sample_command_wrong_arguments_raise(arguments: list[str]) -> None:
    with pytest.raises(AbstainError, match="^usage: python -m abstain.sample DATA"):
        main(arguments)


@pytest.mark.slow
def test_sample_command_writes_recorded_data(tmp_path: Path) -> None:
    project, folder = Project(ROOT, tmp_path / "home"), tmp_path / "repository"
    folder.mkdir()
    for command, where in (
        (["python", "-m", "abstain.sample", str(folder / "data")], ROOT),  # it reads params.yaml there
        (["git", "init", "-q"], folder),
        (["dvc", "init", "-q"], folder),
        (["dvc", "add", "-q", "data"], folder),
    ):
        done = project.command(command, where)
        assert done.returncode == 0, done.stdout + done.stderr
    recorded, made = (
        yaml.safe_load(text)["outs"][0] for text in (SHIPPED["data.dvc"], (folder / "data.dvc").read_text())
    )
    assert made == recorded


@pytest.mark.slow
def test_sample_demo_token_budget(tmp_path: Path) -> None:
    """All answers are counted, though those without a label are not read."""
    settings = Settings(home=MODELS.parent, features_url=str(tmp_path))
    lines = [*HISTORY.read_text().splitlines(), *INCOMING.read_text().splitlines()[:WEEK]]
    everyone = [ImportedInteraction.model_validate_json(line).to_rows()[0] for line in lines]
    asked = plan_features(
        PARAMS, build_scorers(PARAMS, settings).scorers, LabelledAnswers(everyone, [], PARAMS.audits.enabled)
    )
    store = FeatureStore(PARAMS.llm.model, settings)
    assert 40_000 < store.count_missing_tokens(expand_requests(PARAMS.llm, settings, asked)) <= 75_000
    assert PARAMS.perturbation.n_copies == 0  # no other model reads anything
