"""The thread that queries a discovery every second and reports changes to the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable

from farandole.base import threads
from farandole.base.log import logger
from farandole.errors import SettingsError
from farandole.job.elastic.changes import HostUpdateResult, compare
from farandole.job.elastic.discovery.contract import Closable, HostDiscovery, Hosts

PERIOD = 1.0  # seconds between two queries, as in Horovod

OnChange = Callable[[Hosts, HostUpdateResult], None]


class HostWatch:
    """Watches a discovery. The first query runs in ``start``, the others on the watch's own thread.

    ``on_change`` is called on that thread with the hosts (slots by host) and the kind of change.
    ``period``: seconds between two queries.
    """

    def __init__(
        self, discovery: HostDiscovery, on_change: OnChange, period: float = PERIOD
    ) -> None:
        self._discovery, self._on_change, self._period = discovery, on_change, period
        self._ended = threading.Event()
        self._hosts: Hosts = {}
        self._failing = False
        self._thread = threading.Thread(target=self._watch, name="farandole-discovery", daemon=True)

    def start(self) -> Hosts:
        """Return the hosts of the first query, and watch for changes from now on.

        Raises SettingsError if the first query fails: the source is probably wrong. Later failures
        of any kind are logged, and the query is repeated.
        """
        try:
            self._hosts = self._discovery.find()
        except SettingsError:
            raise
        except Exception as error:  # a discovery may be the user's code
            raise SettingsError(f"{self._discovery.describe()}: {_words(error)}") from error
        threads.start(self._thread)
        return dict(self._hosts)

    def poll(self) -> None:
        """Query once, and report a change."""
        try:
            found = self._discovery.find()
        except Exception as error:  # the thread continues after any failure
            if self._ended.is_set():
                return
            if not self._failing:  # once for a series of failures
                logger.warning(
                    "hosts cannot be found at the moment (%s): %s. The job continues with the"
                    " known hosts, and tries again every %g s",
                    self._discovery.describe(),
                    _words(error),
                    self._period,
                )
            self._failing = True
            return
        self._failing = False
        change = compare(self._hosts, found)
        self._hosts = found
        if change:
            self._on_change(dict(found), change)

    def close(self) -> None:
        """End the thread, and the program of a query in progress."""
        self._ended.set()
        if isinstance(self._discovery, Closable):
            try:
                self._discovery.close()
            except Exception as error:  # the job has its result already
                logger.warning("%s cannot be closed: %s", self._discovery.describe(), _words(error))

    def _watch(self) -> None:
        while not self._ended.wait(self._period):
            self.poll()


def _words(error: Exception) -> str:
    """Return the message of ``error``, with its class unless the message explains itself."""
    own = isinstance(error, (SettingsError, OSError))
    return f"{error}" if own else f"{type(error).__name__}: {error}"
