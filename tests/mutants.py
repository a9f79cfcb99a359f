"""`make mutants [MODULES="release/registry ..."]`: whether each core module's own tests notice changes of its code.

mutmut changes one thing at a time in a module of `[tool.abstain.mutants]` and runs the module's tests. The share of
changes that make a test fail must reach the floor that stands there.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "mutants"
MUTMUT = Path(sys.executable).with_name("mutmut")
LINKED = ("src", "tests", "benchmarks", "params.yaml")
COPIED = ["src/abstain_cli", "src/abstain_tasks", "src/abstain_flows", "benchmarks", "params.yaml"]


def run_mutants(module: str, tests: str, marks: str) -> dict[str, int]:
    """Run mutmut on one module, in a folder of its own, and count the mutants by what became of them."""
    folder = FOLDER / module.replace("/", ".")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    options: dict[str, Any] = {
        "source_paths": ["src/abstain"],
        "only_mutate": [f"src/abstain/{module}.py"],
        "also_copy": COPIED,
        "pytest_add_cli_args_test_selection": [f"tests/{tests}"],
        "pytest_add_cli_args": ["-n", "0", "-p", "no:cacheprovider", "-m", marks],
        "process_isolation": "forkserver",  # torch
        "timeout_constant": 20,
        "timeout_multiplier": 2,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in options.items()]
    own = (ROOT / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text("\n".join([own, "[tool.mutmut]", *lines, ""]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ABSTAIN_TESTS_PROFILE": "mutants"}
    with (folder / "log").open("wb") as log:
        for arguments in (["run", "--max-children", str(os.cpu_count())], ["export-cicd-stats"]):
            done = subprocess.run(
                [MUTMUT, *arguments], cwd=folder, env=environment, stdout=log, stderr=log, check=False
            )
            if done.returncode:
                sys.exit(f"{module}: mutmut could not run, see {folder.relative_to(ROOT)}/log")
    return dict(json.loads((folder / "mutants" / "mutmut-cicd-stats.json").read_text()))


def main(modules: list[str]) -> int:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["abstain"]["mutants"]
    if unknown := set(modules) - config.keys():
        sys.exit(f"no floor in pyproject.toml: {', '.join(sorted(unknown))}; there is one of: {', '.join(config)}")
    is_below = False
    for module in modules or config:
        folder, _, name = module.rpartition("/")
        options = {"tests": f"{folder}/test_{name}.py", "marks": "not slow and not heavy and not soak"} | config[module]
        counts = run_mutants(module, options["tests"], options["marks"])
        killed, total = counts["killed"] + counts["timeout"], counts["total"]
        print(f"{module}: {killed} of {total} mutants killed, {killed / total:.1%}", flush=True)
        if killed / total < options["floor"]:
            is_below = True
            print(f"  below its floor of {options['floor']:.0%}. The survivors: cd mutants/{module.replace('/', '.')}")
            print("  ../../.venv/bin/mutmut results; ../../.venv/bin/mutmut show NAME")
    return int(is_below)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
