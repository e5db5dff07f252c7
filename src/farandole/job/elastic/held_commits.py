"""The commits that the ranks of an elastic job hold from one membership to the next. Pure."""

from __future__ import annotations

from collections.abc import Collection


class HeldCommits:
    """Counts of commits of the training's state.

    - ``least``: The minimum over the ranks that have the state; 0 for the initial state.
    - ``lost``: The commits of the last state, if no rank still has it; else 0.
    - ``fruitless``: Memberships in a row that were lost without a new commit.
    """

    def __init__(self) -> None:
        self.least = self.lost = self.fruitless = 0
        self._most = 0

    def has_state(self, commits: Collection[int]) -> bool:
        """Return whether a rank with one of ``commits`` has the state of the training."""
        return max(commits) >= self.least

    def lose(self) -> None:
        """Record that no rank has the state: the next membership has to load a commit."""
        self.lost, self.least, self._most = self.least, 0, 0

    def take(self, commits: Collection[int], is_planned: bool) -> None:
        """Record the ``commits`` of the ranks that form the next membership.

        ``is_planned``: whether they have left the last one because of a notice.
        """
        most = max(commits)
        if most:
            self.lost = 0
        self.least = min((each for each in commits if each >= max(self.least, 1)), default=0)
        if most > self._most:
            self.fruitless = 0
        elif not is_planned:
            self.fruitless += 1
        self._most = most
