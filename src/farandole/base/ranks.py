"""Ranks in the words of a message."""

from __future__ import annotations

from collections.abc import Sequence

_NAMED = 8  # ranks that a message lists


def ranks_named(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0, 1 and 5``, ``ranks 0, 1, ... (17 of them)``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _NAMED:
        return f"ranks {', '.join(map(str, ranks[:_NAMED]))}, ... ({len(ranks)} of them)"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
