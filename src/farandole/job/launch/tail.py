"""The tail of a job: some ranks have ended, and others continue without them. Pure.

An exchange with an ended rank fails. A rank that hangs in an exit handler, in a thread or after its
last exchange makes no exchange, so the driver watches the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farandole.errors import ranks_named
from farandole.job.config import Settings
from farandole.job.launch.explain.events import Verdict, subject

_NAMED = 4  # maximum number of ranks whose activity is named


class JobTail:
    """The tail of a job of ``np`` ranks, with the times of the stall check in ``settings``."""

    def __init__(self, np: int, settings: Settings) -> None:
        self._np = np
        watches = not settings.stall_check_disable
        self._warning = settings.stall_warning_seconds if watches else 0.0
        self._shutdown = settings.stall_shutdown_seconds if watches else 0.0
        self._next = self._warning
        self._ended = 0
        self._since = 0.0

    def running(self, codes: Mapping[int, int]) -> list[int]:
        """Return the ranks that still run although others have ended; empty without a tail."""
        left = [rank for rank in range(self._np) if rank not in codes]
        return left if codes and not any(codes.values()) else []

    def poll(self, codes: Mapping[int, int], now: float) -> float:
        """Return the seconds since the last end if a warning is due, else 0.

        ``codes`` are the exit codes of the ranks that have ended.
        """
        if len(codes) != self._ended:
            self._ended, self._since, self._next = len(codes), now, self._warning
        if not self._warning or not self.running(codes) or now < self._since + self._next:
            return 0.0
        self._next *= 2
        return now - self._since

    def is_over(self, codes: Mapping[int, int], now: float) -> bool:
        """Return whether the job has to be ended (``--stall-check-shutdown-time-seconds``)."""
        has_time = not self._shutdown or now < self._since + self._shutdown
        return bool(len(codes) == self._ended and self.running(codes) and not has_time)

    def describe(
        self,
        codes: Mapping[int, int],
        seconds: float,
        hosts: Sequence[str],
        activity: Mapping[int, str],
    ) -> str:
        """Return a message with the ranks that ended ``seconds`` ago, and the ``activity`` of the
        others.
        """
        running = self.running(codes)
        lines = [
            f"{subject(sorted(codes))} ended {seconds:.0f} s ago, and {ranks_named(running)}"
            f" still {'runs' if len(running) == 1 else 'run'}."
        ]
        for rank in running[:_NAMED]:
            lines.append(f"Rank {rank} on {hosts[rank]}: {activity.get(rank) or 'no report'}")
        if len(running) > _NAMED:
            lines.append(f"... and {len(running) - _NAMED} more.")
        return "\n".join(lines)

    def verdict(
        self, codes: Mapping[int, int], hosts: Sequence[str], activity: Mapping[int, str]
    ) -> Verdict:
        """Return the verdict on a job whose tail has taken too long."""
        running = self.running(codes)
        what = self.describe(codes, self._shutdown, hosts, activity)
        cure = (
            "The job is ended (--stall-check-shutdown-time-seconds).\nExit handlers, threads that"
            " are not daemons and work after the last exchange keep a rank running."
        )
        return Verdict(rank=running[0], patience=0.0, exit_code=1, message=f"{what}\n{cure}")
