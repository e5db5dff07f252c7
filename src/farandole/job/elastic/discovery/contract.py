"""The contract of discovery: the hosts that an elastic job may currently use, with their slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from farandole.errors import SettingsError

# Slots by host. New hosts are appended to the job in this order.
Hosts = dict[str, int]


@runtime_checkable
class HostDiscovery(Protocol):
    """A source of hosts. The driver calls ``find`` every second, on a separate thread."""

    def describe(self) -> str:
        """Return a short name of the source, for messages."""

    def find(self) -> Hosts:
        """Return the available hosts with their slots.

        Raises an error, such as SettingsError or OSError, if they cannot be found at the moment.
        """


@runtime_checkable
class Closable(Protocol):
    """A discovery that has to be closed at the end of the job."""

    def close(self) -> None:
        """End a query in progress. Called on a different thread than ``find``, once, at the end."""

    def reopened(self) -> HostDiscovery:
        """Return the same discovery, not closed, for a restart of the job."""


class FixedHosts:
    """Hosts that do not change, such as the hosts of ``--hosts``."""

    def __init__(self, hosts: Mapping[str, int]) -> None:
        self._hosts = dict(hosts)

    def describe(self) -> str:
        return "the given hosts"

    def find(self) -> Hosts:
        return dict(self._hosts)


class WithoutHosts:
    """A discovery without some hosts, which were lost before the job was restarted."""

    def __init__(self, discovery: HostDiscovery, lost: frozenset[str]) -> None:
        self._discovery = discovery
        self._lost = lost

    def describe(self) -> str:
        return self._discovery.describe()

    def find(self) -> Hosts:
        found = self._discovery.find()
        return {host: slots for host, slots in found.items() if host not in self._lost}

    def close(self) -> None:
        if isinstance(self._discovery, Closable):
            self._discovery.close()

    def reopened(self) -> HostDiscovery:
        return WithoutHosts(reopened(self._discovery), self._lost)


def reopened(discovery: HostDiscovery, lost: str = "") -> HostDiscovery:
    """Return ``discovery`` for a restart of the job, without the ``lost`` host, if any."""
    if isinstance(discovery, Closable):
        discovery = discovery.reopened()
    if not lost:
        return discovery
    without = WithoutHosts(discovery, frozenset([lost]))
    return FixedHosts(without.find()) if isinstance(discovery, FixedHosts) else without


def parse_host(text: str, slots: int | None, source: str) -> tuple[str, int]:
    """Parse ``host``, ``host:2`` or ``[fd00::1]:2`` into host and slots.

    ``slots``: the number for a host without one; None for no default. Raises SettingsError, which
    names ``source``, for any other string, and for a host without a number if there is no default.
    """
    name, colon, count = text.rpartition(":")
    if not colon or text.endswith("]"):
        name, count = text, "" if slots is None else str(slots)
    if not count and name and not any(map(str.isspace, name)):
        raise SettingsError(
            f"{source}: the host {name!r} has no number of slots. Write {name}:2, or set the"
            " number for all hosts with --slots-per-host"
        )
    if not name or not (count.isascii() and count.isdigit()) or any(map(str.isspace, name)):
        raise SettingsError(f"{source}: {text!r} is not a host. Write one host per line: host:2")
    return name.strip("[]"), int(count)
