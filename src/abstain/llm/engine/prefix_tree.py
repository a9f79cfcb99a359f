"""A prefix tree of prompts over token ids: the common beginning of two prompts is one node, computed once.

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
    """Adjacent tokens of one or more prompts.

    Attributes:
        ids: Token ids.
        start: Position of the first token in the prompts.
        parent: Node that precedes it; None for a root.
        children: Nodes that continue it.
        prompt_indices: Indices of the prompts that end with it.
    """

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
        """The nodes from the root to this node, itself included."""
        nodes = [self]
        while nodes[-1].parent is not None:
            nodes.append(nodes[-1].parent)
        return nodes[::-1]


def build_tree(prompts: Sequence[Sequence[int]], max_node_tokens: int) -> list[Node]:
    """Build the prefix tree of prompts.

    Args:
        prompts: Token ids of each prompt. None may be empty.
        max_node_tokens: Limit of the tokens of a node. A longer node becomes a chain.

    Returns:
        The roots. Their `prompt_indices` are indices into `prompts`.
    """
    top = Node([])
    for index, ids in enumerate(prompts):
        _insert(top, list(ids), index)
    for root in top.children:
        root.parent = None
    for node in walk(top.children):
        if len(node) > max_node_tokens:
            _split(node, max_node_tokens)
        node.start = node.parent.end if node.parent else 0
    return top.children


def walk(nodes: Sequence[Node]) -> Iterator[Node]:
    """Visit every node, depth first, parents before children. A node may be split during its visit.

    Args:
        nodes: Roots.

    Yields:
        The nodes.
    """
    stack = list(reversed(nodes))
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def count_common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences of token ids.

    Args:
        first: Token ids.
        second: Token ids.

    Returns:
        The number of tokens.
    """
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:
        return shorter
    return next(i for i in range(shorter) if first[i] != second[i])


def count_distinct_tokens(prompts: Iterable[list[int]]) -> int:
    """Count the tokens of prompts, with common prefixes counted once.

    Args:
        prompts: Token ids of each prompt.

    Returns:
        The number of tokens.
    """
    ordered = sorted(prompts)
    shared = sum(count_common_prefix(previous, current) for previous, current in itertools.pairwise(ordered))
    return sum(map(len, ordered)) - shared


def _insert(top: Node, ids: list[int], index: int) -> None:
    node = top
    while ids:
        nearest = max(node.children, key=lambda child: count_common_prefix(child.ids, ids), default=None)
        shared = count_common_prefix(nearest.ids, ids) if nearest else 0
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
    """Return whether to share: the node is long enough, or it is one already, or a prompt ends with it."""
    return shared >= MIN_SHARED or (shared > 0 and shared in (len(ids), len(child)))


def _split(node: Node, length: int) -> None:
    """Cut `node` after `length` tokens; the rest becomes its only child."""
    rest = Node(node.ids[length:], parent=node, children=node.children, prompt_indices=node.prompt_indices)
    for child in rest.children:
        child.parent = rest
    node.ids, node.children, node.prompt_indices = node.ids[:length], [rest], []
