"""The thread that checks for preemption notices of one host."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence

from farandole.base import threads
from farandole.base.log import logger
from farandole.job.elastic.notices.notice import Notice
from farandole.job.elastic.notices.sources import FileSource, SignalSource, Source, parse_sources

PERIOD = 1.0  # seconds between two checks
Report = Callable[[Notice], None]


class NoticeWatch:
    """Checks for notices about ``host`` in files and by HTTP.

    ``report`` is called on the watch's thread with each new notice, and with a withdrawn one when
    it no longer applies. ``period``: seconds between two checks.
    """

    def __init__(
        self, host: str, sources: Sequence[Source], report: Report, period: float = PERIOD
    ) -> None:
        self._report, self._period, self._host = report, period, host
        self._finders = [
            (each, _finder(each, host)) for each in sources if not isinstance(each, SignalSource)
        ]
        self._known: Notice | None = None
        self._failing = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="farandole-notices", daemon=True)

    def start(self) -> None:
        """Start the thread; do nothing if all sources are signals."""
        if self._finders:
            threads.start(self._thread)

    def poll(self) -> None:
        """Query all sources once, and report a change."""
        found, failed = None, False
        for source, find in self._finders:
            try:
                found = found or find()
            except Exception as error:  # the thread continues after any failure
                failed = True
                self._warn(source, error)
        self._failing = failed
        if found is None and self._known is not None and not failed:
            withdrawn = self._known._replace(withdrawn=True)
            self._known = None
            self._report(withdrawn)
        elif found is not None and self._known is None:
            self._known = found
            self._report(found)

    def close(self) -> None:
        """End the thread at its next check."""
        self._ended.set()

    def _warn(self, source: Source, error: Exception) -> None:
        if not self._failing:  # once for a series of failures
            logger.warning(
                "no preemption notices of %s can be read from %s at the moment: %s",
                self._host,
                getattr(source, "base", getattr(source, "path", "")),
                error,
            )

    def _watch(self) -> None:
        while not self._ended.wait(self._period):
            self.poll()


def watch_host(host: str, text: str, report: Report) -> NoticeWatch:
    """Watch the sources of the setting ``preemption_notice`` on this machine.

    ``host``: the host's name in the job. Raises SettingsError for an invalid value.
    """
    watch = NoticeWatch(host, parse_sources(text, os.environ), report)
    watch.start()
    return watch


def _finder(source: Source, host: str) -> Callable[[], Notice | None]:
    if isinstance(source, FileSource):
        return functools.partial(_file_notice, source.path.replace("{host}", host))
    assert not isinstance(source, SignalSource)
    # Imported here because other sources do not need HTTP.
    from farandole.job.elastic.notices.web import Metadata

    return Metadata(source).find


def _file_notice(path: str) -> Notice | None:
    return Notice(f"file {path}") if os.path.exists(path) else None
