"""The events of the engine, and what listens to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from farandole.base.types import Kind, Request, Response


class Waiting(NamedTuple):
    """A collective that some ranks asked for and others have not: ``missing`` are the others. Or
    one that all have begun (``inside``), and that waits for the ranks ``missing`` to do their part.
    """

    name: str
    seconds: float
    missing: tuple[int, ...]
    inside: bool = False


class Observer:
    """The engine's events. Override those that you want to hear; nothing else is called.

    Called on whichever thread drives the engine: be quick, and raise nothing.
    """

    # seconds by which the job's clock is ahead of this rank's monotonic clock; for ``settled``
    clock: float = 0.0

    def agreed(self, responses: Sequence[Response]) -> None:
        """The ranks' decisions: each once, when it is new."""

    def settled(
        self,
        asked: Sequence[Sequence[tuple[str, Request]]],
        since: Sequence[Sequence[float]],
        agreed: Sequence[str],
        failed: Sequence[str],
    ) -> None:
        """All ranks have posted. Per rank: what it asked for in this round, and since when by the
        job's clock (empty for a rank that does not say). ``agreed`` are the names that run now, in
        this order; ``failed`` cannot run.
        """

    def started(self, kind: Kind, names: Sequence[str], nbytes: int) -> None:
        """A collective (several names: fused) is about to run."""

    def part(self, name: str, begin: float, end: float) -> None:
        """A part of the collective that runs is done: see ``Transport.report_parts``. On any
        thread.
        """

    def finished(self, kind: Kind, names: Sequence[str]) -> None:
        """It has run."""

    def transferred(self, name: str, what: str, begin: float, end: float) -> None:
        """Weights went where no collective did it: to parameter servers, or to one other rank in
        the background. ``what``: an activity of a timeline; times are of the monotonic clock. On
        any thread.
        """

    def waiting(self, collectives: Sequence[Waiting]) -> str:
        """Called about twice a second while something waits. A text that is not empty ends the job
        for that reason.
        """
        return ""
