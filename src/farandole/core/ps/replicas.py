"""A server's replicas, which receive each event before its rank is answered."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from farandole.base.log import logger
from farandole.core.ps.dial import reach
from farandole.core.ps.wire import Message, receive, send
from farandole.errors import HorovodInternalError
from farandole.net.handshake import Session

if TYPE_CHECKING:
    from farandole.base.types import Array

DISMISSED = {"do": "dismissed"}

ANSWER = 10.0  # seconds for an answer, during which all ranks wait


class Replicas:
    """The replicas of a server. ``others``: returns their addresses, in the order in which they
    take over. Not thread-safe.
    """

    def __init__(self, secret: str, others: Callable[[], list[str]]) -> None:
        self._secret = secret
        self._others = others
        self._sessions: list[Session] | None = None
        self._addresses: dict[Session, str] = {}

    @property
    def addresses(self) -> list[str]:
        """The addresses of the present replicas."""
        return [self._addresses[session] for session in self._sessions or ()]

    def add(self, address: str, state: Message, arrays: list[Array]) -> None:
        """Add a replica, which starts from ``state`` and its ``arrays`` (see ``snapshot``). An
        unreachable replica is skipped.
        """
        self._open()
        session = None
        try:
            session = reach(json.loads(address), "127.0.0.1", self._secret)
            session.sock.settimeout(ANSWER)
            send(session, {"do": "replica"})
            send(session, state, arrays, _stalled)
            if (receive(session) or {}).get("promoted") is not False:
                raise OSError("it accepts no state")
        except (OSError, HorovodInternalError) as error:
            logger.info("a replica of a parameter server cannot be reached (%s)", error)
            if session is not None:
                session.close()
            return
        assert self._sessions is not None
        self._sessions.append(session)
        self._addresses[session] = address

    def replicate(self, message: Message, arrays: list[Array] | None) -> bool:
        """Send an event to all replicas and wait until each has handled it.

        Lost replicas are removed. Return False if a replica has taken over.
        """
        for session in self._open():
            try:
                send(session, message, arrays if message.get("data") else None)
                answer = receive(session)
            except TimeoutError:
                self._dismiss(session)
                continue
            except (OSError, HorovodInternalError) as error:
                self._forget(session, str(error))
                continue
            if answer is None:
                self._forget(session, "it closed the connection")
            elif answer.get("promoted"):
                return False
        return True

    def close(self) -> None:
        for session in self._sessions or ():
            session.close()

    def _open(self) -> list[Session]:
        if self._sessions is None:
            self._sessions = []
            for address in self._others():
                try:
                    session = reach(json.loads(address), "127.0.0.1", self._secret)
                    session.sock.settimeout(ANSWER)
                    send(session, {"do": "replica"})
                except (OSError, HorovodInternalError) as error:
                    logger.warning(
                        "a replica of a parameter server cannot be reached (%s); the job continues",
                        error,
                    )
                    continue
                self._sessions.append(session)
                self._addresses[session] = address
        return list(self._sessions)

    def _dismiss(self, session: Session) -> None:
        """Dismiss a replica that did not answer. If it resumes, it must not accept ranks, because
        it has missed events.
        """
        with contextlib.suppress(OSError, HorovodInternalError):
            send(session, DISMISSED)
        self._forget(session, f"no response for {ANSWER:g} s")

    def _forget(self, session: Session, why: str) -> None:
        assert self._sessions is not None
        self._sessions.remove(session)
        del self._addresses[session]
        session.close()
        logger.warning(
            "a replica of a parameter server was lost (%s); the job continues without it", why
        )


def _stalled() -> None:
    raise TimeoutError(f"no byte was accepted for {ANSWER:g} s")
