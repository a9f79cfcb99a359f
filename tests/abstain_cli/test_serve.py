from abstain.core.codes import Code
from abstain.serving.service.keys import ApiKeys
from tests.abstain_cli.conftest import fail, invoke


def test_key_prints_a_key_and_its_line() -> None:
    lines = invoke("key", "assistant", "--role", "ask", "-r", "feedback").splitlines()
    printed = dict(line.split(maxsplit=1) for line in lines)
    holder = ApiKeys(printed["line"]).authenticate(printed["key"])
    assert holder is not None and holder.name == "assistant" and holder.roles == {"ask", "feedback"}
    assert printed["key"] not in printed["line"]


def test_key_with_an_invalid_role_or_name_is_rejected() -> None:
    assert fail("key", "assistant", "--role", "root") is Code.UNKNOWN_NAME
    assert fail("key", "two words") is Code.BAD_SETTING
