from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from abstain.contracts import Context, Interaction
from abstain.errors import AbstainError
from abstain.features import extract
from abstain.features.extract import FeatureSource, pack, unpack
from abstain.llm.engine import Engine, States
from abstain.llm.layout import load_layout
from abstain.params import LLMParams
from abstain.settings import Settings
from tests.llm.builders import WIDTH, save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny-bank")


@pytest.fixture
def source(model: Path, tmp_path: Path) -> FeatureSource:
    params = LLMParams(model=str(model), layout="rag-plain-v1", layer=2, site="residual")
    return FeatureSource(params, Settings(home=tmp_path, device="cpu", dtype="float32", batch_tokens=700))


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """Every engine that was made: its `work` says what was really computed."""
    made: list[Engine] = []

    class Watched(Engine):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(extract, "Engine", Watched)
    return made


def interaction(n: int, answer: str | None = None, key: str | None = None) -> Interaction:
    return Interaction(
        interaction_id=key or f"i-{n}",
        asked_at="2026-09-01T12:00:00Z",
        question=f"Question {n}?",
        answer=answer or "yes " * (n % 5 + 1),
        contexts=(Context(chunk_id=f"doc#{n}", text="c" * (7 * n % 40 + 1)),),
        model="m@1",
    )


ROWS = [interaction(n) for n in range(9)]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_rows_come_in_order_each_as_the_engine_gives_it(source: FeatureSource) -> None:
    states = source.states(ROWS)
    layout = load_layout("rag-plain-v1")
    engine = Engine(source.load_model(), 1)
    for row, got in zip(ROWS, states, strict=True):
        ((_, (expected,)),) = engine.states({"a": layout.render_interaction(row)}, States((2,)))
        assert got.shape == (len(row.answer.encode()) + 1, WIDTH)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def test_only_what_is_missing_is_computed(source: FeatureSource, engines: list[Engine]) -> None:
    first = source.states(ROWS[2:5])
    assert source.missing(ROWS) == 6
    everything = source.states(ROWS)
    assert [engine.work.passes for engine in engines] == [3, 6]
    assert same(everything[2:5], first)
    assert source.missing(ROWS) == 0


def test_the_order_of_the_rows_is_the_callers_whatever_was_cached_when(source: FeatureSource) -> None:
    source.states([ROWS[7], ROWS[1]])
    forwards, backwards = source.states(ROWS), source.states(ROWS[::-1])
    assert same(forwards, backwards[::-1])
    assert not torch.equal(forwards[0], forwards[1])


def test_the_model_is_not_even_loaded_where_nothing_is_missing(
    source: FeatureSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = source.states(ROWS)

    def refuse(*_: object) -> None:
        raise AssertionError("the base model was loaded")

    monkeypatch.setattr(extract, "load", refuse)
    assert same(source.states(ROWS), expected)
    assert source.states([]) == []
    with pytest.raises(AssertionError, match="was loaded"):
        source.states([*ROWS, interaction(99)])


def test_equal_text_is_computed_once_whatever_its_id_and_its_time(source: FeatureSource, engines: list[Engine]) -> None:
    twin = interaction(3, key="another id")
    one, two = source.states([ROWS[3], twin])
    assert torch.equal(one, two)
    assert engines[0].work.passes == 1


def test_different_texts_under_one_id_each_get_their_own_states(source: FeatureSource) -> None:
    rows = [interaction(1, "Yes.", key="same"), interaction(1, "No, never.", key="same")]
    yes, no = source.states(rows)
    assert (len(yes), len(no)) == (len("Yes.") + 1, len("No, never.") + 1)


@pytest.mark.parametrize("change", [{"layer": 3}, {"site": "mlp"}, {"layout": "rag-chatml-v1"}])
def test_other_parameters_are_other_rows(source: FeatureSource, change: dict) -> None:
    before = source.states(ROWS[:2])
    other = FeatureSource(source.params.model_copy(update=change), source.settings)
    assert other.missing(ROWS[:2]) == 2
    assert not same(other.states(ROWS[:2]), before)


def test_another_dtype_and_other_weights_are_other_rows(source: FeatureSource, tmp_path: Path) -> None:
    source.states(ROWS[:2])
    half = FeatureSource(source.params, source.settings.model_copy(update={"dtype": "bfloat16"}))
    assert half.missing(ROWS[:2]) == 2
    assert half.states(ROWS[:1])[0].dtype == torch.bfloat16
    weights = save_tiny_model(tmp_path / "again" / "tiny-bank", seed=1)
    retrained = FeatureSource(source.params.model_copy(update={"model": str(weights)}), source.settings)
    assert retrained.missing(ROWS[:2]) == 2
    assert retrained.space().model.startswith("tiny-bank@")


def test_a_run_that_dies_keeps_its_whole_shards(
    source: FeatureSource, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extract, "SHARD_ROWS", 4)

    def die(done: int, total: int) -> None:
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        source.states(ROWS, die)
    assert source.missing(ROWS) == 1
    source.states(ROWS)
    assert engines[-1].work.passes == 1


def test_progress_goes_from_nothing_to_all(source: FeatureSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "SHARD_ROWS", 4)
    seen: list[tuple[int, int]] = []
    source.states(ROWS, lambda done, total: seen.append((done, total)))
    assert seen == [(0, 9), (4, 9), (8, 9), (9, 9)]


def test_a_row_that_cannot_be_read_is_named_by_its_id(source: FeatureSource) -> None:
    with pytest.raises(AbstainError, match="^interaction too-long: .* tokens are more than the 512"):
        source.states([ROWS[0], interaction(1, "x" * 600, key="too-long")])


def test_pack_and_unpack_are_inverse() -> None:
    rows = [torch.randn(n, 3) for n in (4, 1, 7)]
    packed = pack(rows)
    assert packed["states"].shape == (12, 3)
    assert packed["offsets"].tolist() == [0, 4, 5, 12]
    assert same(unpack(packed), rows)
    half = [row.bfloat16() for row in rows]
    assert pack(half)["states"].dtype == torch.bfloat16
    assert same(unpack(pack(half)), [row.float() for row in half])
