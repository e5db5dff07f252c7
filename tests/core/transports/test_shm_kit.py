from __future__ import annotations

import errno
import mmap
import os
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from farandole.core.transports import shm
from farandole.core.transports.shm import memory
from farandole.errors import PeerLostError
from farandole.net.handshake import new_secret
from tests.kits.messages import mentioning
from tests.kits.process import ProcessKit
from tests.kits.transport import TransportKit, fresh_scope


class TestShm(TransportKit):
    def joiner(self, size: int) -> Callable[[int], Any]:
        secret, scope = new_secret(), fresh_scope()
        return lambda rank: shm.connect(rank, size, secret, scope, 60.0)


class TestShmProcesses(ProcessKit):
    wire = "shm"


def test_a_departed_rank_is_reported_with_its_reason() -> None:
    """The reason counts, not the later departure, even if both arrive during a poll."""
    secret, scope = new_secret(), fresh_scope()
    with ThreadPoolExecutor(2) as threads:
        one, two = threads.map(lambda rank: shm.connect(rank, 2, secret, scope, 60.0), range(2))
    poll = one._segment.sockets._poll

    class Late:
        @staticmethod
        def poll(timeout: int) -> list[tuple[int, int]]:
            two.abort("rank 7 died")
            two.close()
            return poll.poll(timeout)

    one._segment.sockets._poll = Late()  # type: ignore[assignment]
    try:
        with pytest.raises(PeerLostError, match=r"^rank 7 died$"):
            one._segment.check()
    finally:
        one.close()


def test_a_limit_on_file_sizes_is_reported() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(
            OSError,
            match=mentioning("100000 bytes", "`ulimit -f`"),
        ):
            memory.create(100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_limit_on_the_address_space_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> mmap.mmap:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", full)
    for space, said in (
        (300 << 20, ("300 MiB", "`ulimit -v`")),
        (resource.RLIM_INFINITY, "Cannot allocate memory"),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, space=space: (space, space))
        fd = memory.create(1)
        with pytest.raises(
            OSError,
            match=mentioning("4096 bytes", "shared memory", said),
        ):
            memory.attach(fd, 1)
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)


def test_a_sandbox_that_forbids_shared_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    with pytest.raises(
        OSError,
        match=mentioning("memfd_create", "--transport"),
    ):
        memory.create(1)
