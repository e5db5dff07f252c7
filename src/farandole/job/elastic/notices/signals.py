"""Signals as preemption notices."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from farandole.base import threads
from farandole.job.elastic.notices.sources import SignalSource, Source


class SignalNotices:
    """Handles the signals in ``sources``, after a handler that the program has.

    ``on_signal`` is called with the signal's number on a separate thread, because a handler must
    not communicate. It returns whether the signal is a notice; otherwise the signal has its
    previous effect.
    """

    def __init__(self, sources: Sequence[Source], on_signal: Callable[[int], bool]) -> None:
        self._numbers = [each.number for each in sources if isinstance(each, SignalSource)]
        self._on_signal = on_signal
        self._before: dict[int, Any] = {}
        self._refused: set[int] = set()
        self._in, self._out = -1, -1

    def install(self) -> bool:
        """Handle the signals from now on. Return False, and do nothing, outside the main thread,
        because Python allows no handlers there.
        """
        if threading.current_thread() is not threading.main_thread():
            return not self._numbers
        if not self._numbers:
            return True
        self._in, self._out = os.pipe()
        os.set_blocking(self._out, False)
        threads.start(threading.Thread(target=self._listen, name="farandole-signals", daemon=True))
        for number in self._numbers:
            handler = signal.getsignal(number)
            self._before[number] = signal.SIG_DFL if handler is None else handler
            signal.signal(number, self._handle)
        os.register_at_fork(after_in_child=self.restore)
        return True

    def restore(self) -> None:
        """Restore the previous handlers, for example in a data loader's worker."""
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number, signal.SIG_DFL)
        if number in self._refused:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)
                os.kill(os.getpid(), number)
            return
        os.write(self._out, bytes([number]))
        if callable(before):
            before(number, frame)

    def _listen(self) -> None:
        while data := os.read(self._in, 1):
            if not self._on_signal(data[0]):
                self._refused.add(data[0])
                os.kill(os.getpid(), data[0])
