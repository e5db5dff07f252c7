"""The hosts of an elastic job: their slots, and the exclusion of hosts that failed. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

# Seconds for which no process is started on a host where a process failed before it was a member,
# or, if it is the job's only host, where a member failed. Doubled after each further process that
# failed before it was a member, up to LONGEST.
ONLY_HOST, LONGEST = 1.0, 60.0


class HostPool:
    """The hosts of a job, which are available unless they are left out after a failure.

    ``hosts``: slots by host. ``cooldown``: the least and most seconds for which a failed host is
    left out; None: forever. ``jitter`` returns a random number from 0 to 1.
    """

    def __init__(
        self,
        hosts: Mapping[str, int],
        cooldown: tuple[float, float] | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._found = dict(hosts)
        # Hosts that their members leave at a commit, by the time until which they are not used.
        self._departing: dict[str, float] = {}
        self.listed = dict(hosts)
        self._cooldown = cooldown
        self._jitter = jitter
        self._failures: dict[str, int] = {}
        self._banned: dict[str, float] = {}  # by host, the time until which it is left out
        self._resting: dict[str, float] = {}  # the time until which no process is started there

    def find(self, hosts: Mapping[str, int]) -> None:
        """Record the hosts that exist now, with their slots. A departing host that is missing here
        may be used again when it comes back.
        """
        self._found = dict(hosts)
        self._departing = {host: until for host, until in self._departing.items() if host in hosts}
        self._list()

    def depart(self, host: str) -> None:
        """Use a host no longer, because it is about to leave: as if it were not listed."""
        self._departing[host] = math.inf
        self._list()

    def remain(self, host: str) -> None:
        """Use a host again whose departure was withdrawn."""
        self._departing.pop(host, None)
        self._list()

    def leave_out(self, host: str, now: float) -> None:
        """Leave a host out, from the next commit of its members, for as long as after a failure."""
        number = self._failures.get(host, 0)
        self._failures[host] = number + 1
        self._departing[host] = max(self._departing.get(host, 0.0), now + self._delay(number))
        self._list()

    def pass_time(self, now: float) -> None:
        """Use hosts again whose time of exclusion is over."""
        over = [host for host, until in self._departing.items() if now >= until]
        for host in over:
            self.remain(host)

    def _list(self) -> None:
        self.listed = {
            host: slots for host, slots in self._found.items() if host not in self._departing
        }

    def member_failed(self, host: str, now: float) -> None:
        """Leave a host out because a member failed there.

        The only host of a job is kept, and gets a new process after a second.
        """
        if len(self.listed) == 1 and host in self.listed:
            self._failures.pop(host, None)
            self._rest(host, now, ONLY_HOST)
            return
        number = self._failures.get(host, 0)
        self._failures[host] = number + 1
        self._banned[host] = now + self._delay(number)

    def start_failed(self, host: str, now: float) -> None:
        """Start no process on a host for a while, because one failed before it was a member."""
        number = self._failures.get(host, 0)
        self._failures[host] = number + 1
        self._rest(host, now, min(LONGEST, ONLY_HOST * 2.0 ** min(number, 30)))

    def _rest(self, host: str, now: float, seconds: float) -> None:
        self._resting[host] = max(self._resting.get(host, 0.0), now + seconds)

    def _delay(self, number: int) -> float:
        """Return Horovod's delay after ``number`` earlier failures, in seconds."""
        if self._cooldown is None:
            return math.inf
        least, most = self._cooldown
        return min(most, least * 2.0 ** min(number, 30) + self._jitter() * least)

    def slots(self, host: str, now: float) -> int:
        """Return the number of slots in which members may run; 0 on a host that is left out."""
        return self.listed.get(host, 0) if now >= self._banned.get(host, 0.0) else 0

    def may_start(self, host: str, now: float) -> bool:
        """Return whether a process may be started on a host that is not left out."""
        return now >= self._resting.get(host, 0.0)

    def available(self, now: float) -> dict[str, int]:
        """Return the slots of the hosts that are not left out."""
        found = {host: self.slots(host, now) for host in self.listed}
        return {host: slots for host, slots in found.items() if slots}

    def possible(self) -> int:
        """Return the number of slots that are available now or after a cooldown."""
        return sum(
            slots for host, slots in self._found.items() if self._end_of_exclusion(host) < math.inf
        )

    def left_out(self) -> list[str]:
        """Return the hosts that are left out forever, or about to leave."""
        return [host for host in self._found if self._end_of_exclusion(host) == math.inf]

    def _end_of_exclusion(self, host: str) -> float:
        return max(self._banned.get(host, 0.0), self._departing.get(host, 0.0))
