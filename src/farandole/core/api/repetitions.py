"""Repeated failures of a collective after each restore. Pure."""

from __future__ import annotations

from farandole.errors import RepeatedFailureError

MOST = 3  # equal failures in a row that end the job
# Commits between two equal failures that do not count as progress: a program may commit at its
# start.
_FEW_COMMITS = 2


class Repetitions:
    """The failures of one rank that were not caused by the loss of another rank."""

    def __init__(self) -> None:
        self.count = 0  # number of equal failures in a row
        self._text = ""
        self._commits = 0

    def add(self, error: Exception, commits: int) -> None:
        """Add a failure. ``commits``: the number of commits so far."""
        text = str(error)
        is_equal = text == self._text and commits - self._commits <= _FEW_COMMITS
        self.count = self.count + 1 if is_equal else 1
        self._text, self._commits = text, commits

    def check(self, most: int) -> None:
        """Raise RepeatedFailureError if ``most``, the maximum count over all ranks, is too
        large.
        """
        if most < MOST:
            return
        reason = self._text if self.count == most else "see the errors of the other ranks"
        raise RepeatedFailureError(
            f"the same failure occurred {most} times in a row after a return to the last commit:"
            f" {reason}. Fix the program, which cannot get past this commit"
        )
