"""Forward passes through a base model with hooks, early exit and chunked vocabulary projection (docs/decisions/071)."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor, nn

from abstain.config.params import Site
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.engine.attention import KeysValues, PackedBatch, packed_attention
from abstain.llm.engine.device import keep_freed_memory
from abstain.llm.engine.loading import LoadedModel, get_context_length, require_layer
from abstain.llm.engine.prefix_tree import Node, build_tree, walk
from abstain.llm.engine.self_check import SelfCheckResult, load_or_run_self_check

log = logging.getLogger(__name__)

CHUNK_BYTES = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Size of one chunk's logits in float32: small enough for a CPU's cache, large enough to keep a GPU busy."""
FEED_FORWARD_NAMES = ("mlp", "feed_forward", "ffn")
DOWN_PROJECTION_NAMES = ("down_proj", "c_proj", "fc2", "dense_4h_to_h", "fc_out")
"""Names of a block's feed-forward part, and of that part's second linear layer, in the families of transformers."""
CHECK_TOLERANCE = 0.1
"""Tolerated relative difference: bfloat16 reaches 0.03, a token missing from attention 0.5 and more."""


@dataclass(frozen=True)
class Hook:
    """A point in the decoder whose states can be read.

    Attributes:
        layer: Decoder block, counted from 1.
        site: "residual" is the residual stream after the block, "mlp" the output of its feed-forward part, "neurons"
            the input of that part's down projection.
    """

    layer: int
    site: Site = "residual"

    def select_states(self, inputs: tuple[Any, ...], output: Any, rows: int) -> Tensor:
        """Select the states from what the hooked module reads and returns.

        Args:
            inputs: Positional arguments of the module.
            output: Its output.
            rows: Number of rows of the batch.

        Returns:
            (rows, tokens, d); some families' feed-forward parts see (rows x tokens, d).
        """
        states: Tensor = inputs[0] if self.site == "neurons" else output[0] if isinstance(output, tuple) else output
        return states.reshape(rows, -1, states.shape[-1])


Span = tuple[int, int]
RequestedStates = Mapping[Node, Mapping[Hook, Span]]
"""Node -> hook -> (first, past the last) of the tokens whose states are requested."""
NodeStates = dict[Node, dict[Hook, Tensor]]
"""Node -> hook -> the requested states, (tokens, d), on the model's device."""


@dataclass
class ComputeStats:
    """Counts of the work done, for tests, plans and benchmarks that count work instead of timing it.

    Attributes:
        prompts: Number of prompts.
        pass_tokens: Tokens of the requested prompts.
        forward_tokens: Tokens that were really run: shared prefixes once, padding included.
        layer_tokens: Layer -> tokens that went through that block. For the deepest layer, only the tokens for which
            more than keys and values was computed.
        vocabulary_rows: Rows projected to the vocabulary.
    """

    prompts: int = 0
    pass_tokens: int = 0
    forward_tokens: int = 0
    layer_tokens: Counter[int] = field(default_factory=Counter)
    vocabulary_rows: int = 0


class _EarlyExit(Exception):
    """Raised by a hook to leave the forward pass early."""


