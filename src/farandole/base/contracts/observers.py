"""Contracts for observers: the events of the engine and their listeners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from farandole.base.types import Kind, Request, Response


class Waiting(NamedTuple):
    """A collective for which some ranks are waiting.

    The ranks in ``missing`` have not requested it yet. If ``inside`` is true, all ranks have begun
    the collective, and the ranks in ``missing`` have not done their part.
    """

    name: str
    seconds: float
    missing: tuple[int, ...]
    inside: bool = False


class Observer:
    """Base class of listeners to the engine's events.

    Override the methods for the events of interest; others are never called. Methods run on
    whichever thread drives the engine, so they must be quick and must not raise.
    """

    # Seconds by which the job's clock is ahead of this rank's monotonic clock; for ``settled``.
    clock: float = 0.0
    # Whether ``started`` and ``finished`` are needed for every collective. If not, the engine keeps
    # its fast path for small ones, which it does not report.
    every: bool = True

    def agreed(self, responses: Sequence[Response]) -> None:
        """Handle new decisions of the ranks; each decision is reported once."""

    def settled(
        self,
        asked: Sequence[Sequence[tuple[str, Request]]],
        since: Sequence[Sequence[float]],
        agreed: Sequence[str],
        failed: Sequence[str],
    ) -> None:
        """Handle the end of a round, when all ranks have posted.

        - ``asked``: Per rank, its requests in this round.
        - ``since``: Per rank, the times of these requests by the job's clock; empty for a rank that
          does not report them.
        - ``agreed``: The names that run now, in this order.
        - ``failed``: The names that cannot run.
        """

    def started(self, kind: Kind, names: Sequence[str], nbytes: int) -> None:
        """Handle the start of a collective; several names are fused."""

    def part(self, name: str, begin: float, end: float) -> None:
        """Handle the end of a part of the running collective; see ``Transport.report_parts``.

        May be called on any thread.
        """

    def finished(self, kind: Kind, names: Sequence[str]) -> None:
        """Handle the end of a collective."""

    def transferred(self, name: str, what: str, begin: float, end: float) -> None:
        """Handle a transfer of weights outside collectives: to parameter servers, or to one other
        rank in the background.

        ``what`` is an activity of a timeline; times are monotonic. May be called on any thread.
        """

    def waiting(self, collectives: Sequence[Waiting]) -> str:
        """Handle waiting collectives; called about twice a second while any rank waits.

        A non-empty return value ends the job, with this text as the reason.
        """
        return ""
