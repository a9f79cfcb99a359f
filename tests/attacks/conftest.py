"""The table of attempts and outcomes in docs/security.md, made of what the tests here count: `make attacks`."""

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving.conftest import log, make_release, make_service, model, promote, releases, service, settings  # noqa: F401
from tests.serving.gateways.conftest import answers, connect, decided, log_options, make_worker  # noqa: F401

BEGIN, END = "<!-- attempts: made by `make attacks` -->\n", "<!-- end of attempts -->\n"
Count = Callable[[str, int, int], None]


@pytest.fixture
def assert_repelled(record_property: Callable[[str, object], None]) -> Count:
    """Assert that all attempts were repelled, and count them for the table: (what was tried, attempts, repelled)."""

    def count(tried: str, attempts: int, repelled: int) -> None:
        record_property("attempts", [tried, attempts, repelled])
        assert attempts > 0 and repelled == attempts, f"{tried}: {repelled} of {attempts} were repelled"

    return count


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--attempts", type=Path, help="a page whose table of attempts is written anew")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    page: Path | None = config.getoption("--attempts", None)
    if page is None:
        return
    attempts, repelled = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport) and report.when == "teardown":
            for name, value in report.user_properties:
                if name == "attempts":
                    key = report.nodeid.partition("::")[0], value[0]
                    attempts[key] += value[1]
                    repelled[key] += value[2]
    table = "| test | attempts | repelled | what was tried |\n| --- | --: | --: | --- |\n"
    for file, group in itertools.groupby(sorted(attempts), lambda key: key[0]):
        keys = list(group)
        totals = " | ".join(f"{sum(counted[key] for key in keys):,}" for counted in (attempts, repelled))
        table += f"| `{file}` | {totals} | {'; '.join(f'{key[1]} ({attempts[key]:,})' for key in keys)} |\n"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")
