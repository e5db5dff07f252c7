"""Reading and searching pieces of a log of any size, with memory for one chunk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np

LARGEST_PIECE = 1 << 20  # bytes of one answer
MOST_MATCHES = 200
_CHUNK = 1 << 22  # bytes searched at a time
_SCANNED = 1 << 30  # maximum bytes searched by one request
_AROUND = 200  # bytes of the line shown before and after a match
_CONTROL = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"} | {127: 0x2421}
_COLOR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class Match(NamedTuple):
    """A line with the searched text.

    - ``offset``: The position of the match in bytes.
    - ``line``: The number of the line, from 1.
    - ``text``: The line, shortened around the match if it is long.
    """

    offset: int
    line: int
    text: str


def readable(data: bytes) -> str:
    """Return bytes of a log as text, without terminal colors.

    Damaged UTF-8 becomes U+FFFD, and control characters become their symbols (from U+2400 on).
    """
    return _COLOR.sub("", data.decode("utf-8", "replace")).translate(_CONTROL)


def piece(file: BinaryIO, offset: int, limit: int) -> dict[str, Any]:
    """Return a piece of a log: ``text``, and ``begin``, ``end`` and the log's ``size`` in bytes.

    ``offset`` and ``limit``, at most 1 MiB, are in bytes. A negative ``offset`` counts from the
    end; the piece then begins with a whole line if possible. No character is cut at either end.
    """
    size = os.fstat(file.fileno()).st_size
    limit = max(1, min(limit, LARGEST_PIECE))
    begin = max(0, size + offset) if offset < 0 else min(offset, size)
    data = os.pread(file.fileno(), limit, begin)
    if offset < 0 and begin > 0 and os.pread(file.fileno(), 1, begin - 1) != b"\n":
        skipped = data.find(b"\n", 0, -1) + 1
        data, begin = data[skipped:], begin + skipped
    start = next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
    stop = len(data) if begin + len(data) >= size else _whole(data)
    return {
        "text": readable(data[start:stop]),
        "begin": begin + start,
        "end": begin + stop,
        "size": size,
    }


def _whole(data: bytes) -> int:
    """Return the length of ``data`` without an incomplete UTF-8 character at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            needed = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) if needed <= back else len(data) - back
    return len(data)


def search(file: BinaryIO, text: str, before: int | None, ignore_case: bool) -> dict[str, Any]:
    """Search a log for ``text``, backwards from the byte offset ``before`` (None: from the end).

    ``ignore_case`` applies to ASCII letters. Returns a dict with

    - ``matches``: The matches, the last match first (see ``Match``).
    - ``more``: Whether the search stopped before it reached the beginning of the log.
    - ``next``: The value of ``before`` that continues the search.
    """
    wanted = text.encode()
    size = os.fstat(file.fileno()).st_size
    end = size if before is None else max(0, min(before, size))
    if not wanted:
        return {"matches": [], "more": False, "next": 0}
    stop = max(0, end - _SCANNED)
    offsets: list[int] = []
    for offset in _backwards(file, wanted, end, stop, ignore_case):
        offsets.append(offset)
        if len(offsets) == MOST_MATCHES:
            stop = offset
            break
    numbers = _line_numbers(file, offsets[::-1])[::-1]
    matches = [
        Match(offset, number, _line(file, offset, len(wanted)))._asdict()
        for offset, number in zip(offsets, numbers, strict=True)
    ]
    return {"matches": matches, "more": stop > 0, "next": stop}


def _line_numbers(file: BinaryIO, offsets: list[int]) -> list[int]:
    """Return the numbers of the lines at ascending offsets."""
    numbers, place, line = [], 0, 1
    for offset in offsets:
        while place < offset:
            data = os.pread(file.fileno(), min(_CHUNK, offset - place), place)
            if not data:
                break
            line += int(np.count_nonzero(np.frombuffer(data, np.uint8) == 10))
            place += len(data)
        numbers.append(line)
    return numbers


def _backwards(
    file: BinaryIO, wanted: bytes, end: int, stop: int, ignore_case: bool
) -> Iterator[int]:
    """Yield the offset of the last match in each line, from ``end`` down to ``stop``.

    A match begins before ``end``, and may end after it. A line with a match at or after ``end`` was
    found by the search that stopped at ``end``.
    """
    wanted = wanted.lower() if ignore_case else wanted
    overlap = len(wanted) - 1
    high = end  # matches that begin at or after it are already found
    rest = os.pread(file.fileno(), _CHUNK, end).split(b"\n", 1)[0]
    is_found = wanted in (rest.lower() if ignore_case else rest)  # a later match of this line
    while high > stop:
        low = max(stop, high - _CHUNK)
        data = os.pread(file.fileno(), high + overlap - low, low)
        if ignore_case:
            data = data.lower()
        place = high - low + overlap
        if is_found:
            place = data.rfind(b"\n", 0, high - low)
            is_found = place < 0
        while not is_found and (place := data.rfind(wanted, 0, place)) >= 0:
            yield low + place
            place = data.rfind(b"\n", 0, place)
            is_found = place < 0  # this line begins in an earlier chunk
        high = low


def _line(file: BinaryIO, offset: int, length: int) -> str:
    """Return the line around a match, shortened if it is long."""
    begin = max(0, offset - _AROUND)
    data = os.pread(file.fileno(), offset - begin + length + _AROUND, begin)
    place = offset - begin
    start = data.rfind(b"\n", 0, place) + 1
    stop = data.find(b"\n", place + length)
    return readable(data[start : stop if stop >= 0 else len(data)])
