from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from abstain.core.errors import AbstainError
from abstain.llm.engine import decoder, incremental_decoder
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.incremental_decoder import KVCacheDecoder
from abstain.llm.engine.loading import LoadedModel
from abstain.llm.engine.pauses import WorkCancelled, call_on_pause
from abstain.llm.engine.prompts import PromptSegments, Segment
from abstain.llm.engine.requests import (
    NLL,
    ConstrainedGenerate,
    Generate,
    HiddenStates,
    NextTokenProbs,
    Request,
    cut_to_operation,
)
from abstain.llm.engine.tokenization import encode_prompt
from tests.llm.builders import (
    WIDTH,
    WINDOW,
    byte_tokenizer,
    plain_forward,
    plain_neurons,
    plain_surprise,
    shared_model,
    surprise,
    tiny_model,
    tiny_pass,
    tiny_passes,
)

FAMILIES = ["llama", "gemma3", "gpt2", "opt"]
TOLERANCE = 1e-4
PROMPT = slice(None, -2)  # a pass without its answer and EOS


def run(
    loaded: LoadedModel, ask: Any, passes: dict[str, PromptSegments], packed: bool | None = None, tokens: int = 4096
) -> Any:
    return dict(Engine(loaded, tokens, packed).run({key: Request(p, ask, f"row {key}") for key, p in passes.items()}))


def assert_close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=TOLERANCE, rtol=0, equal_nan=True)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("family", "packed"), [*((family, True) for family in FAMILIES), ("llama", False), ("opt", False)]
)
def test_engine_nll_and_choices_equal_a_plain_forward(family: str, packed: bool) -> None:
    loaded, offered = shared_model(family), ("Y", "N", "<|im_end|>")
    asks: list[Any] = [NLL(of) for of in (("answer", "eos"), ("question",), ("instruction", "context"), ("context",))]
    asks.append(NextTokenProbs(offered))
    found = [run(loaded, ask, tiny_passes(), packed, tokens=130) for ask in asks]
    tokens = [loaded.tokenizer.encode(text)[0] for text in offered]
    for key, pass_ in tiny_passes().items():
        encoded = encode_prompt(loaded.tokenizer, pass_)
        log_p, _ = plain_forward(loaded, encoded.ids)
        for ask, of_ask in zip(asks[:-1], found, strict=False):
            assert_close(of_ask[key], surprise(log_p, encoded.ids)[slice(*encoded.span(*ask.segments))])
        assert_close(found[-1][key], log_p[-1, tokens].exp()[:, None])


def test_engine_empty_segment_has_no_rows() -> None:
    assert run(shared_model(), NLL(("context",)), {"a": tiny_pass(context="")})["a"].shape == (0, 2)
    assert len(run(shared_model(), HiddenStates(2), {"a": tiny_pass(answer="")})["a"]) == 1  # EOS alone
    for site, width in (("residual", WIDTH), ("neurons", 2 * WIDTH)):
        ask = HiddenStates(2, site, ("context",))
        nothing = run(shared_model(), ask, {"a": tiny_pass(context="")})["a"]
        assert nothing.shape == (0, width) and nothing.dtype == torch.float32


@pytest.mark.parametrize("ended", [True, False])
def test_generate_states_without_eos_are_those_of_the_tokens(ended: bool) -> None:
    loaded, prompt = tiny_model(), tiny_pass()[PROMPT]
    (whole,) = run(loaded, Generate(6), {"a": prompt})["a"]
    if ended:
        last = next(at for at, token in enumerate(whole.tokens) if at and token not in whole.tokens[:at])
        loaded.tokenizer.eos_token = loaded.tokenizer.convert_ids_to_tokens(whole.tokens[last])
    engine = Engine(loaded, 4096)
    asked = Generate(6, states=HiddenStates(2, segments=("answer",)))
    ((_, (answer,)),) = engine.run({"a": Request(prompt, asked, "a")})
    ids = encode_prompt(loaded.tokenizer, prompt).ids
    assert answer.ended == ended and answer.tokens == whole.tokens[: last if ended else 6]
    assert_close(answer.states, plain_forward(loaded, [*ids, *answer.tokens])[1][2][len(ids) :])
    assert engine.stats.forward_tokens == len(ids) + len(answer.tokens)


