"""States and log-probabilities of an engine: the confidence is that of the project's own engine, or they are refused."""

import base64
import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import save
from torch import Tensor

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.llm.engine.tokenization import EncodedPrompt
from abstain.serving import engine_states
from abstain.serving.engine_states import StatesDescription, StatesInput, parse_embedded_request, parse_states
from abstain.serving.feature_spec import FeatureSpec
from abstain.serving.log_probs import AnswerLogProbs, parse_log_probs
from abstain.serving.predictor import Predictor
from tests.checkout import ROOT
from tests.llm.builders import LAYERS, WIDTH
from tests.serving.builders import GUARANTEE, requests
from tests.serving.conftest import Open
from tests.serving.engine_files import PlainModel, file_of, plain_prompt

LIMIT = 1 << 24
ROW = requests(3)[2]
EOS = 257
SPEC = FeatureSpec(
    model="m@1",
    layout="rag-plain-v1",
    layer=2,
    depth=4,
    site="residual",
    is_normalized=False,
    includes_eos=False,
    eos_tokens=(EOS,),
    eos_text="<|im_end|>",
    width=3,
    requires=("the hidden states of the answer",),
)


@dataclass(frozen=True)
class Served:
    """A release's predictor, and an engine of its base model."""

    predictor: Predictor
    plain: PlainModel
    spec: FeatureSpec

    def prompt(self, row: Interaction) -> list[int]:
        return self.plain.ids(plain_prompt(row))

    def ids(self, row: Interaction, eos: bool = False) -> list[int]:
        end = [self.plain.tokenizer.eos_token_id] if eos else []
        return [*self.prompt(row), *self.plain.ids(row.answer), *end]

    def write(self, row: Interaction, *layers: int, eos: bool = False) -> tuple[bytes, int]:
        """The file of these layers, -1 the last before the norm, and the tokens of the prompt."""
        ids = self.ids(row, eos)
        states = self.plain.states(ids)
        return file_of(torch.stack([states[layer] for layer in layers], 1), ids), len(self.prompt(row))

    def encode(self, row: Interaction) -> EncodedPrompt:
        return self.predictor.source.encode(row)

    def score(self, states: Tensor) -> float:
        (confidence,) = self.predictor.scorer.probe.predict([states])
        return float(confidence)

    def approximate(self, row: Interaction = ROW) -> Any:
        """The confidence by the project's own engine, nearly."""
        (decision,) = self.predictor.decide_interactions([row])
        return pytest.approx(decision.confidence, abs=1e-5)


Serve = Callable[..., Served]


@pytest.fixture
def serve(opened: Open, plain: PlainModel, settings: Settings) -> Serve:
    """Open a release, whose probe reads no EOS, with these changes of its metadata."""

    def open_(**changes: str) -> Served:
        predictor = opened(**{"includes_eos": "false", **changes})
        return Served(predictor, plain, FeatureSpec.from_scorer(predictor.scorer, settings))

    return open_


def describe(engine: str = "vllm", **changes: Any) -> StatesDescription:
    return StatesDescription.model_validate(
        {"engine": engine, "layers": (2,), "prompt_tokens": 2, "finish_reason": "stop", **changes}
    )


def reject(
    content: bytes, description: StatesDescription, spec: FeatureSpec = SPEC, tokens: EncodedPrompt | None = None
) -> str:
    with pytest.raises(AbstainError) as error:
        parse_states(content, description, spec, tokens)
    assert error.value.code == Code.STATES_MISMATCH
    return error.value.message


def example(width: int = 3, dtype: torch.dtype = torch.float32) -> bytes:
    states = torch.arange(5 * width, dtype=torch.float32).reshape(5, 1, width)
    return file_of(states.to(dtype), [0, 1, 2, 3, 7])


@pytest.mark.parametrize(("engine", "layers"), [("vllm", (2,)), ("vllm", (3, 2, 0)), ("transformers", (1, 2, 3))])
def test_parse_states_of_a_layer_score_as_our_own_engine(serve: Serve, engine: str, layers: tuple[int, ...]) -> None:
    served = serve()
    content, prompt = served.write(ROW, *layers)
    description = describe(engine, layers=layers, prompt_tokens=prompt)
    for tokens in (None, served.encode(ROW)):
        states = parse_states(content, description, served.spec, tokens)
        assert states.shape == (len(served.plain.ids(ROW.answer)), WIDTH) and states.dtype == torch.float32
        assert served.score(states) == served.approximate()


