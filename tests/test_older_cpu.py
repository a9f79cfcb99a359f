"""`make test-older-cpu`: the numerical tests, as on an x86-64 processor of 2008, with one thread and with two.

Newer instructions and another number of threads sum in another order. ONNX Runtime and scikit-learn's own loops cannot
be told; torch's name of the processor stays, by which `ABSTAIN_DTYPE=auto` would choose bfloat16.
"""

import os

import numpy as np
import pytest
import scipy.linalg  # noqa: F401  (loads its own OpenBLAS)
import torch
from threadpoolctl import threadpool_info

from abstain.config.settings import Settings
from abstain.llm.engine.device import choose_dtype


@pytest.mark.skipif(os.environ.get("ABSTAIN_TESTS_PROFILE") != "older-cpu", reason="only in `make test-older-cpu`")
def test_older_cpu_is_what_the_libraries_see() -> None:
    assert torch.backends.cpu.get_cpu_capability() == "DEFAULT"
    assert not np.show_config(mode="dicts")["SIMD Extensions"].get("found")
    assert {pool["architecture"] for pool in threadpool_info() if pool["internal_api"] == "openblas"} == {"Nehalem"}
    assert choose_dtype(Settings(), torch.device("cpu")) is torch.float32
