"""States that an engine computed: the confidence is that of the project's own engine, or they are refused."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
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
from abstain.serving.engine_states import (
    StatesDescription,
    StatesInput,
    parse_embedded_request,
    parse_states,
    read_states,
)
from abstain.serving.feature_spec import FeatureSpec
from abstain.serving.predictor import Predictor
from tests.checkout import ROOT
from tests.llm.builders import LAYERS, WIDTH
from tests.serving.builders import GUARANTEE, requests
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


@pytest.fixture(scope="module")
def plain(model: Path) -> PlainModel:
    return PlainModel.load(model)


@pytest.fixture
def without_eos(opened: Callable[..., Predictor]) -> Callable[..., Predictor]:
    return lambda **changes: opened(**{"includes_eos": "false", **changes})


def described(engine: str = "vllm", **changes: Any) -> StatesDescription:
    return StatesDescription.model_validate(
        {"engine": engine, "layers": (2,), "prompt_tokens": 2, "finish_reason": "stop", **changes}
    )


def written(plain: PlainModel, row: Interaction, *layers: int, eos: bool = False) -> tuple[bytes, int]:
    """The file of these layers, -1 the last before the norm, and the tokens of the prompt."""
    prompt, answer = plain.ids(plain_prompt(row)), plain.ids(row.answer)
    ids = [*prompt, *answer, *([plain.tokenizer.eos_token_id] if eos else [])]
    states = plain.states(ids)
    return file_of(torch.stack([states[layer] for layer in layers], 1), ids), len(prompt)


def confidence(predictor: Predictor, states: Tensor) -> float:
    (found,) = predictor.scorer.probe.predict([states])
    return float(found)


def own(predictor: Predictor, row: Interaction) -> float:
    (decision,) = predictor.decide_interactions([row])
    assert decision.confidence is not None
    return decision.confidence


def tokens_of(predictor: Predictor, row: Interaction) -> EncodedPrompt:
    found = predictor.source.encode(row)
    assert isinstance(found, EncodedPrompt)
    return found


def spec_of(predictor: Predictor, settings: Settings) -> FeatureSpec:
    return FeatureSpec.from_scorer(predictor.scorer, settings)


def refused(
    content: bytes, how: StatesDescription, spec: FeatureSpec = SPEC, tokens: EncodedPrompt | None = None
) -> str:
    with pytest.raises(AbstainError) as error:
        parse_states(content, how, spec, tokens)
    assert error.value.code == Code.STATES_MISMATCH and "\n" not in error.value.message
    return error.value.message


def example(
    tokens: int = 5, layers: int = 1, width: int = 3, dtype: torch.dtype = torch.float32, last: int = 7
) -> bytes:
    states = torch.arange(tokens * layers * width, dtype=torch.float32).reshape(tokens, layers, width)
    return file_of(states.to(dtype), [*range(tokens - 1), last])


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
@pytest.mark.parametrize("layers", [(2,), (1, 2, 3), (3, 2, 0)])
def test_a_layer_gives_the_confidence_of_our_own_engine(
    without_eos: Callable[..., Predictor], plain: PlainModel, settings: Settings, engine: str, layers: tuple[int, ...]
) -> None:
    predictor = without_eos()
    content, prompt = written(plain, ROW, *layers)
    how = described(engine, layers=layers, prompt_tokens=prompt)
    for tokens in (None, tokens_of(predictor, ROW)):
        found = parse_states(content, how, spec_of(predictor, settings), tokens)
        assert found.shape == (len(plain.ids(ROW.answer)), WIDTH) and found.dtype == torch.float32
        assert confidence(predictor, found) == pytest.approx(own(predictor, ROW), abs=1e-5)


def test_with_eos_its_state_is_read_too(
    opened: Callable[..., Predictor], plain: PlainModel, settings: Settings
) -> None:
    predictor = opened()
    content, prompt = written(plain, ROW, 2, eos=True)
    how = described("transformers", prompt_tokens=prompt, finish_reason=None)
    found = parse_states(content, how, spec_of(predictor, settings))
    assert confidence(predictor, found) == pytest.approx(own(predictor, ROW), abs=1e-5)
    content, _ = written(plain, ROW, 2)
    assert "train with llm.includes_eos: false" in refused(content, how, spec_of(predictor, settings))


def test_an_eos_that_the_probe_does_not_read_is_left_out(
    without_eos: Callable[..., Predictor], plain: PlainModel, settings: Settings
) -> None:
    predictor = without_eos()
    content, prompt = written(plain, ROW, 2, eos=True)
    how = described("transformers", prompt_tokens=prompt, finish_reason=None)
    found = parse_states(content, how, spec_of(predictor, settings))
    assert confidence(predictor, found) == pytest.approx(own(predictor, ROW), abs=1e-5)


def test_the_last_layer_is_read_after_the_norm_or_refused(
    without_eos: Callable[..., Predictor], plain: PlainModel, settings: Settings
) -> None:
    predictor = without_eos(layer=str(LAYERS))
    spec, expected = spec_of(predictor, settings), own(predictor, ROW)
    assert spec.is_normalized
    content, prompt = written(plain, ROW, LAYERS)
    last = {"layers": (LAYERS,), "prompt_tokens": prompt}
    for how in (described("transformers", **last), described("sglang", is_normalized=True, **last)):
        assert confidence(predictor, parse_states(content, how, spec)) == pytest.approx(expected, abs=1e-5)
    assert "say which as `is_normalized`" in refused(content, described("sglang", **last), spec)
    before, _ = written(plain, ROW, -1)
    for how in (described("vllm", **last), described("sglang", is_normalized=False, **last)):
        assert f"train with an llm.layer below {LAYERS}" in refused(before, how, spec)
    unchecked = parse_states(before, described("vllm", is_normalized=True, **last), spec)
    assert confidence(predictor, unchecked) != pytest.approx(expected, abs=1e-2), "so the norm matters"


def test_states_of_other_texts_are_refused(
    without_eos: Callable[..., Predictor], plain: PlainModel, settings: Settings
) -> None:
    """They went to the wrong request, or lack a token; without the texts nothing tells."""
    predictor = without_eos()
    spec, (content, prompt) = spec_of(predictor, settings), written(plain, ROW, 2)
    how = described(prompt_tokens=prompt)
    other_answer = ROW.model_copy(update={"answer": "no " + ROW.answer})
    assert "of other tokens than those of this answer" in refused(
        content, how, spec, tokens_of(predictor, other_answer)
    )
    as_long = ROW.model_copy(update={"answer": "Yes" + ROW.answer[3:]})
    assert "of other tokens than those of this answer" in refused(content, how, spec, tokens_of(predictor, as_long))
    longer = ROW.model_copy(update={"answer": ROW.answer + "!"})
    assert "the answer's last token is missing" in refused(content, how, spec, tokens_of(predictor, longer))
    elsewhere = ROW.model_copy(update={"question": "Question 3?"})
    message = refused(content, how, spec, tokens_of(predictor, elsewhere))
    assert f"they differ at token {plain_prompt(ROW).index('2?')}:" in message
    for wrong in (prompt - 1, prompt + 1):
        message = refused(content, described(prompt_tokens=wrong), spec, tokens_of(predictor, ROW))
        assert f"the engine read another prompt, of {wrong} tokens," in message


def test_texts_that_the_base_model_cannot_read_are_refused(
    without_eos: Callable[..., Predictor], plain: PlainModel, settings: Settings
) -> None:
    """As they are where it reads them itself."""
    predictor = without_eos()
    content, prompt = written(plain, ROW, 2)
    too_long = predictor.source.encode(ROW.model_copy(update={"answer": "x" * 600}))
    with pytest.raises(AbstainError, match="tokens are more than the 512") as error:
        parse_states(content, described(prompt_tokens=prompt), spec_of(predictor, settings), too_long)
    assert error.value.code == Code.TOO_LONG


def test_half_precision_is_read(without_eos: Callable[..., Predictor], plain: PlainModel, settings: Settings) -> None:
    predictor = without_eos()
    content, prompt = written(plain, ROW, 2)
    exact = parse_states(content, described(prompt_tokens=prompt), spec_of(predictor, settings))
    ids = torch.arange(prompt + len(exact), dtype=torch.int32)
    whole = torch.cat([torch.zeros(prompt, WIDTH), exact])[:, None]
    for dtype in (torch.bfloat16, torch.float16):
        found = parse_states(
            file_of(whole.to(dtype), ids), described(prompt_tokens=prompt), spec_of(predictor, settings)
        )
        torch.testing.assert_close(found, exact, rtol=2**-8, atol=0)


@pytest.mark.parametrize(
    ("content", "changes", "spec", "message"),
    [
        (file_of(torch.zeros(4, 1, 3), range(5)), {}, {}, "hidden_states are of 4 tokens, token_ids are 5"),
        (file_of(torch.zeros(5, 1, 3), range(4)), {}, {}, "hidden_states are of 5 tokens, token_ids are 4"),
        (example(), {"layers": (1,)}, {}, "the probe reads layer 2, given are 1: let the engine extract it"),
        (example(), {"engine": "sglang", "layers": (4,)}, {}, "given are 4: SGLang gives the last one alone"),
        (example(layers=2), {"layers": (2, 2)}, {}, "each once"),
        (example(layers=2), {"layers": (2, 5)}, {}, "m@1 has 0 (its embedding) to 4"),
        (example(layers=2), {}, {}, "hidden_states have 2 layers, `layers` names 1"),
        (example(width=4), {}, {}, "hidden_states are 4 wide, those of m@1 are 3"),
        (example(), {}, {"site": "mlp"}, "feed-forward block, which no engine gives"),
        (example(), {"prompt_tokens": 5}, {}, "of 5 tokens 5 are the prompt"),
        (example(), {"prompt_tokens": 9}, {}, "of 5 tokens 9 are the prompt"),
        (example(last=EOS), {"prompt_tokens": 4}, {}, "the answer is empty"),
        (example(), {}, {"includes_eos": True}, "the tokens do not end with it"),
        (example(), {"finish_reason": "length"}, {}, "last token may be missing"),
        (example(), {"finish_reason": None}, {}, "last token may be missing"),
        (file_of(torch.zeros(5, 1, 3), [0, 1, EOS, 3, 4]), {}, {}, "what ends an answer stands within it"),
        (example(dtype=torch.float64), {}, {}, "hidden_states are torch.float64"),
        (file_of(torch.zeros(5, 1, 3), torch.zeros(5)), {}, {}, "token_ids torch.float32"),
        (file_of(torch.zeros(5, 3), range(5)), {}, {}, "hidden_states have the shape (5, 3)"),
        (file_of(torch.zeros(5, 1, 3), torch.zeros(5, 1, dtype=torch.int64)), {}, {}, "token_ids (5, 1)"),
        (file_of(torch.zeros(0, 1, 3), torch.zeros(0, dtype=torch.int64)), {"prompt_tokens": 0}, {}, "of 0 tokens 0"),
        (
            file_of(torch.zeros(5, 1, 3), range(5), logits=torch.zeros(1)),
            {},
            {},
            "hold 'hidden_states', 'logits', 'token_ids'",
        ),
        (save({"hidden_states": torch.zeros(5, 1, 3)}), {}, {}, "hold 'hidden_states': write"),
        (save({}), {}, {}, "hold nothing"),
        (save({"a\nb": torch.zeros(1)}), {}, {}, "hold 'a\\nb'"),
    ],
)
def test_what_is_not_what_the_probe_reads_is_refused(
    content: bytes, changes: dict[str, Any], spec: dict[str, Any], message: str
) -> None:
    assert parse_states(example(), described(), SPEC).tolist() == [
        [6.0, 7.0, 8.0],
        [9.0, 10.0, 11.0],
        [12.0, 13.0, 14.0],
    ]
    assert message in refused(content, described(**changes), SPEC.model_copy(update=spec))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_states_of_the_answer_are_finite(value: float) -> None:
    states = torch.zeros(5, 1, 3)
    states[1] = value  # of the prompt: not read
    assert parse_states(file_of(states, range(5)), described(), SPEC).shape == (3, 3)
    states[4, 0, 1] = value
    with pytest.raises(AbstainError, match="not finite") as error:
        parse_states(file_of(states, range(5)), described(), SPEC)
    assert error.value.code == Code.NOT_FINITE


def test_an_end_of_several_tokens_is_found_whole() -> None:
    spec = SPEC.model_copy(update={"eos_tokens": (8, 9)})
    content = file_of(torch.zeros(6, 1, 3), [0, 1, 2, 3, 8, 9])
    assert len(parse_states(content, described(finish_reason=None), spec)) == 2
    with_end = spec.model_copy(update={"includes_eos": True})
    assert len(parse_states(content, described(finish_reason=None), with_end)) == 4
    assert "do not end with it" in refused(file_of(torch.zeros(5, 1, 3), [0, 1, 2, 3, 8]), described(), with_end)


@hypothesis_settings(max_examples=150, deadline=None)
@drawn(
    tokens=st.integers(0, 6),
    ids=st.integers(0, 6),
    layers=st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple),
    axis=st.integers(1, 3),
    width=st.integers(1, 4),
    prompt=st.integers(0, 7),
    reason=st.sampled_from(["stop", "length", None]),
    ended=st.booleans(),
    includes=st.booleans(),
)
def test_states_are_those_of_the_tokens_or_refused(
    tokens: int,
    ids: int,
    layers: tuple[int, ...],
    axis: int,
    width: int,
    prompt: int,
    reason: Any,
    ended: bool,
    includes: bool,
) -> None:
    """A state tells its token and layer: whatever is given, what is read is of the answer's tokens and our layer."""
    states = torch.zeros(tokens, axis, width)
    states += torch.arange(tokens)[:, None, None] + 100 * torch.tensor([*layers, 50, 50][:axis])[None, :, None]
    of_tokens = [*range(ids - ended), *([EOS] if ended and ids else [])]
    spec = SPEC.model_copy(update={"includes_eos": includes})
    how = described(layers=layers, prompt_tokens=prompt, finish_reason=reason)
    try:
        found = parse_states(file_of(states, torch.tensor(of_tokens, dtype=torch.int64)), how, spec)
    except AbstainError:
        fits = tokens == ids and 2 in layers and len(set(layers)) == len(layers) == axis and max(layers) <= 4
        known = (ended or reason == "stop") and (ended or not includes)
        assert not (fits and known and width == 3 and prompt < ids - ended)
        return
    end = ids if includes or not ended else ids - 1
    assert found.tolist() == [[200.0 + token] * 3 for token in range(prompt, end)]
    assert ended or (reason == "stop" and not includes)


