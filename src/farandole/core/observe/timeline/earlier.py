"""The content of an existing timeline, which a job continues after ``shutdown`` and ``init``."""

from __future__ import annotations

import contextlib
import json
from typing import Any, NamedTuple

_NAME = b'{"ph":"M","name":"process_name"'  # a tensor's, as written by ``Trace``


class Earlier(NamedTuple):
    """The content of a timeline.

    - ``head``: The description in its first event.
    - ``tensors``: The tensors' numbers by name.
    - ``end``: Bytes of complete events.
    """

    head: dict[str, Any]
    tensors: dict[str, int]
    end: int


def earlier(path: str) -> Earlier | None:
    """Read a timeline; None for a file that is missing or not a timeline. If the file was truncated
    by a kill, only complete events are used.
    """
    head: dict[str, Any] = {}
    tensors: dict[str, int] = {}
    place = end = 0
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(path, "rb") as file:
        for line in file:
            event = line.rstrip(b",\n")
            if event.startswith(b"{") and line.endswith(b"\n"):
                if not head:
                    head = json.loads(event)["farandole"]
                elif event.startswith(_NAME):
                    fields = json.loads(event)
                    tensors[fields["args"]["name"]] = fields["pid"]
                end = place + len(event)
            elif place or event != b"[":
                break
            place += len(line)
    return Earlier(head, tensors, end) if {"rank", "size", "begin"} <= head.keys() else None
