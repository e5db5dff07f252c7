"""The contract of bootstraps for jobs without a driver, and variables that clusters set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

from farandole.job.bootstrap.siblings import Siblings
from farandole.job.config import Placement

PMI = "PMI_FD"  # the descriptor of the process manager's socket, if there is one


class Bootstrap(Protocol):
    """A way in which processes are started and rank 0 can send one text to the others."""

    name: ClassVar[str]
    absence_hint: ClassVar[str]
    """End of the error for absent ranks: the reason for this rank's wait, and the cure; or ""."""

    @property
    def ends_together(self) -> bool:
        """True if a process waits at its end for the others (MPI_Finalize)."""

    def placement(self, env: Mapping[str, str]) -> Placement | None:
        """Return this process's placement as far as the environment gives it; None if another
        program started the process.
        """

    def siblings(self, placement: Placement, env: Mapping[str, str]) -> Siblings:
        """Return the ranks on this host, as far as the environment identifies them."""

    def starter(self, env: Mapping[str, str]) -> int:
        """Return the pid of the process that started the ranks of this host; 0 if unknown."""

    def broadcast(
        self, placement: Placement, text: Callable[[], str], timeout: float, siblings: Siblings
    ) -> str:
        """Send rank 0's ``text()`` to every rank, unreadable for other users. Collective.

        Raises SettingsError if the ranks have no such channel, and RendezvousError after
        ``timeout`` seconds or when one of ``siblings`` that the broadcast needs has ended.
        """

    def on_assigned(self) -> None:
        """Handle the assignment of placements, on rank 0, before any rank returns from ``join``."""

    def abort(self) -> None:
        """End all processes of the job. Called only if they end together."""


def integers(env: Mapping[str, str], names: Sequence[str]) -> list[int] | None:
    """Return the variables as integers; None unless all are set to integers."""
    texts = [env.get(name, "") for name in names]
    return [int(text) for text in texts] if all(text.isdecimal() for text in texts) else None
