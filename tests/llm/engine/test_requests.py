"""The asks that need probabilities: NLL, choices, answers; alone, together, packed and padded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from abstain.core.errors import AbstainError
from abstain.llm.engine import decoder, generation
from abstain.llm.engine.beams import get_token_forms
from abstain.llm.engine.engine import Engine
from abstain.llm.engine.generation import GeneratedText
from abstain.llm.engine.incremental_decoder import KVCacheDecoder, SharedPromptDecoder, make_beam_decoder
from abstain.llm.engine.loading import LoadedModel
from abstain.llm.engine.prompts import PromptSegments, Segment, load_layout
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


def next_token(loaded: LoadedModel, prompt: PromptSegments) -> Tensor:
    """Probabilities (vocabulary,) by a plain forward."""
    return plain_forward(loaded, encode_prompt(loaded.tokenizer, prompt).ids)[0][-1].exp()


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=TOLERANCE, rtol=0, equal_nan=True)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("family", "packed"), [*((family, True) for family in FAMILIES), ("llama", False), ("opt", False)]
)
def test_nll_entropy_and_choices_equal_those_of_a_plain_forward(family: str, packed: bool) -> None:
    """The first token of a pass is predicted by nothing: nan."""
    loaded, offered = shared_model(family), ("Y", "N", "<|im_end|>")
    asks: list[Any] = [NLL(of) for of in (("answer", "eos"), ("question",), ("instruction", "context"), ("context",))]
    asks.append(NextTokenProbs(offered))
    found = [run(loaded, ask, tiny_passes(), packed, tokens=130) for ask in asks]
    tokens = [loaded.tokenizer.encode(text)[0] for text in offered]
    for key, pass_ in tiny_passes().items():
        encoded = encode_prompt(loaded.tokenizer, pass_)
        log_p, _ = plain_forward(loaded, encoded.ids)
        for ask, of_ask in zip(asks[:-1], found, strict=False):
            close(of_ask[key], surprise(log_p, encoded.ids)[slice(*encoded.span(*ask.segments))])
        close(found[-1][key], log_p[-1, tokens].exp()[:, None])


def test_an_empty_segment_has_no_nll() -> None:
    assert run(shared_model(), NLL(("context",)), {"a": tiny_pass(context="")})["a"].shape == (0, 2)
    assert len(run(shared_model(), HiddenStates(2), {"a": tiny_pass(answer="")})["a"]) == 1  # EOS alone
    nothing = run(shared_model(), HiddenStates(2, segments=("context",)), {"a": tiny_pass(context="")})["a"]
    assert nothing.shape == (0, WIDTH) and nothing.dtype == torch.float32


def test_a_choice_is_one_token() -> None:
    with pytest.raises(AbstainError, match="the choice 'Yes' is 3 tokens of this base model, not one"):
        run(shared_model(), NextTokenProbs(("Yes",)), {"a": tiny_pass()})


@pytest.mark.parametrize("ended", [True, False])
def test_the_states_of_an_answer_without_eos_are_those_of_its_tokens(ended: bool) -> None:
    """Whether it ended by itself or was cut off; nothing is decoded for the state of EOS."""
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
    close(answer.states, plain_forward(loaded, [*ids, *answer.tokens])[1][2][len(ids) :])
    assert engine.stats.forward_tokens == len(ids) + len(answer.tokens)


@pytest.mark.heavy
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_greedy_and_their_states_are_those_of_the_finished_pass(family: str, packed: bool) -> None:
    """So are the probabilities of their tokens, and at every step those of the choices."""
    loaded = shared_model(family)
    eos, offered = loaded.tokenizer.eos_token_id, ("a", "b", "Z")
    chosen = [loaded.tokenizer.encode(token, add_special_tokens=False)[0] for token in offered]
    prompts = {key: pass_[PROMPT] for key, pass_ in tiny_passes().items()}
    for layer in (2, 4):
        found = run(
            loaded, Generate(6, states=HiddenStates(layer), tracked_tokens=offered), prompts, packed, tokens=150
        )
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
            close(answer.states, states[layer][len(ids) :])
            close(answer.log_probs, steps.gather(1, torch.tensor(written)[:, None])[:, 0])
            close(answer.choices, steps[:, chosen].exp())
            assert torch.equal(answer.to_cache_row(eos)[:, 0], torch.tensor(written).float())
            assert torch.equal(answer.to_cache_row(eos)[:, 1:], answer.choices)


def test_choices_are_raw_whatever_is_sampled() -> None:
    prompt = {"a": tiny_pass()[PROMPT]}
    (cold,) = run(shared_model(), Generate(1, tracked_tokens=("a",)), prompt)["a"]
    (hot,) = run(shared_model(), Generate(1, temperature=5.0, top_p=0.1, tracked_tokens=("a",)), prompt)["a"]
    close(cold.choices, hot.choices)
    assert cold.choices.shape == (1, 1)
    (none,) = run(shared_model(), Generate(3), prompt)["a"]
    assert none.choices.shape == (len(none.log_probs), 0)


def test_without_states_no_more_is_decoded_than_answers_have_tokens() -> None:
    prompts = {"a": tiny_pass()[PROMPT]}
    engines = [Engine(shared_model(), 4096) for _ in range(2)]
    for one, states in zip(engines, (None, HiddenStates(2)), strict=True):
        ((_, (answer,)),) = one.run({"a": Request(prompts["a"], Generate(5, states=states), "a")})
        assert len(answer.tokens) == 5
    prompt = len(encode_prompt(shared_model().tokenizer, prompts["a"]).ids)
    assert engines[0].stats.forward_tokens == prompt + 4  # the last token has no successor to be asked for
    assert engines[1].stats.forward_tokens == prompt + 6  # with states, it is read, and EOS after it


def test_answers_do_not_depend_on_how_many_are_decoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = {key: pass_[PROMPT] for key, pass_ in tiny_passes().items()}
    together = run(shared_model(), Generate(6), prompts)
    monkeypatch.setattr(generation, "DECODE_ROWS", 2)
    apart = run(shared_model(), Generate(6), prompts)
    assert {key: answer[0].tokens for key, answer in together.items()} == {k: a[0].tokens for k, a in apart.items()}
    assert set(apart) == set(prompts)


def test_samples_are_drawn_under_a_seed_and_follow_the_distribution() -> None:
    ask = Generate(1, temperature=1.0, samples=400, seed=3)
    prompt = tiny_pass()[PROMPT]
    loaded = shared_model()
    first, again = (run(loaded, ask, {"a": prompt})["a"] for _ in range(2))
    assert [one.tokens for one in first] == [one.tokens for one in again]
    other = run(loaded, Generate(1, temperature=1.0, samples=400, seed=4), {"a": prompt})["a"]
    assert [one.tokens for one in other] != [one.tokens for one in first]
    p = next_token(loaded, prompt)
    likeliest = int(p.argmax())
    drawn = sum(one.tokens == (likeliest,) for one in first) / len(first)
    assert abs(drawn - float(p[likeliest])) < 0.1
    assert len({one.tokens for one in first}) > 5


@pytest.mark.parametrize("least", [None, 1e-320])
def test_top_p_leaves_out_the_tail(least: float | None) -> None:
    prompt, loaded = tiny_pass()[PROMPT], shared_model()
    p = next_token(loaded, prompt)
    top_p = least or float(p.max()) / 2
    narrow = run(loaded, Generate(1, temperature=1.0, top_p=top_p, samples=30), {"a": prompt})["a"]
    assert {one.tokens for one in narrow} == {(int(p.argmax()),)}


def test_all_asks_of_one_pass_cost_one_pass() -> None:
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
    # Rows that are projected: one for each token of answer and context, one at the end, one for the answer to come.
    lengths = [len(found["nll"]), len(found["context"])]
    assert together.stats.vocabulary_rows == sum(lengths) + 1 + 1
    for name, ask in asks.items():
        alone = run(loaded, ask, {name: passes[name]})[name]
        if isinstance(alone, list):
            assert alone[0].tokens == found[name][0].tokens
        else:
            close(found[name], alone)


def test_vocabulary_is_projected_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
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
        close(found[key], expected[slice(*encoded.span("context", "answer"))])


def test_what_comes_after_the_last_segment_asked_for_is_cut_off() -> None:
    pass_ = tiny_pass()
    assert cut_to_operation(pass_, HiddenStates(2, segments=("question",))) == pass_[:4]
    assert cut_to_operation(pass_, NLL(("answer",))) == pass_[:-1]
    assert cut_to_operation(pass_, NextTokenProbs(("Y",))) == pass_
    with pytest.raises(AbstainError, match="no segment 'hint' in the prompt layout: it has instruction, context"):
        cut_to_operation(pass_, NLL(("hint",)))
    for segments in (("answer", "question"), ("context", "question")):
        with pytest.raises(AbstainError, match="are not adjacent in the prompt layout"):
            cut_to_operation(pass_, NLL(segments))


def test_a_prompt_needs_room_for_its_answer() -> None:
    room = WINDOW - len(encode_prompt(shared_model().tokenizer, tiny_pass(context="")[PROMPT]).ids)
    fits, over = (tiny_pass(context="x" * length)[PROMPT] for length in (room - 5, room - 4))
    assert run(shared_model(), Generate(5), {"a": fits})
    too_long = f"^row a: {WINDOW + 1} tokens are more than the {WINDOW} that tiny-llama"
    with pytest.raises(AbstainError, match=too_long):
        run(shared_model(), Generate(5), {"a": over})
    assert run(shared_model(), Generate(5, states=HiddenStates(2, segments=("answer",))), {"a": fits})
    with pytest.raises(AbstainError, match=too_long):  # EOS needs room, too
        run(shared_model(), Generate(5, states=HiddenStates(2)), {"a": fits})


def test_a_tokenizer_without_eos_answers_but_has_no_states_to_end_with() -> None:
    loaded = LoadedModel(shared_model().ref, shared_model().model, byte_tokenizer(eos=False))
    prompt = tiny_pass()[PROMPT]
    (answer,) = run(loaded, Generate(3), {"a": prompt})["a"]
    assert len(answer.tokens) == 3 and not answer.ended
    with pytest.raises(AbstainError, match="no EOS token, after which an answer's states are read"):
        run(loaded, Generate(3, states=HiddenStates(2)), {"a": prompt})
    (answer,) = run(loaded, Generate(3, states=HiddenStates(2, segments=("answer",))), {"a": prompt})["a"]
    assert answer.states is not None and answer.states.shape == (3, WIDTH)


def test_an_empty_pass_is_refused_by_name() -> None:
    with pytest.raises(AbstainError, match="row a: a pass without any tokens"):
        run(shared_model(), Generate(3), {"a": ()})


def test_rows_that_are_done_leave_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    honest = KVCacheDecoder.read

    def watched(self: KVCacheDecoder, tokens: Any, hooks: Any) -> Any:
        widths.append(len(tokens))
        return honest(self, tokens, hooks)

    monkeypatch.setattr(KVCacheDecoder, "read", watched)
    prompts = {f"{n}": tiny_pass(context="c" * n)[PROMPT] for n in range(4)}
    asks = {key: Generate(2 if key != "0" else 9) for key in prompts}
    found = dict(Engine(shared_model(), 4096).run({k: Request(p, asks[k], k) for k, p in prompts.items()}))
    assert widths[0] == 4 and widths[-1] == 1
    assert [len(found[key][0].tokens) for key in sorted(found)] == [9, 2, 2, 2]


def every_answer(
    loaded: LoadedModel, prompt: PromptSegments, tokens: list[int], most: int
) -> dict[tuple[int, ...], float]:
    """Mean log-probability of all answers of at most `most` of `tokens`, ended by EOS or by the limit."""
    ids, eos = encode_prompt(loaded.tokenizer, prompt).ids, loaded.tokenizer.eos_token_id
    found: dict[tuple[int, ...], float] = {}
    grow: list[tuple[tuple[int, ...], list[float]]] = [((), [])]
    while grow:
        answer, log_probs = grow.pop()
        log_p = plain_forward(loaded, [*ids, *answer])[0][-1]
        found[answer, True] = (sum(log_probs) + float(log_p[eos])) / (len(log_probs) + 1)  # type: ignore[index]
        for token in tokens:
            longer, of_longer = (*answer, token), [*log_probs, float(log_p[token])]
            if len(longer) == most:
                found[longer, False] = sum(of_longer) / most  # type: ignore[index]
            else:
                grow.append((longer, of_longer))
    return found


def guessed(prompt: PromptSegments, text: str) -> PromptSegments:
    return (*prompt, Segment("target", text))


def of_five_tokens(family: str = "llama") -> tuple[LoadedModel, list[int]]:
    """A model whose vocabulary is cut by its logits to four letters and EOS, and the letters' tokens."""
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
def test_a_wide_search_finds_the_likeliest_answer_that_contains_a_text(family: str, packed: bool) -> None:
    """Against all answers there are, for prompts of different lengths that are searched side by side.

    CD is the upper case of cd; Da and Ab are not what is sought.
    """
    loaded, letters = of_five_tokens(family)
    prompts = {"short": tiny_pass()[PROMPT], "long": tiny_pass(context="The fee is 0. " * 3)[PROMPT]}
    requests = {
        f"{name} {text}": Request(guessed(prompt, text), ConstrainedGenerate(60, 3), name)
        for name, prompt in prompts.items()
        for text in ("", "cd", "Da", "a")
    }
    searcher = Engine(loaded, 4096, packed)
    found: Any = dict(searcher.run(requests))
    forms = {"": [()], "cd": ["CD"], "Da": ["Da"], "a": ["a"]}
    for name, prompt in prompts.items():
        answers = every_answer(loaded, prompt, letters, 3)
        for text, spelt in forms.items():
            phrases = [tuple(loaded.tokenizer.encode(form)) if form else () for form in spelt]
            fits = {
                tokens + (loaded.tokenizer.eos_token_id,) * ended: score
                for (tokens, ended), score in answers.items()  # type: ignore[misc]
                if any(tokens[n : n + len(phrase)] == phrase for phrase in phrases for n in range(3))  # type: ignore[index]
            }
            best = max(fits, key=fits.__getitem__)
            result = found[f"{name} {text}"]
            assert tuple(result[:, 0].int().tolist()) == best
            assert float(result[:, 1].mean()) == pytest.approx(fits[best], abs=1e-4)