@hypothesis_settings(max_examples=200, deadline=None)
@drawn(content=st.one_of(st.binary(max_size=64), st.tuples(st.integers(0, 200), st.binary(min_size=1, max_size=3))))
def test_a_damaged_file_is_refused(content: bytes | tuple[int, bytes]) -> None:
    if isinstance(content, tuple):
        at, patch = content
        whole = example()
        content = whole[:at] + patch + whole[at + len(patch) :]
    for read in (lambda: parse_states(content, described(), SPEC), lambda: parse_embedded_request(content)):
        try:
            read()
        except AbstainError as error:
            assert "\n" not in error.message


def test_bytes_come_as_base64() -> None:
    text = base64.b64encode(example()).decode()
    asked = {**described().model_dump(exclude_none=True), "safetensors": text}
    found = read_states(StatesInput.model_validate_json(json.dumps(asked)), SPEC, None, LIMIT)
    assert torch.equal(found, parse_states(example(), described(), SPEC))
    for wrong in (text[:-3], text + "?", "ü"):
        with pytest.raises(AbstainError, match="no base64"):
            read_states(StatesInput(**{**asked, "safetensors": wrong}), SPEC, None, LIMIT)
    size = len(example())
    assert read_states(StatesInput(**asked), SPEC, None, size) is not None
    for limit in (size - 1, size // 2):
        with pytest.raises(AbstainError, match=f"more than {limit} bytes") as error:
            read_states(StatesInput(**asked), SPEC, None, limit)
        assert error.value.code == Code.TOO_LARGE


def test_a_path_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(example())
    asked = StatesInput(**described().model_dump(), path="a.safetensors")
    found = read_states(asked, SPEC, tmp_path, LIMIT)
    assert torch.equal(found, parse_states(example(), described(), SPEC))
    with pytest.raises(AbstainError, match="cannot be read"):
        read_states(asked, SPEC, tmp_path, LIMIT)


def test_states_that_are_refused_are_deleted_too(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(example(width=4))
    with pytest.raises(AbstainError, match="4 wide"):
        read_states(StatesInput(**described().model_dump(), path="a.safetensors"), SPEC, tmp_path, LIMIT)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"safetensors": "", "path": "a"},
        {"path": "a", "engine": "llama.cpp"},
        {"path": "a", "layers": []},
        {"path": "a", "layers": [-1]},
        {"path": "a", "layers": ["2"]},
        {"path": "a", "prompt_tokens": -1},
        {"path": "a", "prompt_tokens": 2.5},
        {"path": "a", "is_normalized": "yes"},
        {"path": "a", "finish_reason": "abort"},
        {"path": "a", "layer": 2},
    ],
)
def test_a_description_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    whole = {"engine": "vllm", "layers": [2], "prompt_tokens": 3}
    assert StatesInput.model_validate({**whole, "path": "a"}).layers == (2,)
    with pytest.raises(ValidationError):
        StatesInput.model_validate({**whole, **changes})


