"""What perturbing contexts costs, against the step-by-step procedure: score all, fill, score all ...

python -m benchmarks.perturbation [--contexts 32] [--tokens 15] [--timed 3] [--squad FILE]

Notes:

* The measure is the engine's count of tokens run through the model, not seconds. The step-by-step procedure reads the
  whole text to score it and all tokens to the left of a position to fill it, K times where it is iterative.
* The replacements of both sides are compared in float32 on the timed texts before any time is reported. Both sides run
  in turns.
* One run has a context for each question; the other has five questions a context, which the engine perturbs once.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from abstain.config.params import LLMParams, PerturbationParams
from abstain.config.settings import load_settings
from abstain.llm.engine.device import choose_device, choose_dtype
from abstain.llm.engine.loading import LoadedModel, find_model, load_model
from abstain.llm.engine.prompts import Segment, load_layout
from abstain.llm.engine.requests import Perturb, Request
from abstain.llm.engine.tokenization import encode_prompt
from abstain.llm.features.shard_job import row_key
from abstain.llm.perturbation.engines import CausalEngine
from abstain.llm.perturbation.loop import EncodedText, allowed_tokens, encode_text
from abstain.llm.perturbation.text import TokenTexts, to_steps
from abstain.llm.signals.context_conditions import ContextConditions
from benchmarks.measure import in_turns, seconds
from benchmarks.rows import LAYOUT, Row, add_options, repeated, unrelated
from benchmarks.scaling import at as settings_in
from benchmarks.scaling import interactions

WHERE: tuple[Literal["entropy", "random"], ...] = ("entropy", "random")
WHEN: tuple[Literal["single_shot", "iterative"], ...] = ("single_shot", "iterative")
HOW = list(itertools.product(WHERE, WHEN))


def requests_of(contexts: Sequence[str], ask: Perturb) -> dict[str, Request]:
    """One a context, as the feature cache would have it: equal ones are one."""
    requests = [Request((Segment("chunk", text),), ask, "context") for text in contexts]
    return {row_key(request): request for request in requests}


def places_of(loaded: LoadedModel, contexts: Sequence[str], ask: Perturb, found: Mapping[str, Any]) -> list[list[int]]:
    """Of each of `contexts` the places that were replaced, in order; `found`: what an engine said of their requests."""
    places = []
    for text in contexts:
        (key,) = requests_of([text], ask)
        spans = encoded(loaded, text).spans
        places.append([spans.index((step.segment, step.start, step.end)) for step in to_steps(found[key])])
    return places


def procedure_tokens(tokens: int, places: Sequence[int], ask: Perturb) -> int:
    """What the step-by-step procedure runs for a text of `tokens` tokens, a start token before it."""
    scored = (len(places) if ask.when == "iterative" else 1) if ask.where == "entropy" else 0
    return scored * tokens + sum(place + 1 for place in places)


def procedure(loaded: LoadedModel, text: str, ask: Perturb, drawn: Sequence[int]) -> list[tuple[int, int]]:
    """(place, new token) of every step, a plain forward at a time; `drawn`: the places, where they are random."""
    found, allowed = encoded(loaded, text), allowed_tokens(loaded.tokenizer, loaded.model.config.vocab_size)
    ids, left, steps = list(found.ids), {at for at, free in enumerate(found.replaceable) if free}, []
    at_once = ask.tokens if ask.when == "single_shot" else 1
    for first in range(0, min(ask.tokens, len(left)), at_once):
        chosen = list(drawn[first : first + at_once])
        if ask.where == "entropy":
            likely = _log_p(loaded, ids[:-1]).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
            chosen = sorted(sorted(left, key=lambda at: likely[at])[:at_once])
        new = []
        for place in chosen:
            row = _log_p(loaded, ids[:place])[-1].masked_fill(~allowed, float("-inf"))
            row[ids[place]] = float("-inf")
            new.append(int(row.argmax()))
        for place, token in zip(chosen, new, strict=True):
            ids[place] = token
            left.remove(place)
        steps += zip(chosen, new, strict=True)
    return steps


def encoded(loaded: LoadedModel, text: str) -> EncodedText:
    allowed = allowed_tokens(loaded.tokenizer, loaded.model.config.vocab_size)
    return encode_text(TokenTexts.from_tokenizer(loaded.tokenizer), (Segment("chunk", text),), allowed)


def _log_p(loaded: LoadedModel, ids: list[int]) -> Tensor:
    with torch.inference_mode():
        row = torch.tensor([[loaded.tokenizer.bos_token_id, *ids]], device=loaded.model.device)
        return loaded.model(row).logits[0].float().log_softmax(-1).cpu()


def counts(loaded: LoadedModel, rows: Sequence[Row], what: str, tokens: int, batch_tokens: int) -> Iterator[str]:
    """A line for each where x when."""
    contexts = [row.contexts[0] for row in rows]
    for where, when in HOW:
        ask, engine = Perturb(where, when, tokens), CausalEngine(loaded, batch_tokens)
        found: dict[str, Any] = {}
        took = seconds(lambda e=engine, a=ask, f=found: f.update(e.run(requests_of(contexts, a))))  # type: ignore[misc]
        ran, places = engine.stats.forward_tokens, places_of(loaded, contexts, ask, found)
        theirs = sum(
            procedure_tokens(len(encoded(loaded, text).ids), of_text, ask)
            for text, of_text in zip(contexts, places, strict=True)
        )
        share = f"{1000 * took / len(contexts):.0f}"
        yield f"| {what} | {where} | {when} | {ran:,} | {theirs:,} | **{theirs / ran:.2f}** | {share} |"


def times(loaded: LoadedModel, rows: Sequence[Row], tokens: int, batch_tokens: int) -> Iterator[str]:
    """A line for each where x when: seconds of both, once their replacements were found to be equal."""
    contexts, engine = [row.contexts[0] for row in rows], CausalEngine(loaded, batch_tokens)
    for where, when in HOW:
        ask = Perturb(where, when, tokens)
        requests = requests_of(contexts, ask)
        found: dict[str, Any] = dict(engine.run(requests))
        places = places_of(loaded, contexts, ask, found)
        equal = total = 0
        for (key, *_), text, of_text in zip(
            (requests_of([one], ask) for one in contexts), contexts, places, strict=True
        ):
            ours = list(zip(of_text, (step.new for step in to_steps(found[key])), strict=True))
            theirs = procedure(loaded, text, ask, of_text)
            equal += sum(one == other for one, other in zip(ours, theirs, strict=True))
            total += len(theirs)
        assert equal >= 0.95 * total, (where, when, equal, total)  # a tie that is broken otherwise changes what follows
        other, own, ratio = in_turns(
            lambda a=ask, p=places: [procedure(loaded, t, a, o) for t, o in zip(contexts, p, strict=True)],  # type: ignore[misc]
            lambda r=requests: list(engine.run(r)),  # type: ignore[misc]
            1,
        )
        yield f"| {where} | {when} | {equal} of {total} | {other:.1f} | {own:.1f} | **{ratio:.1f}** |"


def whole(
    folder: Path, model: str, loaded: LoadedModel, rows: Sequence[Row], what: str, tokens: int, batch_tokens: int
) -> str:
    """Everything that the regressors of correctness read: contexts perturbed, NLLs under B_c, N_c and P_c."""
    llm = LLMParams(model=model, layout=LAYOUT, layer=1, site="residual", too_long="refuse", includes_eos=True)
    how = PerturbationParams(model=None, where="entropy", when="iterative", tokens=tokens, copies=1, seed=0)
    asked = ContextConditions(llm, how, settings_in(folder))
    answered, done = interactions(rows), []
    took = seconds(lambda: done.append(asked.compute_missing(answered)))
    ((perturbing, reading),) = done
    ask, (copy,) = asked.perturber.operations[0], asked.perturber.perturb(answered)
    contexts = [row.contexts[0] for row in rows]
    found = dict(CausalEngine(loaded, batch_tokens).run(requests_of(contexts, ask)))
    places = places_of(loaded, contexts, ask, found)
    theirs = 0
    for row, changed, of_text in zip(answered, copy, places, strict=True):
        texts = [one.text for one in row.contexts]
        theirs += procedure_tokens(len(encoded(loaded, texts[0]).ids), of_text, ask)
        for read in (texts, [], [one.text for one in changed.contexts]):
            theirs += len(
                encode_prompt(loaded.tokenizer, load_layout(LAYOUT).render(row.question, read, row.answer)).ids
            )
    ran = perturbing.forward_tokens + reading.forward_tokens
    return f"| {what} | {len(rows)} | {ran:,} | {theirs:,} | **{theirs / ran:.2f}** | {1000 * took / len(rows):.0f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.perturbation")
    parser.add_argument("--contexts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=15, help="K")
    parser.add_argument("--timed", type=int, default=3, help="contexts that the procedure really perturbs")
    add_options(parser)
    asked = parser.parse_args(arguments)
    settings = load_settings()
    device, room = choose_device(settings), settings.batch_tokens
    dtypes = choose_dtype(settings, device), torch.float32
    half, single = (load_model(find_model(asked.model, settings), device, dtype) for dtype in dtypes)
    apart = [Row(row.contexts[:1], row.question, row.answer) for row in unrelated(asked.squad, asked.contexts)]
    shared = repeated(asked.squad, asked.contexts)
    kinds = ("one question a context", apart), ("five questions a context", shared)
    print(f"{asked.model}, K = {asked.tokens}, {asked.contexts} questions, {torch.get_num_threads()} threads\n")
    print("| | where | when | tokens run | step by step | times fewer | ms a question |")
    print("| --- | --- | --- | --: | --: | --: | --: |", flush=True)
    for what, rows in kinds:
        for line in counts(half, rows, what, asked.tokens, room):
            print(line, flush=True)
    print("\n| where | when | equal, float32 | step by step, s | engine, s | times as fast |")
    print("| --- | --- | --- | --: | --: | --: |", flush=True)
    for line in times(single, apart[: asked.timed], asked.tokens, room):
        print(line, flush=True)
    print(
        "\n| perturbed, and NLLs under B_c, N_c, P_c | questions | tokens run | step by step | times fewer | ms each |"
    )
    print("| --- | --: | --: | --: | --: | --: |", flush=True)
    with tempfile.TemporaryDirectory() as name:
        for at, (what, rows) in enumerate(kinds):
            print(whole(Path(name) / str(at), asked.model, half, rows, what, asked.tokens, room), flush=True)


if __name__ == "__main__":
    main()
