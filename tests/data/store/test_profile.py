import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.core.contracts import Context
from abstain.data.store.profile import (
    MAX_LANGUAGE_SAMPLES,
    MEASURES,
    Profile,
    Profiler,
    detect_language,
    get_length_bin,
)
from abstain.data.store.record_keys import Record, make_record
from tests.factories import interaction

COUNTS = st.dictionaries(st.sampled_from(MEASURES), st.dictionaries(st.sampled_from("abc"), st.integers(1, 9)))
PROFILES = st.builds(Profile, rows=st.integers(0, 99), counts=COUNTS)


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
    assert detect_language(text) == "und"
