"""Planning: from hosts and a number of processes to slots. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from farandole.base.types import Slot
from farandole.errors import SettingsError
from farandole.net.interfaces import joined

_IPV6 = r"[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]*(%[\w.-]+)?"
_HOSTS = rf"(?P<user>([\w.-]+@)?)(?P<host>[\w.-]+|\[{_IPV6}\]):(?P<count>[0-9]+)"
_LINE = (
    rf"(?P<user>([\w.-]+@)?)(?P<host>[\w.-]+|{_IPV6}|\[{_IPV6}\])"
    r"(?P<counts>(\s+(slots|max[_-]slots)\s*=\s*[0-9]+)*)\s*(#.*)?"
)
_COUNT = r"(slots|max[_-]slots)\s*=\s*([0-9]+)"


def check_np(np: Any) -> int:
    """Return ``np`` if it is a valid number of processes. Raises SettingsError otherwise."""
    if isinstance(np, bool) or not isinstance(np, int):
        raise SettingsError(f"np={np!r} is a {type(np).__name__}: it must be a whole number >= 1")
    if np < 1:
        raise SettingsError(f"np={np} must be >= 1: it is the number of processes to start")
    return np


def parse_hosts(hosts: str) -> list[tuple[str, int]]:
    """Parse ``"h1:2,h2:4"`` into pairs of host and slots; slots of repeated hosts are added up.

    IPv6 addresses are in brackets in the string and without brackets in the pairs.
    """
    if not isinstance(hosts, str):
        raise SettingsError(f'hosts={hosts!r} must be a string, such as "worker-0:2,worker-1:2"')
    slots: dict[str, int] = {}
    for item in hosts.split(","):
        found = re.fullmatch(_HOSTS, item.strip())
        if found is None:
            raise SettingsError(
                "Invalid host input, please make sure it has format as : worker-0:2,worker-1:2."
                f" Invalid item: {item!r}{_hint(item.strip())}"
            )
        host = found["user"] + found["host"].strip("[]")
        slots[host] = slots.get(host, 0) + int(found["count"])
    return list(slots.items())


def read_hostfile(path: str) -> str:
    """Read a hostfile of lines like ``host slots=2`` and return ``host:2,...``.

    A host without slots has one; ``#`` begins a comment. Open MPI's ``max_slots=4`` is accepted and
    ignored: it limits ranks beyond the slots, which are never started.

    Raises SettingsError for an unreadable file or line.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:  # editors on Windows write a byte-order mark
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--hostfile {path!r} cannot be read: {error}") from error
    hosts = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = re.fullmatch(_LINE, line.strip())
        if found is None:
            hint = _hint(line.split()[0])
            raise SettingsError(
                f"{path}:{number}: {line!r} is not a valid line; write: <host> slots=<n>{hint}"
            )
        counts = {
            name.replace("-", "_"): int(count)
            for name, count in re.findall(_COUNT, found["counts"])
        }
        slots = counts.get("slots", 1)
        if slots > counts.get("max_slots", slots):
            raise SettingsError(
                f"{path}:{number}: {line!r}: slots exceed max_slots; change one of them"
            )
        hosts.append(_place(found["user"] + found["host"].strip("[]"), slots))
    if not hosts:
        raise SettingsError(f"--hostfile {path!r} lists no hosts")
    return ",".join(hosts)


def _hint(host: str) -> str:
    """Return the cure for an invalid host, if it is known."""
    if host.startswith("@"):
        return "; the user name before @ is empty: an unset shell variable?"
    named = re.fullmatch(rf"([\w.@-]+|([\w.-]+@)?\[{_IPV6}\]):([0-9]+)", host)
    if named:  # the syntax of MPICH's mpirun -machinefile
        return (
            f"; write slots as {named[1]} slots={named[4]}, and the port in ~/.ssh/config or"
            " --ssh-port"
        )
    if re.fullmatch(rf"([\w.-]+@)?{_IPV6}", host):
        return "; put an IPv6 address in brackets: [fd00::1]:2"
    return ""


def _place(host: str, count: int) -> str:
    """Format a host and its number of ranks: ``h1:2``, ``me@[fd00::1]:2``."""
    user, at, name = host.rpartition("@")
    return f"{user}{at}{joined(name, count)}"


def places(slots: Sequence[Slot]) -> str:
    """Format the hosts of the slots: ``h1:2, h2:4``."""
    return ", ".join(_place(slot.host, slot.local_size) for slot in slots if slot.local_rank == 0)


def plan(hosts: str | Sequence[tuple[str, int]] | None, np: int) -> tuple[Slot, ...]:
    """Return one slot for each of ``np`` ranks, filling the hosts in order. ``hosts`` None means
    only this machine.

    ``cross_size`` counts the hosts that have a rank with the same ``local_rank``, so it differs
    between ranks if the hosts have different numbers of slots. Raises SettingsError if there are
    too few slots.
    """
    check_np(np)
    if hosts is None:
        hosts = [("localhost", np)]
    elif isinstance(hosts, str):
        hosts = parse_hosts(hosts)
    available = sum(count for _, count in hosts)
    if np > available:
        raise SettingsError(
            f"Requested more processes ({np}) than there are available slots ({available}) on "
            f"{', '.join(_place(host, count) for host, count in hosts)}"
        )
    used: list[tuple[str, int]] = []
    for host, count in hosts:
        take = min(count, np - sum(number for _, number in used))
        if take:
            used.append((host, take))
    slots: list[Slot] = []
    for index, (host, count) in enumerate(used):
        for local_rank in range(count):
            cross_rank = sum(number > local_rank for _, number in used[:index])
            cross_size = sum(number > local_rank for _, number in used)
            slots.append(Slot(len(slots), host, local_rank, count, cross_rank, cross_size, np))
    return tuple(slots)
