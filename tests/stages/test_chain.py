import re
from pathlib import Path

import pandas as pd
import pytest

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import DataStore
from abstain.data.store.splits import select_reviewed_holdout
from abstain.data.validation.results import ValidationResult
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.sources.files import make_explicit_sources
from abstain.llm.features.shard_job import LocalRunner
from abstain.llm.signals.feature_plan import LabelledAnswers
from abstain.reports.data_reports.validation import validation_report
from abstain.stages.dataset import __main__ as dataset
from abstain.stages.features import __main__ as features
from abstain.stages.report import __main__ as report
from abstain.stages.shared import artifacts
from abstain.stages.validate import __main__ as validate
from abstain_tasks.training.fan_out.stage import FANNED_OUT
from tests.checkout import shipped_params
from tests.conftest import read_json
from tests.factories import NOW, bytes_of, row, thumb, verdict, write_lines
from tests.stages.conftest import PLOTS, STAGES, Finished, run_stages, use_home

pytestmark = pytest.mark.slow

EVALUATED = [name for name in STAGES if name != "report"]


class Worker(LocalRunner):
    """Computes where the stages' own runner is refused."""

    run = LocalRunner.run


@pytest.fixture
def base_model_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(runner: LocalRunner, shards: object) -> None:
        pytest.fail("the base model was asked for what should be in the cache")

    monkeypatch.setattr(LocalRunner, "run", refuse)


def test_stages_write_declared_artifacts_with_plotted_columns(finished: Finished) -> None:
    entries = [entry for name in EVALUATED for kind in ("outs", "metrics") for entry in STAGES[name].get(kind, [])]
    declared = {Path(entry if isinstance(entry, str) else next(iter(entry))) for entry in entries}
    found = {paths.ARTIFACTS / name for name in bytes_of(finished.root / paths.ARTIFACTS)}
    missing = {one for one in declared if not (finished.root / one).exists()}
    unknown = {file for file in found if not any(one == file or one in file.parents for one in declared)}
    assert (missing, unknown) == (set(), set())
    axes = [plot[axis] for entry in PLOTS for plot in entry.values() for axis in ("x", "y")]
    assert len(axes) == 2 * len(PLOTS) > 0
    for file, columns in (item for axis in axes for item in axis.items()):
        wanted = {columns} if isinstance(columns, str) else set(columns)
        assert wanted <= set(pd.read_csv(finished.root / file)), file


