from __future__ import annotations

import pytest
from typer.testing import CliRunner

from abstain.core.errors import AbstainError
from abstain.serving.service.keys import ApiKeys
from abstain_cli.app import app


def test_a_key_is_printed_once_with_the_line_that_lets_it_in() -> None:
    done = CliRunner().invoke(app, ["key", "assistant", "--role", "ask", "-r", "feedback"])
    assert done.exit_code == 0
    printed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    holder = ApiKeys(printed["line"]).authenticate(printed["key"])
    assert holder is not None and holder.name == "assistant" and holder.roles == {"ask", "feedback"}
    assert printed["key"] not in printed["line"]


def test_an_unknown_role_and_a_name_that_no_line_may_have_are_refused() -> None:
    for arguments in (["key", "assistant", "--role", "root"], ["key", "two words"]):
        done = CliRunner().invoke(app, arguments)
        assert isinstance(done.exception, AbstainError)
        with pytest.raises(AbstainError, match=r"root|ROLE"):
            raise done.exception