@pytest.mark.parametrize("packed", [True, False])
def test_a_narrow_search_finds_what_contains_the_text_beside_other_requests(packed: bool) -> None:
    prompt, engine = tiny_pass()[PROMPT], Engine(shared_model(), 4096, packed)
    asks: dict[str, Any] = {
        "greedy": Generate(6),
        "one beam": ConstrainedGenerate(1, 6),
        "fee": ConstrainedGenerate(4, 6),
    }
    texts = {"one beam": "", "fee": "Fee"}
    requests = {key: Request(guessed(prompt, texts[key]) if key in texts else prompt, asks[key], key) for key in asks}
    found: Any = dict(engine.run(requests))
    greedy = found["greedy"][0]
    assert tuple(found["one beam"][: len(greedy.tokens), 0].int().tolist()) == greedy.tokens
    written = engine.loaded.tokenizer.decode(found["fee"][:, 0].int().tolist())
    assert any(form in written for form in ("fee", "FEE", "Fee"))


@pytest.mark.parametrize("packed", [True, False])
def test_the_cost_of_a_search_is_its_prompt_and_a_token_a_beam_and_step(packed: bool) -> None:
    prompt, engine = tiny_pass()[PROMPT], Engine(shared_model(), 4096, packed)
    length = len(encode_prompt(engine.loaded.tokenizer, prompt).ids)
    for _ in engine.run(
        {str(n): Request(guessed(prompt, f"fee{n}"), ConstrainedGenerate(5, 8), str(n)) for n in range(3)}
    ):
        pass
    prompts = 1 if packed else 3  # a prompt that passes share is read once
    assert (
        length * prompts < engine.stats.forward_tokens <= length * prompts + 3 * 5 * 8 + (0 if packed else 3 * length)
    )


