"""The engine: named collectives, submitted in any order on each rank, run in the same order on all
ranks.

In each round, all ranks post their requests, make the same decision on the collectives to run
(``rounds``), and run them. A rank posts when it has new requests, or when it waits for a collective
and another rank has posted.

The waiting thread drives: a thread that waits for its handle runs rounds unless another thread
does, so a synchronous collective needs no second thread. The background thread drives while no
thread waits.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from time import monotonic, sleep
from typing import Any
from weakref import WeakSet

import numpy as np

from farandole.base.contracts import Observer, Transport
from farandole.base.interrupts import interrupts
from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request, Sizes
from farandole.core.engine import wire
from farandole.core.engine.background import BackgroundThread
from farandole.core.engine.check import check, unused
from farandole.core.engine.devices import HOST, Devices
from farandole.core.engine.driver_lock import DriverLock
from farandole.core.engine.execute import nothing
from farandole.core.engine.handle import Entry, Handle, Item, Wait
from farandole.core.engine.notes import Notes
from farandole.core.engine.outbox import Outbox
from farandole.core.engine.participant import Participant
from farandole.core.engine.rounds import Repeat, RoundDecision, Rounds
from farandole.core.engine.sequence import SequenceNumbers
from farandole.core.engine.subscribers import Subscribers
from farandole.core.engine.unit_runner import UnitRunner
from farandole.core.engine.wait_reports import WaitReports
from farandole.core.observe.stall.names import listed
from farandole.errors import HorovodInternalError, PeerLostError, ShutDownError
from farandole.job.config import Settings

_CURE = "call hvd.shutdown() and hvd.init() on all ranks to start again"
_TICK = 0.5  # seconds between two checks of waiting collectives
# seconds until a rank objects to waiting for a kind of collective that differs from the other
# ranks'
_PATIENCE = 1.0
_GATHER_CYCLES = 5  # maximum cycles for which the background thread lets requests accumulate


class Engine:
    """Runs collectives over one transport. Thread-safe."""

    def __init__(
        self,
        transport: Transport,
        settings: Settings,
        observers: Sequence[Observer] = (),
        names: Sequence[int] = (),
    ) -> None:
        """Create the engine. ``names``: the numbers of the ranks in messages and errors; default:
        0, 1, 2, ...
        """
        self.transport = transport
        self.rank = transport.rank
        self.size = transport.size
        self.observers = Subscribers(observers)
        self.numbers = SequenceNumbers()
        self.round_listeners: list[Callable[[], None]] = []  # called after each round
        # participants in the synchronization at the end of a step
        self.participants: WeakSet[Participant] = WeakSet()
        # the bucket size in bytes that a strategy targets now, if it can change it
        self.bucketed: int | None = None
        self.failures: list[BaseException] = []  # errors already raised in the program
        self._rounds = Rounds(self.rank, self.size, settings, self._stand_in, names)
        # guards the queue, the names in use and the state of the background thread
        self._mutex = threading.Lock()
        self._driver = DriverLock()
        self._outbox = Outbox()
        self._notes = Notes(self.observers, self._mutex)
        self._wait_reports = WaitReports(transport, self._rounds, self.observers)
        devices = Devices(transport, settings, self._end)
        self._runner = UnitRunner(
            transport,
            self.observers,
            self._wait_reports,
            devices,
            self._outbox.names,
            mean_of_present=settings.join_mean_of_present,
        )
        self._idle = False  # while waiting for other ranks' posts
        self._ended: HorovodInternalError | None = None
        self._closing = False
        self.observers.report_parts_of(transport)
        self._background = BackgroundThread(settings.cycle_time / 1000)
        self._background.start(self._drive_in_background)

    # For users of the engine.

    def submit(
        self,
        entries: Sequence[Entry],
        *,
        soon: bool = False,
        on_done: Callable[[], None] | None = None,
    ) -> Handle:
        """Queue collectives and return immediately. Their memory must not change until the handle
        is done.

        ``soon``: the caller waits for the handle next, so the background thread need not be woken.
        ``on_done``: see ``Handle.when_done``; called for one handle at a time, in the order of
        completion.

        Results by kind:

        - ALLREDUCE, BROADCAST, BARRIER: None (the result is in ``buffer.out``).
        - ALLGATHER: (flat array of the dtype's storage type, every rank's first dimension).
        - ALLTOALL: (flat array, rows received from each rank).
        - REDUCESCATTER: flat array with this rank's rows.
        - JOIN: the rank that joined last.
        - ALLOCATE: the memory.

        Raises RequestError for invalid requests and for names already in use, and
        HorovodInternalError when the engine has ended; then nothing is queued.
        """
        handle = self._enqueue(entries, on_done)
        if self._background.parked:
            if not soon:
                self._wake()
        elif not self._outbox.posted and len(self._outbox.queue) <= len(entries):
            self.transport.board.wake()
        return handle

    def run(self, entries: Sequence[Entry]) -> list[Any]:
        """Run ``submit(entries).wait()``, without waking another thread if the engine is idle."""
        repeated = self._repeat(entries[0]) if len(entries) == 1 else None
        return (repeated or self._enqueue(entries)).wait()

    def drive(self, wait: Wait) -> None:
        """Run rounds until ``wait`` is done, or let it sleep if another thread drives."""
        if not wait.done():
            self._drive(wait)

    def allocate(self, nbytes: int, name: str = "") -> Any:
        """Return shared memory (uint8) that is reduced in place. Collective, with the same size on
        all ranks.

        The ranks agree by ``name``; without one, calls must come in the same order on all ranks.
        """
        name = f"allocate.{name or self.numbers.next_allocation()}"
        none = np.empty(0, dtype=np.uint8)
        request = Request(name, Kind.ALLOCATE, DType.UINT8, (nbytes,))
        return self.run([Entry(request, Buffer(none, none, DType.UINT8))])[0]

    def shutdown(self) -> None:
        """Leave the job. Collectives in flight fail on this rank, and on the other ranks when they
        post their next requests.
        """
        with self._mutex:
            if self._closing:
                return
            self._closing = True
        self.transport.board.wake()
        self._background.wake_up(None)
        self._background.join()
        self._runner.devices.close()
        self.transport.close()

    @property
    def sizes(self) -> Sizes:
        """The current sizes, changed on all ranks in the same round."""
        return self._rounds.sizes

    @property
    def joins(self) -> int:
        """The number of completed joins."""
        return self._runner.joins

    @property
    def present(self) -> int:
        """The number of ranks that have not joined, the same on all ranks that wait for the same
        collective.
        """
        return self.size - self._rounds.joined

    @property
    def ended(self) -> bool:
        """True if the engine has failed or another rank has left."""
        return self._ended is not None

    def abort(self, why: str) -> None:
        """End the engine on all ranks: waiting collectives raise HorovodInternalError with
        ``why``.
        """
        self.transport.abort(why)

    # For observers.

    @property
    def waited(self) -> float:
        """Seconds for which this rank has waited for other ranks' requests."""
        return self._wait_reports.posted_seconds

    @property
    def blocked(self) -> float:
        """Seconds for which the program has waited for its collectives, including their transfers.
        A wait of the background thread does not count while the program computes.
        """
        reports = self._wait_reports
        since = reports.blocked_since
        return reports.blocked_seconds + (monotonic() - since if since else 0.0)

    def missing(self) -> dict[str, tuple[int, ...]]:
        """See ``Negotiation.missing``. Call it only in an observer's ``waiting``."""
        return self._rounds.missing()

    def cross_waits(self, waits: Iterable[str], unused: Iterable[str]) -> list[str]:
        """See ``Negotiation.cross_waits``. Call it only in one of ``round_listeners``."""
        return self._rounds.cross_waits(waits, unused)

    def propose(self, sizes: Sizes) -> None:
        """Propose ``sizes``, which change on all ranks in the same round. Only rank 0's proposals
        count.
        """
        self._notes.propose(sizes)

    # Submission.

    def _enqueue(
        self, entries: Sequence[Entry], on_done: Callable[[], None] | None = None
    ) -> Handle:
        handle = Handle(len(entries), self._drive)
        if on_done is not None:
            handle.when_done(on_done)
        now = monotonic()
        event = None
        for entry in entries:
            request = entry.request
            plain = (
                request.kind is Kind.ALLREDUCE
                and request.dtype is not DType.BOOL
                and not request.codec
            )
            if not plain or request.op is ReduceOp.ADASUM:  # plain allreduces are always valid
                check(request, self.size)
            if request.device != HOST and event is None:  # one event for all of them
                event = self._runner.devices.record_event(request.device)
        items = [Item(entry, handle, place, now, event) for place, entry in enumerate(entries)]
        outbox = self._outbox
        with self._mutex:
            self._raise_if_ended()
            if self._closing:
                raise ShutDownError
            # No call between these two statements, because a signal handler may raise after a call.
            outbox.names |= unused(entries, outbox.names)
            outbox.queue.extend(items)  # in one step: a group is posted in one round
        return handle

    def _raise_if_ended(self) -> None:
        if self._ended is not None:
            self.failures[:] = [self._ended]
            raise self._ended

    # Driving.

    def _drive(self, handle: Wait) -> None:
        """Run rounds until ``handle`` is done, unless another thread drives."""
        held: list[bool] = []
        reports = self._wait_reports
        began = reports.blocked_since = monotonic()
        try:
            if not self._driver.take(held):
                self._driver.check()
                if self._background.parked:  # the driver may be leaving
                    self._wake()
                # the driver waits for other ranks, and does not know of this handle's collective
                elif not self._outbox.posted:
                    self.transport.board.wake()
                handle.sleep()
                return
            while not handle.done():
                self._round(spin=True)
        finally:
            if True in held:
                self._driver.owner = 0
                self._driver.release()
                self._leave_rest()
            reports.end_block(began)

    def _leave_rest(self) -> None:
        """Leave the remaining work to the background thread."""
        outbox = self._outbox
        if (outbox.queue or self._rounds.waiting or outbox.posted) and self._background.parked:
            self._wake()

    def _wake(self) -> None:
        with self._mutex:
            if self._background.parked:
                self._background.parked = False
                self._background.wake_up(None)

    def _drive_in_background(self) -> None:
        background, outbox, rounds = self._background, self._outbox, self._rounds
        while True:
            background.sleep()
            self._gather()
            with self._driver.lock:
                while (outbox.queue or rounds.waiting or outbox.posted) and not self._closing:
                    self._round(spin=False)
                if self._closing:
                    self._leave()
                    return
                with self._mutex:
                    background.parked = not outbox.queue
                    if not background.parked:
                        background.wake_up(None)

    def _gather(self) -> None:
        """Wait while the program submits many tensors; it may drive the rounds itself when it waits
        for them.
        """
        cycle, queue = self._background.cycle, self._outbox.queue
        queued, until = -1, monotonic() + _GATHER_CYCLES * cycle
        while len(queue) > queued and monotonic() < until and not self._closing:
            queued = len(queue)
            sleep(cycle)

    def _round(self, *, spin: bool) -> None:
        """Advance the current round by one step. Waits for at most a tick."""
        self._guarded(self._advance, spin)

    def _guarded(self, step: Callable[[Any], None], argument: Any) -> None:
        """Run a step. If it fails, all collectives in flight fail."""
        try:
            step(argument)
        except PeerLostError as error:
            self._fail_all(self._explain(error))
        except HorovodInternalError as error:
            self._fail_all(error)
        except BaseException as error:
            interrupted, idle = interrupts(error), self._idle
            self._idle = False
            if not (interrupted and idle):  # interrupted half-way: the ranks are out of step
                what, cure = ("was interrupted", f" ({_CURE})") if interrupted else ("failed", "")
                error_text = f"{type(error).__name__}: {error}".rstrip(": ")
                rank = self._rounds.called[self.rank]
                why = f"rank {rank} {what} inside a collective: {error_text}{cure}"
                self.transport.abort(why)
                self._fail_all(HorovodInternalError(why))
            if interrupted:
                raise

    def _advance(self, spin: bool) -> None:
        board, outbox = self.transport.board, self._outbox
        if not outbox.posted:
            if not (outbox.queue or outbox.objection or board.started()):
                self._wait(spin)
                self._report_waiting()
                return
            self._post()
        messages = board.collect()
        if messages is None:
            self._wait(spin)
            self._report_waiting()
            return
        outbox.posted = False
        self._settle(messages)

    def _wait(self, spin: bool) -> None:
        """Wait for other ranks. If this wait is interrupted, another thread can continue the
        round.
        """
        self._idle = True
        began = monotonic()
        self.transport.board.wait(_TICK, spin=spin)
        if self._outbox.posted:
            self._wait_reports.posted_seconds += monotonic() - began
        self._idle = False

    def _post(self) -> None:
        outbox = self._outbox
        queue, batch = outbox.queue, outbox.batch
        while queue:
            batch.append(queue.popleft())
        if batch:
            notes = self._notes
            message = self._rounds.message(batch, notes.next(batch) if notes.attached else None)
        else:
            message = outbox.objection
        self.transport.board.post(message)
        outbox.posted = True
        outbox.objection = b""

    def _repeat(self, entry: Entry) -> Handle | None:
        """Start a round for ``entry`` alone on the fast path, if all ranks had such a round before.

        Return None, without effect, if the fast path does not apply.
        """
        held: list[bool] = []
        try:
            if (
                not self._driver.take(held)
                or (repeat := self._rounds.repeat(entry.request)) is None
            ):
                return None
            item = Item(entry, handle := Handle(1, self._drive), 0, monotonic())
            if not self._take_alone(item):
                return None
            self._wait_reports.blocked_since = item.since
            self._guarded(self._ask, repeat)
            self._wait_reports.end_block(item.since)
        finally:
            if True in held:
                self._driver.owner = 0
                self._driver.release()
                self._leave_rest()
        return handle

    def _take_alone(self, item: Item) -> bool:
        """Queue ``item`` for the next round. Return False if there is other work, a note or an
        observer.
        """
        entry, outbox = item.entry, self._outbox
        with self._mutex:
            busy = outbox.queue or outbox.batch or outbox.posted or self._notes.attached
            if busy or self.observers.every or self._closing or self._ended is not None:
                return False
            if not entry.serial:
                outbox.names |= {entry.request.name}
            outbox.queue.append(item)
        return True

    def _ask(self, repeat: Repeat) -> None:
        """Post the first queued item. If other ranks are late or request more, the round continues
        normally.
        """
        board, outbox = self.transport.board, self._outbox
        item = outbox.queue.popleft()
        outbox.batch.append(item)
        board.post(repeat.message(item.entry))
        outbox.posted = True
        outbox.objection = b""
        while (messages := board.collect()) is None:
            if monotonic() - item.since > _TICK:
                return
            self._wait(True)
        outbox.posted = False
        if not wire.in_step(messages):
            self._settle(messages)
            return
        if repeat.here is None:
            self._runner.run(repeat.unit, (item,), messages, None)
        else:
            (result,) = repeat.here(messages, (item.entry.buffer,))
            outbox.names.discard(item.entry.request.name)
            item.handle.finish(0, result)
        outbox.batch.clear()
        for listener in tuple(self.round_listeners):
            listener()

    def _settle(self, messages: Sequence[bytes]) -> None:
        """Decide a round after the posts of all ranks, and run the decision."""
        batch = self._outbox.batch
        self._outbox.batch = []
        decision = self._rounds.decide(messages, batch)
        placed, items, with_elements = decision.placed, decision.items, decision.attached
        done = 0
        try:
            if decision.responses:
                for observer in self.observers.agreed:
                    observer.agreed(decision.responses)
            if self.observers.settled:
                self._report(decision)
            # the value is used if the loop raises
            for done, (unit, positions, here) in enumerate(placed):  # noqa: B007
                self._runner.run(
                    unit,
                    [items[position] for position in positions],
                    messages,
                    here if with_elements else None,
                )
        except BaseException:  # the remaining units fail, too
            left = (items[position] for after in placed[done:] for position in after.positions)
            self._rounds.waiting.update((item.entry.name, item) for item in left)
            raise
        for listener in tuple(self.round_listeners):
            listener()

    def _report(self, decision: RoundDecision) -> None:
        """Report a round to the tracers."""
        asked = decision.asked
        if asked is None:
            asked = [[(item.entry.name, item.entry.request) for item in decision.items]] * self.size
        agreed: list[str] = []
        failed: list[str] = []
        for placed in decision.placed:
            names = failed if placed.unit.error else agreed
            names += [decision.items[position].entry.name for position in placed.positions]
        for observer in self.observers.settled:
            observer.settled(asked, decision.since or [()] * self.size, agreed, failed)

    def _stand_in(self, name: str, request: Request) -> Item:
        """Return an item with this joined rank's neutral contribution to a collective."""
        entry = Entry(request._replace(name=name), nothing(request))
        return Item(entry, Handle(1, self._drive), 0, monotonic())

    # Endings.

    def _report_waiting(self) -> None:
        """Report waiting collectives to the observers, about twice a second."""
        now = monotonic()
        if not self._wait_reports.due(now, _TICK / 2):
            return
        waiting = self._rounds.waiting
        if waiting and not self._outbox.posted:
            stuck = [
                name
                for name, item in waiting.items()
                if item.handle.waited and now - item.since > _PATIENCE
            ]
            self._outbox.objection = self._rounds.objection(stuck)
        self._wait_reports.report(self._outbox.batch, now)

    def _explain(self, error: PeerLostError) -> HorovodInternalError:
        batch = self._outbox.batch
        if error.left:
            return ShutDownError(self._rounds.what_waited(error.rank, batch), error.rank)
        names = self._rounds.names(batch)
        if not names:
            return type(error)(str(error), error.rank)
        rank = self._rounds.called[self.rank]
        return type(error)(f"{error} (rank {rank} was waiting for {listed(names)})", error.rank)

    def _end(self, error: HorovodInternalError) -> None:
        """Refuse further collectives, because a device transport has detected the loss of a
        peer.
        """
        with self._mutex:
            if self._ended is None:
                self._ended = error

    def _fail_all(self, error: HorovodInternalError) -> None:
        with self._mutex:
            self._ended = error  # set before any partial result of an aborted collective is visible
        if not isinstance(error, ShutDownError):
            self._runner.devices.abort(str(error))
        outbox = self._outbox
        with self._mutex:
            items = [*self._rounds.waiting.values(), *outbox.batch, *outbox.queue]
            if items and not self._closing:
                self.failures[:] = [error]
            self._rounds.waiting.clear()
            outbox.clear()
        for item in items:
            item.handle.fail(error)

    def _leave(self) -> None:
        """Announce that this rank leaves, if it can post now, without waiting for other ranks."""
        if self._ended is None and not self._outbox.posted and self.size > 1:
            with contextlib.suppress(HorovodInternalError):  # the other ranks have already ended
                self.transport.board.post(wire.encode([], [], shutdown=True))
        self._fail_all(ShutDownError())
