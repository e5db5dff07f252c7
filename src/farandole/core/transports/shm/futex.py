"""Sleeping on a word of shared memory, and the memory fence that makes it safe.

Linux lets a process sleep until a 32-bit word in shared memory changes (futex(2)). The system call
is made through ctypes, so no compiler is needed. On processors whose system call number is not
listed here, waiting falls back to short sleeps.
"""

from __future__ import annotations

import ctypes
import platform
import threading
import time

_SYSCALL = {"x86_64": 202, "aarch64": 98, "ppc64le": 221, "s390x": 238, "riscv64": 98}
_WAIT, _WAKE = 0, 1
_ORDERED_STORES = platform.machine() in ("x86_64", "s390x")


class _TimeSpec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


if platform.machine() in _SYSCALL:
    _NUMBER = ctypes.c_long(_SYSCALL[platform.machine()])
    _sleep = ctypes.CDLL(None).syscall  # releases the GIL: other threads continue
    _wake = ctypes.PyDLL(None).syscall  # keeps the GIL: waking takes about a microsecond

    def sleep_while(address: int, value: int, seconds: float) -> None:
        """Sleep while the 32-bit word at ``address`` holds ``value``, until woken or for
        ``seconds`` at most.
        """
        whole = int(seconds)
        limit = _TimeSpec(whole, int((seconds - whole) * 1e9))
        _sleep(
            _NUMBER,
            ctypes.c_void_p(address),
            ctypes.c_int(_WAIT),
            ctypes.c_uint32(value),
            ctypes.byref(limit),
            None,
            ctypes.c_int(0),
        )

    def wake(address: int) -> None:
        """Wake every process that sleeps on the word at ``address``."""
        _wake(
            _NUMBER,
            ctypes.c_void_p(address),
            ctypes.c_int(_WAKE),
            ctypes.c_int(0x7FFFFFFF),
            None,
            None,
            ctypes.c_int(0),
        )

else:

    def sleep_while(address: int, value: int, seconds: float) -> None:
        time.sleep(min(seconds, 0.0005))

    def wake(address: int) -> None:
        pass


_lock = threading.Lock()


def fence() -> None:
    """A full memory fence: earlier stores become visible before later loads and stores.

    Taking and releasing an uncontended lock is an atomic read-modify-write, a full barrier on x86.
    On processors that reorder stores (Arm), release-then-acquire of two locks gives the order; that
    path has not been tested on such a machine.
    """
    with _lock:
        pass


if _ORDERED_STORES:

    def publish_fence() -> None:
        """Order the data before the flag that announces it. A no-op on processors that keep the
        order of stores.
        """

else:
    publish_fence = fence
