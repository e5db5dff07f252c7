"""The contract of a mirror."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from farandole.job.runs.folder import RunFolder
from farandole.job.runs.states import RunState


class Point(NamedTuple):
    """One value of a metric; ``time`` is in seconds since 1970."""

    name: str
    step: int
    time: float
    value: float


class Mirror(Protocol):
    """A copy of rank 0's metrics in another tracker.

    A mirror is one module and one registry line, or an entry point (``farandole.mirrors``). Its
    methods may raise any error: they receive the same records again later.
    """

    name: ClassVar[str]

    def __init__(self, folder: RunFolder, state: Mapping[str, Any]) -> None:
        """``state``: the last ``state()`` of an earlier process of this mirror; initially empty."""

    def state(self) -> Mapping[str, Any]:
        """Return JSON data from which another process can continue, such as an id."""

    def points(self, points: Sequence[Point]) -> None:
        """Add values of metrics, oldest first."""

    def params(self, values: Mapping[str, Any]) -> None:
        """Add parameters."""

    def end(self, state: RunState) -> None:
        """Record the end of the run and copy its files."""
