"""Every contract between rooms, on one page.

A wire that only moves bytes is a ``Link``: one verb, a ``Board``, and four small methods. One with
collectives of its own is a ``Transport``. All their calls block, and come in the same order on all
ranks; only a ``Board`` may be asked at any time. Failures leave as
``farandole.errors.PeerLostError`` (somebody went away) or ``HorovodInternalError``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request, Response

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


@runtime_checkable
class Showing(Protocol):
    """A transport on which ranks can see each other's memory."""

    shown: int  # bytes that a rank may show

    def show(self, word: int, pieces: Sequence[Array]) -> tuple[list[int], list[Array]]:
        """Collective: every rank's ``word`` (64 bits), and its ``pieces`` (1-D, one behind the
        other) as uint8 arrays that begin with them. They may be read until the call after the next
        one. One wait.
        """

    def exchange(self, sends: Sequence[Array], receives: Sequence[Array], largest: int) -> None:
        """``sends[i]`` to rank i, ``receives[i]`` from it: uint8, anywhere, apart from each other.
        All ranks know the ``largest`` part of all in bytes, and have called ``show`` before; it is
        what they call next.
        """


class Streams(Protocol):
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

    def streams(self) -> Streams:
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


class Binding(Protocol):
    """A framework's side of the collectives."""

    def buffer(self, tensor: Any) -> Buffer:
        """The tensor's memory, flat (``data`` and ``out`` are the same array): zero-copy where its
        layout and device allow it, else a copy on the host. Raises ValueError for what cannot
        cross.

        A binding with a DeviceTransport gives a DeviceBuffer for memory of that device.
        """

    def write_back(self, tensor: Any, buffer: Buffer) -> None:
        """After a collective wrote ``buffer.out``: bring it home, if ``buffer`` had to copy."""

    def tensor(self, array: Array, shape: Sequence[int], like: Any = None) -> Any:
        """A tensor of ``like``'s dtype and device over a flat ``array`` (of the dtype's storage
        type); without ``like`` of the array's own type, on the host.
        """

    def cast(self, tensor: Any, dtype: Any) -> Any:
        """``tensor`` as ``dtype`` (a DType or the framework's own) if it holds floating point
        numbers, else itself.
        """


class Part(NamedTuple):
    """A tensor among those that a codec reduces as one.

    ``key``: under what the codec keeps its state for it. Empty on a rank that has joined: that one
    takes part with the zeros in ``buffer``, and keeps nothing. ``shape``: the tensor's own; the
    memory is flat. ``given``: False, if there is no such tensor on this rank now, and zeros count;
    see ``Retractable``.
    """

    key: str
    shape: tuple[int, ...]
    buffer: Buffer
    given: bool = True


class Codec(Protocol):
    """Adds up tensors over all ranks by sending less than all of them. One instance on each rank,
    for one optimizer.

    The engine calls it when ranks have agreed to run what ``Request.codec`` names, on the thread
    that runs collectives.
    """

    spec: str  # "name" or "name:argument": what the ranks agree on
    sent: int  # bytes that this rank has sent so far
    saved: int  # bytes that an all-reduce without the codec would have sent more

    def allreduce(self, parts: Sequence[Part], scale: float, transport: Transport) -> None:
        """Add up each part over the ranks, times ``scale``: read ``data``, write ``out``. Parts are
        of one floating point type, with the same shapes on all ranks.

        The same bits on all ranks. A number that is not finite makes the results not finite, on all
        ranks.
        """

    def state_dict(self) -> dict[str, Array]:
        """Copies of everything that later results depend on: residuals, counts of steps ..."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on bit for bit where ``state_dict`` was called, on the same rank of as many."""


@runtime_checkable
class Consensus(Protocol):
    """A codec that says how far ranks may go towards what they hear of their neighbours by it."""

    def consensus_step(self, shapes: Sequence[tuple[int, ...]]) -> float:
        """The consensus step size of CHOCO-SGD for weights of these shapes, above 0 and up to 1:
        the less, the more the codec leaves out.
        """


