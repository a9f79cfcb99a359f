"""Forward passes through a base model with hooks, early exit and chunked vocabulary projection (docs/decisions/071)."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.attention import KeysValues, PackedBatch, packed_attention
from abstain.llm.engine.device import keep_freed_memory
from abstain.llm.engine.loading import LoadedModel, get_context_length, require_layer
from abstain.llm.engine.prefix_tree import Node, build_tree, walk
from abstain.llm.engine.requests import Site
from abstain.llm.engine.self_check import SelfCheckResult, load_or_run_self_check

log = logging.getLogger(__name__)

CHUNK_BYTES = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Size of one chunk's logits in float32: small enough for a CPU's cache, large enough to keep a GPU busy."""
CHECK_TOLERANCE = 0.1
"""Tolerated relative difference: bfloat16 reaches 0.03, a token missing from attention 0.5 and more."""


@dataclass(frozen=True)
class Hook:
    """A place in the decoder: after block `layer` (from 1), or its feed-forward part's output."""

    layer: int
    site: Site = "residual"


Span = tuple[int, int]
RequestedStates = Mapping[Node, Mapping[Hook, Span]]
"""The tokens of a run (first, past the last) whose rows of a hook are requested."""
NodeStates = dict[Node, dict[Hook, Tensor]]
"""Those rows, each (tokens, d), on the model's device."""


@dataclass
class ComputeStats:
    """Counts of the work done, for tests, plans and benchmarks that count work instead of timing it.

    `pass_tokens`: tokens of the requested passes. `forward_tokens`: those that were really run, of what
    passes share once, padding included. `layer_tokens`: layer -> tokens that went through that block (of the deepest
    layer, those for which it computed more than keys and values). `vocabulary_rows`: rows projected to the vocabulary.
    """

    prompts: int = 0
    pass_tokens: int = 0
    forward_tokens: int = 0
    layer_tokens: Counter[int] = field(default_factory=Counter)
    vocabulary_rows: int = 0


class _EarlyExit(Exception):
    """Raised by a hook to leave the forward pass early."""


