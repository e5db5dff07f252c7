"""The coordinator of an elastic job that restarts all processes after a loss. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farandole.job.elastic.coordinator import Coordinator
from farandole.job.elastic.decisions import Decision, GiveUp, Restart
from farandole.job.elastic.options import ElasticOptions

# Seconds for which changed hosts have to remain stable before a program is restarted on them.
SETTLE = 3.0


class RestartingCoordinator(Coordinator):
    """A coordinator for ``max_restarts``.

    A program whose processes never wait for a membership, such as a script of torch.distributed,
    cannot continue without a lost rank. As with torchrun, all its processes are restarted after a
    loss, and when the hosts have changed. Programs that wait for memberships are not affected.

    Arguments: see ``Coordinator``.
    """

    def __init__(
        self, options: ElasticOptions, hosts: Mapping[str, int], now: float, *, fixed: bool = False
    ) -> None:
        super().__init__(options, hosts, now, fixed=fixed)
        self._joins = False  # whether any process has waited for a membership
        self._changed_since = -1.0  # the time since which a restart would change the ranks; or -1

    def ready(
        self, process: int, after: int, commits: int, now: float, unreached: Sequence[int] = ()
    ) -> None:
        self._joins = True
        super().ready(process, after, commits, now, unreached)

    def _continue(self, now: float) -> list[Decision]:
        if self._joins or not self._is_running():
            return super()._continue(now)
        if self.lost:
            return [GiveUp("the other ranks cannot continue without it")]
        leavers = self._split(now)[1]
        slots = sum(self._pool.available(now).values())
        after, before = min(slots, self._options.max_np or slots), len(self.membership.members)
        if self.finished or after < self._options.min_np or (after == before and not leavers):
            self._changed_since = -1.0
            return []
        if self._changed_since < 0:
            self._changed_since = now
        return [Restart(before, after)] if now >= self._changed_since + SETTLE else []
