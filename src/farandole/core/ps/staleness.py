"""The number of updates by other ranks between a rank's pull and its push."""

from __future__ import annotations


class Staleness:
    """Statistics of one rank's pushes: the numbers of all and of late pushes, and the mean and
    maximum staleness. Staleness is the number of updates by other ranks between a rank's pull and
    its push.
    """

    def __init__(self) -> None:
        self.pushes = 0
        self.dropped = 0
        self.maximum = 0
        self._sum = 0

    @property
    def mean(self) -> float:
        """The mean staleness of a push."""
        return self._sum / max(self.pushes, 1)

    def see(self, staleness: int, dropped: bool = False) -> None:
        """Count a push."""
        self.pushes += 1
        if dropped:
            self.dropped += 1
        self.maximum = max(self.maximum, staleness)
        self._sum += staleness