@pytest.mark.heavy
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_generate_is_greedy_with_states_of_the_finished_pass(family: str, packed: bool) -> None:
    loaded = shared_model(family)
    eos, offered = loaded.tokenizer.eos_token_id, ("a", "b", "Z")
    chosen = [loaded.tokenizer.encode(token, add_special_tokens=False)[0] for token in offered]
    prompts = {key: pass_[PROMPT] for key, pass_ in tiny_passes().items()}
    for layer in (2, 4):
        ask = Generate(6, states=HiddenStates(layer), tracked_tokens=offered)
        found = run(loaded, ask, prompts, packed, tokens=150)
        for key, prompt in prompts.items():
            (answer,) = found[key]
            ids = encode_prompt(loaded.tokenizer, prompt).ids
            written = [*answer.tokens, eos][: len(answer.log_probs)]
            log_p, states = plain_forward(loaded, [*ids, *answer.tokens, eos])
            steps = log_p[len(ids) - 1 : len(ids) - 1 + len(written)]
            assert steps.argmax(-1).tolist() == written
            assert len(written) == 6 or answer.ended
            assert answer.ended == (written[-1] == eos)
            assert answer.text == loaded.tokenizer.decode(answer.tokens, skip_special_tokens=True).strip()
            assert_close(answer.states, states[layer][len(ids) :])
            assert_close(answer.log_probs, steps.gather(1, torch.tensor(written)[:, None])[:, 0])
            assert_close(answer.choices, steps[:, chosen].exp())
            assert torch.equal(answer.to_cache_row(eos)[:, 0], torch.tensor(written).float())
            assert torch.equal(answer.to_cache_row(eos)[:, 1:], answer.choices)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_generate_neurons_are_those_of_the_finished_pass(family: str, packed: bool) -> None:
    loaded, neurons, prompt = shared_model(family), HiddenStates(2, "neurons", ("answer",)), tiny_pass()[PROMPT]
    (answer,) = run(loaded, Generate(6, states=neurons), {"a": prompt}, packed)["a"]
    ids = encode_prompt(loaded.tokenizer, prompt).ids
    assert_close(answer.states, plain_neurons(loaded, [*ids, *answer.tokens])[2][len(ids) :])


def test_generate_cost_is_that_of_the_tokens_written() -> None:
    prompts = {"long": tiny_pass(context="c")[PROMPT], "short": tiny_pass(context="d")[PROMPT]}
    engine, limits = Engine(shared_model(), 4096), {"long": 9, "short": 2}
    found: Any = dict(engine.run({key: Request(prompts[key], Generate(limits[key]), key) for key in prompts}))
    assert {key: len(answers[0].tokens) for key, answers in found.items()} == limits
    assert engine.stats.vocabulary_rows == 9 + 2, "what is finished leaves the batch"
    length = len(encode_prompt(shared_model().tokenizer, prompts["long"]).ids)
    for states, tokens in ((None, length + 4), (HiddenStates(2), length + 6)):
        engine = Engine(shared_model(), 4096)
        list(engine.run({"a": Request(prompts["long"], Generate(5, states=states), "a")}))
        assert engine.stats.forward_tokens == tokens, "the last token is read for its states only, and EOS after it"