def test_beams_share_the_keys_and_values_of_their_prompt() -> None:
    """The cache of a search grows by the beams' own tokens, not by copies of the prompt."""
    loaded = shared_model()
    ids = [[5 + n for n in range(40)], [9 + n for n in range(24)]]
    plain = [loaded.model(torch.tensor([one]), use_cache=True).past_key_values for one in ids]
    kept = [[(layer.keys[0], layer.values[0]) for layer in cache.layers] for cache in plain]
    rows = make_beam_decoder(Engine(loaded, 4096, True).decoder, ids, kept)  # type: ignore[arg-type]
    rows.select([0, 0, 1])
    with torch.inference_mode():
        rows.read_final([7, 8, 9])
        rows.select([1, 0, 2, 2])
        states = rows.read_final([11, 12, 13, 14])
    assert isinstance(rows, SharedPromptDecoder)
    assert {tuple(keys.shape[::2]) for keys, _ in rows._beam_kv} == {(4, 2)}
    for state, (of, tail) in zip(states, ((0, [8, 11]), (0, [7, 12]), (1, [9, 13]), (1, [9, 14])), strict=True):
        close(state, plain_forward(loaded, [*ids[of], *tail])[1][-1][-1])


def test_a_text_that_has_no_room_is_not_guessed_and_spoils_no_other() -> None:
    prompt = tiny_pass()[PROMPT]
    passes = {"long": guessed(prompt, "concept"), "short": guessed(prompt, "fee")}
    found = run(shared_model(), ConstrainedGenerate(2, 3), passes)
    assert {key: tuple(one.shape) for key, one in found.items()} == {"long": (0, 2), "short": (3, 2)}


