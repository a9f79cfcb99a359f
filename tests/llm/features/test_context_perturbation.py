from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertModel

from abstain.config.params import PerturbationParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.core.errors import AbstainError
from abstain.llm.engine.loading import find_model, get_model_kind, load_model
from abstain.llm.engine.prompts import Segment
from abstain.llm.engine.requests import NLL, Request
from abstain.llm.features.context_perturbation import ContextPerturber
from abstain.llm.features.feature_store import FeatureStore
from abstain.llm.perturbation.text import format_diff
from tests.llm.builders import WINDOW
from tests.llm.perturbation.builders import KINDS, LONG, PERTURBATION, TEXTS, engine_of, model_of, save, steps_of
from tests.llm.signals.builders import interaction


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("perturbation-models")
    return {kind: save(model_of(kind), root / kind) for kind in KINDS}


def perturber(folder: Path, settings: Settings, **how: Any) -> ContextPerturber:
    return ContextPerturber(PerturbationParams(**PERTURBATION | how), str(folder), settings)


def texts_of(row: Interaction) -> list[str]:
    return [one.text for one in row.contexts]


def about(name: str, *texts: str) -> Interaction:
    return interaction(name=name, contexts=texts)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_in_a_folder_is_of_its_kind_and_says_the_same(
    kind: str, folders: dict[str, Path], settings: Settings
) -> None:
    loaded = load_model(find_model(str(folders[kind]), settings), torch.device("cpu"), torch.float32)
    assert get_model_kind(loaded.model.config) == kind and type(loaded.model) is type(model_of(kind).model)
    who = perturber(folders[kind], settings, selection="entropy")
    (found,) = who._steps([about("a", LONG)], who.operations[0])
    expected = steps_of(engine_of(model_of(kind)), {"a": LONG}, who.operations[0])["a"]
    assert [step[:5] for step in found] == [step[:5] for step in expected]


@pytest.mark.parametrize("kind", KINDS)
def test_a_context_changes_and_nothing_else_of_a_row(kind: str, folders: dict[str, Path], settings: Settings) -> None:
    who = perturber(folders[kind], settings)
    row = about("a", *TEXTS)
    ((new,),) = who.perturb([row])
    assert new.model_copy(update={"contexts": row.contexts}) == row
    assert [one.chunk_id for one in new.contexts] == [one.chunk_id for one in row.contexts]
    assert texts_of(new) != texts_of(row)
    parts = who.diff_contexts(row)
    assert ["".join(part.text for part in one if part.kind != "new") for one in parts] == list(TEXTS)
    assert ["".join(part.text for part in one if part.kind != "old") for one in parts] == texts_of(new)
    assert sum(format_diff(one).count("{+") for one in parts) == 4, "of all chunks together"


def test_a_context_that_rows_share_is_perturbed_once(folders: dict[str, Path], settings: Settings) -> None:
    who = perturber(folders["causal"], settings)
    rows = [about("a", LONG), about("b", LONG), about("c", TEXTS[0], TEXTS[1]), about("d")]
    seen: list[tuple[int, int]] = []
    assert who.count_missing(rows) == (3, 2) and [len(keys) for keys in who.collect_keys(rows).values()] == [2]
    done = who.compute_missing(rows, lambda part, whole: seen.append((part, whole)))
    assert done.rows == 2 and 0 < done.forward_tokens <= done.pass_tokens and seen[-1] == (2, 2)
    one, two, apart, empty = who.perturb(rows)[0]
    assert texts_of(one) == texts_of(two) and one.interaction_id != two.interaction_id
    assert texts_of(apart) != list(TEXTS[:2]) and empty == rows[3]
    assert who.compute_missing(rows).rows == 0 and who.count_missing(rows) == (3, 0)
    assert ContextPerturber(who.params, who.model, settings).perturb(rows) == who.perturb(rows)


