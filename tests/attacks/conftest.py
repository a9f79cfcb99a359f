"""The table of attempts and outcomes in docs/security.md, made of what the tests here count: `make attacks`."""

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving.api.conftest import log, make_release, make_service, releases, service  # noqa: F401
from tests.serving.conftest import model, settings  # noqa: F401
from tests.serving.gateways.conftest import answers, connect, decided, make_worker, open_log  # noqa: F401

BEGIN, END = "<!-- attempts: made by `make attacks` -->\n", "<!-- end of attempts -->\n"
Count = Callable[[str, int, int], None]


@pytest.fixture
def assert_repelled(record_property: Callable[[str, object], None]) -> Count:
    """Assert that all attempts were repelled, and count them for the table: (what was tried, attempts, repelled)."""

    def count(tried: str, attempts: int, repelled: int) -> None:
        record_property("attempts", [tried, attempts, repelled])
        assert attempts > 0 and repelled == attempts, f"{tried}: {repelled} of {attempts} were repelled"

    return count


def format_attempts(counted: Counter[tuple[str, str, str]]) -> str:
    """A table with a line a test file, of the counts by file, what was tried, and `attempts` or `repelled`."""
    lines = ["| test | attempts | repelled | what was tried |", "| --- | --: | --: | --- |"]
    for file in sorted({file for file, _, _ in counted}):
        tried = sorted({tried for name, tried, _ in counted if name == file})
        attempts, repelled = (sum(counted[file, name, kind] for name in tried) for kind in ("attempts", "repelled"))
        names = "; ".join(f"{name} ({counted[file, name, 'attempts']:,})" for name in tried)
        lines.append(f"| `{file}` | {attempts:,} | {repelled:,} | {names} |")
    return "".join(f"{line}\n" for line in lines)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--attempts", type=Path, help="a page whose table of attempts is written anew")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    page: Path | None = config.getoption("--attempts", None)
    if page is None:
        return
    counted: Counter[tuple[str, str, str]] = Counter()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport) and report.when == "teardown":
            for name, value in report.user_properties:
                if name == "attempts":
                    tried, attempts, repelled = value
                    file = report.nodeid.partition("::")[0]
                    counted += Counter({(file, tried, "attempts"): attempts, (file, tried, "repelled"): repelled})
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{format_attempts(counted)}\n{END}{rest.partition(END)[2]}")