def test_a_text_that_looks_like_a_special_token_is_guessed_as_plain_text() -> None:
    loaded = shared_model()
    special = set(loaded.tokenizer.all_special_ids)
    assert not special & {token for phrase in get_token_forms(loaded.tokenizer, "<|im_end|>") for token in phrase}


@pytest.mark.parametrize(
    "wrong",
    [
        {"samples": 2},
        {"max_new_tokens": 0},
        {"top_p": 0.0},
        {"temperature": 1e-9},
        {"seed": 2**62},
    ],
)
def test_asks_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="token|answers|top_p|seed"):
        Generate(**wrong)
    for beams, tokens in ((0, 3), (3, 0)):
        with pytest.raises(ValueError, match="at least one beam and one token"):
            ConstrainedGenerate(beams, tokens)
    with pytest.raises(ValueError, match="a choice needs tokens"):
        NextTokenProbs(())


def test_logits_that_are_made_in_a_way_nobody_here_knows_are_not_guessed() -> None:
    """Some families scale their logits after the projection: their states can be read, their probabilities not."""
    loaded = tiny_model(seed=3)
    honest = type(loaded.model).forward

    def scaled(self: Any, *given: Any, **named: Any) -> Any:
        output = honest(self, *given, **named)
        output.logits = output.logits * 0.25
        return output

    loaded.model.forward = scaled.__get__(loaded.model)
    assert len(run(loaded, HiddenStates(2), {"a": tiny_pass()})["a"]) == len("None.") + 1
    with pytest.raises(
        AbstainError, match="tiny-llama post-processes its logits in an unsupported way: request hidden states"
    ):
        run(loaded, NLL(("answer",)), {"a": tiny_pass()})


