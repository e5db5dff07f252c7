"""Decides when a stall is reported and when it ends the job."""

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

_ANSWER_SECONDS = 3.0  # a rank that has not answered after them does not answer
_LAST_SECONDS = 0.7  # the same when the job is about to end
# seconds that the others leave to the rank that reports, before they end the job themselves
_GRACE = 2.0
# seconds of the first warning at least: doubled, 0 would stay 0, and be due without end
_LEAST = 0.1
_FRESH = 3.0  # seconds for which the engine's last word counts


class StallCheck(Observer):
    """Reports what stalls after the warning time, and again whenever the wait has doubled, in more
    detail. Of the ranks that wait, the lowest one reports. First lines are Horovod's.
    """

    def __init__(
        self,
        settings: Settings,
        rank: int,
        ranks: Sequence[int] = (),
        query: StackQuery | None = None,
    ) -> None:
        """``ranks``: the numbers in the job of this engine's ranks (default: the same numbers).
        ``query``: asks all ranks of the job what they do.
        """
        self.rank = rank
        self._ranks = ranks
        self.limit = settings.stall_shutdown_seconds
        warning = max(_LEAST, settings.stall_warning_seconds)
        self.warning = min(warning, self.limit or warning)
        self._query = query
        self._reported: dict[str, int] = {}  # how often
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
        """The collectives that wait on this rank, with ranks' numbers in the job. Any thread."""
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
            from farandole.core.observe.stall import report  # here: few jobs ever wait so long

            seconds = self.warning * 2 ** (count - 1)
            text = report.report(
                self._in_job(stalled), seconds, self.limit, answers, detailed=count > 1
            )
            logger.warning("%s", text)

    def _left_to_another(self, stalled: Sequence[Waiting], answers: Mapping[int, Answer]) -> bool:
        """Ranks that wait for each other all think that they are the lowest."""
        mine = self._ranks[self.rank] if self._ranks else self.rank
        about = 0.8 * max(wait.seconds for wait in stalled)
        return any(answers[rank].seconds >= about for rank in answers if rank < mine)

    def _end(self, stalled: Sequence[Waiting], over: Sequence[Waiting]) -> str:
        """Why the job ends; empty if another rank is to say so first."""
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
