"""The device and dtype that the base model is run with, and what a device needs: copies to the host, freed memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError


def choose_device(settings: Settings) -> torch.device:
    """The device that `ABSTAIN_DEVICE` names; `auto` takes CUDA where there is one."""
    wanted = settings.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise AbstainError(
            Code.BAD_SETTING, f"ABSTAIN_DEVICE={wanted}, but torch sees no CUDA device: set it to cpu or auto"
        )
    try:
        return torch.device(wanted)
    except RuntimeError:
        raise AbstainError(
            Code.BAD_SETTING, f"ABSTAIN_DEVICE={wanted} is no torch device: use auto, cpu, cuda or cuda:N"
        ) from None


def choose_dtype(settings: Settings, device: torch.device) -> torch.dtype:
    """The dtype that `ABSTAIN_DTYPE` names; `auto` is bfloat16 where `device` multiplies in it natively."""
    if settings.dtype != "auto":
        return torch.float32 if settings.dtype == "float32" else torch.bfloat16
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    able = torch.cpu.get_capabilities()
    return torch.bfloat16 if able.get("avx512_bf16") or able.get("amx_bf16") else torch.float32


def keep_freed_memory() -> None:
    """Have glibc keep what one batch frees for the next.

    It gives large blocks back to the system at once, and every page of the next one is a fault: on two cores a
    quarter of a forward pass's time. Other C libraries have no such call, and are left as they are.
    """
    trim_threshold, mmap_threshold = -1, -3  # of malloc.h
    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 1 << 30)


def copy_to_host(rows: Tensor) -> Tensor:
    """A copy of `rows` on the CPU; from CUDA into pinned memory, and not there before `make_copy_barrier` has been called."""
    if rows.device.type != "cuda":
        return rows.to("cpu", copy=True)
    host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
    return host.copy_(rows, non_blocking=True)


def make_copy_barrier(device: torch.device) -> Callable[[], None]:
    """A function that waits for the copies that are under way now."""
    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event.synchronize
