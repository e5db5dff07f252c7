"""Discovery by a file of hosts that an administrator or another program edits."""

from __future__ import annotations

import re

from farandole.job.elastic.discovery.contract import Hosts
from farandole.job.elastic.discovery.script import parse_lines

_SLOTS = re.compile(r"\s+slots\s*=\s*(\d+).*")


class FileDiscovery:
    """Hosts in a file with lines like ``host:2``, ``host slots=2``, or ``host``.

    ``slots``: the number for lines without one; None for no default. ``find`` raises OSError if the
    file cannot be read, such as at the moment of its replacement.
    """

    def __init__(self, path: str, slots: int | None = None) -> None:
        self._path, self._slots = path, slots

    def describe(self) -> str:
        return f"the file {self._path}"

    def find(self) -> Hosts:
        with open(self._path, encoding="utf-8-sig") as file:
            text = file.read()
        lines = (_SLOTS.sub(r":\1", line.rstrip()) for line in text.splitlines())
        return parse_lines("\n".join(lines), self._slots, self.describe())
