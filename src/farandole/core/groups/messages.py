"""Point-to-point messages, independent of the group's collectives.

Each message has a tag; messages with the same sender and tag arrive in order. A thread that waits
for one message moves all messages; while no thread waits, a background thread does. An unrequested
message stays in its stream until a later message is requested; then it is stored.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from farandole.base.contracts import ByteStreams
from farandole.core.groups.inbox import HEADER, Inbox, StoredMessage, Transfer, error_text
from farandole.core.groups.reasons import reason_of, restored
from farandole.core.groups.thread_waits import waiting_for
from farandole.errors import HorovodInternalError, MismatchError, PeerLostError, StalledError

if TYPE_CHECKING:
    from farandole.base.types import Array

# payloads up to this size in bytes are sent with the header, because two writes and reads take
# longer
_JOINED = 8 << 10
_CHECK_SECONDS = 0.05  # seconds between two checks of peers and timeouts
_GRACE, _LONGEST_GRACE = 2e-4, 1e-3  # seconds between two polls of the thread: first, longest
_IDLE_POLLS = 6  # idle polls before the thread sleeps until it is woken
_HANDOVER = 5e-3  # seconds for the thread to yield to a waiting one


class Messages:
    """All messages of one rank in a group. Thread-safe."""

    def __init__(
        self,
        streams: ByteStreams,
        name_of: Callable[[int], str],
        stacks_of: Callable[[Sequence[int]], str] = lambda ranks: "",
    ) -> None:
        self._streams = streams
        self._name_of = name_of
        self._stacks_of = stacks_of
        self._changing = threading.Lock()
        self._driving = threading.Lock()
        self._outbox: dict[int, deque[Transfer]] = {}
        self._inboxes = [Inbox(streams.overhead) for _ in range(streams.size)]
        self._wanted: list[Transfer] = []
        self._ended: deque[Transfer] = deque()  # to be finished once no lock is held
        self._failure: BaseException | None = None
        self._news = threading.Event()
        self._checked = 0.0  # time of the last check of peers and timeouts
        self._waiting: list[Transfer] = []  # messages whose waiters drive, or soon will
        self._serving = False  # whether the background thread drives
        self._thread: threading.Thread | None = None
        self._closed = self._aborted = False

    def send(self, dst: int, tag: int, data: Array, dtype: int, timeout: float) -> Transfer:
        """Start sending ``data`` (uint8) to ``dst``. ``data`` must not change until the message is
        done. ``timeout``: in seconds.
        """
        message = Transfer(dst, tag, data, dtype, timeout)
        return self._begin(message, lambda: self._outbox.setdefault(dst, deque()).append(message))

    def receive(
        self,
        src: int | None,
        tag: int,
        data: Array,
        dtype: int,
        timeout: float,
        last: Callable[[], None] | None = None,
    ) -> Transfer:
        """Start receiving into ``data`` from ``src``; None: from any rank. ``last`` runs before the
        message is done, for example to copy ``data``. ``timeout``: in seconds.
        """
        message = Transfer(src, tag, data, dtype, timeout, last)
        return self._begin(message, lambda: self._want(message))

    def wait(self, message: Transfer, seconds: float | None = None) -> bool:
        """Wait until ``message`` is done. Return False if ``seconds`` elapse first."""
        end = None if seconds is None else time.monotonic() + seconds
        while not message.done:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            if message.ended:
                self._finish_ended()
                message.sleep(left)
            elif not self._drive_for(message, end):
                message.sleep(_CHECK_SECONDS if left is None else min(_CHECK_SECONDS, left))
        return True

    def _drive_for(self, message: Transfer, end: float | None) -> bool:
        """Call ``_drive`` for a caller that waits for ``message``; the background thread yields to
        it. Return False if another thread drives.
        """
        self._waiting.append(message)
        try:
            if not (self._driving.acquire(blocking=False) or self._take_over()):
                return False
            thread = threading.get_ident()
            try:
                waiting_for[thread] = message
                self._drive(message, end)
            finally:
                waiting_for.pop(thread, None)
                self._driving.release()
            return True
        finally:
            self._waiting.remove(message)
            self._call_thread()
            self._finish_ended()

    def _take_over(self) -> bool:
        """Take over from the background thread, if it drives. Return whether this thread drives
        now.
        """
        if not self._serving:
            return False
        self._streams.wake()
        return self._driving.acquire(timeout=_HANDOVER)

    def cancel(self, message: Transfer) -> None:
        """Give up ``message``."""
        with self._changing:
            if not message.ended:
                message.error = HorovodInternalError("the message was abandoned")
                self._drop(message)
        self._finish_ended()

    @property
    def failed(self) -> bool:
        """Return whether messages were aborted on this rank, or have failed for all peers."""
        return self._aborted or self._failure is not None

    def abort(self, why: str) -> None:
        self._aborted = True
        self._streams.abort(why)
        self._streams.wake()

    def disown(self, error: BaseException) -> None:
        """Disable messages in a forked process: every later call fails with ``error``."""
        # threads of the parent may have held the locks
        self._changing = threading.Lock()
        self._driving = threading.Lock()
        self._outbox = {}
        self._wanted = []
        self._failure = error

    def close(self, seconds: float) -> None:
        """Close once pending messages have been sent, or after ``seconds``."""
        end = time.monotonic() + seconds
        for queue in list(self._outbox.values()):
            for message in list(queue):
                self.wait(message, max(0.0, end - time.monotonic()))
        self._closed = True
        self._news.set()
        self._streams.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._changing:
            self._fail_all(HorovodInternalError("the process group was shut down"))
        self._finish_ended()
        self._streams.close()

    def _begin(self, message: Transfer, enqueue: Callable[[], None]) -> Transfer:
        with self._changing:
            if self._failure is not None:
                message.error = _later_error(self._failure)
                self._end(message)
            else:
                try:
                    enqueue()
                except MismatchError as error:  # it does not match a stored message
                    self._fail_here(error)
                    message.error = message.error or error
                    self._end(message)
        self._finish_ended()
        if message.done:
            return message
        if self._driving.acquire(blocking=False):  # the message may complete at once
            try:
                self._step()
            finally:
                self._driving.release()
                self._finish_ended()
        else:
            self._streams.wake()
        self._call_thread()
        return message

    def _call_thread(self) -> None:
        """Wake the background thread if messages are pending and no thread waits."""
        if not self._is_needed():
            return
        if self._thread is None:
            with self._changing:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._serve, name="farandole-messages", daemon=True
                    )
                    self._thread.start()
        if not self._news.is_set():  # else the thread is awake
            self._news.set()

    def _serve(self) -> None:
        """Move messages while no thread waits for them.

        Waking this thread costs a waiter more than a small message. It therefore polls for a while,
        and sleeps only after several idle polls.
        """
        polls = 0
        while not self._closed:
            if polls == _IDLE_POLLS:
                self._news.clear()
                if not (self._is_needed() or self._closed):
                    self._news.wait()
                polls = 0
            time.sleep(min(_GRACE * 2**polls, _LONGEST_GRACE))
            polls += 1
            while self._is_needed() and not self._closed:
                polls = 0
                with self._driving:
                    self._serving = True
                    self._drive(None, time.monotonic() + _CHECK_SECONDS)
                    self._serving = False
                self._finish_ended()

    def _is_needed(self) -> bool:
        return not self._waiting and self._pending()

    def _pending(self) -> bool:
        return bool(self._wanted) or any(self._outbox.values())

    def _drive(self, message: Transfer | None, end: float | None) -> None:
        """Move messages until any message has ended, none is pending, or ``end`` has passed.

        Without ``message``, also stop as soon as a thread waits for one. Requires ``_driving``; the
        caller then calls ``_finish_ended``.
        """
        while self._pending() and not (self._closed or self._ended):
            if self._waiting if message is None else message.ended:
                return
            moved = self._step()
            now = time.monotonic()
            try:
                if not (moved or self._ended or (end is not None and now >= end)):
                    sources, targets = self._interests()
                    left = _CHECK_SECONDS if end is None else min(_CHECK_SECONDS, end - now)
                    self._streams.wait(left, sources, targets, spin=message is not None)
                if now - self._checked >= _CHECK_SECONDS:
                    self._checked = now
                    self._end_overdue(now)
            except HorovodInternalError as error:
                with self._changing:
                    self._fail_all(restored(error))
            if end is not None and now >= end:
                return

    def _end(self, message: Transfer) -> None:
        """Mark ``message`` as ended. Requires ``_changing``."""
        message.ended = True
        self._ended.append(message)

    def _finish_ended(self) -> None:
        """Finish the ended messages. No lock may be held: their callbacks may send, receive and
        wait.
        """
        while True:
            try:
                message = self._ended.popleft()  # several threads may run this
            except IndexError:
                return
            message.finish()

    def _interests(self) -> tuple[list[int], list[int]]:
        with self._changing:
            return self._sources(), [dst for dst, queue in self._outbox.items() if queue]

    def _sources(self) -> list[int]:
        """Return the ranks from which messages are requested."""
        if len(self._wanted) == 1 and self._wanted[0].peer is not None:
            return [self._wanted[0].peer]
        return [src for src in range(len(self._inboxes)) if self._is_wanted(src)]

    def _is_wanted(self, src: int) -> bool:
        if src == self._streams.rank:
            return False
        return any(
            message.peer in (None, src) and message.source in (-1, src) for message in self._wanted
        )

    def _step(self) -> bool:
        """Send and receive without waiting. Return whether any bytes moved."""
        with self._changing:
            try:
                moved = [self._send_on(queue) for queue in self._outbox.values() if queue]
                moved += [self._receive_on(src) for src in self._sources()]
            except HorovodInternalError as error:
                self._fail_here(restored(error))
                moved = [True]
            # an exception of a signal handler, or no memory: the count of moved bytes may be wrong
            except BaseException as error:
                why = (
                    "a message was interrupted, so this group can no longer send or receive:"
                    f" {error_text(error)}"
                )
                self._fail_here(HorovodInternalError(why))
                raise
        return any(moved)

    def _send_on(self, queue: deque[Transfer]) -> bool:
        moved, streams = False, self._streams
        while queue:
            message = queue[0]
            dst = message.peer
            assert dst is not None
            if message.head is None:
                content = streams.seal(
                    dst, HEADER.pack(message.tag, len(message.data), message.dtype)
                )
                if len(message.data) <= _JOINED:
                    content, message.data = content + message.data.tobytes(), message.data[:0]
                message.head = np.frombuffer(content, np.uint8)
            if len(message.head):
                count = streams.write(dst, message.head)
                message.head = message.head[count:]
            elif len(message.data):
                count = streams.write(dst, message.data)
                message.data = message.data[count:]
            else:
                self._end(queue.popleft())
                continue
            if not count:
                return moved
            moved = True
        return moved

    def _receive_on(self, src: int) -> bool:
        moved, inbox, streams = False, self._inboxes[src], self._streams
        while True:
            target = inbox.header if inbox.into is None else inbox.into
            if inbox.filled < len(target):
                count = streams.read(src, target[inbox.filled :])
                if not count:
                    return moved
                moved = True
                inbox.filled += count
            elif inbox.into is None:
                self._begin_receiving(src, inbox)
            else:
                self._end_receiving(src, inbox)
                if not self._is_wanted(src):
                    return moved

    def _begin_receiving(self, src: int, inbox: Inbox) -> None:
        inbox.tag, nbytes, inbox.dtype = HEADER.unpack(
            self._streams.open(src, inbox.header.tobytes())
        )
        inbox.message = self._matching(src, inbox.tag)
        if inbox.message is None:
            inbox.into = np.empty(nbytes, np.uint8)
        else:
            inbox.message.source = src
            self._check(inbox.message, src, nbytes, inbox.dtype)
            inbox.into = inbox.message.data
        inbox.filled = 0

    def _end_receiving(self, src: int, inbox: Inbox) -> None:
        message, into = inbox.message, inbox.into
        assert into is not None
        if message is None:  # it may have been requested meanwhile
            message = self._matching(src, inbox.tag)
            if message is None:
                inbox.stored.append(StoredMessage(inbox.tag, inbox.dtype, into))
            else:
                self._take(message, src, inbox.dtype, into)
        if message is not None:
            self._wanted.remove(message)
            self._end(message)
        inbox.into, inbox.message, inbox.filled = None, None, 0

    def _want(self, message: Transfer) -> None:
        for src, inbox in enumerate(self._inboxes):
            if message.peer not in (None, src):
                continue
            for index, stored in enumerate(inbox.stored):
                if stored.tag == message.tag:
                    del inbox.stored[index]
                    self._take(message, src, stored.dtype, stored.data)
                    self._end(message)
                    return
        self._wanted.append(message)

    def _take(self, message: Transfer, src: int, dtype: int, data: Array) -> None:
        message.source = src
        self._check(message, src, len(data), dtype)
        message.data[:] = data

    def _matching(self, src: int, tag: int) -> Transfer | None:
        for message in self._wanted:
            if message.tag == tag and message.peer in (None, src) and message.source < 0:
                return message
        return None

    def _check(self, message: Transfer, src: int, nbytes: int, dtype: int) -> None:
        if nbytes == len(message.data) and dtype == message.dtype:
            return
        what = f"{nbytes} bytes, but {len(message.data)} were expected"
        if nbytes == len(message.data):
            what = f"{nbytes} bytes of a different dtype than expected"
        message.error = MismatchError(
            f"{self._name_of(src)} sent {self._name_of(self._streams.rank)} a message (tag"
            f" {message.tag}) of {what}: pass tensors of the same dtype and number of elements on"
            " both ranks"
        )
        raise message.error

    def _end_overdue(self, now: float) -> None:
        """End messages after their timeout or the loss of their peer."""
        stalled: list[tuple[Transfer, StalledError]] = []
        with self._changing:
            for message in self._all():
                error = self._failure_of(message, now)
                if isinstance(error, StalledError):
                    stalled.append((message, error))
                    self._take_out(message)
                elif error is not None:
                    message.error = error
                    self._drop(message)
        if stalled:
            self._stall(stalled)

    def _stall(self, stalled: list[tuple[Transfer, StalledError]]) -> None:
        """End stalled messages, and the group, with the stack of one peer in the error. No lock may
        be held: the query takes seconds, while the driving thread waits.
        """
        message, error = stalled[0]
        if message.peer is not None:
            error = StalledError(f"{error}{self._stacks_of([message.peer])}", message.peer)
            stalled[0] = message, error
        with self._changing:
            self._failure = self._failure or error
            if not self._closed:
                self._streams.abort(reason_of(error, str(error)))
            for message, why in stalled:
                if not message.ended:  # it was not cancelled meanwhile
                    message.error = why
                    self._end(message)

    def _all(self) -> list[Transfer]:
        return [*self._wanted, *[message for queue in self._outbox.values() for message in queue]]

    def _drop(self, message: Transfer) -> None:
        self._take_out(message)
        self._end(message)

    def _take_out(self, message: Transfer) -> None:
        if message in self._wanted:
            self._wanted.remove(message)
        for queue in self._outbox.values():
            if message in queue:
                queue.remove(message)
        for inbox in self._inboxes:
            if inbox.message is message:
                inbox.message = None

    def _failure_of(self, message: Transfer, now: float) -> BaseException | None:
        streams, peer = self._streams, message.peer
        others = [rank for rank in range(streams.size) if rank != streams.rank]
        gone = [streams.gone(other) for other in (others if peer is None else [peer])]
        lost = gone[0] if gone and all(gone) else None
        if lost is not None and restored(lost) is not lost:
            return restored(lost)
        if isinstance(lost, PeerLostError) and lost.rank in streams.names:
            name = self._name_of(streams.names.index(lost.rank))
            return type(lost)(f"{lost} ({name})", lost.rank, left=lost.left)
        if lost is not None:
            return lost
        if now - message.begin < message.timeout:
            return None
        receives, who = message in self._wanted, "any rank" if peer is None else self._name_of(peer)
        what = f"did not receive from {who}" if receives else f"could not send to {who}"
        return StalledError(
            f"{self._name_of(streams.rank)} {what} (tag {message.tag}) within {message.timeout:g}"
            f" s: {'nothing was sent' if receives else 'it does not receive'}",
            -1 if peer is None else streams.names[peer],
        )

    def _fail_here(self, error: BaseException) -> None:
        """Call ``_fail_all`` and report the error to the other ranks."""
        text = f"{self._name_of(self._streams.rank)}: {error}"
        self._streams.abort(reason_of(error, text))
        self._fail_all(error)

    def _fail_all(self, error: BaseException) -> None:
        """Fail all messages; none is sent or received afterwards. Requires ``_changing``."""
        self._failure = self._failure or error
        for message in self._all():
            message.error = message.error or error
            self._drop(message)


def _later_error(failure: BaseException) -> BaseException:
    """Return the error for later calls. A size mismatch is reported as an earlier failure."""
    if not isinstance(failure, MismatchError):
        return failure
    error = HorovodInternalError(f"messages of this group failed earlier: {failure}")
    error.__cause__ = failure
    return error
