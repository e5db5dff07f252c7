"""Names that are the same on all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(.*?)([1-9]\d*|0)$")


def canonical(names: Iterable[str]) -> list[str]:
    """Return ``names`` of gluon's parameters with their numbers counted from 0: ``dense7_bias`` and
    ``dense12_bias`` become ``dense0_bias`` and ``dense1_bias``.

    Gluon numbers the layers of a process, so a network's names differ on a rank that has created
    another network before. In addition, ``dense10`` sorts before ``dense9``.
    """
    parts = [[_split(part) for part in name.split("_")] for name in names]
    seen: dict[str, set[int]] = {}
    for name_parts in parts:
        for stem, number in name_parts:
            if number is not None:
                seen.setdefault(stem, set()).add(number)
    places = {
        stem: {number: place for place, number in enumerate(sorted(numbers))}
        for stem, numbers in seen.items()
    }
    return [
        "_".join(
            stem if number is None else f"{stem}{places[stem][number]}"
            for stem, number in name_parts
        )
        for name_parts in parts
    ]


def _split(part: str) -> tuple[str, int | None]:
    match = _NUMBERED.match(part)
    return (match[1], int(match[2])) if match else (part, None)