@pytest.mark.parametrize("includes_eos", ["true", "false"])
def test_parse_states_reads_eos_where_the_probe_does(serve: Serve, includes_eos: str) -> None:
    served = serve(includes_eos=includes_eos)
    content, prompt = served.write(ROW, 2, eos=True)
    description = describe("transformers", prompt_tokens=prompt, finish_reason=None)
    assert served.score(parse_states(content, description, served.spec)) == served.approximate()
    if includes_eos == "true":
        assert "llm.includes_eos: false" in reject(served.write(ROW, 2)[0], description, served.spec)


def test_parse_states_of_the_last_layer_are_after_the_norm(serve: Serve) -> None:
    served = serve(layer=str(LAYERS))
    assert served.spec.is_normalized
    content, prompt = served.write(ROW, LAYERS)
    last = {"layers": (LAYERS,), "prompt_tokens": prompt}
    for description in (describe("transformers", **last), describe("sglang", is_normalized=True, **last)):
        assert served.score(parse_states(content, description, served.spec)) == served.approximate()
    assert "`is_normalized`" in reject(content, describe("sglang", **last), served.spec)
    before, _ = served.write(ROW, -1)
    for description in (describe("vllm", **last), describe("sglang", is_normalized=False, **last)):
        assert f"below {LAYERS}" in reject(before, description, served.spec)
    unchecked = served.score(parse_states(before, describe("vllm", is_normalized=True, **last), served.spec))
    assert abs(unchecked - served.approximate().expected) > 1e-2, "so the norm matters"


def test_parse_states_rejects_those_of_other_texts(serve: Serve) -> None:
    """They went to the wrong request, or lack a token; without the texts nothing shows it."""
    served = serve()
    content, prompt = served.write(ROW, 2)
    at_token = plain_prompt(ROW).index("2?")
    for change, message in (
        ({"answer": "no " + ROW.answer}, "of other tokens"),
        ({"answer": "Yes" + ROW.answer[3:]}, "of other tokens"),
        ({"answer": ROW.answer + "!"}, "last token is missing"),
        ({"question": "Question 3?"}, f"they differ at token {at_token}:"),
    ):
        tokens = served.encode(ROW.model_copy(update=change))
        assert message in reject(content, describe(prompt_tokens=prompt), served.spec, tokens)
    for wrong in (prompt - 1, prompt + 1):
        message = reject(content, describe(prompt_tokens=wrong), served.spec, served.encode(ROW))
        assert f"of {wrong} tokens," in message
    too_long = served.predictor.source.encode(ROW.model_copy(update={"answer": "x" * 600}))
    with pytest.raises(AbstainError, check=lambda error: error.code is Code.TOO_LONG):
        parse_states(content, describe(prompt_tokens=prompt), served.spec, too_long)


def test_parse_states_reads_half_precision() -> None:
    exact = parse_states(example(), describe(), SPEC)
    for dtype in (torch.bfloat16, torch.float16):
        torch.testing.assert_close(parse_states(example(dtype=dtype), describe(), SPEC), exact, rtol=2**-8, atol=0)


@pytest.mark.parametrize(
    ("content", "changes", "spec", "message"),
    [
        (example(), {}, {"site": "mlp"}, "the site mlp, which no engine gives"),
        (example(), {}, {"site": "neurons"}, "the site neurons, which no engine gives"),
        (file_of(torch.zeros(5, 1, 3), [0, 1, EOS, 3, 4]), {}, {}, "what ends an answer stands within it"),
        (example(dtype=torch.float64), {}, {}, "hidden_states are torch.float64"),
        (example(width=4), {}, {}, "4 wide"),
        (file_of(torch.zeros(5, 3), range(5)), {}, {}, "hidden_states have the shape (5, 3)"),
        (file_of(torch.zeros(5, 1, 3), torch.zeros(5, 1, dtype=torch.int64)), {}, {}, "token_ids (5, 1)"),
        (file_of(torch.zeros(5, 1, 3), range(5), logits=torch.zeros(1)), {}, {}, "'hidden_states', 'logits', "),
        (save({"hidden_states": torch.zeros(5, 1, 3)}), {}, {}, "hold 'hidden_states': write"),
        (save({"a\nb": torch.zeros(1)}), {}, {}, "hold 'a\\nb'"),
    ],
)
def test_parse_rejects_mismatches(content: bytes, changes: dict[str, Any], spec: dict[str, Any], message: str) -> None:
    assert parse_states(example(), describe(), SPEC).flatten().tolist() == list(range(6, 15))
    assert message in reject(content, describe(**changes), SPEC.model_copy(update=spec))


