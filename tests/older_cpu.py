"""The tests that do arithmetic, once more as an older CPU would: `make test-older-cpu`.

    python -m tests.older_cpu pytest -m numeric

An x86-64 machine can be told to leave its newer instructions alone, never to have those that it lacks, so this goes
downwards only: no AVX in torch, numpy, OpenBLAS (numpy's and scipy's), MKL and oneDNN (torch's). What each then reports
is printed beside what it reports otherwise; where no library reports another than before, nothing would be learnt and
this fails. Then the command runs with one thread and with two, in which sums stand in another order, both at once: each
is one process, for most of its time on one core. ONNX Runtime and
scikit-learn's own loops cannot be told, and MKL reports its name alone on processors that are not Intel's.

torch says which instructions the processor has whatever its own loops use (`torch.cpu.get_capabilities`), and by that
`ABSTAIN_DTYPE=auto` would go on to choose bfloat16: here it is float32.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

THREADS = (1, 2)
OLDER = {
    "ATEN_CPU_CAPABILITY": "default",
    "OPENBLAS_CORETYPE": "Nehalem",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "ABSTAIN_DTYPE": "float32",
    "ABSTAIN_TESTS_OLDER_CPU": "1",
}
"""The oldest that each library knows and every x86-64 machine that numpy runs on has (SSE4.2, of 2008)."""
OF_NUMPY = "NPY_DISABLE_CPU_FEATURES"
"""numpy wants the names of what it found; those depend on its version and the machine."""

TO_DISABLE, DTYPE = "to disable in numpy", "base model's dtype"

REPORT = """
import json
import numpy, scipy.linalg, threadpoolctl, torch
found = {"torch": torch.backends.cpu.get_cpu_capability()}
features = numpy.show_config(mode="dicts")["SIMD Extensions"]
above = features.get("found", [])  # the key is left out where there is none
found["numpy"] = " ".join(features["baseline"] + above)
for one in threadpoolctl.threadpool_info():
    if one["internal_api"] == "openblas":
        found["OpenBLAS of " + ("numpy" if "numpy.libs" in one["filepath"] else "scipy")] = one["architecture"]
found["to disable in numpy"] = " ".join(above)
from abstain.llm.engine.device import choose_dtype
from abstain.config.settings import Settings
found["base model's dtype"] = str(choose_dtype(Settings(), torch.device("cpu"))).removeprefix("torch.")
torch.ones(8, 8) @ torch.ones(8, 8)  # MKL says what it is with the first product, oneDNN with its first operation
torch.ones(8, 8).to_mkldnn().relu()
print(json.dumps(found))
"""


def reported(environment: Mapping[str, str]) -> dict[str, str]:
    """What each library says that it uses, by its name, in a process of that environment."""
    verbose = {**environment, "MKL_VERBOSE": "1", "ONEDNN_VERBOSE": "1"}
    command = [sys.executable, "-c", REPORT]
    lines = subprocess.run(command, env=verbose, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    found: dict[str, str] = json.loads(next(line for line in lines if line.startswith("{")))
    for line in lines:
        if line.startswith("MKL_VERBOSE oneMKL"):
            found["MKL"] = line.partition("architecture ")[2].rpartition(", ")[0]
        if line.startswith("onednn_verbose") and ",isa:" in line:
            found["oneDNN"] = line.rpartition("isa:")[2]
    return found


def main(command: Sequence[str]) -> int:
    """Print what changes, then run `command` with each number of threads; 0 where both end with 0."""
    plain = {name: value for name, value in os.environ.items() if name not in {*OLDER, OF_NUMPY}}
    here = reported(plain)
    to_disable = here.pop(TO_DISABLE)
    older = plain | OLDER | ({OF_NUMPY: to_disable} if to_disable else {})
    there = reported(older)
    del there[TO_DISABLE]
    for name in here:
        print(f"{name + ':':20} {here[name]} -> {there[name]}", flush=True)
    if all(here[name] == there[name] for name in here if name != DTYPE):
        print("no library reports another processor than before: nothing would be tested as on an older one")
        return 1
    with ExitStack() as files:
        running = {}
        for threads in THREADS:
            counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
            out = files.enter_context(tempfile.TemporaryFile())
            running[threads] = (
                subprocess.Popen(command, env=older | counts, stdout=out, stderr=subprocess.STDOUT),
                out,
            )
        failed = 0
        for threads, (process, out) in running.items():
            failed = process.wait() or failed
            out.seek(0)
            print(
                f"as an older CPU, with {threads} thread{'s' if threads > 1 else ''}:\n{out.read().decode()}",
                flush=True,
            )
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
