"""Plan requests as forward passes: their prompts become one prefix tree, cut into batches (docs/decisions/070)."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from abstain.llm.engine.attention import KeysValues
from abstain.llm.engine.decoder import Decoder, Hook, Span, covering_span
from abstain.llm.engine.prefix_tree import Node, build_tree, count_common_prefix, walk
from abstain.llm.engine.requests import NLL, ConstrainedGenerate, Generate, HiddenStates, Request


@dataclass(frozen=True)
class EncodedRequest:
    """A request with its prompt as token ids.

    Attributes:
        key: Key of the request.
        request: The request.
        ids: Token ids of the prompt.
        first: Index of the first token whose state or NLL is requested.
        last: Index past the last one.
        choices: Token ids of the tracked tokens.
    """

    key: str
    request: Request
    ids: list[int]
    first: int
    last: int
    choices: tuple[int, ...] = ()

    def get_hook_span(self, n_layers: int) -> tuple[Hook, Span]:
        """Return the hook and the span of tokens that the request reads.

        A token is predicted by the state of the token before it.

        Args:
            n_layers: Number of layers of the model.

        Returns:
            The hook, and (first, past the last) of the tokens.
        """
        match self.request.operation:
            case HiddenStates(layer, site):
                return Hook(layer, site), (self.first, self.last)
            case NLL():
                return Hook(n_layers), (max(self.first - 1, 0), self.last - 1)
            case _:
                return Hook(n_layers), (len(self.ids) - 1, len(self.ids))


@dataclass
class NodeResults:
    """The results for a node, on the CPU, until the last prompt through it is done.

    Attributes:
        users: Number of requests that still need them.
        states: Hook -> (first token, rows).
        surprise: NLL and entropy of every token, (tokens, 2); nan if not requested.
    """

    users: int = 0
    states: dict[Hook, tuple[int, Tensor]] = field(default_factory=dict)
    surprise: Tensor | None = None


def is_decoded(entry: EncodedRequest) -> bool:
    """Return whether an answer to the request is decoded after its prompt."""
    return isinstance(entry.request.operation, Generate | ConstrainedGenerate)


class RequestPlan:
    """The prefix tree of the prompts of requests, cut into batches, with the results so far.

    Args:
        entries: Encoded requests.
        decoder: Decoder of the base model.
        batch_tokens: Limit of the tokens of one forward pass.
    """

    def __init__(self, entries: Sequence[EncodedRequest], decoder: Decoder, batch_tokens: int) -> None:
        self.entries: defaultdict[tuple[int, ...], list[EncodedRequest]] = defaultdict(list)
        for entry in entries:
            self.entries[tuple(entry.ids)].append(entry)
        self.prompts = sorted(self.entries)
        if decoder.can_pack:
            self.nodes = list(walk(build_tree(self.prompts, batch_tokens)))
            self.batches = _fill_batches(self.nodes, batch_tokens)
        else:
            self.nodes = [Node(list(ids), prompt_indices=[index]) for index, ids in enumerate(self.prompts)]
            self.nodes.sort(key=len, reverse=True)
            self.batches = _fill_padded_batches(self.nodes, batch_tokens)
        self._decoder = decoder
        self.kv_cache: dict[Node, KeysValues] = {}
        self.results = {node: NodeResults() for node in self.nodes}
        self.requested: defaultdict[Node, dict[Hook, Span]] = defaultdict(dict)
        self.exported: defaultdict[Node, set[Hook]] = defaultdict(set)
        self.projected: defaultdict[Node, set[int]] = defaultdict(set)
        self.choices: dict[str, Tensor] = {}
        self.last_state: dict[str, Tensor] = {}
        self._last_batch: dict[Node, int] = {}
        for index, batch in enumerate(self.batches):
            for end_node in batch:
                for node in end_node.path:
                    self._last_batch[node] = index
        for end_node in self.nodes:
            for entry in self.get_requests_ending_at(end_node):
                self._register(entry, end_node, decoder.n_layers)

    def _register(self, entry: EncodedRequest, end_node: Node, n_layers: int) -> None:
        hook, (first, last) = entry.get_hook_span(n_layers)
        for node in end_node.path:
            self.results[node].users += 1
            local_span = max(first - node.start, 0), min(last - node.start, len(node))
            if local_span[0] < local_span[1]:
                spans = self.requested[node]
                spans[hook] = covering_span([local_span, spans[hook]]) if hook in spans else local_span
                if isinstance(entry.request.operation, HiddenStates):
                    self.exported[node].add(hook)
                elif not is_decoded(entry):
                    self.projected[node].update(range(*local_span))

    def get_requests_ending_at(self, node: Node) -> Iterator[EncodedRequest]:
        """Yield the requests whose prompts end with a node.

        Args:
            node: Node of the tree.

        Yields:
            The requests.
        """
        for index in node.prompt_indices:
            yield from self.entries[self.prompts[index]]

    def make_no_states(self, operation: HiddenStates) -> Tensor:
        """Make the result of an operation whose segments are empty.

        Args:
            operation: The operation.

        Returns:
            (0, d) in the model's dtype.
        """
        width = self._decoder.get_width(Hook(operation.layer, operation.site))
        return torch.empty(0, width, dtype=self._decoder.loaded.model.dtype)

    def get_surprise(self, node: Node) -> Tensor:
        """Return NLL and entropy of the tokens of a node, to be read and written.

        Args:
            node: Node of the tree.

        Returns:
            (tokens, 2), float32; nan at first.
        """
        results = self.results[node]
        if results.surprise is None:
            results.surprise = torch.full((len(node), 2), float("nan"))
        return results.surprise

    def get_nodes_to_cache(self, index: int) -> set[Node]:
        """Return the nodes of a batch whose keys and values a later batch or an answer continues from.

        Args:
            index: Index of the batch.

        Returns:
            The nodes.
        """
        batch = self.batches[index]
        answered_nodes = {
            node
            for end_node in batch
            if any(map(is_decoded, self.get_requests_ending_at(end_node)))
            for node in end_node.path
        }
        return {node for node in batch if self._last_batch[node] > index or node in answered_nodes}

    def pop_finished(self, index: int) -> Iterator[tuple[EncodedRequest, list[Node]]]:
        """Yield the requests whose prompts end in a batch, and drop results that no other request needs.

        Args:
            index: Index of the batch.

        Yields:
            (request, path of its prompt from the root).
        """
        for end_node in self.batches[index]:
            for entry in self.get_requests_ending_at(end_node):
                path = end_node.path
                yield entry, path
                for node in path:
                    self.results[node].users -= 1
                    if not self.results[node].users:
                        del self.results[node]
        for node in [node for node in self.kv_cache if self._last_batch[node] <= index]:
            del self.kv_cache[node]


def group_by_depth(
    entries: Sequence[EncodedRequest], n_layers: int, can_share: bool
) -> list[tuple[int, list[EncodedRequest]]]:
    """Group requests by the layers that they need, deepest first.

    A shallower request joins a deeper group if the shared prefix saves more than its other tokens cost in the layers
    that it does not need. Without shared prefixes it joins if its prompt equals one of the group's.

    Args:
        entries: Encoded requests.
        n_layers: Number of layers of the model.
        can_share: Whether prompts can share prefixes.

    Returns:
        (depth, requests) of each group.
    """
    groups: dict[int, list[EncodedRequest]] = {}
    for depth in sorted({entry.get_hook_span(n_layers)[0].layer for entry in entries}, reverse=True):
        prompts_by_depth = {deeper: sorted(entry.ids for entry in group) for deeper, group in groups.items()}
        members: list[EncodedRequest] = []
        for entry in (entry for entry in entries if entry.get_hook_span(n_layers)[0].layer == depth):
            for deeper, ids in prompts_by_depth.items():
                index = bisect.bisect(ids, entry.ids)
                shared = max(
                    count_common_prefix(entry.ids, neighbour) for neighbour in ids[max(index - 1, 0) : index + 1]
                )
                if shared < len(entry.ids) and not can_share:
                    continue
                if (len(entry.ids) - shared) * deeper <= len(entry.ids) * depth:
                    groups[deeper].append(entry)
                    break
            else:
                members.append(entry)
        if members:
            groups[depth] = members
    return list(groups.items())


def _fill_batches(nodes: Sequence[Node], batch_tokens: int) -> list[list[Node]]:
    """Fill batches with nodes in their order, as many to a batch as `batch_tokens` allows."""
    batches: list[list[Node]] = []
    room = 0
    for node in nodes:
        if len(node) > room or not batches:
            batches.append([])
            room = batch_tokens
        batches[-1].append(node)
        room -= len(node)
    return batches


def _fill_padded_batches(nodes: Sequence[Node], batch_tokens: int) -> list[list[Node]]:
    """Fill batches with nodes, longest first, as many as `batch_tokens` allows if padded to the longest."""
    batches: list[list[Node]] = []
    for node in nodes:
        if not batches or (len(batches[-1]) + 1) * len(batches[-1][0]) > batch_tokens:
            batches.append([])
        batches[-1].append(node)
    return batches
