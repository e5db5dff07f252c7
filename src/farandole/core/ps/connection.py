"""A rank's connection to one parameter server and its replicas."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from farandole.base.log import logger
from farandole.core.ps.dial import SECONDS, reach
from farandole.core.ps.wire import Message, receive, receive_into, send
from farandole.errors import HorovodInternalError, ServerLostError, WireError
from farandole.net.handshake import Session
from farandole.net.liveness import await_answer

if TYPE_CHECKING:
    from farandole.base.types import Array

LAST = 5.0  # seconds for the answer to the goodbye
SILENCE = 10.0  # seconds without data after which the server must accept a test connection
PROOF = 10.0  # seconds for the test connection
AGAIN = 1.0  # seconds for a new connection after an interrupt


class ServerConnection:
    """One server with its replicas. This rank is connected to one of them.

    - ``number``: The server's number, for messages.
    - ``patience``: Seconds to wait for a stopped server without replicas; 0: forever.
    - ``look_up``: Returns the present addresses if replicas may be added, as in an elastic job.
    """

    def __init__(
        self,
        number: int,
        addresses: Sequence[str],
        host: str,
        secret: str,
        hello: Message,
        patience: float,
        look_up: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self.number = number
        self._addresses = [json.loads(address) for address in addresses]
        self._host = host
        self._secret = secret
        self._hello = hello
        self._patience = patience
        self._look_up = look_up
        self._place = 0
        self._hurried = self._late = self._warned = False
        self._trouble = ""
        self._silent_since = 0.0
        self._session: Session | None = None

    def ask(self, message: Message, arrays: Sequence[Array] | None = None) -> bool:
        """Send a message. Return False if the server is lost (``answer`` tries its replicas)."""
        try:
            session = self._open()
            with self._limited(session):
                send(session, message, arrays, self._check_server)
        except (OSError, HorovodInternalError) as error:
            self._late = isinstance(error, TimeoutError)
            self._trouble = str(error)
            return False
        return True

    def answer(
        self, asked: bool, message: Message, arrays: Sequence[Array] | None, into: Sequence[Array]
    ) -> Message:
        """Return the answer of the server or of a replica.

        Raises PeerLostError if no replica is left, and TimeoutError after ``hurry``: a slow server
        may be healthy, so its replica must not take over.
        """
        while True:
            trouble = self._trouble or "it closed the connection"
            if asked:
                try:
                    found = self._receive(into)
                    if found is not None:
                        return found
                except WireError:
                    raise
                except (OSError, HorovodInternalError) as error:
                    trouble, self._late = str(error), isinstance(error, TimeoutError)
            if self._hurried and self._late:
                raise TimeoutError(f"{self._name()} did not answer within {LAST:g} s")
            self._next(trouble)
            asked = self.ask(message, arrays)

    def _receive(self, into: Sequence[Array]) -> Message | None:
        session = self._open()
        self._wait(session)
        with self._limited(session):
            found = receive(session)
            if found is not None and found.get("data"):
                receive_into(session, into, self._check_server)
        return found

    def _wait(self, session: Session) -> None:
        """Wait for the first byte without a limit: a server may have to wait for other ranks."""
        self._silent_since = time.monotonic()
        while not self._hurried:
            try:
                await_answer(session.sock, SILENCE)
                return
            except TimeoutError:
                self._check_server()

    def _check_server(self) -> None:
        """Handle a silent server. If it accepts no test connection, it is stopped, and its replica
        takes over. Without a replica, warn and continue to wait, up to ``patience``.
        """
        if self._hurried:
            raise TimeoutError(f"no data for {LAST:g} s")
        try:
            reach(self._addresses[self._place], self._host, self._secret, PROOF).close()
            self._silent_since = time.monotonic()
        except (OSError, HorovodInternalError) as error:
            if self._place + 1 < len(self._addresses) or self._find_later():
                raise
            self._warn(error)
            seconds = time.monotonic() - self._silent_since
            if 0 < self._patience <= seconds:
                raise TimeoutError(
                    f"no response for {seconds:.0f} s"
                    f" (--stall-check-shutdown-time-seconds={self._patience:g})"
                ) from error

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            ends = (
                f"this rank ends after {self._patience:g} s"
                if self._patience
                else "this rank waits for it"
            )
            logger.warning(
                "%s does not respond and accepts no connections (%s): it is suspended, or its"
                " host is down; %s. --replicas 2 would keep the job running",
                self._name(),
                error,
                ends,
            )

    @contextlib.contextmanager
    def _limited(self, session: Session) -> Iterator[None]:
        """Require progress of a transfer within ``SILENCE``."""
        self._silent_since = time.monotonic()
        self._trouble = ""
        session.sock.settimeout(LAST if self._hurried else SILENCE)
        yield
        session.sock.settimeout(LAST if self._hurried else None)

    def _open(self, seconds: float = SECONDS) -> Session:
        if self._session is None:
            session = reach(self._addresses[self._place], self._host, self._secret, seconds)
            try:
                session.peer = self._name()
                session.sock.settimeout(LAST if self._hurried else None)
                send(session, self._hello)
            except BaseException:
                session.close()
                raise
            self._session = session
        return self._session

    def renew(self) -> None:
        """Try briefly to reconnect; on failure, the next ``ask`` does."""
        with contextlib.suppress(OSError, HorovodInternalError):
            self._open(AGAIN)

    def _next(self, trouble: str) -> None:
        name, self._late = self._name(), False
        self.close()
        if self._place + 1 == len(self._addresses) and not self._find_later():
            raise ServerLostError(
                f"{name} was lost ({trouble}), and it has no replica left: its model state is lost"
            )
        self._place += 1
        logger.warning("%s was lost (%s); its replica takes over", name, trouble)

    def _find_later(self) -> bool:
        """Look for new replicas; return whether any was found."""
        if self._look_up is None:
            return False
        found = [json.loads(address) for address in self._look_up()]
        later = [address for address in found if address not in self._addresses]
        self._addresses += later
        return bool(later)

    def _name(self) -> str:
        address = self._addresses[self._place]
        which = f", replica {self._place}," if self._place else ""
        return (
            f"parameter server {self.number}{which} on {address['host']} (process {address['pid']})"
        )

    def hurry(self) -> None:
        """Treat the server as lost from now on if it does not answer within ``LAST`` seconds."""
        self._hurried = True
        if self._session is not None:
            self._session.sock.settimeout(LAST)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
