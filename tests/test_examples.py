import doctest
import importlib

import pytest

from tests.checkout import ROOT, tracked_files

MODULES = [
    name.removeprefix("src/").removesuffix(".py").replace("/", ".")
    for name in tracked_files()
    if name.startswith("src/") and name.endswith(".py") and "\n        >>> " in (ROOT / name).read_text()
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_give_the_output_that_they_show(module: str) -> None:
    outcome = doctest.testmod(importlib.import_module(module))
    assert outcome.attempted and not outcome.failed
