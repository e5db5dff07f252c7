"""Pages of this process, by their addresses: what they map, and what is mapped there in their
place.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from farandole.core.transports.shm import memory

if TYPE_CHECKING:
    from farandole.base.types import Array

_ORDINARY = ("", "[heap]", f"/memfd:{memory.NAME} (deleted)")
_RIGHTS = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED, _MAYMOVE, _FIXED = 0x10, 1, 2  # mman.h: of mmap; of mremap
_PUNCH_HOLE, _KEEP_SIZE = 2, 1  # falloc.h
_FILE_PAGE = 61  # the bit of an entry of pagemap (Linux, admin-guide/mm/pagemap)

_libc = ctypes.CDLL(None, use_errno=True)
_int, _long, _size, _pointer = ctypes.c_int, ctypes.c_long, ctypes.c_size_t, ctypes.c_void_p
_libc.mmap.restype = _libc.mremap.restype = _pointer
_FAILED = _pointer(-1).value


class Mapped(NamedTuple):
    """Pages that lie together and map the same. As in /proc/self/maps, but ``begin`` and ``end`` of
    what was asked.
    """

    begin: int
    end: int
    rights: str
    inode: int
    name: str


def mapped(first: int, last: int) -> list[Mapped]:
    """What the pages between two addresses map, without the gaps."""
    found = []
    with open("/proc/self/maps") as file:
        for line in file:
            place, rights, _, _, inode, *name = line.split(maxsplit=5)
            begin, end = (int(word, 16) for word in place.split("-"))
            if begin >= last:
                break
            if end > first:
                named = name[0].strip() if name else ""
                found.append(Mapped(max(begin, first), min(end, last), rights, int(inode), named))
    return found


def are_private(first: int, last: int) -> bool:
    """Are they ordinary memory of this process, that nobody else has a part in? Or were they
    registered once?
    """
    found = mapped(first, last)
    ordinary = all(
        each.rights == "rw-p" and (each.name in _ORDINARY or each.name.startswith("[anon:"))
        for each in found
    )
    return ordinary and sum(each.end - each.begin for each in found) == last - first


def shared_of(first: int, last: int, fd: int) -> list[tuple[int, int]]:
    """Which of the pages are those of ``fd``, and no copies of them: where they begin and end."""
    wanted = os.fstat(fd).st_ino
    return [
        (each.begin, each.end)
        for each in mapped(first, last)
        if each.inode == wanted and each.rights.endswith("s")
    ]


def are_shared(first: int, last: int) -> bool:
    """Do the first and the last of them map a file, or memory that is handed over as one? Quicker
    than ``mapped``.
    """
    fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for address in (first, last - memory.PAGE):
            array(address, 1)[0]  # a page that nobody has touched is of no kind
            entry = os.pread(fd, 8, address // memory.PAGE * 8)
            if not int.from_bytes(entry, sys.byteorder) >> _FILE_PAGE & 1:
                return False
        return True
    finally:
        os.close(fd)


def place(first: int, nbytes: int, flags: int, fd: int, offset: int = 0) -> None:
    """Have them map ``fd``, or what else ``flags`` say, in one step: other threads see the one or
    the other.
    """
    _map(first, nbytes, flags | _MAP_FIXED, fd, offset)


def share(first: int, last: int, fd: int) -> None:
    """Have them map ``fd``, which holds what they hold, for others, too. OSError where that is not
    seen by ``are_shared`` afterwards: the kernel does not say so, or no more files may be opened.
    Then they are private.
    """
    place(first, last - first, mmap.MAP_SHARED, fd)
    try:
        if not are_shared(first, last):
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    except OSError:
        place(first, last - first, mmap.MAP_PRIVATE, fd)
        raise


def copy(first: int, nbytes: int) -> None:
    """Put private copies in their place. What other threads write to them meanwhile may be lost."""
    room, size = _map(None, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1), _size(nbytes)
    ctypes.memmove(room, first, nbytes)
    if (
        _libc.mremap(_pointer(room), size, size, _int(_MAYMOVE | _FIXED), _pointer(first))
        == _FAILED
    ):
        raise OSError(ctypes.get_errno(), "mremap")


def write(fd: int, content: Array) -> None:
    """By the kernel, which says so where no memory is left; who writes to a map of it is killed
    there.
    """
    at = 0
    while at < len(content):
        at += os.pwrite(fd, content[at:].data, at)


def empty(fd: int, nbytes: int) -> None:
    """Give its memory back, whoever maps it: they find zeros."""
    _libc.fallocate(_int(fd), _int(_PUNCH_HOLE | _KEEP_SIZE), _long(0), _long(nbytes))


def array(first: int, nbytes: int) -> Array:
    """Their bytes; nothing keeps them."""
    return np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(first)), np.uint8)


def _map(first: int | None, nbytes: int, flags: int, fd: int, offset: int = 0) -> int:
    found: int = _libc.mmap(
        _pointer(first), _size(nbytes), _int(_RIGHTS), _int(flags), _int(fd), _long(offset)
    )
    if found == _FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    return found
