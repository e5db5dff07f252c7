"""Detection of lost peers while the device is busy: a device would wait for a dead peer forever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from farandole.base.contracts import Transport
from farandole.errors import HorovodInternalError

_PERIOD = 0.25  # seconds between checks
# Seconds after which the last collective's status is queried. A query disturbs the capture of CUDA
# graphs.
_QUIET = 10.0


class Watch:
    """Detects lost peers and failed collectives. It passes the error to ``lost`` before it calls
    ``give_up``, so the engine has ended before an aborted collective is noticed.
    """

    def __init__(
        self,
        host: Transport,
        lost: Callable[[HorovodInternalError], None],
        give_up: Callable[[], None],
    ) -> None:
        self._host = host
        self._lost = lost
        self._give_up = give_up
        self._last: tuple[Any, float] | None = None
        self._found: HorovodInternalError | None = None
        self._over = threading.Event()
        self._failed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="farandole-watch", daemon=True)
        self._thread.start()

    def note(self, work: Any) -> None:
        """Record ``work`` as the latest work on the device."""
        self._last = (work, monotonic())

    def cause(self, seconds: float) -> HorovodInternalError | None:
        """Return the error of a lost peer if one is detected within ``seconds`` after a failure on
        this rank, else None.
        """
        self._failed.wait(seconds)
        return self._found

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_PERIOD):
            try:
                self._host.board.verify()
                self._ask()
            except HorovodInternalError as error:
                self._found = error
                self._failed.set()
                self._lost(error)
                self._give_up()
                return

    def _ask(self) -> None:
        """Raise HorovodInternalError if the last collective has failed on the device."""
        last = self._last
        if last is None or monotonic() - last[1] < _QUIET or not last[0].is_completed():
            return
        if self._last is last:
            self._last = None
        try:
            last[0].wait()
        except RuntimeError as error:
            why = f"rank {self._host.rank} failed inside a collective on its GPU: {error}"
            self._host.abort(why)
            raise HorovodInternalError(why) from error