class Decoder:
    """Forward passes through one loaded base model."""

    def __init__(self, loaded: LoadedModel, packed: bool | None = None) -> None:
        self.loaded = loaded
        self.work = ComputeStats()
        self.config = loaded.model.config.get_text_config()
        self.n_layers: int = self.config.num_hidden_layers
        self.window = get_context_length(self.config)
        # Hooks and the choice of attention are set on the one model that a process has: one thread at a time.
        self.lock = threading.RLock()
        if self.device.type == "cpu":
            keep_freed_memory()
        self._decoder: nn.Module = loaded.model.base_model
        self._blocks = _find_blocks(self._decoder, self.n_layers)
        checked = self._check(packed) if packed is not None else load_or_run_self_check(loaded, self._check)
        self.packs, self._projects = checked.packing_ok, checked.projection_ok
        self.work = ComputeStats()

    @property
    def device(self) -> torch.device:
        device: torch.device = self.loaded.model.device
        return device

    def get_module(self, hook: Hook) -> nn.Module:
        """The module whose output `hook` is. Raises `AbstainError` for a layer or site that does not exist."""
        require_layer(hook.layer, self.loaded.ref, self.n_layers)
        block = self._blocks[hook.layer - 1]
        if hook.site == "residual":
            return block
        for name in ("mlp", "feed_forward", "ffn"):
            if hasattr(block, name):
                return getattr(block, name)  # type: ignore[no-any-return]
        raise AbstainError(
            Code.MODEL_UNSUITABLE,
            f"{self.loaded.ref.name} has no separate feed-forward block: set llm.site to residual",
        )

    def forward(
        self, runs: Sequence[Node], wanted: RequestedStates, depth: int, kept: dict[Node, KeysValues], keep: set[Node]
    ) -> NodeStates:
        """One forward pass of `runs` through layers 1 to `depth`.

        Where the model packs, runs may go on from others, in `runs` or in `kept`; `keep` names runs whose keys and
        values are to be added to `kept`.
        """
        with self.lock, torch.inference_mode():
            return self._packed(runs, wanted, depth, kept, keep) if self.packs else self._padded(runs, wanted, depth)

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits (rows, vocabulary), float32, of final states (rows, d).

        Raises `AbstainError` for a model whose way of computing logits is not supported.
        """
        if not self._projects:
            raise AbstainError(
                Code.MODEL_UNSUITABLE,
                f"{self.loaded.ref.name} post-processes its logits in an unsupported way: request hidden states alone",
            )
        self.work.vocabulary_rows += len(hidden)
        return self._project(hidden)

    def _project(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.loaded.model.get_output_embeddings()(hidden).float()
        cap = getattr(self.config, "final_logit_softcapping", None)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _packed(
        self, runs: Sequence[Node], wanted: RequestedStates, depth: int, kept: dict[Node, KeysValues], keep: set[Node]
    ) -> NodeStates:
        batch = PackedBatch(runs, kept, keep)
        ids = torch.tensor([[token for run in runs for token in run.ids]])
        positions = torch.cat([torch.arange(run.start, run.end) for run in runs])[None]
        asked = {
            run: covering_span([span for hook, span in wanted.get(run, {}).items() if hook.layer == depth])
            for run in runs
        }
        rows = torch.cat([torch.arange(*asked[run]) + batch.offsets[run] for run in runs]).to(self.device)
        with packed_attention(self.config, batch), self._narrowed(depth, batch, rows, asked):
            captured = self._run(ids, wanted, depth, position_ids=positions.to(self.device))
        self.count(batch.tokens, depth, len(rows))
        node_states: NodeStates = {run: {} for run in wanted}
        at = 0  # in `rows`, which is all that the deepest block puts out
        for run in runs:
            for hook, (first, last) in wanted.get(run, {}).items():
                everything = hook.layer < depth or hook == Hook(self.n_layers)
                start = batch.offsets[run] if everything else at - asked[run][0]
                node_states[run][hook] = captured[hook][0, start + first : start + last]
            at += asked[run][1] - asked[run][0]
        return node_states

    def _padded(self, runs: Sequence[Node], wanted: RequestedStates, depth: int) -> NodeStates:
        longest = max(len(run) for run in runs)
        ids = torch.zeros(len(runs), longest, dtype=torch.long)
        for row, run in enumerate(runs):
            ids[row, : len(run)] = torch.tensor(run.ids)
        captured = self._run(ids, wanted, depth)
        self.count(ids.numel(), depth, ids.numel())
        return {
            run: {hook: captured[hook][row, first:last] for hook, (first, last) in wanted.get(run, {}).items()}
            for row, run in enumerate(runs)
        }

    def _run(self, ids: Tensor, wanted: RequestedStates, depth: int, **positions: Tensor) -> dict[Hook, Tensor]:
        """Call the model down to `depth`: hook -> (rows, tokens, d)."""
        hooks = {hook for of_run in wanted.values() for hook in of_run}
        captured: dict[Hook, Tensor] = {}
        # After the last block comes the final norm, whose output is what `hidden_states[-1]` holds.
        final = Hook(self.n_layers)
        last = Hook(depth) if Hook(depth) in hooks else Hook(depth, "mlp")
        with ExitStack() as stack:
            for hook in hooks - {final}:
                capture = _capture(captured, hook, exit_after=hook == last)
                stack.callback(self.get_module(hook).register_forward_hook(capture).remove)
            try:
                output = self._decoder(input_ids=ids.to(self.device), use_cache=False, **positions)
                captured[final] = output.last_hidden_state
            except _EarlyExit:
                pass
        return captured

    @contextmanager
    def _narrowed(self, depth: int, batch: PackedBatch, rows: Tensor, asked: Mapping[Node, Span]) -> Iterator[None]:
        """Within it, block `depth` computes packed `rows` alone, once it knows the keys and values of all."""
        if len(rows) == batch.tokens:
            yield
            return
        block = self._blocks[depth - 1]
        whole = block.forward

        def pick(value: Any) -> Any:
            if isinstance(value, Tensor) and value.ndim > 1 and value.shape[:2] == (1, batch.tokens):
                return value[:, rows]
            return tuple(map(pick, value)) if isinstance(value, tuple) else value

        def narrow(hidden: Tensor, *arguments: Any, **named: Any) -> Any:
            with batch.keys_only():
                whole(hidden, *arguments, **named)
            if not len(rows):
                raise _EarlyExit
            batch.restrict_queries(asked)
            output = whole(pick(hidden), *map(pick, arguments), **{name: pick(value) for name, value in named.items()})
            if depth < self.n_layers:
                return output
            # What follows the last block, the final norm, may count on the shape that went in.
            full = torch.zeros_like(hidden)
            full[:, rows] = output[0] if isinstance(output, tuple) else output
            return (full, *output[1:]) if isinstance(output, tuple) else full

        block.forward = narrow  # type: ignore[method-assign]
        try:
            yield
        finally:
            del block.forward

    def count(self, tokens: int, depth: int, at_depth: int) -> None:
        """Add one forward pass of `tokens` to the statistics; block `depth` ran for `at_depth` of them."""
        self.work.layer_tokens.update(dict.fromkeys(range(1, depth), tokens))
        self.work.layer_tokens[depth] += at_depth
        self.work.forward_tokens += tokens

    def _check(self, packed: bool | None = None) -> SelfCheckResult:
        """Compare packed passes, unless `packed` is given, and projected states with a plain forward."""
        with self.lock, torch.inference_mode():
            passes = _check_passes(min(self.config.vocab_size, 200))
            ids = [torch.tensor([of_pass], device=self.device) for of_pass in passes]
            plain = [self.loaded.model(input_ids=one, output_hidden_states=True) for one in ids]
            final = [one.hidden_states[-1][0] for one in plain]
            packs = self._packing_agrees(passes, final) if packed is None else packed
            return SelfCheckResult(packs, _relative(self._project(final[0]), plain[0].logits[0]) <= CHECK_TOLERANCE)

    def _packing_agrees(self, passes: Sequence[list[int]], expected: Sequence[Tensor]) -> bool:
        """Whether packed passes with a shared prefix give the states that a plain forward gives, on this device."""
        hook = Hook(self.n_layers)
        runs = list(walk(build_tree(passes, 32)))
        kept: dict[Node, KeysValues] = {}
        try:
            found = self._packed(runs[:1], {runs[0]: {hook: (0, 1)}}, hook.layer, kept, {runs[0]})
            found |= self._packed(runs[1:], {run: {hook: (0, len(run))} for run in runs[1:]}, hook.layer, kept, set())
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            log.info("%s is read in padded batches (%s: %s)", self.loaded.ref.name, type(error).__name__, error)
            return False  # its attention is not taken from the registry, or needs more than that
        differences = []
        for run, hooks in found.items():
            of_pass = next(at for at, ids in enumerate(passes) if ids[run.start : run.end] == run.ids)
            rows = hooks[hook]
            differences.append(_relative(rows, expected[of_pass][run.start : run.start + len(rows)]))
        return max(differences) <= CHECK_TOLERANCE


def _check_passes(tokens: int) -> list[list[int]]:
    """Two passes that share a prefix, which is longer than the runs that it is cut into."""
    prefix = [(7 * n + 3) % tokens for n in range(40)]
    return [[*prefix, *((11 * n + first) % tokens for n in range(9))] for first in (1, 2)]


def _relative(one: Tensor, other: Tensor) -> float:
    one, other = one.float(), other.float()
    return float(((one - other).norm(dim=-1) / other.norm(dim=-1)).mean())


def covering_span(spans: Sequence[Span]) -> Span:
    """From the first to past the last of `spans`; (0, 0) where there are none."""
    return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else (0, 0)


def _capture(captured: dict[Hook, Tensor], hook: Hook, *, exit_after: bool) -> Callable[..., None]:
    def callback(_module: nn.Module, _inputs: Any, output: Any) -> None:
        captured[hook] = output[0] if isinstance(output, tuple) else output
        if exit_after:
            raise _EarlyExit

    return callback


def _find_blocks(decoder: nn.Module, n_layers: int) -> nn.ModuleList:
    """The decoder's list of blocks, under any of the names that architectures give it."""
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == n_layers:
            return module
    raise AbstainError(
        Code.MODEL_UNSUITABLE,
        f"{type(decoder).__name__} has no list of {n_layers} decoder blocks: it is no causal LM we know",
    )