def test_parse_states_rejects_values_not_finite() -> None:
    for value in (float("nan"), float("inf"), float("-inf")):
        states = torch.zeros(5, 1, 3)
        states[1] = value  # of the prompt: not read
        assert parse_states(file_of(states, range(5)), describe(), SPEC).shape == (3, 3)
        states[4, 0, 1] = value
        with pytest.raises(AbstainError, match="not finite", check=lambda error: error.code is Code.NOT_FINITE):
            parse_states(file_of(states, range(5)), describe(), SPEC)


def test_parse_states_finds_an_end_of_several_tokens() -> None:
    spec = SPEC.model_copy(update={"eos_tokens": (8, 9)})
    content = file_of(torch.zeros(6, 1, 3), [0, 1, 2, 3, 8, 9])
    assert len(parse_states(content, describe(finish_reason=None), spec)) == 2
    with_end = spec.model_copy(update={"includes_eos": True})
    assert len(parse_states(content, describe(finish_reason=None), with_end)) == 4
    assert "do not end with it" in reject(file_of(torch.zeros(5, 1, 3), [0, 1, 2, 3, 8]), describe(), with_end)


@hypothesis_settings(max_examples=150, deadline=None)
@drawn(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 3), st.integers(1, 4), st.integers(0, 7)),
    st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple),
    st.tuples(st.sampled_from(["stop", "length", None]), st.booleans(), st.booleans()),
)
def test_parse_states_are_of_their_tokens_or_rejected(
    sizes: tuple[int, ...], layers: tuple[int, ...], end: tuple[str | None, bool, bool]
) -> None:
    """A state names its token and layer: whatever comes, what is read is of the answer's tokens and our layer."""
    (tokens, ids, axis, width, prompt), (reason, ended, includes) = sizes, end
    states = torch.zeros(tokens, axis, width)
    states += torch.arange(tokens)[:, None, None] + 100 * torch.tensor([*layers, 50, 50][:axis])[None, :, None]
    of_tokens = [*range(ids - ended), *([EOS] if ended and ids else [])]
    spec = SPEC.model_copy(update={"includes_eos": includes})
    how = describe(layers=layers, prompt_tokens=prompt, finish_reason=reason)
    try:
        found = parse_states(file_of(states, torch.tensor(of_tokens, dtype=torch.int64)), how, spec)
    except AbstainError:
        fits = tokens == ids and 2 in layers and len(set(layers)) == len(layers) == axis and max(layers) <= 4
        known = (ended or reason == "stop") and (ended or not includes)
        assert not (fits and known and width == 3 and prompt < ids - ended)
        return
    last = ids if includes or not ended else ids - 1
    assert found.tolist() == [[200.0 + token] * 3 for token in range(prompt, last)]
    assert ended or (reason == "stop" and not includes)


@hypothesis_settings(max_examples=200, deadline=None)
@drawn(content=st.one_of(st.binary(max_size=64), st.tuples(st.integers(0, 200), st.binary(min_size=1, max_size=3))))
def test_parse_states_rejects_a_damaged_file(content: bytes | tuple[int, bytes]) -> None:
    if isinstance(content, tuple):
        at, patch = content
        whole = example()
        content = whole[:at] + patch + whole[at + len(patch) :]
    for read in (lambda: parse_states(content, describe(), SPEC), lambda: parse_embedded_request(content)):
        with suppress(AbstainError):
            read()