def test_the_rest_of_a_request_is_in_the_files_metadata() -> None:
    asked = {"question": "Why?", "states": described().model_dump()}
    tensors = {"hidden_states": torch.zeros(5, 1, 3), "token_ids": torch.arange(5)}
    assert parse_embedded_request(save(tensors, {"request": json.dumps(asked)}))["question"] == "Why?"
    for metadata in (None, {}, {"request": "["}, {"request": "[1]"}, {"request": "[" * 10_000}, {"other": "{}"}):
        with pytest.raises(AbstainError, match="no safetensors file whose __metadata__") as error:
            parse_embedded_request(save(tensors, metadata))
        assert error.value.code == Code.WRONG_FORMAT


def test_what_is_read_has_a_specification(without_eos: Callable[..., Predictor], settings: Settings) -> None:
    spec = spec_of(without_eos(), settings)
    assert (spec.layer, spec.depth, spec.is_normalized, spec.width) == (2, LAYERS, False, WIDTH)
    assert (spec.includes_eos, spec.eos_text, spec.eos_tokens) == (False, "<|im_end|>", (EOS,))
    assert spec.model.startswith("tiny-bank@") and spec.requires == ("the hidden states of the answer",)
    assert FeatureSpec.model_validate_json(spec.to_json_line()) == spec
    assert spec_of(without_eos(), settings).digest == spec.digest
    assert spec_of(without_eos(layer="3"), settings).digest != spec.digest


