from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.release.registry import (
    Registry,
    RegistryEvent,
    get_next_version,
    load_registry,
    make_version_tag,
    parse_registry,
    parse_version,
    parse_version_tags,
)
from tests.learning.thresholds.builders import make_missing_guarantee
from tests.release.events import promotion


def event(version: str, action: str = "promote", reason: str = "the checks passed") -> RegistryEvent:
    return promotion(version, action=action, candidate_sha256=f"c-{version}", reason=reason)


def registry(*versions: str) -> Registry:
    made = Registry()
    for version in versions:
        made = made.promote(event(version))
    return made


def rolled_back(made: Registry, wanted: str | None = None, reason: str = "complaints") -> Registry:
    return made.roll_back(event(made.find_rollback_target(wanted).version, "rollback", reason))


def test_a_version_without_a_guarantee_is_marked_with_the_reviews_that_are_missing() -> None:
    plain = event("v1.0.0")
    unknown, missing = (
        plain.model_copy(update={"guarantee": make_missing_guarantee(reviews)}) for reviews in (None, 1200)
    )
    assert [one.notice for one in (plain, unknown, missing)] == [
        "",
        "without a guarantee",
        "without a guarantee, an estimated 1,200 more reviews are needed",
    ]
    made = Registry().promote(missing)
    assert not made.has_guarantee and parse_registry(made.to_json()) == made
    assert not Registry().has_guarantee and registry("v1.0.0").has_guarantee


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
    ],
)
def test_the_next_version(promoted: list[str], tags: list[str], expected: str) -> None:
    assert get_next_version(promoted, tags) == expected


VERSIONS = st.lists(st.tuples(*[st.integers(0, 30)] * 3).map(lambda three: "v{}.{}.{}".format(*three)), min_size=1)


@given(VERSIONS, VERSIONS)
def test_the_next_version_is_above_all_that_were_promoted_and_has_no_tag(
    promoted: list[str], tagged: list[str]
) -> None:
    new = get_next_version(promoted, map(make_version_tag, tagged))
    assert parse_version(new) > max(map(parse_version, promoted)) and new not in tagged


NO_VERSIONS = ["1.0.0", "v1.0", "v1.0.0-rc1", "", "v1.0.0\n", "v01.0.0", "v٣.0.0", f"v{'9' * 5000}.0.0"]


@pytest.mark.parametrize("version", [*NO_VERSIONS, "/srv/bin", "../v1.0.0", "v1.0.0/.."], ids=lambda text: text[:9])
def test_a_registry_names_no_folder_but_those_of_versions(version: str) -> None:
    made = json.loads(registry("v1.0.0").to_json())
    made["history"][0]["version"] = version
    with pytest.raises(AbstainError, match=r"registry.json is damaged \(history.0.version: "):
        parse_registry(json.dumps(made))


@pytest.mark.parametrize("version", NO_VERSIONS, ids=lambda text: text[:9])
def test_what_is_no_version_is_told_how_to_write_one(version: str) -> None:
    with pytest.raises(AbstainError, match=r"is no version: write it as in v1.2.0$"):
        parse_version(version)


def test_versions_among_tags_are_in_the_order_of_their_numbers() -> None:
    assert parse_version_tags(["probe@v1.10.0", "probe@vnext", "encoder@v1.0.0", "probe@v1.9.0"]) == [
        "v1.9.0",
        "v1.10.0",
    ]


def test_an_empty_registry_has_nothing_in_production(tmp_path: Path) -> None:
    empty = load_registry(tmp_path / "registry.json")
    assert (empty.production, empty.production_version) == (None, None)
    with pytest.raises(AbstainError, match="nothing is in production yet: run `abstain retrain` first"):
        empty.find_rollback_target(None)


def test_a_version_is_promoted_once() -> None:
    made = registry("v1.0.0", "v1.1.0")
    assert made.production_version == "v1.1.0"
    for version in ("v1.0.0", "v1.1.0"):
        with pytest.raises(AbstainError, match=f"{version} was promoted before: a version is promoted once"):
            made.promote(event(version))
    left = rolled_back(made)
    with pytest.raises(AbstainError, match="v1.1.0 was promoted before"):
        left.promote(event("v1.1.0"))


def test_promoting_leaves_the_old_registry_alone() -> None:
    before = registry("v1.0.0")
    after = before.promote(event("v1.1.0"))
    assert (before.production_version, after.production_version) == ("v1.0.0", "v1.1.0")


def test_a_rollback_goes_to_the_version_before_by_number_and_blocks_the_one_left() -> None:
    made = registry("v1.2.0", "v1.9.0", "v1.10.0", "v1.11.0")
    assert made.find_rollback_target(None).version == "v1.10.0"
    left = rolled_back(made, reason="worse on gold")
    assert left.production_version == "v1.10.0"
    assert left.blocked == {"v1.11.0": "worse on gold"}
    assert [e.action for e in left.history] == ["promote"] * 4 + ["rollback"]
    assert rolled_back(left).production_version == "v1.9.0"


def test_a_rollback_may_name_its_version() -> None:
    made = registry("v1.0.0", "v1.1.0", "v1.2.0")
    assert made.find_rollback_target("v1.0.0").version == "v1.0.0"


@pytest.mark.parametrize("wanted", ["v1.2.0", "v9.0.0"])
def test_a_rollback_to_what_is_in_production_or_never_was_lists_the_choices(wanted: str) -> None:
    made = registry("v1.0.0", "v1.1.0", "v1.2.0")
    with pytest.raises(AbstainError, match=f"no version {wanted} to roll back to: .* not blocked: v1.0.0, v1.1.0$"):
        made.find_rollback_target(wanted)


