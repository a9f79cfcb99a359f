"""Whether the tests catch what they are for: each defect of `mutations.yaml`, put into a copy of this checkout.

`python -m tests.mutations [WORDS...]` tries them one after the other, with WORDS only those whose area, sentence or file
holds one of these. A defect is caught when one of its tests fails. Its tests have to pass without it, or else that they
fail would say nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.checkout import ROOT, copy_checkout

MOST_SECONDS = 300
PASSED, FAILED = 0, 1
"""Exit statuses of pytest. Every other one, and a time-out (None), says that the tests could not be run."""
RESULTS: dict[int | None, str] = {PASSED: "MISSED", FAILED: "caught"}


@dataclass(frozen=True)
class Mutation:
    """A `defect` in words, and how it is made: `old`, which stands in `file` once, becomes `new`."""

    area: str
    defect: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """`text` of the file with the defect. Raises `ValueError` where `old` does not stand in it exactly once."""
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"{self.defect} What is to be replaced stands {times} times in {self.file}: {self.old}")
        return text.replace(self.old, self.new)

    def has_any(self, words: Iterable[str]) -> bool:
        """Whether one of `words` stands in its area, its sentence or the name of its file."""
        return any(word.casefold() in f"{self.area} {self.defect} {self.file}".casefold() for word in words)


def read_mutations() -> list[Mutation]:
    """All of `mutations.yaml`, in its order."""
    entries = yaml.safe_load((ROOT / "tests" / "mutations.yaml").read_text(encoding="utf-8"))
    return [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def run_tests(tests: Iterable[str], folder: Path) -> int | None:
    """The exit status of pytest on the fast ones of `tests` and the code in `folder`; None after a time-out."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n", "0"]
    # The code of the copy comes before that of the checkout, which is installed.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder)])}
    for marks in ("not slow and not soak", "not soak"):  # slow ones only where there are no others
        try:
            done = subprocess.run(
                [*command, "-m", marks, *tests],
                cwd=folder,
                env=environment,
                capture_output=True,
                timeout=MOST_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        if done.returncode != pytest.ExitCode.NO_TESTS_COLLECTED:
            break
    return done.returncode


def try_mutation(mutation: Mutation, folder: Path) -> str:
    """`caught`, `MISSED`, or `ERROR` where the tests could not be run."""
    file = folder / mutation.file
    whole = file.read_bytes()
    file.write_text(mutation.applied(whole.decode()), encoding="utf-8")
    try:
        return RESULTS.get(run_tests(mutation.tests, folder), "ERROR")
    finally:
        file.write_bytes(whole)


def main(words: list[str]) -> int:
    mutations = [one for one in read_mutations() if not words or one.has_any(words)]
    found: dict[str, int] = {"caught": 0, "MISSED": 0, "ERROR": 0}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "checkout"
        copy_checkout(folder)
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)  # tests that list the checkout's files
        for mutation in mutations:
            mutation.applied((folder / mutation.file).read_text(encoding="utf-8"))
        for tests in dict.fromkeys(mutation.tests for mutation in mutations):
            if run_tests(tests, folder) != PASSED:
                sys.exit(f"{' '.join(tests)} do not pass as they are: nothing can be said of what they would catch")
        print(f"all tests pass without a defect ({time.monotonic() - began:.0f} s)", flush=True)
        for mutation in mutations:
            start = time.monotonic()
            result = try_mutation(mutation, folder)
            found[result] += 1
            print(f"{result} {time.monotonic() - start:4.0f} s  {mutation.area}: {mutation.defect}", flush=True)
    counts = ", ".join(f"{number} {result}" for result, number in found.items() if number)
    print(f"{counts or 'nothing to try'} in {time.monotonic() - began:.0f} s")
    return 0 if found["caught"] == len(mutations) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