class Decoder:
    """Forward passes through one loaded base model.

    Args:
        loaded: The base model.
        packed: Whether to pack prompts that share a prefix; None to check whether the model gives correct states so.
    """

    def __init__(self, loaded: LoadedModel, packed: bool | None = None) -> None:
        self.loaded = loaded
        self.stats = ComputeStats()
        self.config = loaded.model.config.get_text_config()
        self.n_layers: int = self.config.num_hidden_layers
        self.context_length = get_context_length(self.config)
        # Hooks and the choice of attention are set on the one model that a process has: one thread at a time.
        self.lock = threading.RLock()
        if self.device.type == "cpu":
            keep_freed_memory()
        self._decoder: nn.Module = loaded.model.base_model
        self._blocks = _find_blocks(self._decoder, self.n_layers)
        checked = self._check(packed) if packed is not None else load_or_run_self_check(loaded, self._check)
        self.can_pack, self._can_project = checked.packing_ok, checked.projection_ok
        self.stats = ComputeStats()

    @property
    def device(self) -> torch.device:
        device: torch.device = self.loaded.model.device
        return device

    def get_module(self, hook: Hook) -> nn.Module:
        """Return the module whose output, or input of a down projection, a hook reads.

        Args:
            hook: Layer and site.

        Returns:
            The block, its feed-forward part, or the down projection of that part.

        Raises:
            AbstainError: The layer or the site does not exist.
        """
        require_layer(hook.layer, self.loaded.ref, self.n_layers)
        block = self._blocks[hook.layer - 1]
        if hook.site == "residual":
            return block
        feed_forward = _find_child(block, FEED_FORWARD_NAMES)
        if hook.site == "mlp":
            if feed_forward is None:
                raise AbstainError(
                    Code.MODEL_UNSUITABLE,
                    f"{self.loaded.ref.name} has no separate feed-forward block: set llm.site to residual",
                )
            return feed_forward
        down_projection = _find_child(block if feed_forward is None else feed_forward, DOWN_PROJECTION_NAMES)
        if down_projection is None:
            raise AbstainError(
                Code.MODEL_UNSUITABLE,
                f"layer {hook.layer} of {self.loaded.ref.name} has no single down projection, whose input are its "
                "neurons: set llm.site to residual",
            )
        return down_projection

    def get_width(self, hook: Hook) -> int:
        """Return d, the width of the states of a hook: that of the model, or the number of neurons of a block."""
        width: int = self.config.hidden_size
        return self.get_module(hook).get_parameter("weight").numel() // width if hook.site == "neurons" else width

    def forward(
        self,
        nodes: Sequence[Node],
        requested: RequestedStates,
        depth: int,
        kv_cache: dict[Node, KeysValues],
        nodes_to_cache: set[Node],
    ) -> NodeStates:
        """Run one forward pass of nodes through layers 1 to `depth`.

        Args:
            nodes: Nodes to run. If the model packs, they may continue others in `nodes` or in `kv_cache`.
            requested: States to return.
            depth: Deepest layer to run.
            kv_cache: Keys and values of nodes of earlier passes; extended in place.
            nodes_to_cache: Nodes whose keys and values are added to `kv_cache`.

        Returns:
            The requested states.
        """
        with self.lock, torch.inference_mode():
            return (
                self._forward_packed(nodes, requested, depth, kv_cache, nodes_to_cache)
                if self.can_pack
                else self._forward_padded(nodes, requested, depth)
            )

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Compute next-token logits from final hidden states.

        Args:
            hidden: Final hidden states, (rows, d).

        Returns:
            Logits, (rows, vocabulary), float32.

        Raises:
            AbstainError: The model computes its logits in an unsupported way.
        """
        if not self._can_project:
            raise AbstainError(
                Code.MODEL_UNSUITABLE,
                f"{self.loaded.ref.name} post-processes its logits in an unsupported way: request hidden states alone",
            )
        self.stats.vocabulary_rows += len(hidden)
        return self._project(hidden)

    def _project(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.loaded.model.get_output_embeddings()(hidden).float()
        cap = getattr(self.config, "final_logit_softcapping", None)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _forward_packed(
        self,
        nodes: Sequence[Node],
        requested: RequestedStates,
        depth: int,
        kv_cache: dict[Node, KeysValues],
        nodes_to_cache: set[Node],
    ) -> NodeStates:
        batch = PackedBatch(nodes, kv_cache, nodes_to_cache)
        ids = torch.tensor([[token for node in nodes for token in node.ids]])
        positions = torch.cat([torch.arange(node.start, node.end) for node in nodes])[None]
        spans = {
            node: covering_span([span for hook, span in requested.get(node, {}).items() if hook.layer == depth])
            for node in nodes
        }
        rows = torch.cat([torch.arange(*spans[node]) + batch.offsets[node] for node in nodes]).to(self.device)
        with packed_attention(self.config, batch), self._narrow_last_block(depth, batch, rows, spans):
            captured = self._run_blocks(ids, requested, depth, position_ids=positions.to(self.device))
        self.count_forward(batch.tokens, depth, len(rows))
        node_states: NodeStates = {node: {} for node in requested}
        offset = 0  # in `rows`, which is all that the deepest block puts out
        for node in nodes:
            for hook, (first, last) in requested.get(node, {}).items():
                is_complete = hook.layer < depth or hook == Hook(self.n_layers)
                start = batch.offsets[node] if is_complete else offset - spans[node][0]
                node_states[node][hook] = captured[hook][0, start + first : start + last]
            offset += spans[node][1] - spans[node][0]
        return node_states

    def _forward_padded(self, nodes: Sequence[Node], requested: RequestedStates, depth: int) -> NodeStates:
        longest = max(len(node) for node in nodes)
        ids = torch.zeros(len(nodes), longest, dtype=torch.long)
        for row, node in enumerate(nodes):
            ids[row, : len(node)] = torch.tensor(node.ids)
        captured = self._run_blocks(ids, requested, depth)
        self.count_forward(ids.numel(), depth, ids.numel())
        return {
            node: {hook: captured[hook][row, first:last] for hook, (first, last) in requested.get(node, {}).items()}
            for row, node in enumerate(nodes)
        }

    def _run_blocks(
        self, ids: Tensor, requested: RequestedStates, depth: int, **positions: Tensor
    ) -> dict[Hook, Tensor]:
        """Call the model down to `depth` and return hook -> (rows, tokens, d)."""
        hooks = {hook for node_spans in requested.values() for hook in node_spans}
        captured: dict[Hook, Tensor] = {}
        # After the last block comes the final norm, whose output is what `hidden_states[-1]` holds.
        final = Hook(self.n_layers)
        sites = [site for site in get_args(Site) if Hook(depth, site) in hooks]
        last = Hook(depth, sites[0]) if sites else None  # a block computes its residual stream last, its neurons first
        with ExitStack() as stack:
            for hook in hooks - {final}:
                capture = _make_capture_hook(captured, hook, len(ids), exit_after=hook == last)
                stack.callback(self.get_module(hook).register_forward_hook(capture).remove)
            try:
                output = self._decoder(input_ids=ids.to(self.device), use_cache=False, **positions)
                captured[final] = output.last_hidden_state
            except _EarlyExit:
                pass
        return captured

    @contextmanager
    def _narrow_last_block(
        self, depth: int, batch: PackedBatch, rows: Tensor, spans: Mapping[Node, Span]
    ) -> Iterator[None]:
        """Let block `depth` compute only the packed `rows`, once it has the keys and values of all tokens."""
        if len(rows) == batch.tokens:
            yield
            return
        block = self._blocks[depth - 1]
        forward = block.forward

        pick = partial(_pick_rows, rows=rows, n_tokens=batch.tokens)

        def narrow(hidden: Tensor, *arguments: Any, **keywords: Any) -> Any:
            with batch.capture_keys_values():
                forward(hidden, *arguments, **keywords)
            if not len(rows):
                raise _EarlyExit
            batch.restrict_queries(spans)
            output = forward(
                pick(hidden), *map(pick, arguments), **{name: pick(value) for name, value in keywords.items()}
            )
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

    def count_forward(self, tokens: int, depth: int, depth_tokens: int) -> None:
        """Add one forward pass to the statistics.

        Args:
            tokens: Tokens that were run, padding included.
            depth: Deepest block that was run.
            depth_tokens: Tokens that block `depth` was run for.
        """
        self.stats.layer_tokens.update(dict.fromkeys(range(1, depth), tokens))
        self.stats.layer_tokens[depth] += depth_tokens
        self.stats.forward_tokens += tokens

    def _check(self, packed: bool | None = None) -> SelfCheckResult:
        """Compare packed prompts, unless `packed` is given, and projected states with a plain forward pass."""
        with self.lock, torch.inference_mode():
            prompts = _make_check_prompts(min(self.config.vocab_size, 200))
            ids = [torch.tensor([prompt], device=self.device) for prompt in prompts]
            outputs = [self.loaded.model(input_ids=prompt_ids, output_hidden_states=True) for prompt_ids in ids]
            final = [output.hidden_states[-1][0] for output in outputs]
            packs = self._check_packing(prompts, final) if packed is None else packed
            return SelfCheckResult(
                packs, _compute_relative_error(self._project(final[0]), outputs[0].logits[0]) <= CHECK_TOLERANCE
            )

    def _check_packing(self, prompts: Sequence[list[int]], expected: Sequence[Tensor]) -> bool:
        """Return whether packed prompts with a shared prefix give the states of a plain forward pass on this device."""
        hook = Hook(self.n_layers)
        nodes = list(walk(build_tree(prompts, 32)))
        kv_cache: dict[Node, KeysValues] = {}
        try:
            states = self._forward_packed(nodes[:1], {nodes[0]: {hook: (0, 1)}}, hook.layer, kv_cache, {nodes[0]})
            states |= self._forward_packed(
                nodes[1:], {node: {hook: (0, len(node))} for node in nodes[1:]}, hook.layer, kv_cache, set()
            )
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            log.info("%s is read in padded batches (%s: %s)", self.loaded.ref.name, type(error).__name__, error)
            return False  # its attention is not taken from the registry, or needs more than that
        differences = []
        for node, hooks in states.items():
            prompt_index = next(index for index, ids in enumerate(prompts) if ids[node.start : node.end] == node.ids)
            rows = hooks[hook]
            differences.append(
                _compute_relative_error(rows, expected[prompt_index][node.start : node.start + len(rows)])
            )
        return max(differences) <= CHECK_TOLERANCE


def _make_check_prompts(tokens: int) -> list[list[int]]:
    """Return two prompts that share a prefix, which is longer than the nodes that it is cut into."""
    prefix = [(7 * n + 3) % tokens for n in range(40)]
    return [[*prefix, *((11 * n + first) % tokens for n in range(9))] for first in (1, 2)]


def _compute_relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the mean norm of the difference of two states, relative to the expected one."""
    actual, expected = actual.float(), expected.float()
    return float(((actual - expected).norm(dim=-1) / expected.norm(dim=-1)).mean())


