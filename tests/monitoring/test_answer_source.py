from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from abstain.config.settings import Settings
from abstain.data.decision_log.database import LogDatabase
from abstain.llm.features.extraction import FeatureSource
from abstain.monitoring.answer_source import LoggedAnswers
from tests.checkout import shipped_params
from tests.data.decision_log.builders import url_of
from tests.factories import interaction
from tests.llm.builders import save_tiny_model

pytestmark = pytest.mark.heavy


def test_states_are_means_over_tokens_of_cached_answers(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "tiny-bank")
    settings = Settings(home=tmp_path / "home", device="cpu", dtype="float32")
    llm = shipped_params().llm.model_copy(update={"model": str(model), "layer": 1, "layout": "rag-plain-v1"})
    rows = [
        interaction(f"i-{number}", answer=text) for number, text in enumerate(("fee", "no fee", "the card has no fee"))
    ]
    source = FeatureSource(llm, settings)
    with closing(LogDatabase.open(url_of(tmp_path))) as database:
        is_cached, states = LoggedAnswers(database, settings).states(llm, rows)
        assert not is_cached.any() and len(states) == 0
        source.compute_missing([rows[0], rows[2]])
        is_cached, states = LoggedAnswers(database, settings).states(llm, rows)
    assert is_cached.tolist() == [True, False, True]
    expected = {index: torch.mean(row.float(), dim=0).numpy() for index, row in source.read([rows[0], rows[2]])}
    np.testing.assert_allclose(states, [expected[0], expected[1]], rtol=1e-6)
    assert source.count_missing(rows) == 1