def test_threads_that_share_a_model_wait_for_each_other() -> None:
    loaded, pass_ = tiny_model(seed=2), tiny_passes()
    expected = run(loaded, HiddenStates(2), pass_)
    engine = Engine(loaded, 150)
    requests = {key: Request(p, HiddenStates(2), key) for key, p in pass_.items()}
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: dict(engine.run(requests)), range(12)))
    for found in results:
        for key, states in expected.items():
            close(found[key], states)


def test_many_samples_of_long_prompts_are_decoded_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    honest = KVCacheDecoder.__init__

    def watched(self: KVCacheDecoder, decoder: Any, ids: Any, keys_values: Any) -> None:
        widths.append(len(ids))
        honest(self, decoder, ids, keys_values)

    monkeypatch.setattr(KVCacheDecoder, "__init__", watched)
    prompts = {f"{n}": tiny_pass(context="c" * (60 + n))[PROMPT] for n in range(6)}
    run(shared_model(), Generate(2, temperature=1.0, samples=20), prompts)
    assert widths == [40, 40, 40]
    widths.clear()
    run(shared_model(), Generate(2), prompts, tokens=30)  # eight batches of 30 tokens: two prompts or three
    assert len(widths) >= 2 and sum(widths) == 6


REAL = [
    ("How much is a new Gold card?", ["A replacement for a lost Harbour Gold card costs 12.50 EUR."]),
    ("How soon does it arrive?", ["A replacement for a lost Harbour Gold card arrives within five working days."]),
]


@pytest.mark.slow
def test_the_embedded_model_answers_with_the_states_of_two_passes(embedded: LoadedModel) -> None:
    """An answer and its states from one reading equal those of generating first and reading the answer then."""
    layout = load_layout("rag-chatml-v1")
    prompts = {f"{n}": layout.render(question, contexts, None) for n, (question, contexts) in enumerate(REAL)}
    answers: dict[str, list[GeneratedText]] = run(embedded, Generate(24, states=HiddenStates(16)), prompts)
    for n, (question, contexts) in enumerate(REAL):
        (answer,) = answers[f"{n}"]
        whole = layout.render(question, contexts, answer.text)
        assert encode_prompt(embedded.tokenizer, whole).ids[-len(answer.tokens) - 1 : -1] == list(answer.tokens)
        again = run(embedded, HiddenStates(16), {"a": whole})["a"]
        assert answer.states is not None and answer.states.shape == again.shape
        relative = (answer.states - again).norm(dim=-1) / again.norm(dim=-1)
        assert float(relative.max()) <= 1e-4
    assert "12.50" in answers["0"][0].text
