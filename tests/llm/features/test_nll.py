from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from abstain.llm.features.nll import DIFFERENCES, ENTROPIES, PAIRS, SEGMENTS, SHARED, STATISTICS, Found, summarise

NAN = float("nan")


def tokens(*nll: float, entropy: float = 0.5) -> Tensor:
    """(tokens, 2): these NLLs, and `entropy` times the token's number."""
    return torch.tensor([[value, entropy * at] for at, value in enumerate(nll)], dtype=torch.float32).reshape(-1, 2)


def found(**segments: Tensor | None) -> Found:
    plain: dict[str, Tensor | None] = {name: tokens(1.0, 2.0) for name in SEGMENTS}
    return plain | segments


NORMAL = found(prompt=tokens(NAN, 1.0, 2.0), instruction=tokens(NAN, 1.0), output=tokens(4.0, 1.0, 1.0, 2.0))
BASELINE: Found = {name: value for name, value in found(output=tokens(5.0, 1.0, 0.0, 4.0)).items() if name != "context"}
PERTURBED = found(output=tokens(6.0, 0.0, 1.0, 2.0), context=tokens(3.0, 7.0))


def test_every_condition_segment_and_statistic_has_a_column() -> None:
    row = summarise(NORMAL, BASELINE, [PERTURBED])
    of_segments = {
        f"{condition}.{segment}.{name}"
        for condition in "NBP"
        for segment in SEGMENTS
        for name in (*STATISTICS, *ENTROPIES)
    }
    of_pairs = {f"{one}-{other}.{segment}.{name}" for one, other in PAIRS for segment in SHARED for name in DIFFERENCES}
    assert row.keys() == of_segments | of_pairs
    assert (len(STATISTICS), len(ENTROPIES), len(DIFFERENCES), len(row)) == (9, 2, 4, 3 * 5 * 11 + 3 * 2 * 4)
    assert set(summarise(found(), found(), [found()])) == set(row), "whatever is there"
    assert all(isinstance(value, float) for value in row.values())


def test_statistics_are_those_of_a_segments_tokens() -> None:
    row = summarise(NORMAL, BASELINE, [PERTURBED])
    expected = {"mean": 2.0, "std": math.sqrt(1.5), "min": 1.0, "median": 1.5, "q90": 3.4, "max": 4.0, "sum": 8.0}
    expected |= {"first": 4.0, "last": 2.0}
    assert {name: row[f"N.output.nll_{name}"] for name in expected} == pytest.approx(expected)
    assert (row["N.output.entropy_mean"], row["N.output.entropy_max"]) == pytest.approx((0.75, 1.5))
    assert (row["P.context.nll_mean"], row["P.context.nll_last"], row["N.context.nll_mean"]) == (5.0, 7.0, 1.5)


def test_what_could_not_be_read_as_it_was_asked_has_no_features() -> None:
    unread: Found = dict.fromkeys(SEGMENTS)
    row = summarise(unread, BASELINE, [PERTURBED, PERTURBED])
    assert row.keys() == summarise(NORMAL, BASELINE, [PERTURBED, PERTURBED]).keys()
    assert all(math.isnan(value) for value in row.values())
    assert not math.isnan(summarise(NORMAL, BASELINE, [unread])["N.output.nll_mean"])


def test_differences_are_token_by_token() -> None:
    row = summarise(NORMAL, BASELINE, [PERTURBED])
    gaps = {"N-B": [-1, 0, 1, -2], "P-N": [2, -1, 0, 0], "P-B": [1, -1, 1, -2]}
    for pair, gap in gaps.items():
        statistics = {"mean": np.mean(gap), "std": np.std(gap), "min": min(gap), "max": max(gap)}
        assert {name: row[f"{pair}.output.nll_{name}"] for name in statistics} == pytest.approx(statistics)


def test_the_first_token_of_a_pass_which_nothing_precedes_is_left_out() -> None:
    row = summarise(NORMAL, BASELINE, [PERTURBED])
    assert (row["N.prompt.nll_mean"], row["N.prompt.nll_first"], row["N.prompt.entropy_mean"]) == (1.5, 1.0, 0.75)
    assert (row["N.instruction.nll_std"], row["N.instruction.nll_sum"]) == (0.0, 1.0)