def covering_span(spans: Sequence[Span]) -> Span:
    """Return the smallest span that covers all spans.

    Args:
        spans: (first, past the last) of each.

    Returns:
        (first, past the last); (0, 0) without spans.
    """
    return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else (0, 0)


def _pick_rows(value: Any, rows: Tensor, n_tokens: int) -> Any:
    """Return the packed `rows` of an argument of a block, or of each in a tuple, that has one row for each token."""
    # No closure that calls itself: it would be a cycle, and hold the masks of each batch until a full collection.
    if isinstance(value, Tensor) and value.ndim > 1 and value.shape[:2] == (1, n_tokens):
        return value[:, rows]
    return tuple(_pick_rows(part, rows, n_tokens) for part in value) if isinstance(value, tuple) else value


def _make_capture_hook(captured: dict[Hook, Tensor], hook: Hook, rows: int, *, exit_after: bool) -> Callable[..., None]:
    def callback(_module: nn.Module, inputs: Any, output: Any) -> None:
        captured[hook] = hook.select_states(inputs, output, rows)
        if exit_after:
            raise _EarlyExit

    return callback


def _find_child(module: nn.Module, names: Sequence[str]) -> nn.Module | None:
    return next((child for name in names if (child := getattr(module, name, None)) is not None), None)


