"""Where the program of a rank stands that others wait for: asked and answered over a connection of its own.

A thread of every rank answers, so that also a rank does whose main thread is busy with something else. For one that is
silent the kernel answers, if it is on this host.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Sequence

from farandole.errors import HorovodInternalError
from farandole.handshake import Newcomers, authenticate
from farandole.log import logger
from farandole.observe.stall import process

_SECONDS = 3.0  # for which a rank is asked
_MOST = 3  # ranks that are asked, and frames of each that are told
_FRAMES = 6
_LONGEST = 1 << 20  # bytes of an answer
_PENDING = 16  # connections that may be in a handshake at one time

Frames = list[tuple[str, int, str, str]]  # file, line, function, its text


class Whereabouts:
    """One rank's side. ``host``: its address; ``tell``: puts what is said where the others find it; ``look``: that of
    a rank, None if it is not there. ``secret`` and ``scope`` are those of all ranks."""

    def __init__(
        self, secret: str, scope: str, rank: int, host: str, tell: Callable[[bytes], None],
        look: Callable[[int], bytes | None],
    ) -> None:  # fmt: skip
        self._secret, self._scope, self._rank, self._look = secret, scope, rank, look
        self._newcomers = Newcomers(f"rank {rank}'s socket for questions", logger, _PENDING)
        self._listener = socket.create_server((host, 0), backlog=_PENDING)
        self._open = True
        self._thread = threading.Thread(
            target=self._newcomers.accept_all, args=(self._listener, self._answer, "farandole-where-answer"),
            name="farandole-where", daemon=True,
        )  # fmt: skip
        self._thread.start()
        tell(json.dumps([*self._listener.getsockname()[:2], process.here().decode()]).encode())

    def of(self, ranks: Sequence[int]) -> str:
        """Lines that say where these ranks stand; empty if nothing is known. It takes seconds if they are silent."""
        return "".join(map(self._of, ranks[:_MOST]))

    def close(self) -> None:
        self._open = False
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=5)
        self._listener.close()
        self._newcomers.close()

    def _purpose(self, rank: int) -> str:
        return f"where|{self._scope}|{rank}"

    def _answer(self, sock: socket.socket) -> None:
        from farandole.observe.stall import stacks  # here: nobody is asked in most jobs

        try:
            session = self._newcomers.admit(sock, self._secret, self._purpose(self._rank), seconds=_SECONDS)
            sock.settimeout(_SECONDS)
            session.send(json.dumps(stacks.users()).encode())
        except (OSError, HorovodInternalError) as error:
            if self._open:
                self._newcomers.refuse("", error)
        finally:
            sock.close()

    def _of(self, rank: int) -> str:
        found = self._look(rank)
        if found is None:
            return ""
        host, port, here = json.loads(found)
        try:
            frames = self._ask(host, port, rank)
        except (OSError, HorovodInternalError):
            return f"\nrank {rank} does not answer: {process.why_silent(here.encode())}"
        if not frames:
            return ""
        lines = [
            f"\n    {file}, line {line}, in {function}: {text}" for file, line, function, text in frames[-_FRAMES:]
        ]
        return f"\nrank {rank} is at:{''.join(lines)}"

    def _ask(self, host: str, port: int, rank: int) -> Frames:
        with socket.create_connection((host, port), timeout=_SECONDS) as sock:
            session = authenticate(sock, self._secret, self._purpose(rank), server=False, seconds=_SECONDS)
            sock.settimeout(_SECONDS)
            frames: Frames = json.loads(session.receive(_LONGEST) or b"[]")
            return frames