@pytest.mark.soak(twin="test_work_pool_writes_the_bytes_of_one_process")
def test_stages_with_workers_write_same_bytes(
    finished: Finished, bank: Params, base_model_is_gone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What workers compute before two of the stages is all that any stage asks of the base model."""
    use_home(monkeypatch, tmp_path / "other-home")
    settings = load_settings()
    for file in (file for file in paths.ARTIFACTS.rglob("*") if file.is_file()):
        file.write_bytes(b"old")
    for name in EVALUATED:
        if name in FANNED_OUT:
            frame = artifacts.read_dataset_frame()
            rows = DataStore(paths.DATA).read_interactions(frame["interaction_id"])
            labelled = LabelledAnswers(rows, select_reviewed_holdout(frame, rows), bank.audits.enabled)
            cost = FANNED_OUT[name](bank, settings, labelled, lambda done, total: None, Worker(settings))
            assert cost.rows > len(rows)
        run_stages(bank, name)
    before, after = (bytes_of(root / paths.ARTIFACTS) for root in (finished.root, tmp_path))
    assert [name for name in before if before[name] != after.get(name)] == [] and before.keys() == after.keys()


def test_features_of_cached_results_computes_nothing(
    finished: Finished, bank: Params, base_model_is_gone: None, capsys: pytest.CaptureFixture[str]
) -> None:
    features.stage(bank)
    output = capsys.readouterr().out
    assert "\n0 results were not in the cache: 0 tokens" in f"\n{output}" and "progress" not in output
    for file in (paths.FEATURES, paths.SIGNALS, paths.FEATURES_SUMMARY):
        assert file.read_bytes() == (finished.root / file).read_bytes()
    skipped = artifacts.read_json(paths.FEATURES_SUMMARY)["skipped_scorers"]
    assert skipped.keys() == {"entailment"} and skipped["entailment"].startswith("A601: ")
    assert f"skipped: scorer entailment: {skipped['entailment']}\n" in output
    assert artifacts.read_json(paths.EVALUATION)["skipped"] == skipped
    assert "entailment" not in artifacts.read_json(paths.METRICS)["holdout"]["scorers"]
    assert "entailment" not in artifacts.read_signals("asked")


def test_report_stage_is_reproducible(bank: Params) -> None:
    report.stage(bank)
    first = bytes_of(paths.REPORT)
    html, markdown = ((paths.REPORT / f"report.{kind}").read_text(encoding="utf-8") for kind in ("html", "md"))
    auroc = artifacts.read_json(paths.METRICS)["holdout"]["scorers"]["probe"]["auroc"]
    for text in (html, re.sub(r"\\(.)", r"\1", markdown)):
        assert f"{auroc:.3f}" in text
        assert "scorers.entailment_model" in text
    report.stage(bank)
    assert bytes_of(paths.REPORT) == first


QUALITY = paths.ARTIFACTS / "quality.json"
PARAMS = shipped_params()


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of two batches, the second of them in German."""
    monkeypatch.chdir(tmp_path)
    english = [
        make_line(at, f"What is the annual fee of card number {at:03d}, and when is it due?") for at in range(200)
    ]
    german = [make_line(at, f"Wie hoch ist die Jahresgebühr der Karte mit Nummer {at}?") for at in range(200, 260)]
    for number, rows in enumerate((english, german)):
        file = write_lines(tmp_path / f"{number}.jsonl", *rows)
        report = ingest(make_explicit_sources([str(file)]), paths.DATA, PARAMS.validation, NOW, quality=PARAMS.quality)
        assert report.accepted == len(rows)
    return tmp_path


def make_line(at: int, question: str) -> dict:
    """Make an answer with thumb and review in a group of ten; every other one is correct."""
    right = at % 2 == 0
    said = {"thumb": thumb("up" if right else "down"), "review": verdict(right)}
    return row(f"q-{at}", question=question, answer=f"It is {at:03d} euros.", group=f"g-{at // 10}", **said)


def test_validate_dataset_stages_sound_data_pass(workspace: Path) -> None:
    validate.stage(PARAMS)
    found = read_json(paths.VALIDATION)
    assert found["success"] and found["as_of"] == NOW.isoformat()
    assert found["statistics"]["drift"]["rows"] == {"newest": 60, "previous": 200}
    drift = next(check for check in found["expectations"] if check["suite"] == "drift")
    assert drift["sample"] == ["drift/question language"]
    dataset.stage(PARAMS)
    quality = read_json(QUALITY)
    assert quality["success"] and quality["rows"]["labels"] > 200
    assert paths.DATASET.is_file() and paths.DATASET_SUMMARY.is_file()
    before = (paths.VALIDATION.read_bytes(), QUALITY.read_bytes())
    validate.stage(PARAMS)
    dataset.stage(PARAMS)
    assert (paths.VALIDATION.read_bytes(), QUALITY.read_bytes()) == before  # for DVC
    _, page = validation_report(ValidationResult.merge(map(ValidationResult.from_dict, (found, quality))), "a run")
    assert "Passed, with" in page and "question language" in page and "Labels by split" in page


def test_validate_stage_repeated_row_or_no_batch_record_fails(workspace: Path) -> None:
    first, second = DataStore(paths.DATA).list_part_files(Interaction)
    with second.open("ab") as file:
        file.write(first.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(AbstainError, match="1 rows of data/ fail validation, interactions/q-0 first: interaction_id:"):
        validate.stage(PARAMS)
    assert read_json(paths.VALIDATION)["success"] is False
    (paths.DATA / "batches.jsonl").unlink()
    with pytest.raises(AbstainError, match=r"batches\.jsonl has no record of"):
        validate.stage(PARAMS)


def test_dataset_stage_leaked_holdout_fails(workspace: Path) -> None:
    for part in DataStore(paths.DATA).list_part_files(Interaction):
        rows = [
            one.model_copy(update={"question": "The fee?", "answer": "None."})
            for one in DataStore(paths.DATA).iter_part_rows(part, Interaction)
        ]
        part.write_text("".join(f"{one.to_json_line()}\n" for one in rows), encoding="utf-8")
    validate.stage(PARAMS)
    with pytest.raises(AbstainError, match="splits/holdout first: holdout: 100 %"):
        dataset.stage(PARAMS)
    _, page = validation_report(ValidationResult.from_dict(read_json(QUALITY)), "a run")
    assert "1 expectation failed" in page
    assert not paths.DATASET.exists()
