"""Append-only files of records, each with a checksum.

A record is one line: the CRC-32 of its JSON text as eight hexadecimal digits, a space, and the
text. One process appends to a journal while any number of processes read it. A reader skips damaged
lines and stops before an incomplete last line, so a process killed while it writes loses at most
one record.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from farandole.base.descriptors import write_all

_PREFIX = 9  # eight digits and a space
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=str).encode


def encode(record: Any) -> bytes:
    """Return the line of a record: JSON data, in which other objects become text."""
    text = _encode(record).encode("utf-8", "backslashreplace")
    return b"%08x %b\n" % (zlib.crc32(text), text)


def decode(line: bytes) -> Any:
    """Return the record of a line without its newline.

    Raises ValueError if the line is damaged.
    """
    if not _is_intact(line):
        raise ValueError(f"the record {line[:60]!r} is damaged: its checksum does not match")
    return json.loads(line[_PREFIX:])


class JournalWriter:
    """Appends records to a journal.

    Each record is one unbuffered ``write`` without ``fsync``, which takes a few microseconds. The
    record survives any signal that kills the process. Threads may share a writer.
    """

    def __init__(self, path: str) -> None:
        """Raises OSError if the file cannot be opened."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._torn = True  # a killed process may have left an incomplete line
        self._end_torn_line()

    def _end_torn_line(self) -> None:
        """Terminate an incomplete line, so that the next record is readable."""
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")
        self._torn = False

    def append(self, record: Any) -> None:
        """Append one record. Raises OSError, for example for a full disk."""
        line = encode(record)
        if self._torn:
            self._end_torn_line()
        written = os.write(self._descriptor, line)
        if written < len(line):  # a full disk, or a limit on file sizes
            self._torn = True
            write_all(self._descriptor, line[written:])
            self._torn = False

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class JournalPart(NamedTuple):
    """Records read from a journal.

    - ``records``: The intact records, oldest first.
    - ``offset``: The position in bytes after the last complete line; the next read starts there.
    - ``damaged``: The number of damaged lines that were skipped.
    """

    records: list[Any]
    offset: int
    damaged: int


def read(path: str, offset: int = 0, limit: int = 1 << 26) -> JournalPart:
    """Return the complete records in at most ``limit`` bytes of a journal from ``offset`` on.

    A missing file has no records.
    """
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(limit)
            if b"\n" not in data and len(data) == limit:  # one very long record
                data += file.readline()
    except FileNotFoundError:
        return JournalPart([], offset, 0)
    end = data.rfind(b"\n") + 1
    lines = [line for line in data[:end].split(b"\n") if line]
    texts = [line[_PREFIX:] for line in lines if _is_intact(line)]
    try:  # one call for all records takes a third of the time
        found: list[Any] = json.loads(b"[" + b",".join(texts) + b"]")
    except ValueError:  # text with a checksum, but not JSON
        found = [record for text in texts for record in _parsed(text)]
    return JournalPart(found, offset + end, len(lines) - len(found))


def _is_intact(line: bytes) -> bool:
    try:
        checksum = int(line[: _PREFIX - 1], 16)
    except ValueError:
        return False
    return line[_PREFIX - 1 : _PREFIX] == b" " and checksum == zlib.crc32(line[_PREFIX:])


def _parsed(text: bytes) -> list[Any]:
    try:
        return [json.loads(text)]
    except ValueError:
        return []


def records(path: str) -> Iterator[Any]:
    """Yield all intact records of a journal."""
    offset = 0
    while True:
        piece = read(path, offset)
        if piece.offset == offset:
            return
        yield from piece.records
        offset = piece.offset
