"""A server's replicas, which receive each event before the rank that caused it gets its answer."""

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
        return list(self._sessions)

    def _dismiss(self, session: Session) -> None:
        """Dismiss a replica that did not answer. If it resumes, it must not accept ranks: it has
        missed events.
        """
        with contextlib.suppress(OSError, HorovodInternalError):
            send(session, DISMISSED)
        self._forget(session, f"no response for {ANSWER:g} s")

    def _forget(self, session: Session, why: str) -> None:
        assert self._sessions is not None
        self._sessions.remove(session)
        session.close()
        logger.warning(
            "a replica of a parameter server was lost (%s); the job continues without it", why
        )
