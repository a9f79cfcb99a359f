from __future__ import annotations

import json

import pytest

from abstain.core.errors import AbstainError
from abstain.release.bundle_format import BUNDLE_FORMAT, current_metadata, current_smoke_test

FORMER = {
    "promised": True,
    "metric": "precision",
    "target": 0.8,
    "confidence": 0.9,
    "says": "precision of at least 0.8",
}


def test_metadata_without_a_format_get_the_current_keys() -> None:
    found = current_metadata({"version": "v1.0.0", "threshold": "0.5", "promise": json.dumps(FORMER)})
    assert found.keys() == {"version", "threshold", "guarantee", "scorer", "includes_eos"}
    assert json.loads(found["scorer"])["kinds"] == {"probe": "probe"}
    assert (found["version"], found["threshold"]) == ("v1.0.0", "0.5")
    assert json.loads(found["guarantee"]) == {
        "guaranteed": True,
        "metric": "precision",
        "target": 0.8,
        "confidence": 0.9,
        "message": "precision of at least 0.8",
    }


def test_metadata_of_the_current_format_are_unchanged() -> None:
    written = {"format": str(BUNDLE_FORMAT), "version": "v2.0.0", "guarantee": "{}"}
    assert current_metadata(written) == written


@pytest.mark.parametrize("written", ["1", "2", "3"])
def test_a_probe_of_a_former_format_reads_eos(written: str) -> None:
    assert current_metadata({"format": written})["includes_eos"] == "true"
    assert "includes_eos" not in current_metadata({"format": str(BUNDLE_FORMAT)}), "its own file says what it reads"


@pytest.mark.parametrize("written", [str(BUNDLE_FORMAT + 1), "", "two"])
def test_a_later_or_unknown_format_is_an_error_with_a_remedy(written: str) -> None:
    with pytest.raises(AbstainError, match=f"format {written}, later than {BUNDLE_FORMAT}: update this project$"):
        current_metadata({"format": written})


@pytest.mark.parametrize("former", ["", "[1]", "3", "null"])
def test_a_damaged_guarantee_is_not_converted(former: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        current_metadata({"promise": former})


def test_a_former_smoke_test_is_of_the_probe_alone() -> None:
    assert current_smoke_test([0.5, 0.25]) == {"probe": [0.5, 0.25]}
    assert current_smoke_test({"probe": [0.5], "live": [0.75]}) == {"probe": [0.5], "live": [0.75]}
