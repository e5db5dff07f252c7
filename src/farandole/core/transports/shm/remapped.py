"""Memory of the program's own, registered where it stands: its pages become shared ones, at the
same addresses.

What a program gives to collectives again and again, as DDP gives its buckets, is then reduced
without a copy. Others map whole pages; the parts of pages at both ends of an array travel with the
offer of it. A rank offers an array; all read all offers, and decide alike.

A fork would share such pages with the process that it makes: so before it they become private ones,
copied when either writes. When nobody but the keeper holds the memory any longer, its pages are
ordinary ones again.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import mmap
import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from farandole.base.contracts import Keeper
from farandole.base.types import Buffer, ReduceOp
from farandole.core.kernels import quiet, reducer
from farandole.core.transports.shm import memory, pages, rendezvous
from farandole.core.transports.shm.memory import PAGE
from farandole.core.transports.shm.registered import reduce_shares
from farandole.core.transports.shm.segment import Segment

if TYPE_CHECKING:
    from farandole.base.types import Array

# bytes: two ranks take 83 µs for so many, where copying takes 110; 160 and 515 for 4 MiB
LEAST = 512 << 10
# An offer: one of these, the number of the region, and where in it the array begins, a page on;
# then the first and the last page's worth of the array.
OFFERED = 64 + 2 * PAGE  # bytes
_NO, _NEW, _STANDS = range(3)  # not to be registered; to be registered now; registered
_HANDED = struct.Struct("<qq")  # number and bytes of a region; -1: it cannot be registered
_WAIT_SECONDS = 5.0  # for which a fork waits until a collective has ended
_FORGIVEN = 256  # offers after which what could not be registered is tried again


class Region(NamedTuple):
    """Pages of this process that others map. ``fd``: of their memory. ``parted``: a fork may map
    it, too.
    """

    number: int
    first: int
    nbytes: int
    fd: int
    keeper: Keeper
    parted: bool = False

    def part(self) -> None:
        """The pages are private from now on: what this process writes is written to copies. Nothing
        that another thread writes meanwhile gets lost. Others must have ended their work: what they
        write is seen here until then.
        """
        # not somebody else's by now
        for begin, end in pages.shared_of(self.first, self.first + self.nbytes, self.fd):
            pages.place(begin, end - begin, mmap.MAP_PRIVATE, self.fd, begin - self.first)

    def sever(self) -> None:
        """The pages are copies from now on, whatever others write. No thread writes to them
        meanwhile.
        """
        self.part()
        if not self.keeper.moved():
            with contextlib.suppress(OSError):  # there is no memory for copies
                pages.copy(self.first, self.nbytes)
        os.close(self.fd)

    def end(self) -> bool:
        """They are ordinary pages again, if nobody else holds the memory, or the program has put it
        elsewhere.
        """
        if self.keeper.moved():
            self.part()
        elif self.keeper.shared():
            return False
        else:
            pages.place(self.first, self.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
            if not self.parted:  # other ranks map it still, and would keep the memory
                pages.empty(self.fd, self.nbytes)
        os.close(self.fd)
        return True


class RemappedBuffers:
    """The regions of this rank, and the others' as this rank maps them."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._regions: dict[int, Region] = {}  # by the identity of their keeper
        self._refused: set[int] = set()
        self._maps: dict[tuple[int, int], Array] = {}  # by rank and number
        self._offers = 0
        # others' regions cannot be mapped: too many files are open, or there is no room
        self._poor = False
        self._shown = np.zeros(OFFERED, np.uint8)
        # from an offer on until the collective has ended
        self._busy, self._holder = threading.Lock(), 0
        self._given = 0  # the identity of the keeper of what is offered
        # what is given, and what is parted: a fork may come while this rank is busy
        self._choosing = threading.RLock()
        _open.add(self)

    @contextlib.contextmanager
    def offer(self, array: Array, keeper: Keeper | None) -> Iterator[Offer]:
        """See ``contracts.Showing``. Until the context ends, no fork begins."""
        with self._busy:
            self._holder = threading.get_ident()
            try:
                with self._choosing:
                    self._given = 0 if keeper is None else keeper.identity
                    self._look()
                yield self._offer_of(array.view(np.uint8), keeper)
            except BaseException:
                if keeper is not None:
                    self._give_up(keeper)
                raise
            finally:
                self._holder = self._given = 0

    def _offer_of(self, array: Array, keeper: Keeper | None) -> Offer:
        state, number, offset, shown = _NO, 0, 0, self._shown
        if keeper is not None and not self._poor and keeper.identity not in self._refused:
            # what stands there cannot be seen: too many files are open just now
            with contextlib.suppress(OSError):
                state, number, offset = self._state_of(array, keeper)
        if state == _STANDS:
            shown[64 : 64 + PAGE] = array[:PAGE]
            shown[64 + PAGE :] = array[-PAGE:]
        shown[:24].view(np.int64)[:] = state, number, offset
        return Offer(self, array, keeper, shown if state == _STANDS else shown[:64])

    def _state_of(self, array: Array, keeper: Keeper) -> tuple[int, int, int]:
        """As it stands in an offer."""
        region, first = self._standing_region(keeper), array.ctypes.data + PAGE
        if region is None:
            return _NEW, 0, 0
        if region.first <= first and first + len(array) - 2 * PAGE <= region.first + region.nbytes:
            return _STANDS, region.number, first - region.first
        return _NO, 0, 0

    def _standing_region(self, keeper: Keeper) -> Region | None:
        """Not one whose memory is elsewhere by now, or was freed and got again at the same address:
        its pages are others, or none.
        """
        region = self._regions.get(keeper.identity)
        if region is None:
            return None
        if not region.keeper.moved() and pages.are_shared(
            region.first, region.first + region.nbytes
        ):
            return region
        region.part()  # what is left of them
        self._forget(region)
        os.close(region.fd)
        return None

    # What all decide alike, from everybody's offers.

    def standing(self, offer: Offer, offers: Sequence[Array]) -> list[Array] | None:
        """By rank, its array from the second page's worth on, if everybody's is registered. Else
        None; then those are registered that are to be, if all are or are to be. Collective.
        """
        found = [shown[:24].view(np.int64).tolist() for shown in offers]
        states = {state for state, _, _ in found}
        if _NO in states:
            return None
        if _NEW in states:
            self._register(
                offer, [rank for rank, (state, _, _) in enumerate(found) if state == _NEW]
            )
            return None
        self._segment.check_abort()  # who has given up this call has its memory back
        return [self._maps[rank, number][offset:] for rank, (_, number, offset) in enumerate(found)]

    def _register(self, offer: Offer, ranks: Sequence[int]) -> None:
        """Those of ``ranks`` register what they offer, and hand it to all."""
        segment = self._segment
        if segment.rank in ranks:
            region = self._remap(offer)
            for sock in segment.peers.values():
                # it has gone: who waits for it next hears why
                with contextlib.suppress(ConnectionError):
                    if region is None:
                        sock.sendall(_HANDED.pack(-1, 0))
                    else:
                        rendezvous.hand_over(
                            sock, region.fd, _HANDED.pack(region.number, region.nbytes)
                        )
            if region is not None:
                self._maps[segment.rank, region.number] = pages.array(region.first, region.nbytes)
            segment.wake_others()
        for peer in ranks:
            if peer != segment.rank:
                self._take(peer, segment.peers[peer])

    def _take(self, peer: int, sock: socket.socket) -> None:
        segment, come = self._segment, select.poll()
        come.register(sock, select.POLLIN)
        # it may break off, or be stopped
        segment.wait_until(lambda: bool(come.poll(0)), segment.patience, peer=peer)
        segment.check_abort()  # who has left may have said why
        said, fd = rendezvous.receive_with(
            sock, segment.names[peer], segment.patience, _HANDED.size
        )
        number, nbytes = _HANDED.unpack(said)
        if number < 0:
            return
        try:
            if fd is None:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self._maps[peer, number] = memory.attach(fd, nbytes)[1]
        except OSError:  # nothing is registered on this rank, and so nowhere, from now on
            self._poor = True

    def _remap(self, offer: Offer) -> Region | None:
        """None if that cannot be: the memory is not ordinary memory of this process alone, or there
        is none left.
        """
        array, keeper = offer.array, offer.keeper
        assert keeper is not None
        address = array.ctypes.data
        first, last = memory.round_up(address), (address + len(array)) // PAGE * PAGE
        fd = -1
        try:
            # OSError where that cannot be seen, as it has to be at each offer
            pages.are_shared(first, last)
            if pages.are_private(first, last):
                fd = memory.create(last - first)
                pages.write(fd, array[first - address : last - address])
                pages.share(first, last, fd)
                # a fork may part some meanwhile
                used = {region.number for region in list(self._regions.values())}
                number = next(number for number in range(len(used) + 1) if number not in used)
                region = Region(number, first, last - first, fd, keeper)
                _recall(keeper)
                self._regions[keeper.identity] = region
                return region
        except OSError:
            if fd >= 0:
                os.close(fd)
        self._refused.add(keeper.identity)
        return None

    # The end of a region.

    def _look(self) -> None:
        """At one region in each call: is its memory of use to anybody else, and where it was?"""
        self._offers += 1
        if self._offers % _FORGIVEN == 0:
            self._refused.clear()
        if self._regions:
            region = list(self._regions.values())[self._offers % len(self._regions)]
            with contextlib.suppress(OSError):  # it stays until another look
                if region.end():
                    self._forget(region)

    def _forget(self, region: Region) -> None:
        del self._regions[region.keeper.identity]
        self._maps.pop((self._segment.rank, region.number), None)

    def _give_up(self, keeper: Keeper) -> None:
        """A collective has failed here; a rank that comes late, or goes on, may write still."""
        region = self._regions.get(keeper.identity)
        if region is not None:
            region.sever()
            self._forget(region)

    def part(self) -> None:
        """Others work on no memory of this rank any longer, but for what is offered. What the
        program holds stays as it is.
        """
        for region in list(self._regions.values()):
            with self._choosing:
                identity = region.keeper.identity
                if identity == self._given or self._regions.get(identity) is not region:
                    continue
                region.part()
                self._forget(region)
            _left.append(region._replace(parted=True))
        if _left and _sweep not in gc.callbacks:
            gc.callbacks.append(_sweep)

    def close(self) -> None:
        self.part()
        self._maps = {}
        _sweep("start", {})

    def __del__(self) -> None:
        """A group that the program forgets, and has not destroyed: its tensors are not to be shared
        with forks.
        """
        self.part()

    def hold(self, seconds: float) -> bool:
        """Begin no collective until ``after_fork``, if there is none within these seconds."""
        if self._busy.acquire(timeout=seconds):
            self._holder = -threading.get_ident()
            return True
        return False

    @property
    def mine(self) -> bool:
        """Is this thread in a collective itself?"""
        return self._holder == threading.get_ident()

    def after_fork(self) -> None:
        if self._holder == -threading.get_ident():
            self._holder = 0
            self._busy.release()

    def after_fork_in_child(self) -> None:
        """What the fork could not wait for goes on in the parent."""
        for region in self._regions.values():
            region.sever()
        self._regions.clear()