def test_read_states_of_base64() -> None:
    text = base64.b64encode(example()).decode()
    asked = {**describe().model_dump(exclude_none=True), "safetensors": text}
    found = engine_states.read_states(StatesInput.model_validate_json(json.dumps(asked)), SPEC, None, LIMIT)
    assert torch.equal(found, parse_states(example(), describe(), SPEC))
    for wrong in (text[:-3], text + "?", "ü"):
        with pytest.raises(AbstainError, match="no base64"):
            engine_states.read_states(StatesInput(**{**asked, "safetensors": wrong}), SPEC, None, LIMIT)
    size = len(example())
    assert engine_states.read_states(StatesInput(**asked), SPEC, None, size) is not None
    for limit in (size - 1, size // 2):
        with pytest.raises(AbstainError, match=f"more than {limit}", check=lambda error: error.code is Code.TOO_LARGE):
            engine_states.read_states(StatesInput(**asked), SPEC, None, limit)


def test_states_input_rejects_a_wrong_description() -> None:
    whole = {"engine": "vllm", "layers": [2], "prompt_tokens": 3}
    assert StatesInput.model_validate({**whole, "path": "a"}).layers == (2,)
    for changes in ({}, {"safetensors": "", "path": "a"}, {"path": "a", "layers": []}, {"path": "a", "layers": [-1]}):
        with pytest.raises(ValidationError):
            StatesInput.model_validate({**whole, **changes})


def test_parse_embedded_request_of_the_metadata() -> None:
    asked = {"question": "Why?", "states": describe().model_dump()}
    tensors = {"hidden_states": torch.zeros(5, 1, 3), "token_ids": torch.arange(5)}
    assert parse_embedded_request(save(tensors, {"request": json.dumps(asked)}))["question"] == "Why?"
    for metadata in (None, {}, {"request": "["}, {"request": "[1]"}, {"request": "[" * 10_000}, {"other": "{}"}):
        with pytest.raises(AbstainError, match="__metadata__", check=lambda error: error.code is Code.WRONG_FORMAT):
            parse_embedded_request(save(tensors, metadata))


def test_feature_spec_describes_layer_and_eos(serve: Serve) -> None:
    spec = serve().spec
    assert (spec.layer, spec.depth, spec.is_normalized, spec.width) == (2, LAYERS, False, WIDTH)
    assert (spec.includes_eos, spec.eos_text, spec.eos_tokens) == (False, "<|im_end|>", (EOS,))
    assert spec.model.startswith("tiny-bank@") and spec.requires == ("the hidden states of the answer",)
    assert FeatureSpec.model_validate_json(spec.to_json_line()) == spec
    assert serve().spec.digest == spec.digest != serve(layer="3").spec.digest


def load_page_code(text: str, **replaced: str) -> dict[str, Any]:
    """What the Python of the how-to that has `text` in it defines."""
    page = (ROOT / "docs" / "howto" / "serve-from-vllm.md").read_text()
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if text in code]
    for old, new in replaced.items():
        code = code.replace(old, new)
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def test_page_decides_by_a_file_of_vllm(
    serve: Serve, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(guarantee=GUARANTEE)
    folder = tmp_path / ".abstain" / "releases" / "v1.0.0"
    folder.parent.mkdir(parents=True)
    (tmp_path / "bundle").rename(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("abstain.serving.gate.load_settings", lambda: settings)
    page = load_page_code("def decide", **{"layers=(14,)": "layers=(2,)", "/dev/shm/hidden_states": str(tmp_path)})
    content, prompt = served.write(ROW, 2)
    file = tmp_path / "cmpl-1.safetensors"
    file.write_bytes(content)
    response = {
        "usage": {"prompt_tokens": prompt},
        "choices": [{"finish_reason": "stop"}],
        "kv_transfer_params": {"hidden_states_path": str(file)},
    }
    assert page["decide"](ROW, response).confidence == served.approximate() and not file.exists()


def test_page_makes_a_file_of_an_sglang_response(serve: Serve) -> None:
    served = serve(layer=str(LAYERS))
    prompt, answer = served.plain.ids(plain_prompt(ROW)), served.plain.ids(ROW.answer)
    states = served.plain.states([*prompt, *answer])[LAYERS].tolist()
    parts = [states[: len(prompt)], *states[len(prompt) :]]
    response = {"meta_info": {"hidden_states": parts}, "output_ids": [*answer, EOS]}
    content = load_page_code("def states_of")["states_of"](prompt, response)
    last = {"layers": (LAYERS,), "prompt_tokens": len(prompt)}
    description = describe("sglang", finish_reason=None, is_normalized=True, **last)
    parsed = parse_states(content, description, served.spec, served.encode(ROW))
    assert served.score(parsed) == served.approximate()


ANSWER = [("It", -0.5), (" is", -0.25), (" 5.", -1.5)]
EOS_TOKEN = ("<|im_end|>", -0.125)
TOKENS = EncodedPrompt([1, 2, 3, 4, 5, 9], {"question": (0, 2), "answer": (2, 5), "eos": (5, 6)})


def chat(*tokens: tuple[Any, Any]) -> dict[str, Any]:
    content = [{"token": text, "logprob": value, "bytes": None, "top_logprobs": []} for text, value in tokens]
    return {"choices": [{"index": 0, "finish_reason": "stop", "logprobs": {"content": content, "refusal": None}}]}


def completion(*tokens: tuple[Any, Any]) -> dict[str, Any]:
    texts, values = zip(*tokens, strict=True)
    return {"choices": [{"text": "", "logprobs": {"tokens": [*texts], "token_logprobs": [*values], "text_offset": []}}]}


def reject_response(response: dict[str, Any], **more: Any) -> str:
    with pytest.raises(AbstainError) as error:
        parse_log_probs(response, SPEC, **more)
    assert error.value.code == Code.STATES_MISMATCH and error.value.message.startswith("log-probabilities: ")
    return error.value.message


@pytest.mark.parametrize("shape", [chat, completion])
@pytest.mark.parametrize("more", [{}, {"answer": "It is 5."}, {"answer": "It is 5.", "tokens": TOKENS}])
def test_parse_log_probs_separates_answer_and_eos(shape: Any, more: dict[str, Any]) -> None:
    expected = AnswerLogProbs((-0.5, -0.25, -1.5), None)
    assert parse_log_probs(shape(*ANSWER), SPEC, **more) == expected
    assert parse_log_probs(shape(*ANSWER, EOS_TOKEN), SPEC, **more) == AnswerLogProbs(expected.token_log_probs, -0.125)


def test_log_probs_to_nll_and_entropy_has_nan_for_unknown() -> None:
    nan = math.nan
    without = parse_log_probs(chat(*ANSWER), SPEC).to_nll_and_entropy()
    expected = torch.tensor([[0.5, nan], [0.25, nan], [1.5, nan], [nan, nan]])
    torch.testing.assert_close(without, expected, equal_nan=True)
    with_eos = parse_log_probs(chat(*ANSWER, EOS_TOKEN), SPEC).to_nll_and_entropy()
    assert with_eos[-1, 0] == 0.125 and with_eos.dtype == torch.float32


def test_parse_log_probs_of_a_last_token_without_text() -> None:
    silent = ("", -0.125)
    assert parse_log_probs(chat(*ANSWER, silent), SPEC, tokens=TOKENS).eos_log_prob == -0.125
    assert parse_log_probs(chat(*ANSWER[:2], silent), SPEC, tokens=TOKENS).eos_log_prob is None
    assert "it may be EOS or not" in reject_response(chat(*ANSWER, silent))


def test_parse_log_probs_rejects_those_of_another_answer() -> None:
    assert "do not make this answer" in reject_response(chat(*ANSWER), answer="It is 6.")
    assert "those of 2 tokens, the answer has 3" in reject_response(chat(*ANSWER[:2]), tokens=TOKENS)
    assert "those of 4 tokens, the answer has 3" in reject_response(chat(*ANSWER, (" x", -1.0)), tokens=TOKENS)
    half = chat(("\ufffd", -1.0), ("\ufffd", -1.0))  # of one character, whose bytes are two tokens
    assert len(parse_log_probs(half, SPEC, answer="é").token_log_probs) == 2


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ({"choices": [chat(*ANSWER)["choices"][0]] * 2}, "n = 1"),
        ({"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": []}}]}, "ask for logprobs"),
        (chat(EOS_TOKEN), "none of the answer itself"),
        (completion(("It", None), *ANSWER), "as of a prompt that is echoed"),
        (chat(("It", True)), "no number"),
        (chat(("It", 0.5)), "is 0.5: give natural logarithms"),
        (chat(("It", -9999.0)), "is -9999: give"),
    ],
)
def test_parse_log_probs_rejects_other_responses(response: dict[str, Any], message: str) -> None:
    assert message in reject_response(response)


@drawn(response=st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["choices", "logprobs", "content", "token", "logprob", "tokens", "token_logprobs"]), inner, max_size=3), max_leaves=12))  # fmt: skip
def test_parse_log_probs_reads_or_rejects_any_json(response: Any) -> None:
    try:
        assert parse_log_probs(response, SPEC).token_log_probs
    except AbstainError as error:
        assert error.code == Code.STATES_MISMATCH
