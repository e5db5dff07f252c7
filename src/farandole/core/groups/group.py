"""One group of ranks: its ordered calls, messages, timeouts and shutdown."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

from farandole.base.contracts import Streaming, Transport
from farandole.core.groups.calls import Call, CallQueue
from farandole.core.groups.checked import CheckedCollectives
from farandole.core.groups.inbox import error_text
from farandole.core.groups.messages import Messages
from farandole.core.groups.reasons import reason_of, restored
from farandole.errors import (
    HorovodInternalError,
    MismatchError,
    PeerLostError,
    RefusedError,
    RequestError,
    StalledError,
)

# seconds since the last call after which a rank checks whether other ranks gave up the next call
_LATE = 0.5
# seconds for which late callbacks wait for a thread that waits for late ranks in another call
_BEHIND = 60.0
# seconds for sending pending messages when the group ends
_GRACE = 10.0
_FORKED = (
    "belongs to the process that forked this one, and a fork is not a member: make the call in"
    " the parent, or start this process with spawn and call init_process_group in it"
)


class Members:
    """The names of a group's members for messages.

    The parts of a group refer to this object instead of the group. This avoids a reference cycle,
    so the group's memory is freed with its last reference, without the garbage collector.
    ``stacks_of``: see ``CollectiveGroup``.
    """

    def __init__(self, ranks: Sequence[int], stacks_of: Callable[[Sequence[int]], str]) -> None:
        self.ranks = list(ranks)
        self._stacks_of = stacks_of

    def name_of(self, rank: int) -> str:
        """Return the name of a member for messages."""
        number = self.ranks[rank]
        return f"rank {number}" if number == rank else f"rank {number} ({rank} of the group)"

    def stacks_of(self, ranks: Sequence[int]) -> str:
        """Return the stacks of members as lines for messages; empty if unknown.

        The call may take seconds.
        """
        return self._stacks_of([self.ranks[rank] for rank in ranks])


class _CurrentCall:
    """The running call.

    ``limit``: its timeout in seconds; ``stalled``: the error text after the timeout.
    """

    def __init__(self, what: str, limit: float) -> None:
        self.what = what
        self.limit = limit
        self.stalled = ""


class CollectiveGroup:
    """This rank's side of a group. Collective.

    - ``transport``: The transport, which no other group uses.
    - ``ranks``: The members by their ranks in the job.
    - ``timeout``: The default timeout of calls, in seconds.
    - ``stacks_of``: A function that returns the stacks of job ranks as lines.
    """

    def __init__(
        self,
        transport: Transport,
        ranks: Sequence[int],
        name: str,
        timeout: float,
        stacks_of: Callable[[Sequence[int]], str] = lambda ranks: "",
    ) -> None:
        self.rank = transport.rank
        self.size = transport.size
        members = Members(ranks, stacks_of)
        self.ranks = members.ranks
        self.name = name
        self.timeout = timeout
        self.name_of = members.name_of
        self.stacks_of = members.stacks_of
        self._transport = transport
        self.collectives = CheckedCollectives(transport, name, self.name_of)
        self.messages = Messages(cast(Streaming, transport).streams(), self.name_of, self.stacks_of)
        self.calls = CallQueue(f"farandole-{name}")
        # callbacks that run after the end of their calls
        self.late_callbacks = CallQueue(f"farandole-{name}-callbacks", behind=_BEHIND)
        self.failure: BaseException | None = None
        self.barriers = 0  # the number of monitored barriers
        self._current = _CurrentCall("", timeout)
        self._ended = time.monotonic()  # time of the last call's end
        self._closing = threading.Lock()
        self._closed = self._disowned = False
        transport.report_waits(self._on_wait)

    def run(
        self,
        what: str,
        work: Callable[[], None],
        timeout: float,
        *,
        last: Callable[[], None] | None = None,
        wait: bool,
        held_by: int = 0,
    ) -> Call:
        """Queue ``work`` to run in its turn, and return its call.

        - ``what``: The name of the call.
        - ``last``: A function to run after success (see ``Call``). Its errors concern only this
          rank, and the group continues.
        - ``wait``: Run the call before returning.
        - ``held_by``: See ``CallQueue.start``.

        Raises RequestError if the group was destroyed or this process is a fork.
        """
        call = Call(lambda: self._run(what, work, timeout), last)
        if self._disowned:
            raise RequestError(f"{what}: {self.name} {_FORKED}")
        if self._closed:
            raise RequestError(f"{what}: {self.name} was destroyed, or shut down")
        if wait:
            self.calls.run(call)
        else:
            self.calls.start(call, held_by=held_by)
        return call

    def abort(self, why: str) -> None:
        """End all waiting calls and messages of this group with an error, on all ranks.

        The group cannot be used afterwards. Thread-safe.
        """
        if self._disowned:
            return
        self.failure = self.failure or PeerLostError(why, self.rank)
        self._transport.abort(why)
        self.messages.abort(why)

    def disown(self) -> None:
        """Make the group unusable in a forked process.

        A fork is not a member of the group and must not touch its parent's connections.
        """
        self._closed = self._disowned = True
        self._closing = threading.Lock()  # a thread of the parent may have held the lock
        self.messages.disown(RequestError(f"{self.name} {_FORKED}"))

    def close(self) -> None:
        """Leave the group once all its calls have ended."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self.calls.close()
        self.late_callbacks.close()
        self.messages.close(0.0 if self.failure is not None else _GRACE)
        self._transport.close()
        # breaks the cycle between the transport and this group, see ``Members``
        self._transport.report_waits(_ignore)

    def _run(self, what: str, work: Callable[[], None], timeout: float) -> None:
        if self.failure is not None:
            before = f"{what}: {self.name} failed earlier: {error_text(self.failure)}"
            raise HorovodInternalError(before) from self.failure
        self._current = _CurrentCall(what, timeout)
        made = self.collectives.calls
        try:
            # data published by other ranks before they gave up may still be readable
            if time.monotonic() - self._ended >= _LATE:
                self._transport.board.verify()
            work()
        except (MismatchError, RefusedError):  # every rank raises it
            raise
        except PeerLostError as error:
            known = restored(error)
            self.failure = self._with_job_ranks(error, what) if known is error else known
            self._transport.abort(reason_of(self.failure, str(self.failure)))
            raise self.failure from error
        except HorovodInternalError as error:
            self.failure = error
            self._transport.abort(f"{self.name_of(self.rank)}, in {what}: {error}")
            raise
        except BaseException as error:  # an exception from a signal handler, or out of memory
            # Other ranks may have continued, and would mistake this call's data for the next
            # call's.
            if self.collectives.calls != made:
                self.failure = error
                self._transport.abort(f"{self.name_of(self.rank)}, in {what}: {error_text(error)}")
            raise
        finally:
            self._ended = time.monotonic()

    def _with_job_ranks(self, error: PeerLostError, what: str) -> PeerLostError:
        """Return the error with the lost rank's number in the job."""
        known = 0 <= error.rank < self.size
        number = self.ranks[error.rank] if known else -1
        if isinstance(error, StalledError) or what in str(error):
            return type(error)(str(error), number, left=error.left)
        lost = f" ({self.name_of(error.rank)})" if known else ""
        return PeerLostError(
            f"{what} on {self.name} failed: {error}{lost}", number, left=error.left
        )

    def _on_wait(self, ranks: Sequence[int], seconds: float) -> None:
        call = self._current
        if seconds < call.limit:
            call.stalled = ""
        elif call.stalled:
            raise StalledError(call.stalled, ranks[0] if ranks else -1)
        # Querying stacks takes seconds. Ranks may arrive meanwhile, so raise at the next report.
        else:
            missing = ", ".join(self.name_of(rank) for rank in ranks)
            call.stalled = (
                f"{call.what} on {self.name}: {self.name_of(self.rank)} waited past the timeout"
                f" of {call.limit:g} s for {missing}, which stopped or did not make this"
                f" call{self.stacks_of(ranks)}"
            )


def _ignore(ranks: Sequence[int], seconds: float) -> None:
    """Ignore the report of a wait."""
