"""A tree of prompts over token ids: what two prompts share from the beginning is one node, computed once.

A shared node has at least `MIN_SHARED` tokens (or is a whole prompt): a shorter one would cost more in extra attention
calls than its tokens do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

MIN_SHARED = 8


@dataclass(eq=False)
class Node:
    """A run of tokens. `start`: position of its first token in its passes; `passes`: those that end with it."""

    ids: list[int]
    start: int = 0
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    prompt_indices: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def end(self) -> int:
        """The position past its last token."""
        return self.start + len(self.ids)

    @property
    def path(self) -> list[Node]:
        """From the root to this node, itself included."""
        nodes = [self]
        while nodes[-1].parent is not None:
            nodes.append(nodes[-1].parent)
        return nodes[::-1]


def build_tree(passes: Sequence[Sequence[int]], longest_run: int) -> list[Node]:
    """The roots of the tree of `passes`, none of which may be empty; `node.passes` are indices into them.

    No run is longer than `longest_run` tokens: a longer one becomes a chain.
    """
    top = Node([])
    for index, ids in enumerate(passes):
        _insert(top, list(ids), index)
    for root in top.children:
        root.parent = None
    for node in walk(top.children):
        if len(node) > longest_run:
            _split(node, longest_run)
        node.start = node.parent.end if node.parent else 0
    return top.children


def walk(nodes: Sequence[Node]) -> Iterator[Node]:
    """Every node, depth first, parents before children; a node may be split while it is visited."""
    stack = list(reversed(nodes))
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common prefix of `one` and `other`."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(at for at in range(shorter) if one[at] != other[at])


def distinct_tokens(passes: Iterable[list[int]]) -> int:
    """The tokens of `passes`, what two have in common from the beginning counted once."""
    ordered = sorted(passes)
    shared = sum(common_prefix(one, other) for one, other in itertools.pairwise(ordered))
    return sum(map(len, ordered)) - shared


def _insert(top: Node, ids: list[int], index: int) -> None:
    node = top
    while ids:
        nearest = max(node.children, key=lambda child: common_prefix(child.ids, ids), default=None)
        shared = common_prefix(nearest.ids, ids) if nearest else 0
        if nearest is None or not _should_share(shared, nearest, ids):
            child = Node(ids, parent=node)
            node.children.append(child)
            node, ids = child, []
        else:
            if shared < len(nearest):
                _split(nearest, shared)
            node, ids = nearest, ids[shared:]
    node.prompt_indices.append(index)


def _should_share(shared: int, child: Node, ids: list[int]) -> bool:
    """Whether to share: the run is long enough, or it is one already, or a pass ends with it."""
    return shared >= MIN_SHARED or (shared > 0 and shared in (len(ids), len(child)))


def _split(node: Node, at: int) -> None:
    """Cut `node` after `at` tokens; the rest becomes its only child."""
    rest = Node(node.ids[at:], parent=node, children=node.children, prompt_indices=node.prompt_indices)
    for child in rest.children:
        child.parent = rest
    node.ids, node.children, node.prompt_indices = node.ids[:at], [rest], []