@pytest.mark.heavy
def test_generate_decodes_few_rows_with_equal_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    start = KVCacheDecoder.__init__
    monkeypatch.setattr(KVCacheDecoder, "__init__", lambda own, *of: widths.append(len(of[1])) or start(own, *of))
    prompts = {f"{n}": tiny_pass(context="c" * (60 + n))[PROMPT] for n in range(6)}
    run(shared_model(), Generate(2, temperature=1.0, samples=80), prompts)
    assert widths == [160, 160, 160]
    widths.clear()
    run(shared_model(), Generate(2), prompts, tokens=15)  # sixteen batches of 15 tokens: two prompts or three
    assert len(widths) >= 2 and sum(widths) == 6
    prompts = {key: pass_[PROMPT] for key, pass_ in tiny_passes().items()}
    together = run(shared_model(), Generate(6), prompts)
    monkeypatch.setattr(incremental_decoder, "DECODE_ROWS", 2)
    apart = run(shared_model(), Generate(6), prompts)
    assert {key: together[key][0].tokens for key in prompts} == {key: apart[key][0].tokens for key in prompts}


def test_generate_samples_follow_seed_and_distribution() -> None:
    prompt, loaded = tiny_pass()[PROMPT], shared_model()
    asks = [Generate(1, temperature=1.0, samples=400, seed=seed) for seed in (3, 3, 4)]
    drawn = [run(loaded, ask, {"a": prompt})["a"] for ask in asks]
    first, again, other = ([one.tokens for one in answers] for answers in drawn)
    assert first == again != other
    p = plain_forward(loaded, encode_prompt(loaded.tokenizer, prompt).ids)[0][-1].exp()
    assert abs(first.count((int(p.argmax()),)) / len(first) - float(p.max())) < 0.1
    assert len(set(first)) > 5
    (hot,) = run(loaded, Generate(1, temperature=5.0, top_p=0.1, tracked_tokens=("a",)), {"a": prompt})["a"]
    assert hot.choices.shape == (1, 1), "a choice is what the model gives, however it is drawn from"
    assert_close(hot.choices, p[loaded.tokenizer.encode("a")][None])
    for top_p in (float(p.max()) / 2, 1e-320):
        narrow = run(loaded, Generate(1, temperature=1.0, top_p=top_p, samples=30), {"a": prompt})["a"]
        assert {one.tokens for one in narrow} == {(int(p.argmax()),)}, "it leaves out the tail"


def test_engine_operations_of_one_pass_cost_one_pass() -> None:
    loaded, pass_ = shared_model(), tiny_pass()
    asks: dict[str, Any] = {
        "states": HiddenStates(2),
        "nll": NLL(("answer",)),
        "context": NLL(("context",)),
        "yes": NextTokenProbs(("Y", "N")),
        "answer": Generate(1),
    }
    passes = {name: pass_[PROMPT] if name == "answer" else pass_ for name in asks}
    together = Engine(loaded, 4096)
    found = dict(together.run({name: Request(passes[name], ask, name) for name, ask in asks.items()}))
    encoded = encode_prompt(loaded.tokenizer, pass_)
    assert together.stats.forward_tokens == len(encoded.ids)
    # One row for each token of answer and context, one at the end, one for the answer to come.
    assert together.stats.vocabulary_rows == len(found["nll"]) + len(found["context"]) + 1 + 1
    for name, ask in asks.items():
        alone = run(loaded, ask, {name: passes[name]})[name]
        if name == "answer":
            assert alone[0].tokens == found[name][0].tokens
        else:
            assert_close(found[name], alone)


def test_engine_projects_the_vocabulary_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = shared_model()
    seen: list[int] = []
    engine = Engine(loaded, 4096)
    head = loaded.model.get_output_embeddings().register_forward_hook(lambda _m, _i, out: seen.append(out.shape[0]))
    monkeypatch.setitem(decoder.CHUNK_BYTES, "cpu", 4 * 300 * 7)
    ask = NLL(("context", "question_mark", "question", "turn", "answer"))
    found = dict(engine.run({key: Request(pass_, ask, key) for key, pass_ in tiny_passes().items()}))
    head.remove()
    assert max(seen) == 7 and len(seen) > 10
    for key, pass_ in tiny_passes().items():
        encoded, expected = plain_surprise(loaded, pass_)
        assert_close(found[key], expected[slice(*encoded.span("context", "answer"))])


