"""Wires between ranks: ``Link`` moves bytes, ``Transport`` runs collectives.

A wire that only moves bytes is a ``Link``: one verb, a ``Board``, and four small methods. One with
collectives of its own is a ``Transport``. All their calls block, and come in the same order on all
ranks; only a ``Board`` may be asked at any time. Failures leave as
``farandole.errors.PeerLostError`` (somebody went away) or ``HorovodInternalError``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from farandole.base.types import Buffer, DType, ReduceOp

if TYPE_CHECKING:
    from farandole.base.types import Array

T = TypeVar("T")
Report = Callable[[Sequence[int], float], None]
Parts = Callable[[str, float, float], None]


class Board(Protocol):
    """Control rounds: every rank posts one message a round, and reads all of them when all have
    posted: a notice board.

    It may be used without knowing whether the others are there: a rank with nothing to say does not
    post, and nobody has to be woken. One thread at a time, except ``wake`` and ``verify``: any
    thread.
    """

    def post(self, message: bytes) -> None:
        """Pin up this rank's message of the current round. Any length."""

    def started(self) -> bool:
        """Has any other rank posted in the current round?"""

    def missing(self) -> list[int]:
        """Ranks that have not posted in the current round."""

    def collect(self) -> list[bytes] | None:
        """All messages in rank order, which ends the round; None while somebody is missing."""

    def wait(self, seconds: float, *, spin: bool) -> None:
        """Return when a peer posts, when ``wake`` is called, or after ``seconds``; may return early
        for no reason.

        ``spin`` allows a few dozen microseconds of polling first. Raises PeerLostError when a peer
        is gone or the wire was aborted.
        """

    def wake(self) -> None:
        """Make the ``wait`` of this rank return."""

    def verify(self) -> None:
        """Raise PeerLostError if the wire was aborted or a rank has died; one that left in order is
        no loss.
        """


class Link(Protocol):
    """Moves bytes between ranks. ``collectives.over(link)`` makes a Transport of it."""

    rank: int
    size: int
    ahead: int  # so many bytes may be on their way to a rank before a send waits for its receive

    @property
    def board(self) -> Board: ...

    def sendrecv(self, send: Array | None, dst: int, recv: Array | None, src: int) -> None:
        """Send ``send`` (uint8, 1-D) to ``dst`` while filling ``recv`` from ``src``; None skips
        that half.
        """

    def split(self, ranks: Sequence[int]) -> Link | None:
        """A link among ``ranks`` (collective over the parent); None on a rank that is not among
        them.
        """

    def report_waits(self, report: Report) -> None:
        """See ``Transport.report_waits``."""

    def abort(self, why: str) -> None: ...
    def close(self) -> None: ...


class End(NamedTuple):
    """One rank's end of a wire that is to be made."""

    rank: int
    size: int
    secret: str  # of the job
    scope: str  # tells the wires of a job apart; all ranks have the same
    timeout: float  # seconds for all ranks to come
    # the job's: what ``farandole.net.store.StoreClient`` has to set, get and gather values of bytes
    store: Any
    # addresses of this host for others to try, in this order, with commas between:
    # "10.1.2.3/24,10.7.0.3/16"
    host: str
    streams: int = 1  # connections between two ranks, where they have connections
    names: Sequence[int] = ()  # what errors and messages call the ranks, if not 0, 1, 2, ...


class Wire(Protocol):
    """Makes a wire: the entry point in the group ``farandole.wires``, by the name that
    ``--transport`` takes.
    """

    def __call__(self, end: End) -> Link | Transport:
        """Collective. Raises RendezvousError naming the ranks that did not come in time."""


