from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstain.llm.engine.prefix_tree import (
    MIN_SHARED,
    Node,
    build_tree,
    count_common_prefix,
    count_distinct_tokens,
    walk,
)

few_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def ids_of(path: list[Node]) -> list[int]:
    return [token for node in path for token in node.ids]


@given(st.lists(few_tokens, max_size=12), st.integers(1, 50))
def test_build_tree_path_spells_its_pass_in_short_runs(passes: list[list[int]], longest: int) -> None:
    runs = list(walk(build_tree(passes, longest)))
    ends = {index: run for run in runs for index in run.prompt_indices}
    assert sorted(ends) == list(range(len(passes)))
    for index, ids in enumerate(passes):
        path = ends[index].path
        assert ids_of(path) == ids
        assert path[0].start == 0 and all(one.end == other.start for one, other in pairwise(path))
        assert all(0 < len(node) <= longest for node in path)
    seen: set[int] = set()
    for run in runs:  # parents before children
        assert run.parent is None or id(run.parent) in seen
        seen.add(id(run))


@pytest.mark.heavy
@given(st.lists(few_tokens, min_size=1, max_size=12))
def test_build_tree_stores_shared_tokens_once(passes: list[list[int]]) -> None:
    total = sum(map(len, walk(build_tree(passes, 1000))))
    once = {tuple(ids[: n + 1]) for ids in passes for n in range(len(ids))}
    # At best every prefix is there once; each pass may repeat fewer than MIN_SHARED tokens where it leaves another.
    assert len(once) <= total < len(once) + MIN_SHARED * len(passes)


def test_build_tree_runs_of_shared_tokens() -> None:
    instruction, one, other = list(range(20)), list(range(30, 45)), list(range(50, 65))
    passes = [[*instruction, *one, 1], [*instruction, *one, 2], [*instruction, *other], instruction]
    runs = list(walk(build_tree(passes, 100)))
    assert [run.ids for run in runs] == [instruction, one, [1], [2], other]
    assert [run.prompt_indices for run in runs] == [[3], [], [0], [1], [2]]


def test_build_tree_short_common_prefix_is_not_shared() -> None:
    apart = build_tree([[1, 2, 3, 4, 5], [1, 2, 3, 9, 9]], 100)
    assert [run.ids for run in apart] == [[1, 2, 3, 4, 5], [1, 2, 3, 9, 9]]
    (on,) = build_tree([[1, 2, 3], [1, 2, 3, 4]], 100)
    assert on.ids == [1, 2, 3] and on.children[0].ids == [4]


@given(few_tokens, few_tokens)
def test_count_common_prefix(one: list[int], other: list[int]) -> None:
    n = count_common_prefix(one, other)
    assert one[:n] == other[:n]
    assert n in (len(one), len(other)) or one[n] != other[n]


@given(st.lists(few_tokens, max_size=6))
def test_count_distinct_tokens_counts_prefixes_once(passes: list[list[int]]) -> None:
    assert count_distinct_tokens(passes) == len({tuple(ids[:end]) for ids in passes for end in range(1, len(ids) + 1)})
