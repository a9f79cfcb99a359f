"""Check that the engine computes the same as transformers on this device, and as the CPU.

Random models in the shapes of four families are run in float32 and bfloat16 with every kind of request, alone and in
batches of several sizes, with shared and unrelated prompts. Each result is compared with a plain forward pass of
transformers on the same device (answers and beams by reading the generated text again), and with the engine in float32
on the CPU.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from abstain.llm.engine.engine import Engine, Result
from abstain.llm.engine.generation import GeneratedText
from abstain.llm.engine.loading import LoadedModel
from abstain.llm.engine.prompts import PromptSegments, Segment
from abstain.llm.engine.requests import (
    NLL,
    ConstrainedGenerate,
    Generate,
    HiddenStates,
    NextTokenProbs,
    Operation,
    Request,
)
from abstain.llm.engine.tokenization import encode_prompt
from benchmarks.gpu.models import FAMILIES, random_model, random_prompt

BATCHES = (96, 8192)
"""Tokens of a forward pass: prompts are cut and packed a few at a time, or read all at once."""
CHOICES = ("2", "3", "4")
SCORED = ("context", "question", "answer")
LIMITS = {
    torch.float32: {"states": 1e-4, "nll": 1e-3, "choices": 1e-3, "answers": 1e-3, "beams": 1e-3},
    torch.bfloat16: {"states": 0.1, "nll": 0.3, "choices": 0.3, "answers": 0.3, "beams": 0.3},
}
"""Largest difference from a plain forward: of states relative to a row's norm, of log-probabilities in nats."""
CPU_LIMITS = {dtype: {what: 2 * limit for what, limit in limits.items()} for dtype, limits in LIMITS.items()}
"""From the CPU in float32: both sides round."""


@dataclass
class Differences:
    """Largest difference of each kind of result."""

    largest: dict[str, float] = field(default_factory=dict)

    def add(self, what: str, difference: Tensor | float) -> None:
        """Record a difference; nan counts as infinite, and so does a comparison of nothing."""
        values = torch.as_tensor(difference)
        value = float(values.nan_to_num(nan=torch.inf).max()) if values.numel() else torch.inf
        self.largest[what] = max(value, self.largest.get(what, 0.0))


