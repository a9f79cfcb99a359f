from collections.abc import Iterator
from pathlib import Path

import pytest

from abstain.data.decision_log.log import DecisionLog
from tests.data.decision_log.builders import open_log, url_of


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DecisionLog]:
    opened = open_log(url_of(tmp_path))
    yield opened
    opened.close()