def test_cut_to_operation_ends_at_the_last_segment() -> None:
    pass_ = tiny_pass()
    assert cut_to_operation(pass_, HiddenStates(2, segments=("question",))) == pass_[:4]
    assert cut_to_operation(pass_, NLL(("answer",))) == pass_[:-1]
    assert cut_to_operation(pass_, NextTokenProbs(("Y",))) == pass_
    with pytest.raises(AbstainError, match="'hint' .* instruction, context"):
        cut_to_operation(pass_, NLL(("hint",)))
    for segments in (("answer", "question"), ("context", "question")):
        with pytest.raises(AbstainError, match="not adjacent"):
            cut_to_operation(pass_, NLL(segments))


def test_generate_prompt_needs_room_for_its_answer() -> None:
    room = WINDOW - len(encode_prompt(shared_model().tokenizer, tiny_pass(context="")[PROMPT]).ids)
    fits, over = (tiny_pass(context="x" * length)[PROMPT] for length in (room - 5, room - 4))
    assert run(shared_model(), Generate(5), {"a": fits})
    too_long = f"^row a: {WINDOW + 1} tokens are more than the {WINDOW} that tiny-llama"
    with pytest.raises(AbstainError, match=too_long):
        run(shared_model(), Generate(5), {"a": over})
    assert run(shared_model(), Generate(5, states=HiddenStates(2, segments=("answer",))), {"a": fits})
    with pytest.raises(AbstainError, match=too_long):  # EOS needs room, too
        run(shared_model(), Generate(5, states=HiddenStates(2)), {"a": fits})


def test_generate_without_eos_token_has_no_final_state() -> None:
    loaded = LoadedModel(shared_model().ref, shared_model().model, byte_tokenizer(eos=False))
    prompt = tiny_pass()[PROMPT]
    (answer,) = run(loaded, Generate(3), {"a": prompt})["a"]
    assert len(answer.tokens) == 3 and not answer.ended
    with pytest.raises(AbstainError, match="no EOS token"):
        run(loaded, Generate(3, states=HiddenStates(2)), {"a": prompt})
    (answer,) = run(loaded, Generate(3, states=HiddenStates(2, segments=("answer",))), {"a": prompt})["a"]
    assert answer.states is not None and answer.states.shape == (3, WIDTH)


def list_answers(
    loaded: LoadedModel, prompt: PromptSegments, tokens: list[int], limit: int
) -> dict[tuple[int, ...], float]:
    """Mean log-probability of all answers of at most `limit` of `tokens`, ended by EOS or by the limit."""
    ids, eos = encode_prompt(loaded.tokenizer, prompt).ids, loaded.tokenizer.eos_token_id
    scores: dict[tuple[int, ...], float] = {}
    open_answers: list[tuple[tuple[int, ...], list[float]]] = [((), [])]
    for answer, log_probs in open_answers:
        log_p = plain_forward(loaded, [*ids, *answer])[0][-1]
        scores[*answer, eos] = (sum(log_probs) + float(log_p[eos])) / (len(log_probs) + 1)
        for token in tokens:
            longer = (*answer, token), [*log_probs, float(log_p[token])]
            if len(answer) + 1 == limit:
                scores[longer[0]] = sum(longer[1]) / limit
            else:
                open_answers.append(longer)
    return scores


def target(prompt: PromptSegments, text: str) -> PromptSegments:
    return (*prompt, Segment("target", text))


