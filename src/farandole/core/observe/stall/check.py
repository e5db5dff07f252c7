"""Decides when to report a stall and when to end the job."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from farandole.base.contracts import Observer, Waiting
from farandole.base.log import logger
from farandole.job.config import Settings

if TYPE_CHECKING:
    from farandole.core.observe.stall.stack_query import Answer, StackQuery

_ANSWER_SECONDS = 3.0  # seconds after which a rank counts as silent
_LAST_SECONDS = 0.7  # the same shortly before the end of the job
# seconds for the reporting rank to end the job before other ranks do
_GRACE = 2.0
# minimum seconds until the first warning: 0 cannot be doubled and is always due
_LEAST = 0.1
_FRESH = 3.0  # seconds for which the engine's last report is valid


class StallCheck(Observer):
    """Reports stalled collectives after the warning time, and again with more details each time the
    wait has doubled.

    The lowest waiting rank reports. The first lines are Horovod's.
    """

    def __init__(
        self,
        settings: Settings,
        rank: int,
        ranks: Sequence[int] = (),
        query: StackQuery | None = None,
    ) -> None:
        """Create the check of one engine.

        ``ranks``: the job's numbers of this engine's ranks (default: the same numbers). ``query``:
        queries all ranks of the job for their stacks.
        """
        self.rank = rank
        self._ranks = ranks
        self.limit = settings.stall_shutdown_seconds
        warning = max(_LEAST, settings.stall_warning_seconds)
        self.warning = min(warning, self.limit or warning)
        self._query = query
        self._reported: dict[str, int] = {}  # number of reports, by name
        self._last: tuple[float, Sequence[Waiting]] = (0.0, ())
        self._reporter: threading.Thread | None = None

    def waiting(self, collectives: Sequence[Waiting]) -> str:
        self._last = (monotonic(), collectives)
        here = {wait.name for wait in collectives}
        self._reported = {name: count for name, count in self._reported.items() if name in here}
        stalled = [wait for wait in collectives if wait.seconds >= self.warning and wait.missing]
        over = [wait for wait in stalled if self.limit and wait.seconds >= self.limit]
        if over:
            return self._end(stalled, over)
        due = [
            wait
            for wait in stalled
            if wait.seconds >= self.warning * 2 ** self._reported.get(wait.name, 0)
        ]
        if due:
            for wait in stalled:
                self._reported[wait.name] = self._reported.get(wait.name, 0) + 1
            self._report(
                [wait for wait in stalled if self._is_reporter(wait)], max(self._reported.values())
            )
        return ""

    def now(self) -> Sequence[Waiting]:
        """Return the collectives that wait on this rank, with the job's rank numbers.
        Thread-safe.
        """
        when, collectives = self._last
        return self._in_job(collectives) if monotonic() - when < _FRESH else ()

    def _in_job(self, collectives: Sequence[Waiting]) -> list[Waiting]:
        if not self._ranks:
            return list(collectives)
        return [
            wait._replace(missing=tuple(self._ranks[rank] for rank in wait.missing))
            for wait in collectives
        ]

    def _is_reporter(self, wait: Waiting) -> bool:
        return all(rank in wait.missing for rank in range(self.rank))

    def _report(self, stalled: Sequence[Waiting], count: int) -> None:
        if not stalled:
            return
        if self._query is None:
            self._log(stalled, {}, count)
        elif self._reporter is None or not self._reporter.is_alive():
            self._reporter = threading.Thread(
                target=self._ask_and_log,
                args=(stalled, count),
                name="farandole-stall-report",
                daemon=True,
            )
            self._reporter.start()

    def _ask_and_log(self, stalled: Sequence[Waiting], count: int) -> None:
        assert self._query is not None
        self._log(stalled, self._query.ask(self._query.ranks, _ANSWER_SECONDS), count)

    def _log(self, stalled: Sequence[Waiting], answers: Mapping[int, Answer], count: int) -> None:
        if not self._left_to_another(stalled, answers):
            from farandole.core.observe.stall import report  # imported here: few jobs ever stall

            seconds = self.warning * 2 ** (count - 1)
            text = report.report(
                self._in_job(stalled), seconds, self.limit, answers, detailed=count > 1
            )
            logger.warning("%s", text)

    def _left_to_another(self, stalled: Sequence[Waiting], answers: Mapping[int, Answer]) -> bool:
        """Return whether a lower rank reports. Ranks that wait for each other all consider
        themselves the lowest waiting rank.
        """
        mine = self._ranks[self.rank] if self._ranks else self.rank
        about = 0.8 * max(wait.seconds for wait in stalled)
        return any(answers[rank].seconds >= about for rank in answers if rank < mine)

    def _end(self, stalled: Sequence[Waiting], over: Sequence[Waiting]) -> str:
        """Return the reason to end the job; empty to leave the report to another rank."""
        reports = any(self._is_reporter(wait) for wait in over)
        late = max(wait.seconds for wait in over) >= self.limit + _GRACE
        if not reports and not late:
            return ""
        from farandole.core.observe.stall import report

        query = self._query
        answers = query.ask(query.ranks, _LAST_SECONDS) if query is not None else {}
        if not late and self._left_to_another(over, answers):
            return ""
        if reports:
            text = report.report(
                self._in_job(stalled), self.limit, self.limit, answers, detailed=True
            )
            logger.warning("%s", text)
        return report.reason(self._in_job(over), self.limit, answers)
