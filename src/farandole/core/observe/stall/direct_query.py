"""Asks ranks for their stacks, each over a connection of its own.

A thread of every rank answers, so that also a rank does whose main thread is busy with something
else. For one that is silent the kernel answers, if it is on this host.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence

from farandole.base.log import logger
from farandole.core.observe.stall import process
from farandole.core.observe.stall.stack_query import Answer, decode_answer, encode_own_answer
from farandole.errors import HorovodInternalError, UnfinishedHandshakeError
from farandole.net import interfaces
from farandole.net.handshake import Newcomers, authenticate

_SERVE_SECONDS = 3.0  # for which one that asks is served
_LONGEST = 1 << 20  # bytes of an answer
_PENDING = 16  # connections that may be in a handshake at one time, at least: all ranks may ask
_PAUSE = 0.05  # seconds until a rank that hung up is asked again: it had too many newcomers


class DirectQuery:
    """One rank's side. ``host``: its address; ``publish``: puts this rank's entry where the others
    find it; ``look_up``: finds the entry of a rank, None if it is not there; it may block. All
    ``size`` ranks have the same ``secret`` and ``scope``.
    """

    def __init__(
        self,
        secret: str,
        scope: str,
        rank: int,
        size: int,
        host: str,
        publish: Callable[[bytes], None],
        look_up: Callable[[int], bytes | None],
    ) -> None:
        self._secret = secret
        self._scope = scope
        self.ranks: Sequence[int] = range(size)
        self._rank = rank
        self._look_up = look_up
        room = max(_PENDING, size)
        self._newcomers = Newcomers(f"rank {rank}'s socket for questions", logger, room)
        self._listener = interfaces.listening(host, backlog=room)
        self._open = True
        self._thread = threading.Thread(
            target=self._newcomers.accept_all,
            args=(self._listener, self._answer, "farandole-stacks-answer"),
            name="farandole-stacks",
            daemon=True,
        )
        self._thread.start()
        try:
            host, port = self._listener.getsockname()[:2]
            publish(json.dumps([host, port, process.here().decode()]).encode())
        except BaseException:
            self.close()
            raise

    def ask(self, ranks: Sequence[int], seconds: float) -> dict[int, Answer]:
        """See ``StackQuery``. ``seconds``: for the entries of all, and for the answer of each."""
        found = {}
        for rank, entry in self._entries(ranks, seconds).items():
            host, port, here = json.loads(entry)
            answer = self._ask_until(time.monotonic() + seconds, host, port, rank)
            if answer is None:
                found[rank] = Answer(silent=process.why_silent(here.encode()))
            elif answer.stack:
                found[rank] = answer
        return found

    def close(self) -> None:
        self._open = False
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=5)
        self._listener.close()
        self._newcomers.close()

    def _purpose(self, rank: int) -> str:
        return f"stacks|{self._scope}|{rank}"

    def _answer(self, sock: socket.socket) -> None:
        try:
            session = self._newcomers.admit(
                sock, self._secret, self._purpose(self._rank), seconds=_SERVE_SECONDS
            )
            sock.settimeout(_SERVE_SECONDS)
            session.send(encode_own_answer(()))
        except (OSError, HorovodInternalError) as error:
            if self._open:
                self._newcomers.refuse("", error)
        finally:
            sock.close()

    def _entries(self, ranks: Sequence[int], seconds: float) -> dict[int, bytes]:
        """The entries of these ranks that are found in time: the server that has them may be the
        process that has stopped.
        """
        found: dict[int, bytes] = {}

        def look() -> None:
            for rank in ranks:
                entry = self._look_up(rank)
                if entry is not None:
                    found[rank] = entry

        looking = threading.Thread(target=look, name="farandole-stacks-look-up", daemon=True)
        looking.start()
        looking.join(seconds)
        return dict(found)

    def _ask_until(self, end: float, host: str, port: int, rank: int) -> Answer | None:
        """An answer without a stack if the rank has hung up, or refused; None if it was silent."""
        silent, left = True, end - time.monotonic()
        while left > 0:
            try:
                return self._ask(host, port, rank, left)
            except (
                ConnectionResetError,
                BrokenPipeError,
                UnfinishedHandshakeError,
                TimeoutError,
            ) as error:
                if not isinstance(error, TimeoutError) and not isinstance(
                    error.__context__, TimeoutError
                ):
                    silent = False
                    time.sleep(_PAUSE)
            except (OSError, HorovodInternalError):
                return Answer()
            left = end - time.monotonic()
        return None if silent else Answer()

    def _ask(self, host: str, port: int, rank: int, seconds: float) -> Answer:
        with socket.create_connection((host, port), timeout=seconds) as sock:
            session = authenticate(
                sock, self._secret, self._purpose(rank), server=False, seconds=seconds
            )
            sock.settimeout(seconds)
            content = session.receive(_LONGEST)
            return decode_answer(content) if content else Answer()
