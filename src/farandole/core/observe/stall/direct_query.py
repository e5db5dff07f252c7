"""Queries ranks for their stacks, each over its own connection.

A thread of every rank answers, even while the main thread is busy. For a silent rank on this host,
the kernel provides the state of its process.
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

_SERVE_SECONDS = 3.0  # seconds for which one query is served
_MAX_ANSWER = 1 << 20  # bytes of an answer
_PENDING = 16  # minimum limit on concurrent handshakes; all ranks may query
_PAUSE = 0.05  # seconds before retrying a rank that closed the connection because it had too many


class DirectQuery:
    """One rank's side of the queries.

    - ``host``: This rank's address.
    - ``publish``: Publishes this rank's entry.
    - ``look_up``: Returns the entry of a rank, or None, and may block.

    All ``size`` ranks have the same ``secret`` and ``scope``.
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
        """Query ``ranks`` (see ``StackQuery``). ``seconds``: for all entries together, and for each
        answer.
        """
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
        """Return the entries of these ranks found within ``seconds``. Their server may be the
        stopped process itself.
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
        """Return the answer of a rank, without a stack if the rank closed or refused the
        connection; None if it was silent.
        """
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
            content = session.receive(_MAX_ANSWER)
            return decode_answer(content) if content else Answer()
