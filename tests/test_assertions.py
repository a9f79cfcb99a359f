from __future__ import annotations

import pytest

from tests.assertions import read_tests, without_assertion
from tests.conftest import ROOT

HELPERS = """
from pytest import approx
import numpy as np

def check(value):
    assert value

def check_through(value):
    return check(value)

def compute(value):
    return value + 1

def around(value):
    return around(value)
"""


def found(test: str) -> list[str]:
    """What is found in a module of `test` alone, which may use `HELPERS`."""
    source = (
        "import numpy as np\nimport pytest\nfrom tests import helpers\n"
        "from tests.helpers import around, check, check_through, compute\n"
        f"from .helpers import check as renamed\n{test}"
    )
    return without_assertion({"tests.helpers": HELPERS, "tests.test_x": source})


@pytest.mark.heavy
def test_every_test_asserts() -> None:
    assert without_assertion(read_tests(ROOT)) == []


@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "print(1 < 2)",
        "1 < 2",
        "assert True",
        "assert 'a text'",
        "compute(1)",
        "around(1)",
        "helpers.compute(1)",
        "np.abs(1)",
        "def inner():\n        assert compute(1)",
        "compute(lambda: pytest.fail('never called'))",
        "pytest.importorskip('torch')",
        "expect(page)",
    ],
)
def test_check_of_assertions_without_one_names_the_test(body: str) -> None:
    assert found(f"def test_y():\n    {body}\n") == ["tests.test_x::test_y"]
    assert found(f"class TestX:\n  def test_y(self):\n    {body}\n") == ["tests.test_x::TestX::test_y"]


@pytest.mark.parametrize(
    "body",
    [
        "assert compute(1) == 2",
        "for n in range(3):\n        assert n",
        "with pytest.raises(ValueError):\n        compute(1)",
        "with pytest.warns(UserWarning):\n        compute(1)",
        "if compute(1):\n        pytest.fail('no')",
        "np.testing.assert_allclose(1, 1)",
        "check(1)",
        "renamed(1)",
        "check_through(1)",
        "helpers.check(1)",
        "def inner():\n        assert compute(1)\n    inner()",
        "def inner():\n        assert compute(1)\n    compute(inner)",
        "expect(page).to_have_title('x')",
    ],
)
def test_check_of_assertions_with_one_finds_nothing(body: str) -> None:
    assert found(f"def test_y():\n    {body}\n") == []


def test_check_of_assertions_leaves_helpers_alone() -> None:
    assert found("def compute_more():\n    pass\n") == []
