"""The contract of launchers whose cluster decides where the ranks run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from farandole.contracts import Launcher
from farandole.store import StoreServer
from farandole.types import Slot


class Placing(Launcher, Protocol):
    """``start`` only asks the cluster for places; hosts are known once a worker on each place has reported. The slots
    that ``start`` is given, and those of its workers until then, know the ranks but not the hosts."""

    def prepare(self, np: int, title: str, seconds: float) -> str:
        """Check that the cluster can hold ``np`` ranks at once; one line for the user about where they will run.

        ``title``: what the job runs; ``seconds``: the setting ``start_timeout``. Raises SettingsError with what would
        have to change.
        """

    def open_store(self, secret: str) -> StoreServer:
        """The job's store, listening where the cluster's machines can reach it. The driver closes it."""

    def placed(self) -> Sequence[Slot] | None:
        """The final slots, by rank; None while places are awaited. Raises when there will be none."""

    def awaiting(self) -> str:
        """The activity that ``placed`` waits for, in a few words."""

    def close(self) -> None:
        """After the workers were ended: leave nothing on the cluster."""