class Transport(Protocol):
    """Runs collectives over one set of ranks. Blocking; the same calls in the same order on all
    ranks.
    """

    rank: int
    size: int

    @property
    def board(self) -> Board: ...

    def allocate(self, nbytes: int) -> Array:
        """A uint8 array that ``allreduce`` reduces without staging. Collective: same size, same
        order on all ranks.
        """

    def allreduce(self, buffers: Sequence[Buffer], op: ReduceOp, scale: float = 1.0) -> None:
        """Reduce the buffers (all of one dtype) as if they were one, reading ``data`` and writing
        ``out``.

        ``op``: SUM, MIN, MAX or PRODUCT. ``scale`` multiplies the result once, before it is rounded
        to the dtype (integers: truncated toward zero). Half types accumulate in float32. The same
        bits on all ranks.
        """

    def allgather(self, send: Array, receive: Array, counts: Sequence[int]) -> None:
        """Concatenate every rank's ``send`` into ``receive``. uint8; ``counts``: bytes per rank."""

    def broadcast(self, data: Array, root: int) -> None:
        """``root``'s ``data`` on every rank. uint8."""

    def alltoall(
        self, send: Array, send_counts: Sequence[int], receive: Array, receive_counts: Sequence[int]
    ) -> None:
        """Part i of ``send`` goes to rank i; part i of ``receive`` comes from rank i. uint8, counts
        in bytes.
        """

    def reducescatter(
        self, buffer: Buffer, counts: Sequence[int], op: ReduceOp, scale: float = 1.0
    ) -> None:
        """Reduce ``buffer.data`` (everybody's whole) and write this rank's part to ``buffer.out``.

        ``counts``: elements per rank, summing to ``len(data)``; ``len(out) == counts[rank]``.
        """

    def barrier(self) -> None: ...

    def split(self, ranks: Sequence[int]) -> Transport | None:
        """A transport among ``ranks`` (collective over the parent); None on a rank that is not
        among them.
        """

    def report_waits(self, report: Report) -> None:
        """Have ``report(ranks, seconds)`` called about twice a second while a collective waits for
        others: for which ranks, and for how long already. What it raises ends the collective.
        """

    def report_parts(self, report: Parts | None) -> None:
        """Have ``report(part, begin, end)`` called after each part of a collective that is done in
        parts, on several wires: its name, and its times on the monotonic clock, in seconds. On any
        thread, two at once, before the collective returns. None: no more.
        """

    def abort(self, why: str) -> None:
        """Wake every peer that waits, now and later: their calls raise PeerLostError with ``why``.
        Any thread.
        """

    def close(self) -> None: ...


class ByteStreams(Protocol):
    """Bytes from each rank to each other. Nothing waits but ``wait``. One thread at a time, but
    ``wake``, ``abort``.
    """

    rank: int
    size: int
    names: Sequence[int]  # see ``End``
    overhead: int  # bytes by which ``seal`` makes a content longer

    def write(self, dst: int, data: Array) -> int:
        """Send as much of ``data`` (uint8) as there is room for now; how many bytes that was."""

    def read(self, src: int, into: Array) -> int:
        """Fill ``into`` (uint8) with what is there now; how many bytes that was."""

    def seal(self, dst: int, content: bytes) -> bytes:
        """``content``, to be written next, so that its reader can see that it is from here."""

    def open(self, src: int, sealed: bytes) -> bytes:
        """What ``seal`` was given on ``src``. Raises WireError for what ``src`` did not send."""

    def wait(
        self, seconds: float, sources: Sequence[int], targets: Sequence[int], *, spin: bool
    ) -> None:
        """Until something can be read from one of ``sources`` or written to one of ``targets``, or
        ``wake`` is called, or the time is over; may return early. ``spin``: see ``Board``. Raises
        PeerLostError if the wire was aborted.
        """

    def wake(self) -> None: ...

    def gone(self, peer: int) -> Exception | None:
        """Why nothing more can come from ``peer``; None if something can."""

    def abort(self, why: str) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class Streaming(Protocol):
    """A transport, or a link, that has streams beside its collectives."""

    def streams(self) -> ByteStreams:
        """Collective."""


class DeviceTransport(Transport, Protocol):
    """Runs collectives on the memory of a device. Its arrays are flat tensors of a framework, of
    the dtype itself (also where a Transport wants bytes); a rank that has joined may bring host
    arrays to ``allreduce``.

    What it is told to do is done in order, but not at once: only the device waits.
    """

    def empty(self, count: int, dtype: DType) -> Any:
        """New memory for a result."""

    def scale(self, out: Any, data: Any, dtype: DType, factor: float) -> None:
        """``out = factor * data``, truncated toward zero where that is no whole number of an
        integer type.
        """

    def adasum(self, buffers: Sequence[Buffer], scale: float) -> None:
        """See ``collectives.adasum.allreduce``."""

    def record_event(self) -> Any:
        """An event behind what the calling thread has told the device to do. Any thread.

        Raises RequestError where the device can be told nothing (while a graph is captured).
        """

    def run(self, events: Sequence[Any], work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Do ``work`` once the device has come to the events. Calling the second result (once, or
        more often, in any thread) lets what that thread then tells the device wait for the work.

        Raises RequestError on all ranks alike when settings rule this device out.
        """