@runtime_checkable
class Retractable(Protocol):
    """A codec that keeps what it has not sent (or a momentum), and may have sent it in vain: for a
    tensor that no rank has given.
    """

    def retract(self, keys: Sequence[str]) -> None:
        """What was sent of these parts, in the last ``allreduce`` of each, where they were not
        ``given`` on any rank, counts as not sent; what is kept of them is what it was before.
        """


@runtime_checkable
class Rescaling(Protocol):
    """A codec that keeps what it has not sent in the units of what it gets, and can follow
    these.
    """

    def rescale(self, keys: Sequence[str], factor: float) -> None:
        """From now on, numbers of the tensors with these keys are ``factor`` times as large as
        before.
        """


class Packed(NamedTuple):
    """What a codec made of one rank's changes. ``payload``: what travels, uint8; ``kept``: what the
    codec's state has when that has arrived, of which nothing is kept before; ``whole``: bytes of
    the changes themselves.
    """

    payload: Array
    kept: Mapping[str, Array]
    whole: int


@runtime_checkable
class PushCodec(Codec, Protocol):
    """A codec that can also compress what one rank pushes to parameter servers, by itself."""

    def pack(self, parts: Sequence[Part], rank: int) -> Packed:
        """The parts' ``data``, and what is kept of them, as far as they are sent now. Parts are of
        one type, float32 or float64. ``rank``: other ranks round in other ways.
        """

    def pack_all(self, parts: Sequence[Part]) -> Packed:
        """All of that: the payload are the numbers themselves, in the type of the parts."""

    def arrived(self, packed: Packed, taken: bool) -> None:
        """Count bytes, and keep what was not sent; if it was not ``taken``, for it came too late,
        keep what was kept before.
        """

    def unpack(self, payload: Array, out: Array) -> None:
        """At the server: what the payload of ``pack`` stands for, into ``out`` (flat, as long as
        all parts together). Uses no state. Raises ValueError or IndexError for what is no such
        payload.
        """


class Peers(Protocol):
    """All ranks of one optimizer, for a ``Strategy``. All calls are collective, but ``push``,
    ``pull`` and ``average_async``.
    """

    rank: int
    size: int

    def average(self, arrays: Sequence[Array]) -> None:
        """The mean over all ranks of each array, in its place. The same bits on all ranks."""

    def barrier(self) -> None:
        """Returns when all ranks have come here."""

    def swap(self, arrays: Sequence[Array], to: Sequence[int]) -> dict[int, list[Array]]:
        """Send ``arrays`` to the ranks ``to``; by rank, the arrays of those that sent to this
        one.
        """

    def average_with(
        self,
        arrays: Sequence[Array],
        to: Sequence[int],
        ever: Sequence[int] = (),
        gamma: float | None = None,
    ) -> None:
        """Each array goes ``gamma`` of the way to the mean of itself and those of the ranks that
        send to this one, which sends to the ranks ``to``. ``ever``: those to which it sends in
        other turns, too (none: always ``to``); all of them must know what it sends by a codec.
        ``gamma``: None is all of the way, or what suits the codec.
        """

    def push(
        self, rule: Any, anchors: Sequence[Array], changes: Sequence[Array], *, count: bool = True
    ) -> Any:
        """Give ``changes`` of the weights to the job's parameter servers, and take the centre in
        their place, as ``rule`` (a ``farandole.core.ps.clocks.Rule``) says; what became of the push
        (a ``farandole.core.ps.client.Pushed``). Not collective. ``anchors``: the weights without
        the changes, with which the centre may begin. Without ``count`` it is no step of this rank.
        """

    def pull(self, into: Sequence[Array]) -> None:
        """The centre, as it is. Not collective."""

    def average_async(
        self,
        anchors: Sequence[Array],
        changes: Sequence[Array],
        others: Sequence[int],
        *,
        damp: bool = False,
        gamma: float | None = None,
    ) -> int:
        """Add ``changes`` to the weights that this rank shows to others, which begin as
        ``anchors``, and take those in their place; then begin to average them with the first of
        ``others`` that is not busy, in the background. The number of averages with other ranks
        since the last call; with ``damp``, changes are divided by it. Not collective, but for the
        first time. ``others``: higher ranks alone, so that two never refuse each other. ``gamma``:
        how much of the way to their mean two ranks go, see ``average_with``.
        """

    def average_shown(
        self, anchors: Sequence[Array], changes: Sequence[Array], *, gamma: float | None = None
    ) -> None:
        """As ``average_async``, but with all ranks: take the mean of what they show, with their
        changes.
        """


