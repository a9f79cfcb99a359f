"""Run requests through the base model with the least work that gives their results (docs/decisions/070)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.decoder import ComputeStats, Decoder, Hook, log_probabilities
from abstain.llm.engine.device import copy_to_host, make_copy_barrier
from abstain.llm.engine.generation import DecodingPrompt, GeneratedText, OnAnswerText, generate
from abstain.llm.engine.loading import LoadedModel
from abstain.llm.engine.pauses import pause
from abstain.llm.engine.planner import EncodedRequest, RequestPlan, group_by_depth
from abstain.llm.engine.prefix_tree import Node
from abstain.llm.engine.requests import (
    NLL,
    ConstrainedGenerate,
    Generate,
    HiddenStates,
    NextTokenProbs,
    Perturb,
    Request,
    get_prompt_segments,
)
from abstain.llm.engine.tokenization import encode_prompt

ENGINE_VERSION = "forest-1"
"""Change it with every edit that changes the last bits of a result: it is part of every cache key."""
Result = Tensor | list[GeneratedText]
DECODE_BATCHES = 8
"""The number of batches whose tokens may wait, with their keys and values, to be decoded side by side."""


class Engine:
    """Runs requests through one loaded base model. `batch_tokens` bounds one forward pass, padding included.

    `packed` overrides what the decoder finds out about the model by itself (decoder.py).
    """

    def __init__(self, loaded: LoadedModel, batch_tokens: int, packed: bool | None = None) -> None:
        self.loaded = loaded
        self.batch_tokens = batch_tokens
        self.decoder = Decoder(loaded, packed)

    @property
    def stats(self) -> ComputeStats:
        """Counts of the work done so far."""
        return self.decoder.work

    def run(
        self, requests: Mapping[str, Request], on_answer_text: OnAnswerText | None = None
    ) -> Iterator[tuple[str, Result]]:
        """Yield `(key, result)` for every request, in the order in which they are done; shapes: see each request kind.

        `tell` is given the answer of a `Generate` so far, under its key, after each of its tokens.

        Tensors are on the CPU. Raises `AbstainError` for a layer, site or segment that does not exist, a pass longer
        than the model's window, a choice of several tokens, and for states that are not finite, naming the row;
        TypeError for `Perturb`.
        """
        entries = [self._encode(key, request) for key, request in requests.items()]
        self.stats.prompts += len(entries)
        self.stats.pass_tokens += sum(len(entry.ids) for entry in entries)
        for depth, group in group_by_depth(entries, self.decoder.n_layers, self.decoder.packs):
            yield from self._run_group(depth, group, on_answer_text)

    def _encode(self, key: str, request: Request) -> EncodedRequest:
        ask, tokenizer = request.operation, self.loaded.tokenizer
        if isinstance(ask, Perturb):
            raise TypeError(f"{request.name}: an Engine perturbs nothing: use perturbation.engines.CausalEngine")
        encoded = encode_prompt(tokenizer, get_prompt_segments(request))
        ids = encoded.ids
        if not ids:
            raise AbstainError(
                Code.MODEL_UNSUITABLE, f"{request.name}: a pass without any tokens: check the layout's literals"
            )
        longest = len(ids)
        if isinstance(ask, Generate):
            longest += ask.max_new_tokens + ask.reads_eos
        elif isinstance(ask, ConstrainedGenerate):
            longest += ask.max_new_tokens
        if self.decoder.window is not None and longest > self.decoder.window:
            raise AbstainError(
                Code.TOO_LONG,
                f"{request.name}: {longest} tokens are more than the {self.decoder.window} that "
                f"{self.loaded.ref.name} reads: take it out or retrieve fewer chunks",
            )
        first, last = encoded.span(*ask.segments) if isinstance(ask, HiddenStates | NLL) else (len(ids) - 1, len(ids))
        offered = (
            ask.tokens if isinstance(ask, NextTokenProbs) else ask.tracked_tokens if isinstance(ask, Generate) else ()
        )
        choices = tuple(_require_single_token(tokenizer, token) for token in offered)
        entry = EncodedRequest(key, request, ids, first, last, choices)
        self.decoder.get_module(entry.hook(self.decoder.n_layers)[0])
        if isinstance(ask, Generate) and ask.states:
            self.decoder.get_module(Hook(ask.states.layer, ask.states.site))
        return entry

    def _run_group(
        self, depth: int, entries: Sequence[EncodedRequest], tell: OnAnswerText | None
    ) -> Iterator[tuple[str, Result]]:
        plan = RequestPlan(entries, self.decoder, self.batch_tokens)
        prompts: list[DecodingPrompt] = []
        copied: Callable[[], None] = self._launch(plan, 0, depth)
        for number in range(len(plan.batches)):
            finish = copied
            if number + 1 < len(plan.batches):  # one ahead: on CUDA, copies to the host overlap with the next batch
                copied = self._launch(plan, number + 1, depth)
            finish()
            for entry, path in plan.pop_finished(number):
                if isinstance(entry.request.operation, Generate | ConstrainedGenerate):
                    prompts.append(_prompt(entry, path, plan))
                    tokens = sum(prompt.cached_tokens for prompt in prompts)
                    if (
                        sum(prompt.batch_share for prompt in prompts) >= 1
                        or tokens >= DECODE_BATCHES * self.batch_tokens
                    ):
                        yield from generate(self.decoder, prompts, tell)
                        prompts = []
                else:
                    yield entry.key, _assemble(entry, path, plan)
        if prompts:
            yield from generate(self.decoder, prompts, tell)

    def _launch(self, plan: RequestPlan, number: int, depth: int) -> Callable[[], None]:
        """Run one batch; what it gives may be read once the returned function has been called."""
        pause()
        batch = plan.batches[number]
        wanted = {run: plan.wanted[run] for run in batch if run in plan.wanted}
        node_states = self.decoder.forward(batch, wanted, depth, plan.kept, plan.get_nodes_to_keep(number))
        final = Hook(self.decoder.n_layers)
        rows = _ProjectionRows()
        for run, hooks in node_states.items():
            for hook in plan.exported[run]:
                plan.results[run].states[hook] = (wanted[run][hook][0], copy_to_host(hooks[hook]))
            for entry in plan.get_requests_ending_at(run):
                if isinstance(entry.request.operation, Generate | ConstrainedGenerate):
                    plan.last_state[entry.key] = hooks[final][-1:].clone()
            if plan.projected[run]:
                chosen = sorted(plan.projected[run])
                hidden = hooks[final][[at - wanted[run][final][0] for at in chosen]]
                rows.add(
                    run,
                    chosen,
                    hidden,
                    [
                        entry
                        for entry in plan.get_requests_ending_at(run)
                        if isinstance(entry.request.operation, NextTokenProbs)
                    ],
                )
        values = copy_to_host(rows.surprise(self.decoder)) if rows.hidden else torch.empty(0, 2)
        copied = make_copy_barrier(self.decoder.device)

        def finish() -> None:
            copied()
            for run, tokens, pairs in rows.of_runs:
                plan.surprise(run)[tokens] = values[pairs]
            for key, pairs in rows.of_choices:
                plan.choices[key] = (-values[pairs, :1]).exp()

        return finish


class _ProjectionRows:
    """States to be projected to the vocabulary, each once, and the pairs (row, token) whose probability is wanted."""

    def __init__(self) -> None:
        self.hidden: list[Tensor] = []
        self.of_runs: list[tuple[Node, list[int], slice]] = []  # tokens of a run, and the pairs that are theirs
        self.of_choices: list[tuple[str, slice]] = []
        self._row: list[int] = []
        self._token: list[int] = []
        self._count = 0

    def add(self, run: Node, tokens: Sequence[int], hidden: Tensor, ending: Sequence[EncodedRequest]) -> None:
        """`hidden` are the states of `tokens` of `run`: each predicts the next token, the last one every child's."""
        inner = [at for at in tokens if at + 1 < len(run)]
        self._pairs(range(self._count, self._count + len(inner)), [run.ids[at + 1] for at in inner])
        self.of_runs.append((run, [at + 1 for at in inner], slice(len(self._row) - len(inner), len(self._row))))
        if len(inner) < len(tokens):
            last = self._count + len(inner)
            for child in run.children:
                self.of_runs.append((child, [0], self._pairs([last], child.ids[:1])))
            for entry in ending:
                self.of_choices.append((entry.key, self._pairs([last] * len(entry.choices), entry.choices)))
        self.hidden.append(hidden)
        self._count += len(tokens)

    def surprise(self, decoder: Decoder) -> Tensor:
        """(pairs, 2): -log p of the pair's token, and the entropy of its row's p, in nats."""
        hidden = torch.cat(self.hidden)
        with torch.inference_mode():
            vocabulary = decoder.config.vocab_size
            log_p, entropy = log_probabilities(decoder.logits, hidden, self._row, self._token, vocabulary)
            return torch.stack([-log_p, entropy], 1)

    def _pairs(self, rows: Sequence[int], tokens: Sequence[int]) -> slice:
        self._row += rows
        self._token += tokens
        return slice(len(self._row) - len(tokens), len(self._row))


