"""The stall check: says which ranks stay away from which tensors, and ends the job after a set time."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.config import Settings
from farandole.contracts import Observer, Waiting
from farandole.log import logger

_NAMES_SHOWN = 6


class StallCheck(Observer):
    """Texts are Horovod's. Of the ranks that wait, the lowest one speaks."""

    def __init__(self, settings: Settings, rank: int) -> None:
        self.rank = rank
        self.warning = settings.stall_warning_seconds
        self.limit = settings.stall_shutdown_seconds
        if self.limit and self.limit < self.warning:
            logger.warning(
                "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS is less than HOROVOD_STALL_CHECK_TIME_SECONDS, will not shutdown."
            )
            self.limit = 0.0
        self._warned: set[str] = set()

    def waiting(self, collectives: Sequence[Waiting]) -> str:
        self._warned.intersection_update(each.name for each in collectives)
        stalled = [each for each in collectives if each.seconds >= self.warning and each.missing]
        dead = [each for each in stalled if self.limit and each.seconds >= self.limit]
        if dead or any(each.name not in self._warned for each in stalled):
            self._warned.update(each.name for each in stalled)
            mine = [each for each in stalled if self._speaks(each)]
            if mine:
                logger.warning("%s", report(mine, self.warning, self.limit))
        if not dead:
            return ""
        ranks = sorted({rank for each in dead for rank in each.missing})
        return (
            f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} stayed away from "
            f"{', '.join(each.name for each in dead[:_NAMES_SHOWN])} for more than {self.limit:g} s "
            "(--stall-check-shutdown-time-seconds)"
        )

    def _speaks(self, each: Waiting) -> bool:
        return all(rank in each.missing for rank in range(self.rank))


def report(stalled: Sequence[Waiting], warning: float, limit: float) -> str:
    """Horovod's warning for these collectives."""
    lines = [
        "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting "
        f"for remainder of ranks for more than {warning:g} seconds. This may indicate that different ranks are trying "
        "to submit different tensors or that only subset of ranks is submitting tensors, which will cause deadlock. ",
        "Missing ranks:",
    ]
    over = False
    for rank in sorted({rank for each in stalled for rank in each.missing}):
        theirs = [each for each in stalled if rank in each.missing]
        late = bool(limit) and any(each.seconds >= limit for each in theirs)
        over = over or late
        names = ", ".join(each.name for each in theirs[:_NAMES_SHOWN]) + (" ..." if len(theirs) > _NAMES_SHOWN else "")
        lines.append(f"{rank}{'!' if late else ''}: [{names}]")
    if over:
        lines.append(f'One or more rank (marked by "!") is stalled for longer than {limit:g} seconds. Will shutdown.')
    return "\n".join(lines)
