"""Detection of agents that are suspended: their connections stay open, but they send nothing.

An agent reports every few seconds. A host that vanishes is noticed by its connection instead
(``net.liveness``). Pure: the caller gives the times.
"""

from __future__ import annotations

BEAT = 2.0  # seconds between the reports of an agent
SILENCE = 10.0  # seconds after which an agent's silence is reported
LEFT = 20.0  # seconds after which an agent's silence no longer delays the end of a job
PAUSE = 2.0  # seconds without a check after which the driver itself counts as suspended


class AgentPulse:
    """The times of the agents' last messages. ``shutdown``: seconds after which a silent agent
    counts as lost; 0 = never.
    """

    def __init__(self, shutdown: float = 0.0) -> None:
        self.shutdown = shutdown
        self._heard: dict[int, float] = {}
        self._reported: set[int] = set()
        self._looked: float | None = None

    def hear(self, agent: int, now: float) -> None:
        """Record a message of an agent."""
        self._heard[agent] = now
        self._reported.discard(agent)

    def poll(self, agent: int, now: float) -> float:
        """Return the seconds since the agent's last message, 0 if it has sent none."""
        if self._looked is not None and now > self._looked + PAUSE:
            # messages may be waiting for this process
            self._heard = dict.fromkeys(self._heard, now)
        self._looked = now
        return now - self._heard.get(agent, now)

    def has_to_report(self, agent: int, seconds: float) -> bool:
        """Return whether this silence is to be reported; true once per silence."""
        if seconds < SILENCE or agent in self._reported:
            return False
        self._reported.add(agent)
        return True

    def is_lost(self, seconds: float, *, has_ended: bool) -> bool:
        """Return whether an agent that has been silent for that time counts as lost.

        ``has_ended``: its ranks have reported their outcomes, so that only their last output can
        be missing.
        """
        return 0.0 < self.shutdown <= seconds or (has_ended and seconds >= LEFT)
