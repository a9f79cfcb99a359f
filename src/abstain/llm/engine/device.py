"""The device and dtype of the base model, and the handling of memory on it: copies to the host, freed memory."""

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
    """Return the device that `ABSTAIN_DEVICE` names; `auto` takes CUDA if available.

    Args:
        settings: Settings with `device`.

    Returns:
        The device.

    Raises:
        AbstainError: The setting names no device, or CUDA is not available.
    """
    name = settings.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise AbstainError(
            Code.BAD_SETTING, f"ABSTAIN_DEVICE={name}, but torch sees no CUDA device: set it to cpu or auto"
        )
    try:
        return torch.device(name)
    except RuntimeError:
        raise AbstainError(
            Code.BAD_SETTING, f"ABSTAIN_DEVICE={name} is no torch device: use auto, cpu, cuda or cuda:N"
        ) from None


def choose_dtype(settings: Settings, device: torch.device) -> torch.dtype:
    """Return the dtype that `ABSTAIN_DTYPE` names; `auto` takes bfloat16 if the device multiplies in it natively.

    Args:
        settings: Settings with `dtype`.
        device: Device that the model is run on.

    Returns:
        The dtype of the weights.
    """
    if settings.dtype != "auto":
        return torch.float32 if settings.dtype == "float32" else torch.bfloat16
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    capabilities = torch.cpu.get_capabilities()
    return torch.bfloat16 if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else torch.float32


def keep_freed_memory() -> None:
    """Make glibc keep the memory that one batch frees for the next batch.

    By default it returns large blocks to the system at once, and every page of the next block is a fault: on two cores
    this takes a quarter of a forward pass's time. Other C libraries have no such call, and nothing is changed for them.
    """
    trim_threshold, mmap_threshold = -1, -3  # of malloc.h
    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 1 << 30)


def copy_to_host(rows: Tensor) -> Tensor:
    """Copy a tensor to the CPU, from CUDA asynchronously into pinned memory.

    Args:
        rows: Tensor on any device.

    Returns:
        The copy. From CUDA, it is complete only after a `make_copy_barrier` made after this call has been called.
    """
    if rows.device.type != "cuda":
        return rows.to("cpu", copy=True)
    host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
    return host.copy_(rows, non_blocking=True)


def make_copy_barrier(device: torch.device) -> Callable[[], None]:
    """Make a function that waits for the copies in progress.

    Args:
        device: Device that is copied from.

    Returns:
        The function. It waits only for copies that were started before it was made.
    """
    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event.synchronize
