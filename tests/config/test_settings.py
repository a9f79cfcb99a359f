from pathlib import Path

import pytest

from abstain.config.settings import Settings, load_settings
from abstain.core.errors import AbstainError


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in Settings.model_fields:
        monkeypatch.delenv(f"ABSTAIN_{name.upper()}", raising=False)
    for name in ("ABSTAIN_FEATURES", "ABSTAIN_ORIGIN"):
        monkeypatch.delenv(name, raising=False)


def test_load_settings_bare_environment_gives_defaults(tmp_path: Path) -> None:
    settings = load_settings()
    assert (settings.device, settings.dtype, settings.batch_tokens, settings.origin) == ("auto", "auto", 2048, None)
    assert (settings.runner, settings.workers, settings.dask_scheduler) == ("local", 1, None)
    assert settings.models == tmp_path / ".abstain" / "models"
    assert settings.features == str(tmp_path / ".abstain" / "features")
    assert list(tmp_path.iterdir()) == []


def test_load_settings_reads_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = {"HOME": str(tmp_path / "h"), "DEVICE": "cuda:1", "DTYPE": "bfloat16", "BATCH_TOKENS": "512"}
    for name, value in values.items():
        monkeypatch.setenv(f"ABSTAIN_{name}", value)
    settings = load_settings()
    assert (settings.device, settings.dtype, settings.batch_tokens) == ("cuda:1", "bfloat16", 512)
    for value, features in {"": str(tmp_path / "h/features"), "f": str(tmp_path / "f"), "/mnt/f": "/mnt/f"}.items():
        monkeypatch.setenv("ABSTAIN_FEATURES", value)
        assert load_settings().features == features
    monkeypatch.setenv("ABSTAIN_FEATURES", "s3://b/prefix")
    assert load_settings().features == "s3://b/prefix"
    assert Settings(features_url="memory://f").features == "memory://f"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("BATCH_TOKENS", value) for value in ("0", "many")),
        *(("DTYPE", value) for value in ("float16", "")),
        *(("RUNNER", "ray"), ("WORKERS", "0")),
    ],
)
def test_load_settings_invalid_value_names_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"ABSTAIN_{name}", value)
    with pytest.raises(AbstainError, match=f"^environment variable ABSTAIN_{name}: ") as caught:
        load_settings()
    assert "\n" not in str(caught.value)
