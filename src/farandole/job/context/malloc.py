"""malloc tuning: the process keeps freed memory, so that gradients can reuse it.

glibc returns a large freed block to the kernel and requests a new one at the next step, page by
page. This costs 2 ms per step for gradients of 17 MB, in addition to a backward pass of 6 ms
(measured). PyTorch's tuning guide recommends another allocator for the same reason.
"""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
_MMAP_FROM = 32 << 20  # bytes: glibc's maximum
_KEEP = 128 << 20
_CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Make malloc reuse blocks of up to 32 MiB and keep up to 128 MiB free. Returns whether it
    did.

    Nothing changes if the user has set glibc's own variables (``MALLOC_TRIM_THRESHOLD_``,
    ``MALLOC_MMAP_THRESHOLD_``, ``GLIBC_TUNABLES``), or without glibc.
    """
    if any(name in os.environ for name in _CHOSEN):
        return False
    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt")):
        return False
    return bool(
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_FROM) and libc.mallopt(_M_TRIM_THRESHOLD, _KEEP)
    )