def _require_single_token(tokenizer: Any, token: str) -> int:
    ids = tokenizer.encode(token, add_special_tokens=False)
    if len(ids) != 1:
        raise AbstainError(
            Code.MODEL_UNSUITABLE,
            f"the choice {token!r} is {len(ids)} tokens of this base model, not one: choose another form",
        )
    return int(ids[0])


def _assemble(entry: EncodedRequest, path: Sequence[Node], plan: RequestPlan) -> Tensor:
    """The result of a request from what was found of the runs of its pass."""
    ask = entry.request.operation
    if isinstance(ask, NextTokenProbs):
        return plan.choices.pop(entry.key)
    parts = []
    for node in path:
        first, last = max(entry.first - node.start, 0), min(entry.last - node.start, len(node))
        if first < last and isinstance(ask, HiddenStates):
            offset, states = plan.results[node].states[Hook(ask.layer, ask.site)]
            parts.append(states[first - offset : last - offset])
        elif first < last:
            parts.append(plan.surprise(node)[first:last])
    if not parts:  # the segment is empty
        return plan.no_rows if isinstance(ask, HiddenStates) else torch.empty(0, 2)
    result = torch.cat(parts)
    known = result[1:] if isinstance(ask, NLL) and entry.first == 0 else result
    if not torch.isfinite(known).all():
        what = f"states at layer {ask.layer}" if isinstance(ask, HiddenStates) else "probabilities"
        raise AbstainError(
            Code.NOT_FINITE,
            f"{entry.request.name}: the base model's {what} are not finite; try ABSTAIN_DTYPE=float32, or take it out",
        )
    return result


def _prompt(entry: EncodedRequest, path: Sequence[Node], plan: RequestPlan) -> DecodingPrompt:
    """A pass that is to be answered, with what the decoder knows of it already."""
    ask = entry.request.operation
    assert isinstance(ask, Generate | ConstrainedGenerate)
    keys_values = None
    if all(node in plan.kept for node in path):
        layers = zip(*(plan.kept[node] for node in path), strict=True)
        keys_values = [(torch.cat([k for k, _ in layer], 1), torch.cat([v for _, v in layer], 1)) for layer in layers]
    target = entry.request.prompt[-1].text if isinstance(ask, ConstrainedGenerate) else ""
    return DecodingPrompt(entry.key, entry.ids, ask, plan.last_state.pop(entry.key), keys_values, entry.choices, target)