class Offer(NamedTuple):
    """An array that this rank offers, and what it shows of it."""

    buffers: RemappedBuffers
    array: Array  # uint8
    keeper: Keeper | None
    shown: Array

    def allreduce(
        self, buffer: Buffer, offers: Sequence[Array], op: ReduceOp, scale: float
    ) -> bool:
        """Reduce ``buffer``, whose memory this is, if every rank's is registered; else do nothing.
        Collective.
        """
        whole = self.buffers.standing(self, offers)
        if whole is None:
            return False
        segment, dtype = self.buffers._segment, buffer.dtype
        count, edge = len(buffer.data), PAGE // dtype.itemsize
        reduce = reducer(op, dtype, scale)
        with quiet():
            for part, begin in ((buffer.out[:edge], 64), (buffer.out[-edge:], 64 + PAGE)):
                reduce(part, [shown[begin : begin + PAGE].view(dtype.storage) for shown in offers])
            inner = (count - 2 * edge) * dtype.itemsize
            reduce_shares(
                segment, [array[:inner].view(dtype.storage) for array in whole], op, dtype, scale
            )
        segment.publish()
        segment.await_all(segment.published)
        return True

    def broadcast(self, root: int, offers: Sequence[Array]) -> bool:
        """``root``'s array on every rank, if every rank's is registered; else nothing is done.
        Collective.
        """
        whole = self.buffers.standing(self, offers)
        if whole is None:
            return False
        segment = self.buffers._segment
        inner = len(self.array) - 2 * PAGE
        if segment.rank != root:
            self.array[:PAGE] = offers[root][64 : 64 + PAGE]
            self.array[-PAGE:] = offers[root][64 + PAGE : OFFERED]
        share = memory.round_up(-(-inner // segment.size), 64)
        first, last = min(inner, segment.rank * share), min(inner, (segment.rank + 1) * share)
        for rank, array in enumerate(whole):
            if rank != root:
                array[first:last] = whole[root][first:last]
        segment.publish()
        segment.await_all(segment.published)
        return True


_open: weakref.WeakSet[RemappedBuffers] = weakref.WeakSet()
# that are registered no more; their pages are private, and of memory that the program holds
_left: list[Region] = []


def _sweep(phase: str, info: Mapping[str, int]) -> None:
    """What the program has freed since. When Python looks for garbage, on any thread."""
    if phase == "start":
        for _ in range(len(_left)):
            with contextlib.suppress(IndexError):  # another thread is at it
                region = _left.pop()
                if not region.end():
                    _left.insert(0, region)


def _recall(keeper: Keeper) -> None:
    """It is registered again."""
    for region in [region for region in _left if region.keeper.identity == keeper.identity]:
        with contextlib.suppress(ValueError):
            _left.remove(region)
            os.close(region.fd)


def _before_fork() -> None:
    """Where this thread is in a collective itself, or one does not end, the child finds what that
    has done so far.
    """
    wanted = [buffers for buffers in list(_open) if not buffers.mine]
    held: list[RemappedBuffers] = []
    until, first = time.monotonic() + _WAIT_SECONDS, 0
    # Who waited for one while it holds another would wait for ranks that do the same the other way
    # round.
    while len(held) < len(wanted) and (left := until - time.monotonic()) > 0:
        for buffers in wanted[first:] + wanted[:first]:
            if not buffers.hold(0.0 if held else left):
                first = wanted.index(buffers)
                _release(held)
                held = []
                break
            held.append(buffers)
    held = held or [buffers for buffers in wanted if buffers.hold(0.0)]
    for buffers in list(_open):
        buffers.part()


def _release(held: Sequence[RemappedBuffers]) -> None:
    for buffers in held:
        buffers.after_fork()


def _after_fork_in_parent() -> None:
    _release(list(_open))


def _after_fork_in_child() -> None:
    for buffers in list(_open):
        buffers.after_fork_in_child()
    _open.clear()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
