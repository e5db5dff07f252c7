"""The succession of an optimizer's groups over the memberships of an elastic job. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from farandole.core.ps.group import CentreGroup


def predecessor(
    groups: Mapping[tuple[str, str], CentreGroup], name: tuple[str, str]
) -> CentreGroup | None:
    """Return the group from which the group ``name`` (session, optimizer) takes over: the newest
    group of an earlier membership with the same strategy and weights that still has a centre or a
    commit; None without such a group.

    Among optimizers with the same weights, the optimizer with the same number is preferred.
    """
    mine, number = groups[name], _membership(name[0])
    found = [
        (_membership(scope), _same(optimizer, name[1]), group)
        for (scope, optimizer), group in groups.items()
        if _membership(scope) < number
        and _label(optimizer) == _label(name[1])
        and (group.centre is not None or group.commits)
        and group.is_like(mine)
    ]
    return max(found, key=lambda each: each[:2])[2] if found else None


def _membership(scope: str) -> int:
    return int(scope.partition(".")[0])


def _label(optimizer: str) -> str:
    return optimizer.partition(".weights.")[0]


def _same(optimizer: str, other: str) -> bool:
    """Return whether the names are equal, apart from the ranks at their ends."""
    return optimizer.partition("/")[0] == other.partition("/")[0]
