"""Differences between two lists of hosts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag


class HostUpdateResult(IntFlag):
    """Kinds of changes in the set of hosts."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3


def compare(before: Mapping[str, int], after: Mapping[str, int]) -> HostUpdateResult:
    """Return the kinds of changes from ``before`` to ``after``, which map hosts to slots.

    More slots on a host count as added, fewer as removed. The order of hosts does not matter.
    """
    added = any(slots > before.get(host, 0) for host, slots in after.items())
    removed = any(slots > after.get(host, 0) for host, slots in before.items())
    result = HostUpdateResult.no_update
    if added:
        result |= HostUpdateResult.added
    if removed:
        result |= HostUpdateResult.removed
    return result
