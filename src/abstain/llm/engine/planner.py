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
from abstain.llm.engine.prefix_tree import Node, build_tree, common_prefix, walk
from abstain.llm.engine.requests import NLL, ConstrainedGenerate, Generate, HiddenStates, Request


@dataclass(frozen=True)
class EncodedRequest:
    """One request, encoded: `first`..`last` are the tokens whose states or NLLs are requested.

    `choices`: token ids.
    """

    key: str
    request: Request
    ids: list[int]
    first: int
    last: int
    choices: tuple[int, ...] = ()

    def hook(self, n_layers: int) -> tuple[Hook, Span]:
        """The rows of the hook that it reads. What predicts a token is the state of the token before it."""
        match self.request.operation:
            case HiddenStates(layer, site):
                return Hook(layer, site), (self.first, self.last)
            case NLL():
                return Hook(n_layers), (max(self.first - 1, 0), self.last - 1)
            case _:
                return Hook(n_layers), (len(self.ids) - 1, len(self.ids))


@dataclass
class NodeResults:
    """The results for a run, on the CPU, until the last of its passes is done.

    `states`: hook -> (first token, rows); `surprise`: NLL and entropy of every token, nan where not requested.
    """

    users: int = 0
    states: dict[Hook, tuple[int, Tensor]] = field(default_factory=dict)
    surprise: Tensor | None = None


class RequestPlan:
    """The tree of the passes of `entries`, cut into batches, and what has been found on the way."""

    def __init__(self, entries: Sequence[EncodedRequest], decoder: Decoder, batch_tokens: int) -> None:
        self.entries: defaultdict[tuple[int, ...], list[EncodedRequest]] = defaultdict(list)
        for entry in entries:
            self.entries[tuple(entry.ids)].append(entry)
        self.passes = sorted(self.entries)
        if decoder.packs:
            self.runs = list(walk(build_tree(self.passes, batch_tokens)))
            self.batches = _fill(self.runs, batch_tokens)
        else:
            self.runs = [Node(list(ids), prompt_indices=[at]) for at, ids in enumerate(self.passes)]
            self.runs.sort(key=len, reverse=True)
            self.batches = _fill_padded(self.runs, batch_tokens)
        self.no_rows = torch.empty(0, decoder.config.hidden_size, dtype=decoder.loaded.model.dtype)
        self.kept: dict[Node, KeysValues] = {}
        self.results = {run: NodeResults() for run in self.runs}
        self.wanted: defaultdict[Node, dict[Hook, Span]] = defaultdict(dict)
        self.exported: defaultdict[Node, set[Hook]] = defaultdict(set)
        self.projected: defaultdict[Node, set[int]] = defaultdict(set)
        self.choices: dict[str, Tensor] = {}
        self.last_state: dict[str, Tensor] = {}
        self._last_use: dict[Node, int] = {}
        for number, batch in enumerate(self.batches):
            for run in batch:
                for node in run.path:
                    self._last_use[node] = number
        for run in self.runs:
            for entry in self.get_requests_ending_at(run):
                self._note(entry, run, decoder.n_layers)

    def _note(self, entry: EncodedRequest, end: Node, n_layers: int) -> None:
        hook, (first, last) = entry.hook(n_layers)
        for node in end.path:
            self.results[node].users += 1
            local = max(first - node.start, 0), min(last - node.start, len(node))
            if local[0] < local[1]:
                here = self.wanted[node]
                here[hook] = covering_span([local, here[hook]]) if hook in here else local
                if isinstance(entry.request.operation, HiddenStates):
                    self.exported[node].add(hook)
                elif not isinstance(entry.request.operation, Generate | ConstrainedGenerate):
                    self.projected[node].update(range(*local))

    def get_requests_ending_at(self, run: Node) -> Iterator[EncodedRequest]:
        """The requests whose passes end with `run`."""
        for index in run.prompt_indices:
            yield from self.entries[self.passes[index]]

    def surprise(self, run: Node) -> Tensor:
        """NLL and entropy of the tokens of `run`, (tokens, 2), to be read and written."""
        results = self.results[run]
        if results.surprise is None:
            results.surprise = torch.full((len(run), 2), float("nan"))
        return results.surprise

    def get_nodes_to_keep(self, number: int) -> set[Node]:
        """Runs of batch `number` whose keys and values a later batch, or an answer, goes on from."""
        batch = self.batches[number]
        answered = {
            node
            for run in batch
            if any(
                isinstance(entry.request.operation, Generate | ConstrainedGenerate)
                for entry in self.get_requests_ending_at(run)
            )
            for node in run.path
        }
        return {run for run in batch if self._last_use[run] > number or run in answered}

    def pop_finished(self, number: int) -> Iterator[tuple[EncodedRequest, list[Node]]]:
        """The requests whose passes end in batch `number`, each with its path; what no other needs is then dropped."""
        for run in self.batches[number]:
            for entry in self.get_requests_ending_at(run):
                path = run.path
                yield entry, path
                for node in path:
                    self.results[node].users -= 1
                    if not self.results[node].users:
                        del self.results[node]
        for node in [node for node in self.kept if self._last_use[node] <= number]:
            del self.kept[node]


def group_by_depth(
    entries: Sequence[EncodedRequest], n_layers: int, shares: bool
) -> list[tuple[int, list[EncodedRequest]]]:
    """Requests grouped by the layers they need, deepest first.

    A shallower one joins a deeper group where the shared prefix saves more than the unneeded layers cost that its
    other tokens then go through. Without shared prefixes (`shares`), it joins where it equals one of the group's.
    """
    groups: dict[int, list[EncodedRequest]] = {}
    for depth in sorted({entry.hook(n_layers)[0].layer for entry in entries}, reverse=True):
        passes = {deeper: sorted(entry.ids for entry in group) for deeper, group in groups.items()}
        own: list[EncodedRequest] = []
        for entry in (entry for entry in entries if entry.hook(n_layers)[0].layer == depth):
            for deeper, ids in passes.items():
                at = bisect.bisect(ids, entry.ids)
                shared = max(common_prefix(entry.ids, near) for near in ids[max(at - 1, 0) : at + 1])
                if shared < len(entry.ids) and not shares:
                    continue
                if (len(entry.ids) - shared) * deeper <= len(entry.ids) * depth:
                    groups[deeper].append(entry)
                    break
            else:
                own.append(entry)
        if own:
            groups[depth] = own
    return list(groups.items())


def _fill(runs: Sequence[Node], batch_tokens: int) -> list[list[Node]]:
    """Runs in their order, as many to a batch as `batch_tokens` allows."""
    batches: list[list[Node]] = []
    room = 0
    for run in runs:
        if len(run) > room or not batches:
            batches.append([])
            room = batch_tokens
        batches[-1].append(run)
        room -= len(run)
    return batches


def _fill_padded(runs: Sequence[Node], batch_tokens: int) -> list[list[Node]]:
    """Runs, longest first, as many to a batch as `batch_tokens` allows when all are as long as its first."""
    batches: list[list[Node]] = []
    for run in runs:
        if not batches or (len(batches[-1]) + 1) * len(batches[-1][0]) > batch_tokens:
            batches.append([])
        batches[-1].append(run)
    return batches
