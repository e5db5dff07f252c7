"""The hosts of an elastic job: their slots, and the exclusion of hosts that failed. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

# Seconds without starts on a host where a process failed before it was a member, or, if it is the
# job's only host, where a member failed. Doubled after each further process that failed before it
# was a member, up to LONGEST.
ONLY_HOST, LONGEST = 1.0, 60.0
# Seconds, without a cooldown, for which a host is excluded that others could not reach: at first,
# and at most after doublings. A further attempt on a broken network pauses the training for 16 s.
LINK_COOLDOWN = (60.0, 3600.0)


class HostPool:
    """The hosts of a job, which are available unless they are excluded after a failure.

    ``hosts``: slots by host. ``cooldown``: the minimum and maximum seconds for which a failed host
    is excluded; None: forever. ``retries_links``: without a cooldown, whether a host is used again
    after ``LINK_COOLDOWN`` if it is excluded only because others could not reach it. ``jitter``
    returns a random number from 0 to 1.
    """

    def __init__(
        self,
        hosts: Mapping[str, int],
        cooldown: tuple[float, float] | None = None,
        jitter: Callable[[], float] = random.random,
        *,
        retries_links: bool = True,
    ) -> None:
        self._found = dict(hosts)
        # Hosts whose members leave at their next commit; by host, the time until which it is not
        # used.
        self._departing: dict[str, float] = {}
        self.listed = dict(hosts)
        self._cooldown = cooldown
        self._link_cooldown = cooldown or (LINK_COOLDOWN if retries_links else None)
        self._jitter = jitter
        self._failures: dict[str, int] = {}
        self._links: dict[str, int] = {}  # exclusions of a host that others could not reach
        self._banned: dict[str, float] = {}  # by host, the time until which it is excluded
        self._resting: dict[str, float] = {}  # the time until which no process is started there

    def find(self, hosts: Mapping[str, int]) -> None:
        """Record the current hosts with their slots. A departing host that is no longer listed may
        be used again when it returns.
        """
        self._found = dict(hosts)
        self._departing = {host: until for host, until in self._departing.items() if host in hosts}
        self._list()

    def depart(self, host: str) -> None:
        """Stop using a departing host, as if it were not listed."""
        self._departing[host] = math.inf
        self._list()

    def remain(self, host: str) -> None:
        """Use a host again after its departure was withdrawn."""
        self._departing.pop(host, None)
        self._list()

    def leave_out(self, host: str, now: float) -> None:
        """Exclude a host from its members' next commit on, for the same time as after a failure."""
        number = self._failures.get(host, 0)
        self._failures[host] = number + 1
        self._leave_until(host, now + self._delay(number, self._cooldown))

    def leave_out_unreachable(self, host: str, now: float) -> float:
        """Exclude a host that others cannot reach, from its members' next commit on. This is no
        failure of the host. Return the seconds until it is used again; infinite if it is not.
        """
        number = self._links.get(host, 0)
        self._links[host] = number + 1
        seconds = self._delay(number, self._link_cooldown)
        self._leave_until(host, now + seconds)
        return seconds

    def _leave_until(self, host: str, until: float) -> None:
        self._departing[host] = max(self._departing.get(host, 0.0), until)
        self._list()

    def pass_time(self, now: float) -> None:
        """Use hosts again after the end of their exclusion."""
        over = [host for host, until in self._departing.items() if now >= until]
        for host in over:
            self.remain(host)

    def _list(self) -> None:
        self.listed = {
            host: slots for host, slots in self._found.items() if host not in self._departing
        }

    def member_failed(self, host: str, now: float, *, needed: bool = False) -> None:
        """Exclude a host because a member failed there.

        The only host of a job is kept, and gets a new process after a second. So is a ``needed``
        host if there is a cooldown, after which other hosts will join it.
        """
        only = len(self.listed) == 1 and host in self.listed
        if only or (needed and self._cooldown is not None):
            self._failures.pop(host, None)
            self._rest(host, now, ONLY_HOST)
            return
        number = self._failures.get(host, 0)
        self._failures[host] = number + 1
        self._banned[host] = now + self._delay(number, self._cooldown)

    def start_failed(self, host: str, now: float) -> None:
        """Pause starts on a host where a process failed before it was a member."""
        number = self._failures.get(host, 0)
        self._failures[host] = number + 1
        self._rest(host, now, min(LONGEST, ONLY_HOST * 2.0 ** min(number, 30)))

    def _rest(self, host: str, now: float, seconds: float) -> None:
        self._resting[host] = max(self._resting.get(host, 0.0), now + seconds)

    def _delay(self, number: int, cooldown: tuple[float, float] | None) -> float:
        """Return Horovod's delay after ``number`` earlier failures, in seconds."""
        if cooldown is None:
            return math.inf
        least, most = cooldown
        return min(most, least * 2.0 ** min(number, 30) + self._jitter() * least)

    def slots(self, host: str, now: float) -> int:
        """Return the number of slots in which members may run; 0 on an excluded host."""
        return self.listed.get(host, 0) if now >= self._banned.get(host, 0.0) else 0

    def may_start(self, host: str, now: float) -> bool:
        """Return whether a process may be started on a host that is not excluded."""
        return now >= self._resting.get(host, 0.0)

    def available(self, now: float) -> dict[str, int]:
        """Return the slots of the hosts that are not excluded."""
        found = {host: self.slots(host, now) for host in self.listed}
        return {host: slots for host, slots in found.items() if slots}

    def possible(self) -> int:
        """Return the number of slots that are available now or after a cooldown."""
        return sum(
            slots for host, slots in self._found.items() if self._end_of_exclusion(host) < math.inf
        )

    def left_out(self) -> list[str]:
        """Return the hosts that are excluded forever, or leaving."""
        return [host for host in self._found if self._end_of_exclusion(host) == math.inf]

    def _end_of_exclusion(self, host: str) -> float:
        return max(self._banned.get(host, 0.0), self._departing.get(host, 0.0))
