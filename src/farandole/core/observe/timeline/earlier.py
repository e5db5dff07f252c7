"""What a timeline holds already, when the job begins again (``shutdown`` and ``init``) and goes on
with it.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, NamedTuple

_NAME = b'{"ph":"M","name":"process_name"'  # of a tensor, as ``Trace`` writes it


class Earlier(NamedTuple):
    """``head``: what its first event says of it; ``tensors``: their numbers by name; ``end``: bytes
    of whole events.
    """

    head: dict[str, Any]
    tensors: dict[str, int]
    end: int


def earlier(path: str) -> Earlier | None:
    """None for a file that is missing, or no timeline. Of one that was torn by a kill, what is
    whole counts.
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
