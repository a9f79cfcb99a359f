"""How requests become forward passes: their passes as one tree of token runs, cut into batches.

Two decisions:

* Requests that need deeper layers are planned apart from those that do not, unless sharing a prefix saves more than
  the extra layers cost.
* Runs go in depth-first order, so that of what has been computed only one path has to be kept for the runs to come.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from abstain.llm.engine.attention import KeysValues
from abstain.llm.engine.decoder import Decoder, Span, Tap, hull
from abstain.llm.engine.prefix_tree import Node, build, common_prefix, walk
from abstain.llm.engine.requests import NLL, Generate, Request, States


@dataclass(frozen=True)
class Want:
    """One request, encoded: `first`..`last` are the tokens whose states or NLLs it wants; `choices` are token ids."""

    key: str
    request: Request
    ids: list[int]
    first: int
    last: int
    choices: tuple[int, ...] = ()

    def tap(self, n_layers: int) -> tuple[Tap, Span]:
        """The rows of the tap that it reads. What predicts a token is the state of the token before it."""
        match self.request.ask:
            case States(layer, site):
                return Tap(layer, site), (self.first, self.last)
            case NLL():
                return Tap(n_layers), (max(self.first - 1, 0), self.last - 1)
            case _:
                return Tap(n_layers), (len(self.ids) - 1, len(self.ids))


@dataclass
class Found:
    """What is known of a run, on the CPU, until the last of its passes is done.

    `states`: tap -> (first token, rows); `surprise`: NLL and entropy of every token, nan where nobody asked.
    """

    users: int = 0
    states: dict[Tap, tuple[int, Tensor]] = field(default_factory=dict)
    surprise: Tensor | None = None


class Plan:
    """The tree of the passes of `wants`, cut into batches, and what has been found on the way."""

    def __init__(self, wants: Sequence[Want], decoder: Decoder, batch_tokens: int) -> None:
        self.wants: defaultdict[tuple[int, ...], list[Want]] = defaultdict(list)
        for want in wants:
            self.wants[tuple(want.ids)].append(want)
        self.passes = sorted(self.wants)
        if decoder.packs:
            self.runs = list(walk(build(self.passes, batch_tokens)))
            self.batches = _fill(self.runs, batch_tokens)
        else:
            self.runs = [Node(list(ids), passes=[at]) for at, ids in enumerate(self.passes)]
            self.runs.sort(key=len, reverse=True)
            self.batches = _fill_padded(self.runs, batch_tokens)
        self.no_rows = torch.empty(0, decoder.config.hidden_size, dtype=decoder.loaded.model.dtype)
        self.kept: dict[Node, KeysValues] = {}
        self.found = {run: Found() for run in self.runs}
        self.wanted: defaultdict[Node, dict[Tap, Span]] = defaultdict(dict)
        self.exported: defaultdict[Node, set[Tap]] = defaultdict(set)
        self.projected: defaultdict[Node, set[int]] = defaultdict(set)
        self.choices: dict[str, Tensor] = {}
        self.last_state: dict[str, Tensor] = {}
        self._last_use: dict[Node, int] = {}
        for number, batch in enumerate(self.batches):
            for run in batch:
                for node in run.path:
                    self._last_use[node] = number
        for run in self.runs:
            for want in self.ending(run):
                self._note(want, run, decoder.n_layers)

    def _note(self, want: Want, end: Node, n_layers: int) -> None:
        tap, (first, last) = want.tap(n_layers)
        for node in end.path:
            self.found[node].users += 1
            local = max(first - node.start, 0), min(last - node.start, len(node))
            if local[0] < local[1]:
                here = self.wanted[node]
                here[tap] = hull([local, here[tap]]) if tap in here else local
                if isinstance(want.request.ask, States):
                    self.exported[node].add(tap)
                elif not isinstance(want.request.ask, Generate):
                    self.projected[node].update(range(*local))

    def ending(self, run: Node) -> Iterator[Want]:
        """The requests whose passes end with `run`."""
        for index in run.passes:
            yield from self.wants[self.passes[index]]

    def surprise(self, run: Node) -> Tensor:
        """NLL and entropy of the tokens of `run`, (tokens, 2), to be read and written."""
        found = self.found[run]
        if found.surprise is None:
            found.surprise = torch.full((len(run), 2), float("nan"))
        return found.surprise

    def keep(self, number: int) -> set[Node]:
        """Runs of batch `number` whose keys and values a later batch, or an answer, goes on from."""
        batch = self.batches[number]
        answered = {
            node
            for run in batch
            if any(isinstance(want.request.ask, Generate) for want in self.ending(run))
            for node in run.path
        }
        return {run for run in batch if self._last_use[run] > number or run in answered}

    def finished(self, number: int) -> Iterator[tuple[Want, list[Node]]]:
        """The requests whose passes end in batch `number`, each with its path; what no other needs is then dropped."""
        for run in self.batches[number]:
            for want in self.ending(run):
                path = run.path
                yield want, path
                for node in path:
                    self.found[node].users -= 1
                    if not self.found[node].users:
                        del self.found[node]
        for node in [node for node in self.kept if self._last_use[node] <= number]:
            del self.kept[node]


def by_depth(wants: Sequence[Want], n_layers: int, shares: bool) -> list[tuple[int, list[Want]]]:
    """Requests grouped by the layers they need, deepest first.

    A shallower one joins a deeper group where the prefix that it shares with it saves more than the layers that its
    other tokens then go through in vain. Without prefixes that are shared (`shares`), where it is equal to one of them.
    """
    groups: dict[int, list[Want]] = {}
    for depth in sorted({want.tap(n_layers)[0].layer for want in wants}, reverse=True):
        passes = {deeper: sorted(want.ids for want in group) for deeper, group in groups.items()}
        own: list[Want] = []
        for want in (want for want in wants if want.tap(n_layers)[0].layer == depth):
            for deeper, ids in passes.items():
                at = bisect.bisect(ids, want.ids)
                shared = max(common_prefix(want.ids, near) for near in ids[max(at - 1, 0) : at + 1])
                if shared < len(want.ids) and not shares:
                    continue
                if (len(want.ids) - shared) * deeper <= len(want.ids) * depth:
                    groups[deeper].append(want)
                    break
            else:
                own.append(want)
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