def check_equality(device: torch.device) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a Markdown table, each with whether its differences are within their limits.

    Args:
        device: Where the engine and transformers run; the reference is always the CPU in float32.
    """
    yield "| model | dtype | result | from transformers | limit | from the CPU in float32 | limit |", True
    yield "| --- | --- | --- | --: | --: | --: | --: |", True
    for family, (config, values) in FAMILIES.items():
        torch.manual_seed(0)
        # Eager, because the fused attention of some releases of transformers leaves out the soft cap of Gemma 2.
        options = {"attn_implementation": "eager"}
        reference = random_model(family, config, values, torch.device("cpu"), torch.float32, **options)
        requests = make_requests(values["vocab_size"], values["num_hidden_layers"])
        expected = dict(Engine(reference, BATCHES[-1]).run(requests))
        for dtype in LIMITS:
            model = copy.deepcopy(reference.model).to(device=device, dtype=dtype)
            loaded = LoadedModel(reference.ref, model, reference.tokenizer)
            by_transformers, by_cpu = compare(loaded, requests, expected)
            for what, largest in by_transformers.largest.items():
                limits = LIMITS[dtype][what], CPU_LIMITS[dtype][what]
                cpu_largest = by_cpu.largest.get(what)
                is_within = largest <= limits[0] and (cpu_largest is None or cpu_largest <= limits[1])
                cells = [family, str(dtype).removeprefix("torch."), what, f"{largest:.1e}", f"{limits[0]:.0e}"]
                cells += ["", ""] if cpu_largest is None else [f"{cpu_largest:.1e}", f"{limits[1]:.0e}"]
                yield f"| {' | '.join(cells)} |" + ("" if is_within else " **broken**"), is_within


def make_requests(vocabulary: int, layers: int) -> dict[str, Request]:
    """Return all kinds of requests about prompts of 5 to 330 tokens, some of which share their beginning."""
    draw = random.Random(0)
    prompts = [
        random_prompt(vocabulary, draw, context=n, question=5, answer=a) for n, a in ((1, 1), (60, 9), (270, 25))
    ]
    shared = random_prompt(vocabulary, draw, context=150)[0]
    prompts += [(shared, *random_prompt(vocabulary, draw, context=1, question=7, answer=a)[1:]) for a in (3, 9, 30)]
    operations: dict[str, Operation] = {
        "first": HiddenStates(1),
        "middle": HiddenStates(layers // 2),
        "last": HiddenStates(layers),
        "mlp": HiddenStates(layers // 2, "mlp"),
        "nll": NLL(SCORED),
        "choices": NextTokenProbs(CHOICES),
    }
    requests = {
        f"{name} {i}": Request(p, operation, name)
        for i, p in enumerate(prompts)
        for name, operation in operations.items()
    }
    for i, prompt in enumerate(prompts):
        question = prompt[:2]
        answer = Generate(8, states=HiddenStates(layers // 2), tracked_tokens=CHOICES)
        requests[f"answer {i}"] = Request(question, answer, "answer")
        requests[f"beams {i}"] = Request(
            (*question, Segment("target", f"{20 + i} 7")), ConstrainedGenerate(4, 6), "beams"
        )
    return requests


def compare(
    loaded: LoadedModel, requests: Mapping[str, Request], expected: Mapping[str, Result]
) -> tuple[Differences, Differences]:
    """Return the largest differences of the engine from a plain forward pass, and from `expected`, over all ways."""
    by_transformers, by_cpu = Differences(), Differences()
    plain = PlainForward(loaded)
    alone = Engine(loaded, BATCHES[-1])
    ways = [{key: result for name in requests for key, result in alone.run({name: requests[name]})}]
    ways += [dict(Engine(loaded, tokens).run(requests)) for tokens in BATCHES]
    exact = loaded.model.dtype == torch.float32
    for results in ways:
        for key, request in requests.items():
            plain.compare(request, results[key], by_transformers)
            _compare_with_cpu(request.operation, results[key], expected[key], by_cpu, exact=exact)
    return by_transformers, by_cpu


def _compare_with_cpu(
    operation: Operation, result: Result, expected: Result, differences: Differences, *, exact: bool
) -> None:
    """Add the difference from the CPU; answers and beams only if exact, because rounding may divert a search."""
    match operation:
        case HiddenStates():
            differences.add("states", _relative(result, expected))  # type: ignore[arg-type]
        case NLL():
            differences.add("nll", (result - expected)[1:].abs())  # type: ignore[operator]
        case NextTokenProbs():
            differences.add("choices", (result.log() - expected.log()).abs())  # type: ignore[operator]
        case Generate() if exact:
            (answer,), (expected_answer,) = result, expected
            pairs = zip(answer.tokens, expected_answer.tokens, strict=False)
            first_difference = next((i for i, (a, b) in enumerate(pairs) if a != b), len(answer.tokens))
            # Of two tokens that are equally likely, each side may take another: they are compared, what follows is not.
            differences.add(
                "answers",
                (answer.log_probs[: first_difference + 1] - expected_answer.log_probs[: first_difference + 1]).abs(),
            )
        case ConstrainedGenerate() if exact:
            differences.add("beams", (result[:, 1].mean() - expected[:, 1].mean()).abs())  # type: ignore[call-overload]


def _relative(result: Tensor, expected: Tensor) -> Tensor:
    """Return the norm of the difference of each row, relative to the norm of the row."""
    result, expected = result.float().cpu(), expected.float().cpu()
    if result.shape != expected.shape:
        return torch.tensor(torch.inf)
    return (result - expected).norm(dim=-1) / expected.norm(dim=-1)


class PlainForward:
    """Results of transformers for one prompt at a time, without packing, cache or early exit."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._read: dict[tuple[int, ...], tuple[list[Tensor], Tensor, list[Tensor]]] = {}

    def compare(self, request: Request, result: Result, differences: Differences) -> None:
        """Add the difference of `result` from the result of a plain forward pass for `request`."""
        operation, encoded = request.operation, encode_prompt(self._loaded.tokenizer, request.prompt)
        if isinstance(operation, HiddenStates):
            first, last = encoded.span(*operation.segments)
            states, _, mlp = self._forward(encoded.ids)
            layer = mlp[operation.layer - 1] if operation.site == "mlp" else states[operation.layer]
            differences.add("states", _relative(result, layer[first:last]))  # type: ignore[arg-type]
        elif isinstance(operation, NLL):
            last = encoded.span(*operation.segments)[1]
            log_p = self._forward(encoded.ids)[1]
            entropy = -(log_p.exp() * log_p).sum(-1)[: last - 1]
            both = torch.stack([-_gather_log_probs(log_p, encoded.ids)[: last - 1], entropy], 1)
            differences.add("nll", (result[1:] - both).abs())  # type: ignore[index]
        elif isinstance(operation, NextTokenProbs):
            log_p = self._forward(encoded.ids)[1]
            ids = [int(token) for token in operation.tokens]
            differences.add("choices", (result[:, 0].log() - log_p[-1, ids]).abs())  # type: ignore[call-overload]
        elif isinstance(operation, Generate):
            assert isinstance(result, list)
            self._compare_answer(encoded.ids, operation, result[0], differences)
        elif isinstance(operation, ConstrainedGenerate):
            assert isinstance(result, Tensor)
            self._compare_beam(request.prompt, result, differences)

    def _compare_answer(
        self, prompt: list[int], operation: Generate, answer: GeneratedText, differences: Differences
    ) -> None:
        """Read the answer again: its log-probabilities, its states, and whether each token is the most likely one."""
        assert operation.states is not None and answer.states is not None
        tokens = [*answer.tokens, *([1] if answer.ended else [])]
        states, log_p, _ = self._forward([*prompt, *answer.tokens, 1])  # with its EOS, whose state is read, too
        steps = log_p[len(prompt) - 1 :][: len(tokens)]
        chosen = steps.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        differences.add("answers", (answer.log_probs - chosen).abs())
        differences.add("answers", steps.amax(-1) - chosen)
        differences.add(
            "choices", (answer.choices.log() - steps[:, [int(token) for token in operation.tracked_tokens]]).abs()
        )
        differences.add("states", _relative(answer.states, states[operation.states.layer][len(prompt) :]))

    def _compare_beam(self, segments: PromptSegments, steps: Tensor, differences: Differences) -> None:
        prompt = encode_prompt(self._loaded.tokenizer, segments[:-1]).ids
        tokens, target = steps[:, 0].long().tolist(), self._loaded.tokenizer.encode(segments[-1].text)
        if not any(tokens[i : i + len(target)] == target for i in range(len(tokens))):
            differences.add("beams", torch.inf)
        _, log_p, _ = self._forward([*prompt, *tokens])
        differences.add("beams", (steps[:, 1] - _gather_log_probs(log_p, [*prompt, *tokens])[len(prompt) - 1 :]).abs())

    def _forward(self, ids: Sequence[int]) -> tuple[list[Tensor], Tensor, list[Tensor]]:
        """Return the states of all layers, log-probabilities (tokens, vocabulary) and MLP outputs, on the CPU."""
        key = tuple(ids)
        if key not in self._read:
            mlp: list[Tensor] = []
            handles = [
                block.mlp.register_forward_hook(lambda _m, _i, output: mlp.append(output[0].cpu()))
                for block in self._loaded.model.model.layers
            ]
            with torch.inference_mode():
                row = torch.tensor([list(ids)], device=self._loaded.model.device)
                output = self._loaded.model(row, output_hidden_states=True)
            for handle in handles:
                handle.remove()
            states = [layer[0].cpu() for layer in output.hidden_states]
            self._read[key] = states, output.logits[0].float().log_softmax(-1).cpu(), mlp
        return self._read[key]


def _gather_log_probs(log_p: Tensor, ids: Sequence[int]) -> Tensor:
    """Return the log-probability of every token except the first."""
    return log_p[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