def make_five_token_model(family: str) -> tuple[LoadedModel, list[int]]:
    """A model that can write four letters and EOS only, and the letters' tokens."""
    loaded = tiny_model(family, seed=5)
    letters = [loaded.tokenizer.encode(letter)[0] for letter in "abCD"]
    off = torch.full((300,), -1e4)
    off[[*letters, loaded.tokenizer.eos_token_id]] = 0.0
    loaded.model.get_output_embeddings().register_forward_hook(lambda _m, _i, out: out + off)
    return loaded, letters


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("family", "packed"), [*((family, True) for family in FAMILIES), ("llama", False), ("gpt2", False)]
)
def test_search_wide_finds_the_likeliest_answer_with_the_text(family: str, packed: bool) -> None:
    """CD is the upper case of cd."""
    loaded, letters = make_five_token_model(family)
    prompts = {"short": tiny_pass()[PROMPT], "long": tiny_pass(context="The fee is 0. " * 3)[PROMPT]}
    requests = {
        f"{name} {text}": Request(target(prompt, text), ConstrainedGenerate(60, 3), name)
        for name, prompt in prompts.items()
        for text in ("", "cd", "Da", "a")
    }
    found: Any = dict(Engine(loaded, 4096, packed).run(requests))
    for name, prompt in prompts.items():
        answers = list_answers(loaded, prompt, letters, 3)
        for text, form in {"": "", "cd": "CD", "Da": "Da", "a": "a"}.items():
            phrase = tuple(loaded.tokenizer.encode(form))
            fits = {
                tokens: score
                for tokens, score in answers.items()
                if any(tokens[n : n + len(phrase)] == phrase for n in range(3))
            }
            best = max(fits, key=fits.__getitem__)
            result = found[f"{name} {text}"]
            assert tuple(result[:, 0].int().tolist()) == best
            assert float(result[:, 1].mean()) == pytest.approx(fits[best], abs=1e-4)


@pytest.mark.parametrize("packed", [True, False])
def test_search_narrow_finds_the_text_in_a_mixed_batch(packed: bool) -> None:
    prompt, engine = tiny_pass()[PROMPT], Engine(shared_model(), 4096, packed)
    requests = {
        "greedy": Request(prompt, Generate(6), "greedy"),
        "one beam": Request(target(prompt, ""), ConstrainedGenerate(1, 6), "one beam"),
        "fee": Request(target(prompt, "Fee"), ConstrainedGenerate(4, 6), "fee"),
    }
    found: Any = dict(engine.run(requests))
    greedy = found["greedy"][0]
    assert tuple(found["one beam"][: len(greedy.tokens), 0].int().tolist()) == greedy.tokens
    written = engine.loaded.tokenizer.decode(found["fee"][:, 0].int().tolist())
    assert any(form in written for form in ("fee", "FEE", "Fee"))


@pytest.mark.parametrize("packed", [True, False])
def test_search_cost_is_prompt_and_beam_steps(packed: bool) -> None:
    prompt, engine = tiny_pass()[PROMPT], Engine(shared_model(), 4096, packed)
    length = len(encode_prompt(engine.loaded.tokenizer, prompt).ids)
    dict(engine.run({f"{n}": Request(target(prompt, f"fee{n}"), ConstrainedGenerate(5, 8), "a") for n in range(3)}))
    read = length if packed else 3 * length  # a shared prompt is read once
    assert read < engine.stats.forward_tokens <= read + 3 * 5 * 8 + (0 if packed else 3 * length)


def test_search_text_without_room_has_no_rows() -> None:
    prompt = tiny_pass()[PROMPT]
    with pytest.raises(AbstainError, match="row a: a pass without any tokens"):
        run(shared_model(), Generate(3), {"a": ()})
    passes = {"long": target(prompt, "concept"), "short": target(prompt, "fee")}
    found = run(shared_model(), ConstrainedGenerate(2, 3), passes)
    assert {key: tuple(one.shape) for key, one in found.items()} == {"long": (0, 2), "short": (3, 2)}