class Strategy(Protocol):
    """What ranks make of their weights after some of the steps that each takes with gradients of
    its own.

    It holds options alone, the same on all ranks, and serves any number of optimizers. Whatever
    lasts from one exchange to the next is in slots, which belong to the optimizer and to its
    checkpoints.
    """

    spec: str  # as in ``--strategy``
    epochs: bool  # is there an exchange at the end of each epoch?
    # what all ranks have the same of after an exchange: "weights", "slot" (the first), or ""
    # (nothing);
    common: str
    # a codec then compresses how far from it each rank's weights are, whose mean is taken.
    # "centre": that of parameter servers, to which each rank pushes; a codec compresses the pushes.
    # "neighbours": what each rank has sent of its weights, which a codec compresses, is known to
    # its neighbours alone; "pairs": to the one that it averages with
    # an array for each weight: "weights" begins as a copy of it, "zeros" as zeros
    slots: tuple[str, ...]

    def due(self, step: Any) -> Any:
        """Is there an exchange after this step (1, 2, 3 ...)? ``step`` may be a number that JAX or
        TensorFlow traces: arithmetic, comparisons, ``&`` and ``|`` alone.
        """

    def exchange(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers, step: int
    ) -> None:
        """Change weights and slots (float32 or float64), in place. Collective, but for strategies
        that only push.
        """


@runtime_checkable
class Consolidating(Protocol):
    """A strategy for which the mean of all ranks' weights is not their common model."""

    def consolidate(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers
    ) -> None:
        """Give all ranks the same weights, in place. Collective."""


class Waiting(NamedTuple):
    """A collective that some ranks asked for and others have not: ``missing`` are the others. Or
    one that all have begun (``inside``), and that waits for the ranks ``missing`` to do their part.
    """

    name: str
    seconds: float
    missing: tuple[int, ...]
    inside: bool = False


class Observer:
    """The engine's events. Override those that you want to hear; nothing else is called.

    Called on whichever thread drives the engine: be quick, and raise nothing.
    """

    # seconds by which the job's clock is ahead of this rank's monotonic clock; for ``settled``
    clock: float = 0.0

    def agreed(self, responses: Sequence[Response]) -> None:
        """The ranks' decisions: each once, when it is new."""

    def settled(
        self,
        asked: Sequence[Sequence[tuple[str, Request]]],
        since: Sequence[Sequence[float]],
        agreed: Sequence[str],
        failed: Sequence[str],
    ) -> None:
        """All ranks have posted. Per rank: what it asked for in this round, and since when by the
        job's clock (empty for a rank that does not say). ``agreed`` are the names that run now, in
        this order; ``failed`` cannot run.
        """

    def started(self, kind: Kind, names: Sequence[str], nbytes: int) -> None:
        """A collective (several names: fused) is about to run."""

    def part(self, name: str, begin: float, end: float) -> None:
        """A part of the collective that runs is done: see ``Transport.report_parts``. On any
        thread.
        """

    def finished(self, kind: Kind, names: Sequence[str]) -> None:
        """It has run."""

    def transferred(self, name: str, what: str, begin: float, end: float) -> None:
        """Weights went where no collective did it: to parameter servers, or to one other rank in
        the background. ``what``: an activity of a timeline; times are of the monotonic clock. On
        any thread.
        """

    def waiting(self, collectives: Sequence[Waiting]) -> str:
        """Called about twice a second while something waits. A text that is not empty ends the job
        for that reason.
        """
        return ""
