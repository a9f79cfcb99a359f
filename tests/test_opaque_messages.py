import copy

import pytest

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.reasons import Reason
from tests.checkout import ROOT


@pytest.mark.parametrize("read", ["message.startswith('x')", "'x' in message", "message.partition(':')"])
def test_product_cannot_read_a_message(read: str) -> None:
    messages = (AbstainError(Code.USAGE, "x: y").message, Reason(Code.USAGE, "field", message="x: y").message)
    for file, is_product in ((ROOT / "src" / "abstain" / "reader.py", True), (ROOT / "tests" / "reader.py", False)):
        for message in messages:
            code = compile(read, str(file), "eval")
            if is_product:
                with pytest.raises(AssertionError, match=r"reader\.py reads the message"):
                    eval(code, {"message": message})
            else:
                assert eval(code, {"message": message})


def test_opaque_message_is_a_plain_text_elsewhere() -> None:
    message = AbstainError(Code.USAGE, "x: y").message
    assert message == "x: y" and type(copy.copy(message)) is str
