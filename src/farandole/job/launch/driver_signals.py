"""Signals that the driver receives: some end the job, others are passed on to the ranks."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from farandole.base.host import content

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# As mpirun and srun do: a scheduler may warn the job before its time limit.
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
# Seconds within which a repeated signal counts once: ``timeout`` signals the command and then its
# process group, and only a user's second Ctrl-C must end the job immediately.
TWICE = 0.25


class DriverSignals:
    """Received signals: ``received`` end the job, ``for_ranks`` are passed on. ``wake`` is
    called after each.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.received: list[int] = []
        self.for_ranks: deque[int] = deque()
        self._wake = wake
        self._last = -TWICE  # time of the latest signal that ends the job
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Install handlers in the main thread, except for signals that are ignored (nohup) or
        already handled.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _ENDING:
            # A handler from C code cannot be restored by Python, so leave it in place.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._previous[number] = signal.signal(number, self._on_end)
        for number in _PASSED_ON:
            if not _is_taken(number):
                self._previous[number] = signal.signal(number, self._on_notice)

    def restore(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_end(self, number: int, frame: FrameType | None) -> None:
        now, last = time.monotonic(), self._last
        self._last = now
        if not self.received or number != self.received[-1] or now - last >= TWICE:
            self.received.append(number)
            self._wake()

    def _on_notice(self, number: int, frame: FrameType | None) -> None:
        self.for_ranks.append(number)
        self._wake()


def _is_taken(number: int) -> bool:
    """Return whether this process already handles the signal.

    The calling program may handle it in native code (faulthandler), which Python does not report.
    """
    if signal.getsignal(number) != signal.SIG_DFL:
        return True
    caught = [
        line.split()[1]
        for line in content("/proc/self/status").splitlines()
        if line.startswith("SigCgt")
    ]
    return bool(caught and int(caught[0], 16) >> (number - 1) & 1)