def test_what_is_not_there_is_nan() -> None:
    """The context under B_c, an empty segment, one of a single first token, a prompt that could not be read."""
    row = summarise(NORMAL | {"question": tokens()}, BASELINE, [dict.fromkeys(SEGMENTS)])
    missing = {name for name, value in row.items() if math.isnan(value)}
    assert {name for name in row if name.startswith(("B.context", "N.question", "P", "N-B.question"))} == missing
    first = summarise(NORMAL | {"instruction": tokens(NAN)}, BASELINE, [PERTURBED])
    assert {name for name, value in first.items() if math.isnan(value)} == {
        name for name in row if name.startswith(("N.instruction", "B.context"))
    }


def test_segments_of_other_lengths_have_no_difference() -> None:
    row = summarise(NORMAL, BASELINE | {"output": tokens(1.0)}, [PERTURBED])
    assert math.isnan(row["N-B.output.nll_mean"]) and math.isnan(row["P-B.output.nll_max"])
    assert row["P-N.output.nll_mean"] == 0.25 and row["B.output.nll_mean"] == 1.0


def test_an_answer_of_one_token_has_no_spread() -> None:
    one = found(output=tokens(3.0))
    row = summarise(one, one, [one])
    assert {
        row[f"N.output.nll_{name}"] for name in ("mean", "min", "median", "q90", "max", "sum", "first", "last")
    } == {3.0}
    assert row["N.output.nll_std"] == row["N-B.output.nll_std"] == row["P-N.output.nll_mean"] == 0.0


def test_without_a_context_all_conditions_are_one() -> None:
    bare = found(context=tokens())
    row = summarise(bare, BASELINE | {"output": bare["output"]}, [bare])
    assert all(math.isnan(row[f"{condition}.context.nll_mean"]) for condition in "NBP")
    assert {row[f"{one}-{other}.output.{name}"] for one, other in PAIRS for name in DIFFERENCES} == {0.0}


def test_of_several_copies_there_are_mean_and_spread() -> None:
    copies = [found(output=tokens(value, value)) for value in (1.0, 2.0, 6.0)]
    both = found(output=tokens(1.0, 3.0))
    row, single = summarise(both, both, copies), summarise(both, both, copies[:1])
    assert row["P.output.nll_mean"] == 3.0 and row["Ps.output.nll_mean"] == pytest.approx(math.sqrt(14 / 3))
    assert row["P-N.output.nll_mean"] == 1.0 and row["Ps-N.output.nll_mean"] == row["Ps-B.output.nll_mean"]
    assert row["Ps.context.nll_sum"] == 0.0
    assert {name for name in row if name not in single} == {f"Ps{name[1:]}" for name in single if name.startswith("P")}
    with_none = summarise(both, both, [copies[0], dict.fromkeys(SEGMENTS)])
    assert math.isnan(with_none["P.output.nll_mean"]) and math.isnan(with_none["Ps.output.nll_mean"])


NUMBERS = st.lists(st.floats(0, 50, width=32), min_size=1, max_size=12)


@pytest.mark.heavy
@given(st.fixed_dictionaries(dict.fromkeys(SEGMENTS, NUMBERS)), NUMBERS)
def test_statistics_keep_their_order(segments: Mapping[str, list[float]], output: list[float]) -> None:
    one = {name: tokens(*values) for name, values in segments.items()}
    row = summarise(one, one, [{**one, "output": tokens(*output)}])
    for condition in "NBP":
        low, middle, q90, high, mean, total = (
            row[f"{condition}.output.nll_{name}"] for name in ("min", "median", "q90", "max", "mean", "sum")
        )
        assert low <= middle <= q90 + 1e-9 and q90 <= high + 1e-9
        assert low - 1e-9 <= mean <= high + 1e-9
        assert total == pytest.approx(mean * len(segments["output"] if condition != "P" else output))
    same = len(output) == len(segments["output"])
    assert math.isnan(row["P-N.output.nll_mean"]) != same
    if same:
        assert row["P-N.output.nll_mean"] == pytest.approx(np.mean(output) - np.mean(segments["output"]), abs=1e-5)
