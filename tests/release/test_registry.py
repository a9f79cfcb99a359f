import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.release import registry as module
from abstain.release.registry import Registry, get_next_version, load_registry, parse_registry, parse_version
from tests.learning.thresholds.builders import make_missing_guarantee
from tests.release.builders import promotion

LATER, LAST = (datetime(2026, 11, day, tzinfo=UTC) for day in (20, 21))


def make_event(version: str, action: str = "promote", reason: str = "the checks passed") -> module.RegistryEvent:
    return promotion(version, action=action, candidate_sha256=f"c-{version}", reason=reason)


def make_registry(*versions: str) -> Registry:
    registry = Registry()
    for version in versions:
        registry = registry.promote(make_event(version))
    return registry


def roll_back(registry: Registry, version: str | None = None, reason: str = "complaints") -> Registry:
    return registry.roll_back(make_event(registry.find_rollback_target(version).version, "rollback", reason))


def test_registry_notice_names_missing_reviews() -> None:
    event = make_event("v1.0.0")
    unknown, missing = (event.model_copy(update={"guarantee": make_missing_guarantee(n)}) for n in (None, 1200))
    assert event.notice == "" and "1,200 more reviews" in missing.notice
    assert unknown.notice and "reviews" not in unknown.notice
    registry = Registry().promote(missing)
    assert not registry.has_guarantee and parse_registry(registry.to_json()) == registry
    assert not Registry().has_guarantee and make_registry("v1.0.0").has_guarantee


@pytest.mark.parametrize(
    ("promoted", "tags", "expected"),
    [
        ([], [], "v1.0.0"),
        (["v1.0.0"], ["probe@v1.0.0"], "v1.1.0"),
        (["v1.9.0", "v1.10.3", "v1.2.0"], [], "v1.11.0"),
        (["v2.0.1", "v1.99.0"], [], "v2.1.0"),
        ([], ["encoder@v1.0.0", "v1.0.0", "probe#prod#1", "probe-v1"], "v1.0.0"),
        (["v1.0.0"], ["probe@vnext", f"probe@v{'9' * 5000}.0.0", "probe@v999999999.999999999.0"], "v1.1.0"),
        ([], ["probe@v1.0.0", "probe@v1.1.0"], "v1.2.0"),
        (["v1.4.2"], ["probe@v1.5.0", "probe@v1.6.0"], "v1.7.0"),
    ],
)
def test_get_next_version_skips_all_promoted_and_tagged(promoted: list[str], tags: list[str], expected: str) -> None:
    assert get_next_version(promoted, tags) == expected


versions = st.lists(st.tuples(*[st.integers(0, 30)] * 3).map(lambda three: "v{}.{}.{}".format(*three)), min_size=1)


@given(versions, versions)
def test_get_next_version_is_above_promoted_and_untagged(promoted: list[str], tagged: list[str]) -> None:
    version = get_next_version(promoted, map(module.make_version_tag, tagged))
    assert parse_version(version) > max(map(parse_version, promoted)) and version not in tagged


def test_parse_version_tags_sorted_by_number() -> None:
    tags = ["probe@v1.10.0", "probe@vnext", "encoder@v1.0.0", "probe@v1.9.0"]
    assert module.parse_version_tags(tags) == ["v1.9.0", "v1.10.0"]


NO_VERSIONS = ["1.0.0", "v1.0", "v1.0.0-rc1", "", "v1.0.0\n", "v01.0.0", "v٣.0.0", f"v{'9' * 5000}.0.0"]


@pytest.mark.parametrize("version", [*NO_VERSIONS, "/srv/bin", "../v1.0.0", "v1.0.0/.."], ids=lambda text: text[:9])
def test_parse_registry_invalid_version_raises(version: str) -> None:
    content = json.loads(make_registry("v1.0.0").to_json())
    content["history"][0]["version"] = version
    with pytest.raises(AbstainError, match=r"history\.0\.version"):
        parse_registry(json.dumps(content))
    with pytest.raises(AbstainError, match=r"v1\.2\.0$"):
        parse_version(version)


def test_load_registry_reads_what_was_written_or_is_empty(tmp_path: Path) -> None:
    registry, file = roll_back(make_registry("v1.0.0", "v1.1.0"), reason="ä\n"), tmp_path / "registry.json"
    empty = load_registry(file)
    assert (empty.production, empty.production_version) == (None, None)
    with pytest.raises(AbstainError, match="abstain retrain"):
        empty.find_rollback_target(None)
    file.write_text(registry.to_json(), encoding="utf-8")
    assert load_registry(file) == registry and registry.to_json().endswith("}\n")


def test_registry_promote_same_version_twice_raises() -> None:
    registry = make_registry("v1.0.0", "v1.1.0")
    assert registry.production_version == "v1.1.0"
    for state, version in ((registry, "v1.0.0"), (registry, "v1.1.0"), (roll_back(registry), "v1.1.0")):
        with pytest.raises(AbstainError, match=version):
            state.promote(make_event(version))
    assert registry.promote(make_event("v1.2.0")) != registry and registry.production_version == "v1.1.0"


def test_registry_roll_back_goes_down_and_blocks() -> None:
    left = roll_back(make_registry("v1.2.0", "v1.9.0", "v1.10.0", "v1.11.0"), reason="worse on gold")
    assert left.production_version == "v1.10.0"
    assert left.blocked == {"v1.11.0": "worse on gold"}
    assert [event.action for event in left.history] == ["promote"] * 4 + ["rollback"]
    assert roll_back(left).production_version == "v1.9.0"


