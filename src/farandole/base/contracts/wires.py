"""Contracts for wires between ranks: ``Link`` moves bytes, ``Transport`` runs collectives.

A wire that only moves bytes is a ``Link``: one verb, a ``Board``, and four small methods. A wire
with its own collectives is a ``Transport``. All calls block and come in the same order on all
ranks, except that a ``Board`` may be used at any time. Failures raise
``farandole.errors.PeerLostError`` (another rank was lost) or ``HorovodInternalError``.
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
    """The notice board for control rounds.

    Every rank posts one message a round and reads all messages once every rank has posted. A rank
    without a message does not post, and ranks need not be woken.

    One thread at a time may use the board; ``wake`` and ``verify`` may be called on any thread.
    """

    def post(self, message: bytes) -> None:
        """Post this rank's message for the current round, of any length."""

    def started(self) -> bool:
        """Return whether another rank has posted in the current round."""

    def missing(self) -> list[int]:
        """Return the ranks that have not posted in the current round."""

    def collect(self) -> list[bytes] | None:
        """Return all messages in rank order and end the round; None while a rank is missing."""

    def wait(self, seconds: float, *, spin: bool) -> None:
        """Wait until a peer posts, ``wake`` is called, or ``seconds`` have passed. May return
        early.

        ``spin`` allows a few dozen microseconds of polling first. Raises PeerLostError if a peer is
        gone or the wire was aborted.
        """

    def wake(self) -> None:
        """Make this rank's ``wait`` return."""

    def verify(self) -> None:
        """Raise PeerLostError if the wire was aborted or a rank has died.

        A rank that left in order is not lost.
        """


class Link(Protocol):
    """Moves bytes between ranks. ``collectives.over(link)`` turns a Link into a Transport."""

    rank: int
    size: int
    ahead: int  # bytes that may be in flight to a rank before a send blocks until the receive

    @property
    def board(self) -> Board: ...

    def sendrecv(self, send: Array | None, dst: int, recv: Array | None, src: int) -> None:
        """Send ``send`` (uint8, 1-D) to ``dst`` while filling ``recv`` from ``src``; None skips
        that half.
        """

    def split(self, ranks: Sequence[int]) -> Link | None:
        """Return a link among ``ranks``, or None on a rank outside them. Collective over the
        parent.
        """

    def report_waits(self, report: Report) -> None:
        """Set a callback for waits; see ``Transport.report_waits``."""

    def abort(self, why: str) -> None: ...
    def close(self) -> None: ...


class End(NamedTuple):
    """One rank's end of a wire to be created."""

    rank: int
    size: int
    secret: str  # the job's secret
    scope: str  # distinguishes the wires of a job; the same on all ranks
    timeout: float  # seconds to wait for all ranks
    # The job's store, with ``set``, ``get`` and ``gather`` as in
    # ``farandole.net.store.StoreClient``.
    store: Any
    # Comma-separated addresses of this host, in the order in which other ranks try them:
    # "10.1.2.3/24,10.7.0.3/16".
    host: str
    streams: int = 1  # connections per pair of ranks, where connections are used
    names: Sequence[int] = ()  # the ranks' names in errors and messages, if not 0, 1, 2, ...
    # Called about once per second while ranks are missing; raises an error to end the wait.
    check: Callable[[], None] = lambda: None


class Wire(Protocol):
    """Factory of a wire: an entry point in the group ``farandole.wires``, named as in
    ``--transport``.
    """

    def __call__(self, end: End) -> Link | Transport:
        """Create the wire. Collective.

        Raises RendezvousError naming the ranks that did not arrive in time.
        """