def _find_blocks(decoder: nn.Module, n_layers: int) -> nn.ModuleList:
    """Find the decoder's list of blocks, under any of the names that architectures give it."""
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == n_layers:
            return module
    raise AbstainError(
        Code.MODEL_UNSUITABLE,
        f"{type(decoder).__name__} has no list of {n_layers} decoder blocks: it is no causal LM we know",
    )


def compute_log_probabilities(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, rows: Sequence[int], tokens: Sequence[int], vocabulary: int
) -> tuple[Tensor, Tensor]:
    """Compute log p of tokens and the entropy of p, in nats, chunk by chunk of the vocabulary projection.

    Args:
        logits: Maps states (n, d) to logits (n, vocabulary) in float32.
        hidden: Final hidden states, (n, d).
        rows: Row of `hidden` that predicts each token, ascending, (tokens,).
        tokens: Token ids, (tokens,).
        vocabulary: Size of the vocabulary.

    Returns:
        Log-probability of each token and entropy of its row's distribution, each (tokens,), float32, on the device of
        `hidden`.
    """
    chunk = max(1, CHUNK_BYTES.get(hidden.device.type, 1 << 28) // (4 * vocabulary))
    row, token = (torch.tensor(indices, device=hidden.device) for indices in (rows, tokens))
    log_p = torch.empty(len(row), device=hidden.device)
    entropy = torch.empty(len(hidden), device=hidden.device)
    for start in range(0, len(hidden), chunk):
        scores = logits(hidden[start : start + chunk])
        pairs = slice(bisect_left(rows, start), bisect_left(rows, start + chunk))
        chosen = scores[row[pairs] - start, token[pairs]]
        highest = scores.amax(-1, keepdim=True)
        scores -= highest
        weights = scores.exp()
        total = weights.sum(-1)
        log_p[pairs] = chosen - (highest.squeeze(1) + total.log())[row[pairs] - start]
        entropy[start : start + chunk] = total.log() - torch.linalg.vecdot(weights, scores) / total
    return log_p, entropy[row]
