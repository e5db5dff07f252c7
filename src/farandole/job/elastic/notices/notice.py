"""A preemption notice, and its form in the job's store. Pure."""

from __future__ import annotations

import json
from typing import NamedTuple


class Notice(NamedTuple):
    """A warning that a host will soon leave the job.

    - ``reason``: The source of the warning, such as ``SIGTERM``.
    - ``seconds``: The time left; None if unknown.
    - ``withdrawn``: Whether the warning no longer applies.
    """

    reason: str
    seconds: float | None = None
    withdrawn: bool = False

    def describe(self, host: str) -> str:
        """Return the message for the user about ``host``."""
        if self.withdrawn:
            return f"{host} stays in the job: the preemption notice was withdrawn ({self.reason})"
        left = "" if self.seconds is None else f", {max(0.0, self.seconds):.0f} s left"
        return (
            f"{host} is about to leave the job ({self.reason}{left}). Its ranks leave at their next"
            " commit, and free slots of other hosts take their place"
        )

    def to_bytes(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Notice:
        """Invert ``to_bytes``. Raises ValueError for other data."""
        facts = json.loads(bytes(data))
        if not isinstance(facts, dict):
            raise ValueError(f"{facts!r} is not a notice")
        seconds = facts.get("seconds")
        return cls(
            str(facts.get("reason", "")),
            None if seconds is None else float(seconds),
            bool(facts.get("withdrawn", False)),
        )
