"""What the pages of a region are when the program has given some of them to somebody else."""

from __future__ import annotations

import mmap
import os

import numpy as np

from farandole.core.transports.shm import memory, pages, remapped

PAGE = memory.PAGE


class Moved:
    """Memory that the program has put elsewhere."""

    identity = 1

    def moved(self) -> bool:
        return True

    def shared(self) -> bool:
        return True


def test_pages_that_are_left_of_a_region_become_private_with_what_is_in_them() -> None:
    fd = memory.create(4 * PAGE)
    pages.write(fd, np.repeat(np.arange(4, dtype=np.uint8), PAGE))
    content = np.frombuffer(mmap.mmap(fd, 4 * PAGE), np.uint8)
    first = content.ctypes.data
    pages.place(first + PAGE, PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    content[PAGE] = 9

    remapped.Region(0, first, 4 * PAGE, fd, Moved()).part()

    assert {each.rights for each in pages.mapped(first, first + 4 * PAGE)} == {"rw-p"}
    assert content[::PAGE].tolist() == [0, 9, 2, 3]
    content[2 * PAGE] = 7
    assert os.pread(fd, 1, 2 * PAGE) == b"\x02"
    os.close(fd)


def test_pages_that_became_private_are_left_alone_when_somebody_else_has_them() -> None:
    fd = memory.create(2 * PAGE)
    content = np.frombuffer(mmap.mmap(fd, 2 * PAGE), np.uint8)
    region = remapped.Region(0, content.ctypes.data, 2 * PAGE, fd, Moved())
    region.part()
    content[:] = 7

    assert region._replace(parted=True).end()

    assert (content == 7).all()
