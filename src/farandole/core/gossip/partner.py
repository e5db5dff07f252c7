"""Another rank, as seen by the rank that requests averages from it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from farandole.base.log import logger
from farandole.core.ps.dial import dial
from farandole.core.ps.wire import Message, receive, receive_into, send
from farandole.errors import (
    HorovodInternalError,
    PeerLostError,
    UnfinishedHandshakeError,
    WireError,
)
from farandole.net.handshake import Session
from farandole.net.liveness import await_answer, silent

if TYPE_CHECKING:
    from farandole.base.types import Array

PURPOSE = "weights"
SILENCE = 5.0  # seconds without an answer after which a partner is avoided
AGAIN = 30.0  # seconds for which it is avoided
# seconds for which a partner may have different weights before a warning: ranks take steps at
# different times
APART = 60.0
PAUSE = 0.02  # seconds before reconnecting to a partner that closed its connection
_GONE: Message = {"gone": True}


class Caller(Protocol):
    """The requesting rank. ``ended(rank)``: whether that rank has left the job in order."""

    rank: int
    secret: str
    ended: Callable[[int], bool]


class Partner:
    """Another rank, as seen by the requesting rank. ``address``: the address of its
    ``PeerServer``.
    """

    def __init__(self, rank: int, address: dict[str, Any], caller: Caller) -> None:
        self.rank = rank
        self._address = address
        self._caller = caller
        self._session: Session | None = None
        self._silent_until = 0.0
        self._gone = False
        self._warned = False
        # the time since which the partner does not know the weights to average
        self._unknown_since = math.inf

    def once_more(self) -> Partner:
        """Return a second partner object for the same rank, with its own connection."""
        return Partner(self.rank, self._address, self._caller)

    def reachable(self) -> bool:
        """Return whether the partner is or can be connected. Raises PeerLostError if the rank is
        lost.
        """
        if self._gone or time.monotonic() < self._silent_until:
            return False
        if self._session is None:
            self._session = self._connected()
        return self._session is not None

    def agrees(self, message: Message) -> bool:
        """Return whether the partner agrees to average now. Raises ValueError if it has a different
        model.
        """
        answer = self._answer_to(lambda session: self._asked(session, message))
        if "error" in answer:
            raise ValueError(answer["error"])
        self._note(known="unknown" not in answer)
        return "agreed" in answer

    def exchange(self, memory: Sequence[Array]) -> bool:
        """Send ``memory``, and receive the partner's answer into it. Return False if the partner is
        gone.
        """
        return self._answered(lambda session: self._exchanged(session, memory))

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(OSError):
                session.close()

    def _answered(self, ask: Callable[[Session], Message | None]) -> bool:
        """Return whether the partner has answered."""
        return self._answer_to(ask) is not _GONE

    def _answer_to(self, ask: Callable[[Session], Message | None]) -> Message:
        """Return the partner's answer; ``_GONE`` if there is none."""
        assert self._session is not None
        try:
            answer = ask(self._session)
            if answer is not None:
                return answer
        except WireError:
            raise
        except TimeoutError:
            self._leave_alone()
            return _GONE
        except (OSError, HorovodInternalError):
            pass
        self.close()
        self._session = self._connected()  # None if the partner has ended; raises if it is lost
        return _GONE

    def _asked(self, session: Session, message: Message) -> Message | None:
        session.sock.settimeout(SILENCE)
        send(session, message)
        answer = receive(session)
        session.sock.settimeout(None)
        return answer

    def _exchanged(self, session: Session, memory: Sequence[Array]) -> Message | None:
        """Exchange weights. The partner may have done its part already, so the wait ends only if
        the partner ends.
        """
        send(session, {}, memory)
        while True:
            try:
                await_answer(session.sock, SILENCE)
                break
            except TimeoutError:
                if silent(session.sock):
                    raise
                self._warn()
        answer = receive(session)
        if answer is not None:
            receive_into(session, memory)
        return answer

    def _connected(self) -> Session | None:
        """Return a new connection; None if the partner has left the job in order, or is silent.
        Raises PeerLostError if it is lost.
        """
        until = time.monotonic() + SILENCE
        found = self._called()
        while isinstance(found, UnfinishedHandshakeError) and time.monotonic() < until:
            # the partner closed the connection: the socket of a killed process briefly accepts
            # connections
            time.sleep(PAUSE)
            found = self._called()
        if isinstance(found, Session):
            return found
        ended = self._caller.ended(self.rank)
        if not ended and isinstance(found, (TimeoutError, UnfinishedHandshakeError)):
            self._leave_alone()
            return None
        self._gone = True
        if ended:
            return None
        text = f"rank {self.rank} can no longer be reached to average weights ({found})"
        raise PeerLostError(text, self.rank)

    def _called(self) -> Session | Exception:
        """Return a connection to the first address that answers, or the reason why there is
        none.
        """
        error: Exception = ConnectionError("it has no address")
        for host, port in self._address["at"]:
            try:
                session = dial(
                    {**self._address, "port": port},
                    str(host),
                    self._caller.secret,
                    SILENCE,
                    PURPOSE,
                )
            except (OSError, HorovodInternalError) as found:
                error = found
                continue
            session.peer = f"rank {self.rank}"
            return session
        return error

    def _note(self, *, known: bool) -> None:
        self._unknown_since = math.inf if known else min(self._unknown_since, time.monotonic())
        if time.monotonic() - self._unknown_since > APART:
            self._unknown_since = math.inf
            logger.warning(
                "rank %d has averaged nothing with rank %d for %.0f s, because only one of them"
                " has added, frozen or unfrozen parameters. Do so on all ranks in the same step",
                self._caller.rank,
                self.rank,
                APART,
            )

    def _leave_alone(self) -> None:
        self.close()
        self._silent_until = time.monotonic() + AGAIN
        self._warn()

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "rank %d does not answer rank %d, which asks to average weights: it may be"
                " suspended; other ranks continue",
                self.rank,
                self._caller.rank,
            )