def test_copies_are_perturbed_under_seeds_of_their_own(folders: dict[str, Path], settings: Settings) -> None:
    rows = [about("a", LONG)]
    copies = perturber(folders["causal"], settings, n_copies=3).perturb(rows)
    assert len({tuple(texts_of(row)) for (row,) in copies}) == 3
    assert copies[1] == perturber(folders["causal"], settings, seed=6).perturb(rows)[0]
    assert perturber(folders["causal"], settings, n_copies=3).perturb(rows) == copies


def test_fewer_tokens_are_taken_from_more_where_these_are_asked_for(
    folders: dict[str, Path], settings: Settings
) -> None:
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


def test_what_is_special_about_a_row_is_counted(folders: dict[str, Path], settings: Settings) -> None:
    long = "card " * WINDOW
    rows = [
        about("a", LONG),
        about("b"),
        about("c", long),
        about("d", "card"),
        about("e", "🎈"),
    ]
    causal = perturber(folders["causal"], settings)
    assert causal.count_remarks(rows) == {"empty": 1, "too_long": 1, "fewer": 2, "not_reproduced": 0}
    (changed,) = causal.perturb(rows)
    assert [new == old for new, old in zip(changed, rows, strict=True)] == [False, True, True, False, True]
    assert perturber(folders["masked"], settings).count_remarks(rows) == {
        "empty": 1,
        "too_long": 1,
        "fewer": 2,
        "not_reproduced": 2,  # it writes no capitals, and knows no balloon
    }
    t5 = perturber(folders["seq2seq"], settings, tokens=2)
    assert t5.count_remarks(rows) == {"empty": 1, "too_long": 0, "fewer": 2, "not_reproduced": 1}
    assert causal.count_remarks([]) == dict.fromkeys(("empty", "too_long", "fewer", "not_reproduced"), 0)


@pytest.mark.parametrize("kind", ["masked", "seq2seq"])
def test_a_perturbation_model_is_no_base_model(kind: str, folders: dict[str, Path], settings: Settings) -> None:
    source = FeatureStore(str(folders[kind]), settings)
    with pytest.raises(AbstainError, match=r"is no causal language model, as a base model is: change llm.model$"):
        source.load_engine()
    with pytest.raises(AbstainError, match=rf"^{kind} is no causal language model: it can only perturb contexts$"):
        list(source.read([Request((Segment("chunk", "a"),), NLL(("chunk",)), "a")]))


def test_weights_that_lack_the_head_are_refused(tmp_path: Path, settings: Settings) -> None:
    """An encoder alone, which transformers would give a head of random weights."""
    folder = save(model_of("masked"), tmp_path / "encoder")
    model = BertModel.from_pretrained(folder)
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    with pytest.raises(
        AbstainError, match=r"^encoder is no language model: its weights lack cls\.[\w.]+; choose another$"
    ):
        perturber(folder, settings).compute_missing([about("a", LONG)])


def shards(settings: Settings) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(settings.features).rglob("*.safetensors")}


def rows_of(count: int) -> Sequence[Interaction]:
    return [about(str(at), f"{LONG} Line {at}.") for at in range(count)]


@pytest.mark.slow
def test_a_shard_may_be_run_by_another_process(folders: dict[str, Path], tmp_path: Path) -> None:
    here, there = (Settings(home=tmp_path / name, device="cpu", dtype="float32") for name in ("here", "there"))
    who = perturber(folders["masked"], there)
    (work,) = who._store.iter_shards(who._requests(rows_of(3), who.operations[0]))
    code = (
        "import sys, torch; from pathlib import Path; torch.set_num_threads(1)\n"
        "from abstain.llm.features.shard_job import ShardJob, compute_shard; from abstain.config.settings import Settings\n"
        "compute_shard(ShardJob.from_json(sys.stdin.read()), "
        "Settings(home=Path(sys.argv[1]), device='cpu', dtype='float32'))\n"
    )
    command = [sys.executable, "-c", code, str(there.home)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, input=work.to_json(), text=True, check=True, env=environment)
    assert who.compute_missing(rows_of(3)).rows == 0
    perturber(folders["masked"], here).compute_missing(rows_of(3))
    assert shards(here) == shards(there)
