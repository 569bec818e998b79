"""The processor: what it has, and its threads and memory set as computing with large tensors wants them."""

import ctypes
import gc
import sys
from functools import cache

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4  # of glibc's mallopt


@cache
def has_amx() -> bool:
    """Whether it multiplies tiles in bf16."""
    import torch

    return bool(torch.cpu.get_capabilities().get("amx_bf16"))


def settle(threads: int) -> None:
    """Give this process so many threads, and let it keep the memory that it has used.

    Left alone, the C library hands a large tensor's memory back to the kernel when the tensor dies and fetches, and
    clears, other memory for the next one: a fifth to a quarter of the time of training and encoding on a CPU.
    """
    import torch

    torch.set_num_threads(threads)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; other C libraries do without
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
        mallopt(TOP_PAD, 2**26)


def release() -> None:
    """Give back the memory of what is no longer used: a process that waits for its next work holds little."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
