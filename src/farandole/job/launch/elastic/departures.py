"""Hosts of an elastic job that leave although no process has failed: after preemption notices,
damaged replicas, or slow steps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from farandole.base.log import logger
from farandole.job.config import Settings
from farandole.job.elastic.coordinator import Coordinator
from farandole.job.elastic.faults import HostFaults
from farandole.job.elastic.notices.notice import Notice
from farandole.job.launch.elastic.requeue import SlurmRequeue
from farandole.job.report import keys
from farandole.net.store import StoreServer, Value

# Keys of reports, up to the first slash.
REPORTS = ("leaving", "damaged", "straggler", "rescued")


class Departures:
    """Passes reports about departing hosts to the coordinator.

    ``wake``: wakes the driver's loop. ``note``: shows a line to the user.
    """

    def __init__(
        self,
        settings: Settings,
        store: StoreServer,
        wake: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self._store, self._wake, self._note = store, wake, note
        # Preemption notices with their hosts, appended by other threads.
        self._notices: deque[tuple[str, Notice]] = deque()
        self._faults = HostFaults()
        self._rescued = False  # whether rank 0 has written the last commit for all hosts
        self._requeue = SlurmRequeue(settings.slurm_requeue)

    def hear(self, kind: str, rest: str, value: Value, host_of: Callable[[int], str]) -> None:
        """Record a report of a rank. May be called on any thread.

        ``kind``, ``rest``: the two parts of the key: one of ``REPORTS``, and the remainder.
        ``host_of``: returns the host of a process.
        """
        try:
            if kind == "leaving":
                self.on_notice(host_of(int(rest)), Notice.from_bytes(value))
            elif kind == "rescued":
                self._rescued = True
            else:
                self._faults.hear(kind, rest, value)
        except (ValueError, TypeError, LookupError) as error:
            logger.warning("ignoring %r in the job's store: %s", f"{kind}/{rest}", error)
        self._wake()

    def on_notice(self, host: str, notice: Notice) -> None:
        """Record a preemption notice. May be called on any thread."""
        self._notices.append((host, notice))
        self._wake()

    def take(self, coordinator: Coordinator) -> None:
        """Pass on the reports that have arrived."""
        while self._notices:
            host, notice = self._notices.popleft()
            (coordinator.remain if notice.withdrawn else coordinator.depart)(host)
            self._note(notice.describe(host))
            if coordinator.is_leaving:
                self._store.set(keys.RESCUE, b"")
        for host, reason in self._faults.take(coordinator.membership):
            is_out = coordinator.leave_out(host, time.monotonic())
            end = "will be excluded at its next commit" if is_out else "is kept, as the only host"
            self._note(f"{host} {end}: {reason}")
        if self._rescued:
            self._rescued = False
            self._requeue.ask(self._note)
