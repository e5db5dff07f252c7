"""The contract of a way to bootstrap a job without a driver, and variables that clusters set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

from farandole.job.bootstrap.siblings import Siblings
from farandole.job.config import Placement

PMI = "PMI_FD"  # the descriptor of the process manager's socket, where there is one


class Bootstrap(Protocol):
    """A way to start processes, by which rank 0 can send one text to the others."""

    name: ClassVar[str]
    absence_hint: ClassVar[str]
    """The end of the error where others do not come: why this rank waits, and the cure; or ""."""

    @property
    def ends_together(self) -> bool:
        """Whether a process waits at its end until the others end (MPI_Finalize)."""

    def placement(self, env: Mapping[str, str]) -> Placement | None:
        """Return this process's placement, as far as its environment says; None if something else
        started it.
        """

    def siblings(self, placement: Placement, env: Mapping[str, str]) -> Siblings:
        """The ranks on this host, as far as the environment tells which they are."""

    def broadcast(
        self, placement: Placement, text: Callable[[], str], timeout: float, siblings: Siblings
    ) -> str:
        """Rank 0's ``text()``, on every rank, and for nobody else to read. Collective.

        Raises SettingsError if the ranks have no such way here; RendezvousError after ``timeout``
        seconds, or when one of ``siblings`` that is needed for it has ended.
        """

    def on_assigned(self) -> None:
        """Called on rank 0 before any rank returns from ``join``."""

    def abort(self) -> None:
        """End all processes of the job. Called only where they end together."""


def integers(env: Mapping[str, str], names: Sequence[str]) -> list[int] | None:
    """Return the variables as integers; None unless all are set, to integers."""
    texts = [env.get(name, "") for name in names]
    return [int(text) for text in texts] if all(text.isdecimal() for text in texts) else None
