"""One group: its calls in turn, its messages, its deadlines, and its end."""

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
from farandole.errors import (
    HorovodInternalError,
    MismatchError,
    PeerLostError,
    RequestError,
    StalledError,
)

# seconds after its last call from which a rank may find that others have given up its next one
_LATE = 0.5
# seconds for which callbacks are left to a thread that waits, in another call, for ranks that are
# late
_BEHIND = 60.0
# seconds in which messages that are still to be sent go on their way when the group ends
_GRACE = 10.0
_FORKED = (
    "is that of the process which forked this one, and a fork is no member: make the call in the"
    " parent, or start this process with spawn, and let it call init_process_group"
)


class Members:
    """How messages speak of a group's members. A group's parts have it rather than the group, which
    has them: with no cycle, its memory goes with the last reference, not when Python looks for
    garbage. ``stacks_of``: see ``CollectiveGroup``.
    """

    def __init__(self, ranks: Sequence[int], stacks_of: Callable[[Sequence[int]], str]) -> None:
        self.ranks = list(ranks)
        self._stacks_of = stacks_of

    def name_of(self, rank: int) -> str:
        """A member, for messages."""
        number = self.ranks[rank]
        return f"rank {number}" if number == rank else f"rank {number} ({rank} of the group)"

    def stacks_of(self, ranks: Sequence[int]) -> str:
        """The stacks of members: lines for messages, empty if they are not known. It may take
        seconds.
        """
        return self._stacks_of([self.ranks[rank] for rank in ranks])


class _CurrentCall:
    """The call that runs. ``limit``: seconds for which it may wait; ``stalled``: the error's text,
    once it has waited for longer.
    """

    def __init__(self, what: str, limit: float) -> None:
        self.what = what
        self.limit = limit
        self.stalled = ""


class CollectiveGroup:
    """This rank's place in a group. ``ranks``: its members, as the job numbers them; ``timeout``:
    in seconds, for what does not bring one. The transport is the group's own. ``stacks_of``: the
    stacks of ranks of the job, as lines. Collective.
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
        # callbacks that are to come later than their calls
        self.late_callbacks = CallQueue(f"farandole-{name}-callbacks", behind=_BEHIND)
        self.failure: BaseException | None = None
        self.barriers = 0  # that name who is missing
        self._current = _CurrentCall("", timeout)
        self._ended = time.monotonic()  # the last call
        self._closing = threading.Lock()
        self._closed = self._disowned = False
        transport.report_waits(self._on_wait)

    def run(
        self, what: str, work: Callable[[], None], timeout: float, *, wait: bool, held_by: int = 0
    ) -> Call:
        """Have ``work`` run in its turn. With ``wait`` it is done when this returns; ``held_by``:
        see ``CallQueue.start``; ``what``: its name.
        """
        call = Call(lambda: self._run(what, work, timeout))
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
        """What waits in this group ends with an error, on all ranks; nothing more can be done in
        it. Any thread.
        """
        if self._disowned:
            return
        self.failure = self.failure or PeerLostError(why, self.rank)
        self._transport.abort(why)
        self.messages.abort(why)

    def disown(self) -> None:
        """This process is a fork of the member, and none itself: it must not touch what both
        hold.
        """
        self._closed = self._disowned = True
        self._closing = threading.Lock()  # a thread of the parent may have held it
        self.messages.disown(RequestError(f"{self.name} {_FORKED}"))

    def close(self) -> None:
        """Leave, when the calls that were made have ended."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self.calls.close()
        self.late_callbacks.close()
        self.messages.close(0.0 if self.failure is not None else _GRACE)
        self._transport.close()
        self._transport.report_waits(_ignore)  # it held this group, which holds it: see ``Members``

    def _run(self, what: str, work: Callable[[], None], timeout: float) -> None:
        if self.failure is not None:
            before = f"{what}: {self.name} has failed before: {error_text(self.failure)}"
            raise HorovodInternalError(before) from self.failure
        self._current = _CurrentCall(what, timeout)
        made = self.collectives.calls
        try:
            # what others showed before they gave up still stands there
            if time.monotonic() - self._ended >= _LATE:
                self._transport.board.verify()
            work()
        except MismatchError:  # seen by all ranks alike
            raise
        except PeerLostError as error:
            self.failure = self._with_job_ranks(error, what)
            self._transport.abort(str(self.failure))
            raise self.failure from error
        except HorovodInternalError as error:
            self.failure = error
            self._transport.abort(f"{self.name_of(self.rank)}, in {what}: {error}")
            raise
        except BaseException as error:  # a signal, no memory
            # others may have gone on: from here on they would take old for new
            if self.collectives.calls != made:
                self.failure = error
                self._transport.abort(f"{self.name_of(self.rank)}, in {what}: {error_text(error)}")
            raise
        finally:
            self._ended = time.monotonic()

    def _with_job_ranks(self, error: PeerLostError, what: str) -> PeerLostError:
        """The error with the numbers that the ranks have in the job."""
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
        # to ask them takes seconds, in which they may come: so the wait goes on until the next look
        else:
            missing = ", ".join(self.name_of(rank) for rank in ranks)
            call.stalled = (
                f"{call.what} on {self.name}: {self.name_of(self.rank)} waited past the timeout of"
                f" {call.limit:g} s for {missing}: stopped, or does not make this"
                f" call{self.stacks_of(ranks)}"
            )


def _ignore(ranks: Sequence[int], seconds: float) -> None:
    """A report of a wait that nobody is interested in."""
