"""Reader of the pipes of a job's processes."""

from __future__ import annotations

import contextlib
import os
import selectors
from collections.abc import Callable, Sequence

from farandole.job.launch.contract import Worker
from farandole.job.launch.output import OutputStreams

PAUSE = 0.25  # seconds before an unfinished line is shown on a terminal


class OutputPump:
    """Passes on the output in the processes' pipes.

    ``on_silent`` is called with a rank when the last of its pipes has closed.
    """

    def __init__(self, streams: OutputStreams, on_silent: Callable[[int], None]) -> None:
        self._streams = streams
        self._on_silent = on_silent
        self._open: dict[int, set[str]] = {}  # open pipes by rank
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)

    def listen_to(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            rank = worker.slot.rank
            self._open[rank] = set()
            for name, fd in (("stdout", worker.stdout), ("stderr", worker.stderr)):
                if fd is not None:
                    os.set_blocking(fd, False)
                    self._selector.register(fd, selectors.EVENT_READ, (rank, name))
                    self._open[rank].add(name)

    def wake(self) -> None:
        """Interrupt a waiting ``pump``. Safe on any thread and in signal handlers."""
        with contextlib.suppress(OSError):
            os.write(self._wake_out, b"\0")

    def pump(self, seconds: float) -> None:
        """Pass on output that is available or arrives within ``seconds``."""
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                with contextlib.suppress(OSError):
                    os.read(self._wake_in, 4096)
            else:
                self._read(key.fd, *key.data)
        self._streams.show_stale(PAUSE)

    def _read(self, fd: int, rank: int, name: str) -> None:
        data = b""
        try:
            data = os.read(fd, 1 << 18)
            if data:
                self._streams.feed(rank, name, data)
            else:
                self._streams.pause(rank, name)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(fd)
            os.close(fd)
            self._open[rank].discard(name)
            if not self._open[rank]:
                self._on_silent(rank)

    def is_drained(self) -> bool:
        """Return whether all pipes have closed."""
        return not any(self._open.values())

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
        os.close(self._wake_out)
