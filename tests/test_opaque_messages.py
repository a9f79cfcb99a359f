import copy

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.reasons import Reason
from tests.checkout import ROOT


def test_product_cannot_read_a_message() -> None:
    messages = (AbstainError(Code.USAGE, "x: y").message, Reason(Code.USAGE, "field", message="x: y").message)
    for read in ("message.startswith('x')", "'x' in message", "message.partition(':')"):
        of_product, of_test = (compile(read, str(ROOT / name / "reader.py"), "eval") for name in ("src", "tests"))
        for message in messages:
            assert eval(of_test, {"message": message})
            with pytest.raises(AssertionError, match=r"reader\.py reads the message"):
                eval(of_product, {"message": message})
    assert messages[0] == "x: y" and type(copy.copy(messages[0])) is str
