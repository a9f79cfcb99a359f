import re
from io import StringIO

import pytest
from rich.table import Table

from abstain_cli.terminal import Terminal
from tests.checkout import ROOT
from tests.core.test_text import ATTACKS

STYLE = re.compile("\x1b\\[[\\d;]*m")


@pytest.mark.parametrize("attack", ATTACKS)
def test_terminal_removes_controls_and_keeps_styles(attack: str) -> None:
    file = StringIO()
    console = Terminal(markup=False, highlight=False, file=file, force_terminal=True, color_system="standard")
    table = Table(title=attack)
    table.add_column(f"column {attack}")
    table.add_row(f"cell {attack}")
    console.print(f"before {attack} after", soft_wrap=True)
    console.print(table)
    console.print("red", style="red")
    printed = file.getvalue()
    assert "\x1b[31mred\x1b[0m" in printed
    assert not set(STYLE.sub("", printed)) & set("\x00\x07\r\x1b\x7f\x9b\u202e")


def test_commands_use_the_shared_console() -> None:
    console = re.compile(r"\bConsole\(|from rich import print")
    files = (ROOT / "src" / "abstain_cli").rglob("*.py")
    assert [file for file in files if console.search(file.read_text())] == []
