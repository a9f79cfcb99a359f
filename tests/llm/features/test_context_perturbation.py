from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.llm.engine.loading import find_model, get_model_kind, load_model
from abstain.llm.engine.requests import NLL, Request
from abstain.llm.features.context_perturbation import ContextPerturber
from abstain.llm.features.feature_store import FeatureStore
from abstain.llm.perturbation.text import format_diff
from tests.llm.builders import WINDOW, save_model
from tests.llm.perturbation.builders import KINDS, LONG, PERTURBATION, TEXTS, chunk, engine_of, model_of, steps_of
from tests.llm.signals.builders import interaction


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("perturbation-models")
    return {kind: save_model(model_of(kind), root / kind) for kind in KINDS}


def perturber(folder: Path, settings: Settings, **changes: Any) -> ContextPerturber:
    return ContextPerturber(PERTURBATION.model_copy(update=changes), str(folder), settings)


def texts_of(row: Interaction) -> list[str]:
    return [context.text for context in row.contexts]


def about(name: str, *texts: str) -> Interaction:
    return interaction(name=name, contexts=texts)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_perturber_changes_contexts_only(kind: str, folders: dict[str, Path], settings: Settings) -> None:
    loaded = load_model(find_model(str(folders[kind]), settings), torch.device("cpu"), torch.float32)
    assert get_model_kind(loaded.model.config) == kind and type(loaded.model) is type(model_of(kind).model)
    source, row = perturber(folders[kind], settings, selection="entropy"), about("a", *TEXTS)
    ((new,),) = source.perturb([row])
    assert new.model_copy(update={"contexts": row.contexts}) == row
    assert [one.chunk_id for one in new.contexts] == [one.chunk_id for one in row.contexts]
    parts = source.diff_contexts(row)
    assert ["".join(part.text for part in one if part.kind != "new") for one in parts] == list(TEXTS)
    assert ["".join(part.text for part in one if part.kind != "old") for one in parts] == texts_of(new)
    assert sum(format_diff(one).count("{+") for one in parts) == 4, "of all chunks together"
    (found,) = source._steps([about("a", LONG)], source.operations[0])
    expected = steps_of(engine_of(model_of(kind)), {"a": LONG}, source.operations[0])["a"]
    assert [step[:5] for step in found] == [step[:5] for step in expected]
    if kind != "causal":
        with pytest.raises(AbstainError, match="is no causal language model, .*llm.model"):
            FeatureStore(str(folders[kind]), settings).load_engine()
        with pytest.raises(AbstainError, match="is no causal language model: it can only perturb"):
            list(engine_of(loaded).run({"a": Request(chunk("a"), NLL(("chunk",)), "a")}))


def test_perturber_shared_context_is_perturbed_once(folders: dict[str, Path], settings: Settings) -> None:
    source = perturber(folders["causal"], settings)
    rows = [about("a", LONG), about("b", LONG), about("c", TEXTS[0], TEXTS[1]), about("d")]
    seen: list[tuple[int, int]] = []
    assert source.count_missing(rows) == (3, 2) and [len(keys) for keys in source.collect_keys(rows).values()] == [2]
    done = source.compute_missing(rows, lambda part, whole: seen.append((part, whole)))
    assert done.rows == 2 and 0 < done.forward_tokens <= done.pass_tokens and seen[-1] == (2, 2)
    one, two, apart, empty = source.perturb(rows)[0]
    assert texts_of(one) == texts_of(two) and one.interaction_id != two.interaction_id
    assert texts_of(apart) != list(TEXTS[:2]) and empty == rows[3]
    assert source.compute_missing(rows).rows == 0 and source.count_missing(rows) == (3, 0)
    assert ContextPerturber(source.params, source.model, settings).perturb(rows) == source.perturb(rows)
    copies = perturber(folders["causal"], settings, n_copies=3).perturb(rows[:1])
    assert len({tuple(texts_of(row)) for (row,) in copies}) == 3, "each copy has its own seed"
    assert copies[1] == perturber(folders["causal"], settings, seed=6).perturb(rows[:1])[0]


def test_perturber_fewer_tokens_are_read_from_more(folders: dict[str, Path], settings: Settings) -> None:
    rows = [about("a", LONG), about("b", "card")]
    apart = perturber(folders["causal"], settings, selection="entropy").perturb(rows)
    many = perturber(folders["causal"], settings, selection="entropy", tokens=9)
    assert many.compute_missing(rows).rows == 2
    few = replace(perturber(folders["causal"], settings, selection="entropy"), max_perturbed_tokens=9)
    assert few.compute_missing(rows).rows == 0 and few.perturb(rows) == apart != many.perturb(rows)
    assert few.count_remarks(rows)["fewer"] == 1
    for how in ({"selection": "random"}, {"selection": "entropy", "schedule": "single_shot"}):
        other = replace(perturber(folders["causal"], settings, **how), max_perturbed_tokens=9)
        assert [ask.tokens for ask in other.operations] == [4], "other places would be drawn, or filled otherwise"


def test_perturber_counts_remarks(folders: dict[str, Path], settings: Settings) -> None:
    rows = [about("a", LONG), about("b"), about("c", "card " * WINDOW), about("d", "card"), about("e", "🎈")]
    causal = perturber(folders["causal"], settings)
    remarks = {"empty": 1, "too_long": 1, "fewer": 2, "not_reproduced": 0}
    assert causal.count_remarks(rows) == remarks
    (changed,) = causal.perturb(rows)
    assert [new == old for new, old in zip(changed, rows, strict=True)] == [False, True, True, False, True]
    masked = perturber(folders["masked"], settings)
    assert masked.count_remarks(rows) == remarks | {"not_reproduced": 2}, "it writes no capitals and knows no balloon"
    t5 = perturber(folders["seq2seq"], settings, tokens=2)
    assert t5.count_remarks(rows) == remarks | {"too_long": 0, "not_reproduced": 1}
    assert causal.count_remarks([]) == dict.fromkeys(remarks, 0)
