"""The size limit of a snapshot, and the error for a larger source."""

from __future__ import annotations

import os
from typing import NamedTuple

from farandole.errors import SettingsError, counted
from farandole.jobs.details import readable_size
from farandole.jobs.snapshot.scan import SourceScan

BYTES, FILES = 300_000_000, 2_000
LIMIT_VARIABLE = "FARANDOLE_SNAPSHOT_LIMIT"
_SHOWN = 3


class SnapshotLimit(NamedTuple):
    """The maximum number of bytes and of files; 0 files: no limit on their number."""

    bytes: int = BYTES
    files: int = FILES

    @property
    def scanned(self) -> int:
        """The number of files after which a scan stops; enough to find the largest folders."""
        return max(50_000, 2 * self.files) if self.files else 10_000_000


DEFAULT = SnapshotLimit()


def limit_of(given: int = 0) -> SnapshotLimit:
    """Return the limit: ``given`` bytes, otherwise ``$FARANDOLE_SNAPSHOT_LIMIT``, otherwise the
    default.

    A limit that the user sets in bytes also removes the limit on the number of files. Raises
    SettingsError if the variable is not a positive number.
    """
    text = os.environ.get(LIMIT_VARIABLE, "")
    if not given and text:
        if not text.isdecimal() or not int(text):
            raise SettingsError(f"{LIMIT_VARIABLE}={text!r} must be a positive number of bytes")
        given = int(text)
    return SnapshotLimit(given, 0) if given else DEFAULT


def check_limit(source: str, found: SourceScan, limit: SnapshotLimit) -> None:
    """Raise SettingsError, naming the largest files and folders, for a source over the limit."""
    size, number = sum(file.bytes for file in found.files), len(found.files)
    too_many = bool(limit.files) and number > limit.files
    if size <= limit.bytes and not too_many and found.complete:
        return
    most = f"{readable_size(limit.bytes)} in {counted(limit.files, 'file')}"
    if not limit.files:
        most = readable_size(limit.bytes)
    more = "" if found.complete else "more than "
    raise SettingsError(
        f"the source {source!r} has {more}{readable_size(size)} in {more}{counted(number, 'file')},"
        f" and a snapshot may have at most {most}. Largest: {_largest(found, by_number=too_many)}."
        " Exclude files with .amlignore, pass data with --input, or raise --snapshot-limit"
    )


def _largest(found: SourceScan, *, by_number: bool) -> str:
    """Return the largest files and folders at the top of the source."""
    sizes: dict[str, tuple[int, int]] = {}
    for file in found.files:
        top, _, rest = file.name.partition(os.sep)
        name = top + os.sep if rest else top
        size, number = sizes.get(name, (0, 0))
        sizes[name] = size + file.bytes, number + 1
    order = sorted(sizes, key=lambda name: sizes[name][:: -1 if by_number else 1], reverse=True)
    return ", ".join(
        f"{name} ({readable_size(sizes[name][0])} in {counted(sizes[name][1], 'file')})"
        if name.endswith(os.sep)
        else f"{name} ({readable_size(sizes[name][0])})"
        for name in order[:_SHOWN]
    )