def log_probabilities(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, rows: Sequence[int], tokens: Sequence[int], vocabulary: int
) -> tuple[Tensor, Tensor]:
    """log p of each of `tokens` after its row of `hidden`, and the entropy of that row's p, in nats.

    `logits` maps (n, d) to (n, vocabulary) in float32; `hidden` (n, d); `rows` ascend. Results (len(tokens),), float32,
    on the device of `hidden`.
    """
    chunk = max(1, CHUNK_BYTES.get(hidden.device.type, 1 << 28) // (4 * vocabulary))
    row, token = (torch.tensor(part, device=hidden.device) for part in (rows, tokens))
    log_p = torch.empty(len(row), device=hidden.device)
    entropy = torch.empty(len(hidden), device=hidden.device)
    for at in range(0, len(hidden), chunk):
        scores = logits(hidden[at : at + chunk])
        pairs = slice(bisect_left(rows, at), bisect_left(rows, at + chunk))
        chosen = scores[row[pairs] - at, token[pairs]]
        highest = scores.amax(-1, keepdim=True)
        scores -= highest
        weights = scores.exp()
        total = weights.sum(-1)
        log_p[pairs] = chosen - (highest.squeeze(1) + total.log())[row[pairs] - at]
        entropy[at : at + chunk] = total.log() - torch.linalg.vecdot(weights, scores) / total
    return log_p, entropy[row]
