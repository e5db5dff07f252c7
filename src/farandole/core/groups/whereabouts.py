"""Where the program of a rank stands that others wait for: asked and answered over a connection of
its own.

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
from farandole.errors import HorovodInternalError, UnfinishedHandshakeError
from farandole.net import interfaces
from farandole.net.handshake import Newcomers, authenticate

_SECONDS = 3.0  # for which a rank is asked
_MOST = 3  # ranks that are asked, and frames of each that are told
_FRAMES = 6
_LONGEST = 1 << 20  # bytes of an answer
_PENDING = 16  # connections that may be in a handshake at one time, at least: all ranks may ask
_PAUSE = 0.05  # seconds until a rank that hung up is asked again: it had too many newcomers

Frames = list[tuple[str, int, str, str]]  # file, line, function, its text


class Whereabouts:
    """One rank's side. ``host``: its address; ``tell``: puts what is said where the others find it;
    ``look``: that of a rank, None if it is not there; it may block. ``secret`` and ``scope`` are
    those of all ``size`` ranks.
    """

    def __init__(
        self,
        secret: str,
        scope: str,
        rank: int,
        size: int,
        host: str,
        tell: Callable[[bytes], None],
        look: Callable[[int], bytes | None],
    ) -> None:
        self._secret, self._scope, self._rank, self._look = secret, scope, rank, look
        room = max(_PENDING, size)
        self._newcomers = Newcomers(f"rank {rank}'s socket for questions", logger, room)
        self._listener = interfaces.listening(host, backlog=room)
        self._open = True
        self._thread = threading.Thread(
            target=self._newcomers.accept_all,
            args=(self._listener, self._answer, "farandole-where-answer"),
            name="farandole-where",
            daemon=True,
        )
        self._thread.start()
        try:
            tell(json.dumps([*self._listener.getsockname()[:2], process.here().decode()]).encode())
        except BaseException:
            self.close()
            raise

    def of(self, ranks: Sequence[int]) -> str:
        """Lines that say where these ranks stand; empty if nothing is known. It takes seconds if
        they are silent.
        """
        return "".join(
            self._of(rank, found) for rank, found in self._look_up(ranks[:_MOST]).items()
        )

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
        from farandole.core.observe.stall import stacks  # here: nobody is asked in most jobs

        try:
            session = self._newcomers.admit(
                sock, self._secret, self._purpose(self._rank), seconds=_SECONDS
            )
            sock.settimeout(_SECONDS)
            session.send(json.dumps(stacks.users()).encode())
        except (OSError, HorovodInternalError) as error:
            if self._open:
                self._newcomers.refuse("", error)
        finally:
            sock.close()

    def _look_up(self, ranks: Sequence[int]) -> dict[int, bytes]:
        """What these ranks have told, as far as it is known in time: its server may be the process
        that has stopped.
        """
        found: dict[int, bytes] = {}

        def look() -> None:
            for rank in ranks:
                told = self._look(rank)
                if told is not None:
                    found[rank] = told

        looking = threading.Thread(target=look, name="farandole-where-look", daemon=True)
        looking.start()
        looking.join(_SECONDS)
        return dict(found)

    def _of(self, rank: int, found: bytes) -> str:
        host, port, here = json.loads(found)
        frames = self._ask_until(time.monotonic() + _SECONDS, host, port, rank)
        if frames is None:
            return f"\nrank {rank} does not answer: {process.why_silent(here.encode())}"
        if not frames:
            return ""
        lines = [
            f"\n    {file}, line {line}, in {function}: {text}"
            for file, line, function, text in frames[-_FRAMES:]
        ]
        return f"\nrank {rank} is at:{''.join(lines)}"

    def _ask_until(self, end: float, host: str, port: int, rank: int) -> Frames | None:
        """Frames; none if the rank has hung up, or refused; None if it was silent."""
        silent, left = True, _SECONDS
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
                return []
            left = end - time.monotonic()
        return None if silent else []

    def _ask(self, host: str, port: int, rank: int, seconds: float) -> Frames:
        with socket.create_connection((host, port), timeout=seconds) as sock:
            session = authenticate(
                sock, self._secret, self._purpose(rank), server=False, seconds=seconds
            )
            sock.settimeout(seconds)
            frames: Frames = json.loads(session.receive(_LONGEST) or b"[]")
            return frames
