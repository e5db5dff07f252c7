"""Reports a rank's end to the driver.

An exception is reported before this process's sockets close, i.e. before any other rank can notice.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from farandole.errors import HorovodInternalError
from farandole.job.config import Connection, Placement
from farandole.job.config.rank_variables import PROCESS
from farandole.job.report import keys
from farandole.job.report.outcome import Outcome


class ReportStore(Protocol):
    """The part of a store's client that reports use."""

    def set(self, key: str, value: bytes) -> None: ...


class _Reporter:
    """Reports once; a process forked from this one (a data loader's worker) reports nothing."""

    def __init__(self) -> None:
        self.client: ReportStore | None = None
        self.rank = 0
        self.pid = 0
        self.done = False
        self.failed = False
        self.caught: Sequence[BaseException] = ()

    def report(self, outcome: Outcome) -> None:
        if self.client is None or self.done or os.getpid() != self.pid:
            return
        self.done = True
        self.failed = outcome.status != "ok"
        if outcome.status == "error" and outcome.lost < 0:
            outcome = outcome._replace(lost=Outcome.without(self.caught).lost)
        try:
            self.client.set(keys.outcome(self.rank), outcome.to_bytes())
        except (HorovodInternalError, OSError):
            self._report_over_new_connection(outcome)

    def _report_over_new_connection(self, outcome: Outcome) -> None:
        """Report over a new connection, because a shutdown may have closed the client given to
        ``install``.
        """
        from farandole.net.store import StoreClient

        try:
            client = StoreClient(
                self.client.address,  # type: ignore[union-attr]
                self.client.secret,  # type: ignore[union-attr]
                timeout=2.0,
            )
            client.set(keys.outcome(self.rank), outcome.to_bytes())
            client.close()
        except (HorovodInternalError, OSError, AttributeError):
            pass  # the driver is lost


_reporter = _Reporter()


def install(client: ReportStore, rank: int) -> None:
    """Report this process's end to the driver: an uncaught exception immediately, anything else at
    exit.
    """
    known = _reporter.client is not None and _reporter.pid == os.getpid()
    _reporter.client, _reporter.rank, _reporter.pid = client, rank, os.getpid()
    if known:
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _reporter.report(Outcome.of(error))
        before(kind, error, trace)

    sys.excepthook = hook
    atexit.register(_at_exit)


class _Caller:
    """A client that connects only when there is an outcome to report."""

    def __init__(self, address: str, secret: str) -> None:
        self.address = address
        self.secret = secret

    def set(self, key: str, value: bytes) -> None:
        from farandole.net.store import StoreClient

        client = StoreClient(self.address, self.secret, timeout=2.0)
        client.set(key, value)
        client.close()


def install_early() -> None:
    """Report an uncaught exception of this process even before ``init()``, if the process is a
    rank.

    A rank's children inherit its variables, but are not ranks.
    """
    if os.environ.get(PROCESS) == str(os.getpid()) and _reporter.client is None:
        connection = Connection.from_env()
        number = connection.number(Placement.from_env().rank)
        install(_Caller(connection.store, connection.secret), number)


def caught(failures: Sequence[BaseException]) -> None:
    """Set the list of the failures of this process's collectives; the program may catch them
    and give up.
    """
    _reporter.caught = failures


def report(outcome: Outcome) -> None:
    """Report to the driver now; the later report of ``install`` is dropped."""
    _reporter.report(outcome)


def failed() -> bool:
    """Return whether a failure of this process was reported to the driver."""
    return _reporter.failed


def _at_exit() -> None:
    # If the program replaced sys.excepthook after init(), the exception is still here.
    error = getattr(sys, "last_value", None)
    if error is None and isinstance(_reporter.client, _Caller):
        return  # never joined the job and did not fail
    _reporter.report(Outcome.of(error) if error is not None else Outcome.without(_reporter.caught))
