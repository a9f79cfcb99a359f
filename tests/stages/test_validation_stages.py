from pathlib import Path

import pytest

from abstain.config.params import Params
from abstain.core import paths
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.data.store.dataset import DataStore
from abstain.data.validation.results import ValidationResult
from abstain.ingest.pipeline.run import ingest
from abstain.ingest.sources.files import make_explicit_sources
from abstain.reports.data_reports.validation import validation_report
from abstain.stages.dataset import __main__ as dataset
from abstain.stages.validate import __main__ as validate
from tests.checkout import shipped_params
from tests.conftest import read_json
from tests.factories import NOW, row, thumb, verdict, write_lines

pytestmark = pytest.mark.slow

QUALITY = paths.ARTIFACTS / "quality.json"


@pytest.fixture
def params() -> Params:
    return shipped_params()


@pytest.fixture
def workspace(tmp_path: Path, params: Params, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of two batches, the second of them in German."""
    monkeypatch.chdir(tmp_path)
    english = [
        make_line(at, f"What is the annual fee of card number {at:03d}, and when is it due?") for at in range(200)
    ]
    german = [make_line(at, f"Wie hoch ist die Jahresgebühr der Karte mit Nummer {at}?") for at in range(200, 260)]
    for number, rows in enumerate((english, german)):
        file = write_lines(tmp_path / f"{number}.jsonl", *rows)
        report = ingest(make_explicit_sources([str(file)]), paths.DATA, params.validation, NOW, quality=params.quality)
        assert report.accepted == len(rows)
    return tmp_path


def make_line(at: int, question: str) -> dict:
    """Make an answer with thumb and review in a group of ten; every other one is correct."""
    right = at % 2 == 0
    said = {"thumb": thumb("up" if right else "down"), "review": verdict(right)}
    return row(f"q-{at}", question=question, answer=f"It is {at:03d} euros.", group=f"g-{at // 10}", **said)


def test_validate_dataset_stages_sound_data_pass(workspace: Path, params: Params) -> None:
    validate.stage(params)
    found = read_json(paths.VALIDATION)
    assert found["success"] and found["as_of"] == NOW.isoformat()
    assert found["statistics"]["drift"]["rows"] == {"newest": 60, "previous": 200}
    drift = next(check for check in found["expectations"] if check["suite"] == "drift")
    assert drift["sample"] == ["drift/question language"]
    dataset.stage(params)
    quality = read_json(QUALITY)
    assert quality["success"] and quality["rows"]["labels"] > 200
    assert paths.DATASET.is_file() and paths.DATASET_SUMMARY.is_file()
    before = (paths.VALIDATION.read_bytes(), QUALITY.read_bytes())
    validate.stage(params)
    dataset.stage(params)
    assert (paths.VALIDATION.read_bytes(), QUALITY.read_bytes()) == before  # for DVC
    _, page = validation_report(ValidationResult.merge(map(ValidationResult.from_dict, (found, quality))), "a run")
    assert "Passed, with" in page and "question language" in page and "Labels by split" in page


def test_validate_stage_repeated_row_or_no_batch_record_fails(workspace: Path, params: Params) -> None:
    first, second = DataStore(paths.DATA).list_part_files(Interaction)
    with second.open("ab") as file:
        file.write(first.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(AbstainError, match="1 rows of data/ fail validation, interactions/q-0 first: interaction_id:"):
        validate.stage(params)
    assert read_json(paths.VALIDATION)["success"] is False
    (paths.DATA / "batches.jsonl").unlink()
    with pytest.raises(AbstainError, match=r"batches\.jsonl has no record of"):
        validate.stage(params)


def test_dataset_stage_leaked_holdout_fails(workspace: Path, params: Params) -> None:
    for part in DataStore(paths.DATA).list_part_files(Interaction):
        rows = [
            one.model_copy(update={"question": "The fee?", "answer": "None."})
            for one in DataStore(paths.DATA).iter_part_rows(part, Interaction)
        ]
        part.write_text("".join(f"{one.to_json_line()}\n" for one in rows), encoding="utf-8")
    validate.stage(params)
    with pytest.raises(AbstainError, match="splits/holdout first: holdout: 100 %"):
        dataset.stage(params)
    _, page = validation_report(ValidationResult.from_dict(read_json(QUALITY)), "a run")
    assert "1 expectation failed" in page
    assert not paths.DATASET.exists()
