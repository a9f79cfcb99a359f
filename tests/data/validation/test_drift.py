import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.contracts import Context
from abstain.data.store import profile as module
from abstain.data.store.profile import MAX_LANGUAGE_SAMPLES, MEASURES, Profile, Profiler, get_length_bin
from abstain.data.store.record_keys import Record, make_record
from abstain.data.validation.drift import compute_stability_index, select_newest_and_previous, validate_drift
from tests.checkout import shipped_params
from tests.factories import interaction

QUALITY = shipped_params().quality.model_copy(update={"max_drift": 0.25, "min_drift_rows": 50})
COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 500))


def make_profile(rows: int, **changed: dict[str, int]) -> Profile:
    """Make a profile with two classes for each measure, except for those `changed`."""
    counts = {name: {"32": rows // 2, "64": rows - rows // 2} for name in MEASURES}
    return Profile(rows=rows, counts=counts | {name.replace("_", " "): found for name, found in changed.items()})


@given(COUNTS, COUNTS)
def test_compute_stability_index_is_symmetric(one: dict[str, int], two: dict[str, int]) -> None:
    assert compute_stability_index(one, two) == pytest.approx(compute_stability_index(two, one))
    assert compute_stability_index(one, two) >= 0
    assert compute_stability_index(one, one) == 0


def test_compute_stability_index_large_samples() -> None:
    newest, previous = {"a": 600_000, "b": 400_000}, {"a": 500_000, "b": 500_000}
    assert compute_stability_index(newest, previous) == pytest.approx(0.1 * 0.18232 + 0.1 * 0.22314, abs=1e-4)
    assert compute_stability_index({}, previous) == 0


def test_compute_stability_index_ignores_chance() -> None:
    rng = random.Random(3)
    classes = [str(at) for at in range(10)]
    indices = [
        compute_stability_index(Counter(rng.choices(classes, k=50)), Counter(rng.choices(classes, k=2_000)))
        for _ in range(500)
    ]
    assert sum(index > 0.25 for index in indices) <= 10
    assert compute_stability_index({"en": 40, "de": 10}, {"en": 1_000}) > 0.25
    assert compute_stability_index({"en": 995, "de": 5}, {"en": 1_000}) < 0.1


def test_select_newest_and_previous_joins_small_batches() -> None:
    batches = [make_profile(rows) for rows in (100, 30, 10, 20, 30)]
    found = select_newest_and_previous(batches, 50)
    assert found is not None and [profile.rows for profile in found] == [50, 140]
    assert select_newest_and_previous(batches[1:], 50) is select_newest_and_previous([], 50) is None


@pytest.mark.slow
def test_validate_drift_new_language_is_warning() -> None:
    german = make_profile(100, question_language={"en": 50, "de": 50})
    result = validate_drift([make_profile(900, question_language={"en": 900}), german], QUALITY)
    assert result.success and result.rows == {"drift": 5}
    (line,) = result.format_warnings()
    assert line.startswith("A108 question language: 3.73 ") and line.endswith("0.25 allowed (quality.max_drift)")
    figures = result.drift
    assert figures.rows == {"newest": 100, "previous": 900}
    assert figures.shift["question length"] == 0
    assert figures.newest["question language"] == {"en": 50, "de": 50}


def test_validate_drift_one_batch_is_not_judged() -> None:
    result = validate_drift([make_profile(900)], QUALITY)
    assert result.success and result.drift is None
    assert result.all_notes == (
        "drift: no rows, the suite was skipped",
        "drift: not judged before there are two batches of 50 interactions each",
    )


PROFILE_COUNTS = st.dictionaries(st.sampled_from(MEASURES), st.dictionaries(st.sampled_from("abc"), st.integers(1, 9)))
PROFILES = st.builds(Profile, rows=st.integers(0, 99), counts=PROFILE_COUNTS)


def make_records(number: int, question: str = "What is the annual fee of the card?") -> list[Record]:
    context = Context(chunk_id="fees#0", text="The fee is due in May. " * 8)
    return [make_record(interaction(f"i-{at}", question=question, contexts=(context,))) for at in range(number)]


def build_profile_of(batch: Sequence[Record]) -> Profile:
    profiler = Profiler()
    for line in batch:
        profiler.add(line)
    return profiler.build_profile()


@given(st.integers(0, 10**7))
def test_get_length_bin_is_half_octave(length: int) -> None:
    lower = int(get_length_bin(length))
    assert lower <= length < max(2**0.5 * lower, 1)


def test_profiler_counts_lengths_with_languages() -> None:
    german = "Wie hoch ist die Jahresgebühr der Karte, und wann wird sie abgebucht?"
    profile = build_profile_of([*make_records(3), *make_records(2, german)[1:]])
    assert (profile.rows, build_profile_of([]).rows) == (4, 0)
    assert profile.get_counts("question length") == {"32": 3, "64": 1}
    assert profile.get_counts("question language") == {"de": 1, "en": 3}
    assert profile.get_counts("context length") == {"182": 4}
    assert profile.counts.keys() == set(MEASURES)


def test_profiler_sample_is_bounded_in_any_order() -> None:
    french = "Où est la banque, s'il vous plaît ?"
    rows = [make_record(interaction(f"x-{n}", question=french)) for n in range(MAX_LANGUAGE_SAMPLES)]
    rows += make_records(MAX_LANGUAGE_SAMPLES)
    profile = build_profile_of(rows)
    random.Random(1).shuffle(rows)
    assert build_profile_of(rows) == profile
    languages = profile.get_counts("question language")
    assert sum(languages.values()) == MAX_LANGUAGE_SAMPLES
    assert sum(profile.get_counts("question length").values()) == 2 * MAX_LANGUAGE_SAMPLES
    assert 0.4 < languages["fr"] / MAX_LANGUAGE_SAMPLES < 0.6


@given(PROFILES, PROFILES, PROFILES)
def test_profile_addition_is_commutative(one: Profile, two: Profile, three: Profile) -> None:
    assert (one + two) + three == one + (two + three)
    assert one + two == two + one
    assert one + Profile() == one
    assert Profile.model_validate_json(one.to_json_line()) == one


@pytest.mark.parametrize("text", ["", "12345", "\x00\ud800", "?!"])
def test_detect_language_without_words_is_und(text: str) -> None:
    assert module.detect_language(text) == "und"
