"""Slurm's lists of hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator


def expand(text: str) -> list[str]:
    """Slurm's list of hosts: ``"gpu[01-03,7],login"`` as gpu01, gpu02, gpu03, gpu7 and login."""
    return [host for item in _items(text) for host in _expanded(item)]


def _items(text: str) -> Iterator[str]:
    """The parts between those commas that are in no brackets."""
    yield from (match[0] for match in re.finditer(r"(?:[^,\[]|\[[^\]]*\])+", text))


def _expanded(item: str) -> Iterator[str]:
    before, bracket, rest = item.partition("[")
    if not bracket:
        yield before
        return
    ranges, _, after = rest.partition("]")
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            for end in _expanded(after):
                yield f"{before}{number:0{len(first)}d}{end}"