class Transport(Protocol):
    """Runs blocking collectives over one set of ranks, in the same order on all ranks."""

    rank: int
    size: int

    @property
    def board(self) -> Board: ...

    def allocate(self, nbytes: int) -> Array:
        """Return a uint8 array that ``allreduce`` reduces without staging.

        Collective: all ranks call this with the same sizes in the same order.
        """

    def allreduce(self, buffers: Sequence[Buffer], op: ReduceOp, scale: float = 1.0) -> None:
        """Reduce the buffers (all of one dtype) as if they were one, reading ``data`` and writing
        ``out``.

        ``op`` is SUM, MIN, MAX or PRODUCT. ``scale`` multiplies the result once, before rounding to
        the dtype (integers are truncated toward zero). Half types accumulate in float32. Results
        are bitwise identical on all ranks.
        """

    def allgather(self, send: Array, receive: Array, counts: Sequence[int]) -> None:
        """Concatenate every rank's ``send`` into ``receive``. Arrays are uint8; ``counts`` are
        bytes per rank.
        """

    def broadcast(self, data: Array, root: int) -> None:
        """Copy the root's ``data`` (uint8) to every rank."""

    def alltoall(
        self, send: Array, send_counts: Sequence[int], receive: Array, receive_counts: Sequence[int]
    ) -> None:
        """Send part i of ``send`` to rank i, and receive part i of ``receive`` from rank i.

        Arrays are uint8; counts are bytes.
        """

    def reducescatter(
        self, buffer: Buffer, counts: Sequence[int], op: ReduceOp, scale: float = 1.0
    ) -> None:
        """Reduce ``buffer.data`` over the ranks and write this rank's part to ``buffer.out``.

        ``counts`` are elements per rank and sum to ``len(data)``; ``len(out) == counts[rank]``.
        """

    def barrier(self) -> None: ...

    def split(self, ranks: Sequence[int]) -> Transport | None:
        """Return a transport among ``ranks``, or None on a rank outside them. Collective over the
        parent.
        """

    def report_waits(self, report: Report) -> None:
        """Call ``report(ranks, seconds)`` about twice a second while a collective waits for other
        ranks.

        The arguments are these ranks and the time waited so far. An exception from ``report`` ends
        the collective.
        """

    def report_parts(self, report: Parts | None) -> None:
        """Call ``report(part, begin, end)`` after each part of a collective that runs in parts, on
        several wires. None ends the reports.

        The arguments are the part's name and its monotonic start and end in seconds. Calls come
        before the collective returns, on any thread, possibly two at once.
        """

    def abort(self, why: str) -> None:
        """Make the current and later waits of all peers raise PeerLostError with ``why``.

        May be called on any thread.
        """

    def close(self) -> None: ...


class ByteStreams(Protocol):
    """Byte streams between every pair of ranks. Only ``wait`` blocks.

    One thread at a time may use the streams; ``wake`` and ``abort`` may be called on any thread.
    """

    rank: int
    size: int
    names: Sequence[int]  # see ``End``
    overhead: int  # bytes that ``seal`` adds to a content

    def write(self, dst: int, data: Array) -> int:
        """Send as much of ``data`` (uint8) as fits; return the number of bytes sent."""

    def read(self, src: int, into: Array) -> int:
        """Fill ``into`` (uint8) with the bytes available; return their number."""

    def seal(self, dst: int, content: bytes) -> bytes:
        """Return ``content`` sealed, to be written next, so that the reader can verify its
        sender.
        """

    def open(self, src: int, sealed: bytes) -> bytes:
        """Return the content that ``src`` passed to ``seal``.

        Raises WireError if ``sealed`` does not come from ``src``.
        """

    def wait(
        self, seconds: float, sources: Sequence[int], targets: Sequence[int], *, spin: bool
    ) -> None:
        """Wait until one of ``sources`` is readable, one of ``targets`` is writable, ``wake`` is
        called, or ``seconds`` have passed. May return early.

        ``spin``: see ``Board.wait``. Raises PeerLostError if the wire was aborted.
        """

    def wake(self) -> None: ...

    def gone(self, peer: int) -> Exception | None:
        """Return why no more bytes can come from ``peer``; None if they can."""

    def abort(self, why: str) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class Streaming(Protocol):
    """A transport or link that has byte streams in addition to collectives."""

    def streams(self) -> ByteStreams:
        """Create the streams. Collective."""


class DeviceTransport(Transport, Protocol):
    """Runs collectives on the memory of a device.

    Arrays are the framework's flat tensors of the dtype itself, also where a Transport takes bytes.
    A rank that has joined may pass host arrays to ``allreduce``. Operations are enqueued in order
    and asynchronously: only the device waits.
    """

    def empty(self, count: int, dtype: DType) -> Any:
        """Return new memory for a result."""

    def scale(self, out: Any, data: Any, dtype: DType, factor: float) -> None:
        """Write ``factor * data`` to ``out``, truncated toward zero for integer types."""

    def adasum(self, buffers: Sequence[Buffer], scale: float) -> None:
        """Reduce the buffers with Adasum; see ``collectives.adasum.allreduce``."""

    def record_event(self) -> Any:
        """Return an event that follows the calling thread's enqueued device work. Any thread.

        Raises RequestError if nothing can be enqueued, as during graph capture.
        """

    def run(self, events: Sequence[Any], work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Run ``work`` after the device has reached the events.

        The second result is a callable, which may be called any number of times, on any thread: the
        calling thread's later device work waits for ``work``. Raises RequestError on all ranks if
        settings rule out this device.
        """