def test_operations_with_invalid_values_are_refused() -> None:
    for wrong in ({"samples": 2}, {"max_new_tokens": 0}, {"top_p": 0.0}, {"temperature": 1e-9}, {"seed": 2**62}):
        with pytest.raises(ValueError, match="token|answers|top_p|seed"):
            Generate(**wrong)  # type: ignore[arg-type]
    for beams, tokens in ((0, 3), (3, 0)):
        with pytest.raises(ValueError, match="at least one beam and one token"):
            ConstrainedGenerate(beams, tokens)
    with pytest.raises(ValueError, match="a choice needs tokens"):
        NextTokenProbs(())
    with pytest.raises(AbstainError, match="the choice 'Yes' is 3 tokens of this base model, not one"):
        run(shared_model(), NextTokenProbs(("Yes",)), {"a": tiny_pass()})


def test_engine_scaled_logits_are_refused() -> None:
    """The states of such a model can be read."""
    loaded = tiny_model(seed=3)
    forward = loaded.model.forward

    def scale_logits(*arguments: Any, **named: Any) -> Any:
        output = forward(*arguments, **named)
        output.logits = output.logits * 0.25
        return output

    loaded.model.forward = scale_logits
    assert len(run(loaded, HiddenStates(2), {"a": tiny_pass()})["a"]) == len("None.") + 1
    with pytest.raises(AbstainError, match="tiny-llama post-processes its logits in an unsupported way"):
        run(loaded, NLL(("answer",)), {"a": tiny_pass()})


def test_engine_threads_sharing_a_model_give_equal_states() -> None:
    loaded, pass_ = tiny_model(seed=2), tiny_passes()
    expected = run(loaded, HiddenStates(2), pass_)
    engine = Engine(loaded, 150)
    requests = {key: Request(p, HiddenStates(2), key) for key, p in pass_.items()}
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: dict(engine.run(requests)), range(12)))
    for found in results:
        for key, states in expected.items():
            assert_close(found[key], states)


TOKENS = 6
ANSWER = Generate(TOKENS, states=HiddenStates(2, segments=("answer",)))
REQUESTS = {}
for key, pass_ in tiny_passes().items():
    REQUESTS[f"{key} answer"] = Request(pass_[:-2], ANSWER, key)
    REQUESTS[f"{key} search"] = Request((*pass_[:-2], Segment("target", "ab")), ConstrainedGenerate(3, TOKENS), key)


def is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return one[0].tokens == other[0].tokens and torch.equal(one[0].states, other[0].states)
    return torch.equal(one, other)


@pytest.mark.heavy
@pytest.mark.parametrize("packed", [True, False])
def test_pauses_reading_other_passes_changes_no_result(packed: bool) -> None:
    engine = Engine(shared_model("llama"), 64, packed)
    expected = dict(engine.run(REQUESTS))
    others = [*tiny_passes().items()][::3]
    states = {key: Request(pass_, HiddenStates(2), key) for key, pass_ in others}
    read_alone, read = dict(engine.run(states)), []

    def read_states() -> None:
        with call_on_pause(lambda: None):
            read.append(dict(engine.run(states)))

    with call_on_pause(read_states):
        found = dict(engine.run(REQUESTS))
    assert len(read) > 2 * TOKENS
    assert all(is_equal(found[key], expected[key]) for key in expected)
    assert all(is_equal(of[key], read_alone[key]) for of in read for key in read_alone)


@pytest.mark.parametrize("passes", [1, 3, 9])
def test_pauses_may_cancel_the_work(passes: int) -> None:
    engine, pauses = Engine(shared_model("llama"), 4096), 0

    def end() -> None:
        nonlocal pauses
        pauses += 1
        if pauses == passes:
            raise WorkCancelled

    with call_on_pause(end), pytest.raises(WorkCancelled):
        dict(engine.run(REQUESTS))
    assert pauses == passes and dict(engine.run(REQUESTS)), "the model is as it was"
