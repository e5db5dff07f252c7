"""Variables that clusters set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PMI = "PMI_FD"  # the descriptor of the process manager's socket, where there is one


def numbers(env: Mapping[str, str], names: Sequence[str]) -> list[int] | None:
    """The variables as numbers; None unless all are there, and are numbers."""
    found = [env.get(name, "") for name in names]
    return [int(text) for text in found] if all(text.isdecimal() for text in found) else None