THREE = make_registry("v1.0.0", "v1.1.0", "v1.2.0")


@pytest.mark.parametrize(
    ("registry", "wanted", "target", "action"),
    [
        (THREE, "v1.0.0", "v1.0.0", "promote"),
        (roll_back(make_registry("v1.0.0", "v1.1.0")).promote(make_event("v1.2.0")), None, "v1.0.0", "promote"),
        (roll_back(THREE, "v1.0.0"), "v1.1.0", "v1.1.0", "promote"),
        (roll_back(THREE, "v1.0.0").promote(make_event("v1.3.0")), None, "v1.1.0", "promote"),
        (roll_back(THREE, "v1.0.0").promote(make_event("v1.3.0")), "v1.0.0", "v1.0.0", "rollback"),
    ],
)
def test_rollback_target_is_highest_or_wanted(registry: Registry, wanted: str | None, target: str, action: str) -> None:
    """The latest event of that version."""
    found = registry.find_rollback_target(wanted)
    assert (found.version, found.action) == (target, action)


@pytest.mark.parametrize(
    ("registry", "wanted", "choices"),
    [
        (THREE, "v1.2.0", "v1.0.0, v1.1.0"),
        (THREE, "v9.0.0", "v1.0.0, v1.1.0"),
        (roll_back(make_registry("v1.0.0", "v1.1.0")), "v1.1.0", "none"),
        (roll_back(make_registry("v1.0.0", "v1.1.0")), None, "none"),
        (roll_back(THREE, "v1.0.0"), None, "v1.1.0"),
    ],
)
def test_find_rollback_target_without_one_lists_choices(registry: Registry, wanted: str | None, choices: str) -> None:
    with pytest.raises(AbstainError, match=rf"{wanted or 'before v1.0.0'} to roll back to: .*: {choices}$"):
        registry.find_rollback_target(wanted)


def test_mark_tainted_erasure_outranks_correction() -> None:
    corrected = make_registry("v1.0.0").mark_tainted({"v1.0.0": True}, LATER, "corrected")
    assert str(corrected.taint) == f"trained on corrected rows since {LATER:%Y-%m-%d}"
    erased = corrected.mark_tainted({"v1.0.0": True}, LAST)
    assert str(erased.taint) == f"trained on erased rows since {LATER:%Y-%m-%d}"
    assert erased.mark_tainted({"v1.0.0": True}, LAST, "corrected").tainted == erased.tainted


def test_mark_tainted_since_first_erasure() -> None:
    registry = make_registry("v1.0.0", "v1.1.0")
    assert registry.taint is None and registry.warning is None
    marked = registry.mark_tainted({"v1.0.0": True, "v1.1.0": True}, LATER).mark_tainted({"v1.1.0": True}, LAST)
    assert marked.taint is not None and marked.taint.since == LATER
    assert "2026-11-20" in str(marked.taint) and "v1.1.0" in str(marked.warning)
    clean = marked.promote(make_event("v1.2.0"))
    assert clean.taint is None
    back = roll_back(clean)
    assert back.taint == marked.taint and roll_back(back).taint == marked.tainted["v1.0.0"]
    uncertain = make_registry("v1.0.0").mark_tainted({"v1.0.0": False}, LATER)
    assert uncertain.taint is not None and "perhaps" in str(uncertain.taint), "its data could not be read"
    certain = uncertain.mark_tainted({"v1.0.0": True}, LAST).mark_tainted({"v1.0.0": False}, LAST)
    assert certain.taint is not None and certain.taint.certain and certain.taint.since == LATER


def test_keep_tainted_until_next_erasure() -> None:
    kept = make_registry("v1.0.0").mark_tainted({"v1.0.0": True}, LATER).keep_tainted("no other yet")
    assert kept.taint is not None and kept.taint.keep_reason == "no other yet" and kept.taint.since == LATER
    assert "no other yet" in str(kept.taint) and parse_registry(kept.to_json()) == kept
    again = kept.mark_tainted({"v1.0.0": True}, LAST)
    assert again.taint is not None and again.taint.keep_reason is None
    for untainted in (Registry(), make_registry("v1.0.0")):
        with pytest.raises(AbstainError):
            untainted.keep_tainted("why not")


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("", "Invalid JSON"),
        ("<<<<<<< HEAD\n{}", "Invalid JSON"),
        ('{"history": [{"action": "promote"}]}', "history.0.version: "),
        ('{"schema_version": 2}', "schema_version: "),
        ('{"prod": "v1.0.0"}', "prod: "),
    ],
)
def test_parse_registry_damaged_names_field_and_remedy(text: str, location: str) -> None:
    with pytest.raises(AbstainError) as error:
        parse_registry(text)
    message = str(error.value)
    assert location in message
    assert message.endswith("`git checkout HEAD -- registry.json`")


def test_require_production_without_usable_version_raises() -> None:
    made = make_registry("v1.0.0")
    assert made.require_production() == made.production
    for unusable, name in (
        (Registry(), "abstain retrain"),
        (made.model_copy(update={"blocked": {"v1.0.0": "by hand"}}), "by hand"),
    ):
        with pytest.raises(AbstainError, match=name, check=lambda error: error.code is Code.NO_VERSION):
            unusable.require_production()
    for registry, name in ((Registry(), "in production"), (made, "v1.0.0")):
        with pytest.raises(AbstainError, match=name, check=lambda error: error.code is Code.NO_VERSION):
            registry.require_taint()
        with pytest.raises(AbstainError, check=lambda error: error.code is Code.NO_VERSION):
            registry.find_rollback_target(None)
