"""Anonymous shared memory (memfd), so that a killed process leaves none behind."""

from __future__ import annotations

import errno
import mmap
import os
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array

PAGE = mmap.PAGESIZE
NAME = "farandole"  # as shown in /proc/self/maps


def is_available() -> bool:
    """Return whether this process can create shared memory, which a sandbox may forbid."""
    try:
        os.close(os.memfd_create(NAME, os.MFD_CLOEXEC))
    except OSError:
        return False
    return True


def create(nbytes: int) -> int:
    """Return a file descriptor of new shared memory.

    The memory has no name, so it is freed with its last user. Raises OSError, with a hint, if
    memory is limited or memfd is forbidden.
    """
    try:
        fd = os.memfd_create(NAME, os.MFD_CLOEXEC)
    except OSError as error:
        forbidden = error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS)
        hint = "; if a sandbox forbids it, use --transport tcp (FARANDOLE_TRANSPORT=tcp)"
        cure = hint if forbidden else ""
        raise OSError(
            error.errno, f"shared memory is not available (memfd_create): {error.strerror}{cure}"
        ) from None
    try:
        os.ftruncate(fd, round_up(nbytes))
    except OSError as error:
        os.close(fd)
        limit = " (`ulimit -f` applies to shared memory, too; set it to unlimited)"
        cure = limit if error.errno == errno.EFBIG else ""
        raise OSError(
            error.errno,
            f"{nbytes} bytes of shared memory are not available: {error.strerror}{cure}",
        ) from None
    return fd


def attach(fd: int, nbytes: int) -> tuple[memoryview, Array]:
    """Map ``fd``, close it, and return the memory as a memoryview (for flags) and as a uint8 array
    (for data).

    The mapping exists while either object is referenced. Raises OSError if the memory cannot be
    mapped.
    """
    size = round_up(nbytes)
    try:
        mapped = mmap.mmap(fd, size)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{size} bytes of shared memory cannot be mapped: {error.strerror}"
            f"{_address_space_hint()}",
        ) from None
    finally:
        os.close(fd)
    return memoryview(mapped), np.frombuffer(mapped, dtype=np.uint8)[:nbytes]


def _address_space_hint() -> str:
    import resource  # imported here because a normal job does not need it

    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    limited = (
        f" (a process may map {space >> 20} MiB here; raise that limit, `ulimit -v`, or start fewer"
        " ranks)"
    )
    return "" if space == resource.RLIM_INFINITY else limited


def round_up(nbytes: int, unit: int = PAGE) -> int:
    return max(unit, (nbytes + unit - 1) // unit * unit)
