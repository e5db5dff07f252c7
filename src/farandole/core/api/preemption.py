"""Preemption: requests to end (SIGTERM, or a scheduler's warning), on which the ranks agree at the
end of a step.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

import numpy as np

from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
from farandole.core.api.documented import documented
from farandole.core.api.ops import WORLD
from farandole.core.engine import Entry
from farandole.job import context
from farandole.job.context import ProcessSet

# The signal that Kubernetes and launchers send before SIGKILL, and those that schedulers send as a
# warning (``sbatch --signal=USR1@60``), which end a program that does not handle them.
_REQUEST = signal.SIGTERM
_WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)


class Preemption:
    """The signals that ask this process to end: ``received`` once one of them has arrived."""

    def __init__(self) -> None:
        self.received = False
        self._before: dict[int, Any] = {}  # the program's own handlers

    @property
    def watched(self) -> bool:
        """True after ``watch``."""
        return bool(self._before)

    def watch(self) -> None:
        """Handle the signals from now on, after any handler of the program. Only in the main
        thread, as Python requires.
        """
        if self.watched or threading.current_thread() is not threading.main_thread():
            return
        for number in (_REQUEST, *_WARNINGS):
            handler = signal.getsignal(number)
            # None: native code (faulthandler) handles the signal.
            if number == _REQUEST or handler == signal.SIG_DFL or callable(handler):
                self._before[number] = handler
                signal.signal(number, self._on_signal)
        os.register_at_fork(after_in_child=self.restore)

    def restore(self) -> None:
        """Restore the program's handlers, for example in a data loader's worker, which must end
        when it receives SIGTERM.
        """
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        handler = self._before.get(number)
        if callable(handler):
            handler(number, frame)


_preemption = Preemption()


@documented(
    "init",
    "set",
    "failed",
    example=(
        "for step, batch in enumerate(loader):\n    train(batch)\n    if hvd.preempted():\n       "
        " hvd.save({'model': model.state_dict(), 'step': step}, 'last.pt')\n        break"
    ),
)
def preempted(process_set: ProcessSet = WORLD) -> bool:
    """Return whether any rank has been asked to end; the same answer on all ranks. Call it at the
    end of each step, on all ranks, and save the state when it returns True.

    A rank is asked to end by SIGTERM, which ``farandole run`` sends to all ranks when it receives
    SIGTERM or Ctrl-C itself, or by SIGUSR1 or SIGUSR2 (``sbatch --signal=USR1@60``). From the first
    call on, in the main thread, these signals no longer end the process; a handler of the program
    still runs. After SIGTERM the ranks have ``--grace-seconds`` (30 by default).
    """
    engine = context.engine(process_set)
    _preemption.watch()
    if engine.size == 1:
        return _preemption.received
    asked = np.array([_preemption.received], dtype=np.int32)
    request = Request("preempted.noname", Kind.ALLREDUCE, DType.INT32, asked.shape, op=ReduceOp.MAX)
    engine.run([Entry(request, Buffer(asked, asked, DType.INT32), engine.numbers.next())])
    return bool(asked[0])
