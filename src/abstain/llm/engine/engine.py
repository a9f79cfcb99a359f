"""Run requests through the base model with the least work that gives their results (docs/decisions/070)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.decoder import ComputeStats, Decoder, Hook, compute_log_probabilities
from abstain.llm.engine.device import copy_to_host, make_copy_barrier
from abstain.llm.engine.generation import GeneratedText, OnAnswerText, generate
from abstain.llm.engine.incremental_decoder import DecodingPrompt
from abstain.llm.engine.loading import LoadedModel
from abstain.llm.engine.pauses import pause
from abstain.llm.engine.planner import EncodedRequest, RequestPlan, group_by_depth, is_decoded
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
    get_tracked_tokens,
)
from abstain.llm.engine.tokenization import encode_prompt

ENGINE_VERSION = "forest-5"
"""Change it with every edit that changes the last bits of a result: it is part of every cache key."""
Result = Tensor | list[GeneratedText]
DECODE_BATCHES = 16
"""Number of batches whose tokens may wait, with their keys and values, to be decoded side by side."""


class Engine:
    """Runs requests through one loaded base model.

    Args:
        loaded: The base model.
        batch_tokens: Limit of the tokens of one forward pass, padding included.
        packed: Overrides the decoder's own check of whether the model can pack prompts (decoder.py).
    """

    def __init__(self, loaded: LoadedModel, batch_tokens: int, packed: bool | None = None) -> None:
        self.loaded = loaded
        self.batch_tokens = batch_tokens
        self.decoder = Decoder(loaded, packed)

    @property
    def stats(self) -> ComputeStats:
        """Counts of the work done so far."""
        return self.decoder.stats

    def run(
        self, requests: Mapping[str, Request], on_answer_text: OnAnswerText | None = None
    ) -> Iterator[tuple[str, Result]]:
        """Run requests through the base model and yield results as they are computed.

        Args:
            requests: Key -> request.
            on_answer_text: Called with (key, text so far) after each generated token of a `Generate` request.

        Yields:
            (key, result). Shapes are documented with each operation; tensors are on the CPU.

        Raises:
            AbstainError: A layer, site or segment does not exist, a prompt exceeds the context length, a tracked token
                is not a single token, or states are not finite. The message names the row.
            TypeError: A request is a `Perturb`.
        """
        entries = [self._encode(key, request) for key, request in requests.items()]
        self.stats.prompts += len(entries)
        self.stats.pass_tokens += sum(len(entry.ids) for entry in entries)
        for depth, group in group_by_depth(entries, self.decoder.n_layers, self.decoder.can_pack):
            yield from self._run_group(depth, group, on_answer_text)

    def _encode(self, key: str, request: Request) -> EncodedRequest:
        operation, tokenizer = request.operation, self.loaded.tokenizer
        if isinstance(operation, Perturb):
            raise TypeError(f"{request.name}: an Engine perturbs nothing: use perturbation.engines.CausalEngine")
        encoded = encode_prompt(tokenizer, get_prompt_segments(request))
        ids = encoded.ids
        if not ids:
            raise AbstainError(
                Code.MODEL_UNSUITABLE, f"{request.name}: a pass without any tokens: check the layout's literals"
            )
        longest = len(ids)
        if isinstance(operation, Generate):
            longest += operation.max_new_tokens + operation.reads_eos
        elif isinstance(operation, ConstrainedGenerate):
            longest += operation.max_new_tokens
        if self.decoder.context_length is not None and longest > self.decoder.context_length:
            raise AbstainError(
                Code.TOO_LONG,
                f"{request.name}: {longest} tokens are more than the {self.decoder.context_length} that "
                f"{self.loaded.ref.name} reads: take it out or retrieve fewer chunks",
            )
        first, last = (
            encoded.span(*operation.segments) if isinstance(operation, HiddenStates | NLL) else (len(ids) - 1, len(ids))
        )
        choices = tuple(_require_single_token(tokenizer, token) for token in get_tracked_tokens(operation))
        entry = EncodedRequest(key, request, ids, first, last, choices)
        self.decoder.get_module(entry.get_hook_span(self.decoder.n_layers)[0])
        if isinstance(operation, Generate) and operation.states:
            self.decoder.get_module(Hook(operation.states.layer, operation.states.site))
        return entry

    def _run_group(
        self, depth: int, entries: Sequence[EncodedRequest], on_answer_text: OnAnswerText | None
    ) -> Iterator[tuple[str, Result]]:
        plan = RequestPlan(entries, self.decoder, self.batch_tokens)
        prompts: list[DecodingPrompt] = []
        finish_next: Callable[[], None] = self._launch(plan, 0, depth)
        for index in range(len(plan.batches)):
            finish = finish_next
            if index + 1 < len(plan.batches):  # one ahead: on CUDA, copies to the host overlap with the next batch
                finish_next = self._launch(plan, index + 1, depth)
            finish()
            for entry, path in plan.pop_finished(index):
                if is_decoded(entry):
                    prompts.append(_make_decoding_prompt(entry, path, plan))
                    tokens = sum(prompt.cached_tokens for prompt in prompts)
                    if (
                        sum(prompt.batch_share for prompt in prompts) >= 1
                        or tokens >= DECODE_BATCHES * self.batch_tokens
                    ):
                        yield from generate(self.decoder, prompts, on_answer_text)
                        prompts = []
                else:
                    yield entry.key, _assemble(entry, path, plan)
        if prompts:
            yield from generate(self.decoder, prompts, on_answer_text)

    def _launch(self, plan: RequestPlan, index: int, depth: int) -> Callable[[], None]:
        """Start one batch and return a function that waits for its results and stores them in `plan`."""
        pause()
        batch = plan.batches[index]
        requested = {node: plan.requested[node] for node in batch if node in plan.requested}
        node_states = self.decoder.forward(batch, requested, depth, plan.kv_cache, plan.get_nodes_to_cache(index))
        final = Hook(self.decoder.n_layers)
        rows = _ProjectionRows()
        for node, hooks in node_states.items():
            for hook in plan.exported[node]:
                plan.results[node].states[hook] = (requested[node][hook][0], copy_to_host(hooks[hook]))
            for entry in plan.get_requests_ending_at(node):
                if is_decoded(entry):
                    plan.last_state[entry.key] = hooks[final][-1:].clone()
            if plan.projected[node]:
                chosen = sorted(plan.projected[node])
                hidden = hooks[final][[token - requested[node][final][0] for token in chosen]]
                rows.add(
                    node,
                    chosen,
                    hidden,
                    [
                        entry
                        for entry in plan.get_requests_ending_at(node)
                        if isinstance(entry.request.operation, NextTokenProbs)
                    ],
                )
        values = copy_to_host(rows.compute_surprise(self.decoder)) if rows.hidden else torch.empty(0, 2)
        wait_for_copies = make_copy_barrier(self.decoder.device)

        def finish() -> None:
            wait_for_copies()
            for node, tokens, pairs in rows.node_pairs:
                plan.get_surprise(node)[tokens] = values[pairs]
            for key, pairs in rows.choice_pairs:
                plan.choices[key] = (-values[pairs, :1]).exp()

        return finish


class _ProjectionRows:
    """States to be projected to the vocabulary, each once, and the requested pairs (row, token)."""

    def __init__(self) -> None:
        self.hidden: list[Tensor] = []
        self.node_pairs: list[tuple[Node, list[int], slice]] = []  # tokens of a run, and the pairs that are theirs
        self.choice_pairs: list[tuple[str, slice]] = []
        self._row: list[int] = []
        self._token: list[int] = []
        self._count = 0

    def add(self, node: Node, tokens: Sequence[int], hidden: Tensor, ending: Sequence[EncodedRequest]) -> None:
        """Add states of a node: each predicts the next token, and the last one the first token of every child.

        Args:
            node: Node that the tokens belong to.
            tokens: Indices into the node's tokens, ascending.
            hidden: Their final states, (tokens, d).
            ending: Requests for next-token probabilities whose prompts end with `node`.
        """
        inner = [index for index in tokens if index + 1 < len(node)]
        self._add_pairs(range(self._count, self._count + len(inner)), [node.ids[index + 1] for index in inner])
        self.node_pairs.append(
            (node, [index + 1 for index in inner], slice(len(self._row) - len(inner), len(self._row)))
        )
        if len(inner) < len(tokens):
            last = self._count + len(inner)
            for child in node.children:
                self.node_pairs.append((child, [0], self._add_pairs([last], child.ids[:1])))
            for entry in ending:
                self.choice_pairs.append((entry.key, self._add_pairs([last] * len(entry.choices), entry.choices)))
        self.hidden.append(hidden)
        self._count += len(tokens)

    def compute_surprise(self, decoder: Decoder) -> Tensor:
        """Return -log p of each pair's token and the entropy of its row's p, in nats, (pairs, 2)."""
        hidden = torch.cat(self.hidden)
        with torch.inference_mode():
            vocabulary = decoder.config.vocab_size
            log_p, entropy = compute_log_probabilities(
                decoder.compute_logits, hidden, self._row, self._token, vocabulary
            )
            return torch.stack([-log_p, entropy], 1)

    def _add_pairs(self, rows: Sequence[int], tokens: Sequence[int]) -> slice:
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
    """Assemble the result of a request from the results of the nodes of its prompt."""
    operation = entry.request.operation
    if isinstance(operation, NextTokenProbs):
        return plan.choices.pop(entry.key)
    parts = []
    for node in path:
        first, last = max(entry.first - node.start, 0), min(entry.last - node.start, len(node))
        if first < last and isinstance(operation, HiddenStates):
            offset, states = plan.results[node].states[Hook(operation.layer, operation.site)]
            parts.append(states[first - offset : last - offset])
        elif first < last:
            parts.append(plan.get_surprise(node)[first:last])
    if not parts:  # the segment is empty
        return plan.make_no_states(operation) if isinstance(operation, HiddenStates) else torch.empty(0, 2)
    result = torch.cat(parts)
    defined = result[1:] if isinstance(operation, NLL) and entry.first == 0 else result
    if not torch.isfinite(defined).all():
        quantity = f"states at layer {operation.layer}" if isinstance(operation, HiddenStates) else "probabilities"
        raise AbstainError(
            Code.NOT_FINITE,
            f"{entry.request.name}: the base model's {quantity} are not finite; "
            "try ABSTAIN_DTYPE=float32, or take it out",
        )
    return result


def _make_decoding_prompt(entry: EncodedRequest, path: Sequence[Node], plan: RequestPlan) -> DecodingPrompt:
    """Make a prompt for decoding from the states, keys and values in the plan."""
    operation = entry.request.operation
    assert isinstance(operation, Generate | ConstrainedGenerate)
    keys_values = None
    if all(node in plan.kv_cache for node in path):
        layers = zip(*(plan.kv_cache[node] for node in path), strict=True)
        keys_values = [(torch.cat([k for k, _ in layer], 1), torch.cat([v for _, v in layer], 1)) for layer in layers]
    target = entry.request.prompt[-1].text if isinstance(operation, ConstrainedGenerate) else ""
    return DecodingPrompt(
        entry.key, entry.ids, operation, plan.last_state.pop(entry.key), keys_values, entry.choices, target
    )
