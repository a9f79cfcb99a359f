"""The decoder's checks of a model, with their results stored on the machine on which they were made.

The checks are forward passes through the whole model: several times the work of scoring one answer.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from abstain.core.files import write_json
from abstain.llm.engine.loading import LoadedModel


@dataclass(frozen=True)
class SelfCheckResult:
    """The result of the decoder's checks of a model.

    Attributes:
        packing_ok: Whether packed prompts give the states of a plain forward pass.
        projection_ok: Whether the logits are those of the projected states.
    """

    packing_ok: bool
    projection_ok: bool


def load_or_run_self_check(loaded: LoadedModel, check: Callable[[], SelfCheckResult]) -> SelfCheckResult:
    """Load the stored result of the self-check, or run the check and store its result.

    The check is run again if the weights, the dtype, the device, the processor's instruction set, torch, transformers
    or the code of this package differ.

    Args:
        loaded: The model. Its `self_check_folder` holds the results.
        check: Runs the check.

    Returns:
        The result for this model, code and machine.
    """
    if loaded.self_check_folder is None:
        return check()
    file = loaded.self_check_folder / f"{_make_key(loaded)}.json"
    if file.is_file():
        return SelfCheckResult(**json.loads(file.read_text()))
    result = check()
    with suppress(OSError):  # a home that cannot be written to costs the checks every time
        write_json(file, asdict(result))
    return result


def _make_key(loaded: LoadedModel) -> str:
    import transformers

    device: torch.device = loaded.model.device
    machine: Any = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else [platform.machine(), torch.backends.cpu.get_cpu_capability(), dict(torch.cpu.get_capabilities())]
    )
    versions = [torch.__version__, transformers.__version__, _code_digest()]
    content = [str(loaded.ref), type(loaded.model).__name__, str(loaded.model.dtype), device.type, machine, versions]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


@lru_cache(maxsize=1)
def _code_digest() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