def test_a_blocked_version_is_no_target() -> None:
    left = rolled_back(registry("v1.0.0", "v1.1.0"))
    with pytest.raises(AbstainError, match="no version v1.1.0 to roll back to: .* not blocked: none$"):
        left.find_rollback_target("v1.1.0")
    with pytest.raises(AbstainError, match="no version before v1.0.0 to roll back to"):
        left.find_rollback_target(None)


def test_after_a_rollback_the_next_promotion_can_be_rolled_back_too() -> None:
    made = rolled_back(registry("v1.0.0", "v1.1.0")).promote(event("v1.2.0"))
    assert made.find_rollback_target(None).version == "v1.0.0"


def test_a_rollback_without_a_name_never_goes_to_a_newer_version() -> None:
    made = rolled_back(registry("v1.0.0", "v1.1.0", "v1.2.0"), "v1.0.0")
    with pytest.raises(AbstainError, match="no version before v1.0.0 to roll back to: .* not blocked: v1.1.0$"):
        made.find_rollback_target(None)
    assert made.find_rollback_target("v1.1.0").version == "v1.1.0"


LATER, LAST = (datetime(2026, 11, day, tzinfo=UTC) for day in (20, 21))


def test_a_version_trained_on_erased_rows_is_tainted_from_the_first_erasure() -> None:
    made = registry("v1.0.0", "v1.1.0")
    assert made.taint is None and made.warning is None
    marked = made.mark_erased({"v1.0.0": True, "v1.1.0": True}, LATER).mark_erased({"v1.1.0": True}, LAST)
    assert marked.taint is not None and marked.taint.since == LATER
    assert "trained on erased rows since 2026-11-20" in str(marked.taint) and "v1.1.0" in str(marked.warning)
    clean = marked.promote(event("v1.2.0"))
    assert clean.taint is None
    back = rolled_back(clean)
    assert back.taint == marked.taint and rolled_back(back).taint == marked.tainted["v1.0.0"]


def test_a_version_that_cannot_be_read_is_tainted_with_a_doubt() -> None:
    doubted = registry("v1.0.0").mark_erased({"v1.0.0": False}, LATER)
    assert doubted.taint is not None and "perhaps" in str(doubted.taint)
    known = doubted.mark_erased({"v1.0.0": True}, LAST).mark_erased({"v1.0.0": False}, LAST)
    assert known.taint is not None and known.taint.certain and known.taint.since == LATER


def test_a_decision_to_keep_ends_with_the_next_erasure() -> None:
    kept = registry("v1.0.0").mark_erased({"v1.0.0": True}, LATER).keep_tainted("no other yet")
    assert kept.taint is not None and kept.taint.keep_reason == "no other yet" and kept.taint.since == LATER
    assert "no other yet" in str(kept.taint) and parse_registry(kept.to_json()) == kept
    again = kept.mark_erased({"v1.0.0": True}, LAST)
    assert again.taint is not None and again.taint.keep_reason is None


@pytest.mark.parametrize("made", [Registry(), registry("v1.0.0")])
def test_without_an_erasure_there_is_nothing_to_keep(made: Registry) -> None:
    with pytest.raises(AbstainError, match="there is nothing to decide$"):
        made.keep_tainted("why not")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    made = rolled_back(registry("v1.0.0", "v1.1.0"), reason="ä\n")
    file = tmp_path / "registry.json"
    file.write_text(made.to_json(), encoding="utf-8")
    assert load_registry(file) == made
    assert made.to_json().endswith("}\n")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "Invalid JSON"),
        ("<<<<<<< HEAD\n{}", "Invalid JSON"),
        ('{"history": [{"action": "promote"}]}', "history.0.version: Field required"),
        ('{"schema_version": 2}', "schema_version: Input should be 1"),
        ('{"prod": "v1.0.0"}', "prod: Extra inputs are not permitted"),
    ],
)
def test_a_damaged_file_names_the_place_and_the_remedy(text: str, where: str) -> None:
    with pytest.raises(AbstainError) as caught:
        parse_registry(text)
    message = str(caught.value)
    assert message.startswith("registry.json is damaged (")
    assert where in message
    assert message.endswith("restore it with `git checkout HEAD -- registry.json`")
    assert "\n" not in message


def test_find_rollback_target_is_the_highest_below_or_the_latest_event() -> None:
    made = rolled_back(registry("v1.0.0", "v1.1.0", "v1.2.0"), "v1.0.0").promote(event("v1.3.0"))
    assert made.find_rollback_target(None).version == "v1.1.0"
    assert made.find_rollback_target("v1.0.0").action == "rollback"


def test_require_production_without_usable_version_raises() -> None:
    made = registry("v1.0.0")
    assert made.require_production() == made.production
    for unusable in (Registry(), made.model_copy(update={"blocked": {"v1.0.0": "by hand"}})):
        with pytest.raises(AbstainError) as error:
            unusable.require_production()
        assert error.value.code == Code.NO_VERSION
    for without_taint in (Registry(), made):
        with pytest.raises(AbstainError) as error:
            without_taint.require_taint()
        assert error.value.code == Code.NO_VERSION


def test_get_next_version_skips_all_tagged_ones() -> None:
    assert get_next_version(["v1.4.2"], ["probe@v1.5.0", "probe@v1.6.0"]) == "v1.7.0"