PAGE = (ROOT / "docs" / "howto" / "serve-from-vllm.md").read_text()


def code_with(text: str) -> str:
    """The Python of the how-to that has `text` in it."""
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if text in code]
    return str(code)


def test_the_page_decides_by_a_file_of_vllm(
    without_eos: Callable[..., Predictor],
    plain: PlainModel,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predictor = without_eos(guarantee=GUARANTEE)
    folder = tmp_path / ".abstain" / "releases" / "v1.0.0"
    folder.parent.mkdir(parents=True)
    (tmp_path / "bundle").rename(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("abstain.serving.gate.load_settings", lambda: settings)
    code = (
        code_with("def decide").replace("layers=(14,)", "layers=(2,)").replace("/dev/shm/hidden_states", str(tmp_path))
    )
    page: dict[str, Any] = {}
    exec(code, page)
    content, prompt = written(plain, ROW, 2)
    file = tmp_path / "cmpl-1.safetensors"
    file.write_bytes(content)
    response = {
        "usage": {"prompt_tokens": prompt},
        "choices": [{"finish_reason": "stop"}],
        "kv_transfer_params": {"hidden_states_path": str(file)},
    }
    decision = page["decide"](ROW, response)
    assert decision.confidence == pytest.approx(own(predictor, ROW), abs=1e-5) and not file.exists()


def test_the_page_makes_a_file_of_sglangs_response(
    without_eos: Callable[..., Predictor], plain: PlainModel, settings: Settings
) -> None:
    predictor = without_eos(layer=str(LAYERS))
    prompt, answer = plain.ids(plain_prompt(ROW)), plain.ids(ROW.answer)
    states = plain.states([*prompt, *answer])[LAYERS].tolist()
    parts = [states[: len(prompt)], *states[len(prompt) :]]
    response = {"meta_info": {"hidden_states": parts}, "output_ids": [*answer, EOS]}
    page: dict[str, Any] = {}
    exec(code_with("def states_of"), page)
    how = described("sglang", layers=(LAYERS,), prompt_tokens=len(prompt), finish_reason=None, is_normalized=True)
    content = page["states_of"](prompt, response)
    found = parse_states(content, how, spec_of(predictor, settings), tokens_of(predictor, ROW))
    assert confidence(predictor, found) == pytest.approx(own(predictor, ROW), abs=1e-5)
