"""Messages of a rank to the user who watches the job: texts, progress and images.

In a rank each message is a value in the job's store, which the driver takes as it arrives. Without
a job the message is printed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from farandole.errors import AuthenticationError, HorovodInternalError, RendezvousError
from farandole.job.config import Connection, Placement
from farandole.job.report import keys
from farandole.job.report.outcome import parsed
from farandole.net.store import StoreClient

LONGEST = 4000  # maximum characters of a message
LARGEST_FIGURE = 8 << 20  # bytes
PNG = b"\x89PNG\r\n\x1a\n"
BEYOND = 1e15  # above any plausible number of steps or steps per second
_lock = threading.Lock()
# the process that opened the connection, and the connection
_client: tuple[int, StoreClient] | None = None


class RankMessage(NamedTuple):
    """A parsed message: a text to show, facts about a rank's progress, or an image (PNG)."""

    rank: int
    text: str = ""
    progress: Mapping[str, Any] | None = None
    figure: bytes = b""

    @classmethod
    def parsed(cls, kind: str, rank: int, data: bytes | bytearray) -> RankMessage:
        """Parse a message. Raises ValueError for an invalid one."""
        if kind == "log":
            return cls(rank, bytes(data[: 4 * LONGEST]).decode("utf-8", "replace")[:LONGEST])
        if kind == "figure":
            if len(data) > LARGEST_FIGURE or not data.startswith(PNG):
                raise ValueError(f"a figure is a PNG of at most {LARGEST_FIGURE >> 20} MiB")
            return cls(rank, figure=bytes(data))
        if kind != "progress":
            raise ValueError(f"kind must be a log, progress or a figure, not {kind!r}")
        numbers = {
            name: value for name, value in parsed(data).items() if isinstance(value, int | float)
        }
        return cls(
            rank,
            progress={name: value for name, value in numbers.items() if -BEYOND < value < BEYOND},
        )


def log(message: Any) -> None:
    """Show ``message``, converted to text and cut after 4,000 characters, where the job was
    started, while it runs.
    """
    text = str(message)[:LONGEST]
    if not _send("log", text.encode("utf-8", "replace")):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def progress(**facts: Any) -> None:
    """Report this rank's progress to the status line, in numbers: ``epoch=2, rate=17.5``. Does
    nothing without a job.
    """
    _send("progress", json.dumps(facts).encode())


def figure(png: bytes) -> None:
    """Show an image of rank 0 in the notebook cell that started the job. Does nothing on other
    ranks.
    """
    if Placement.from_env().rank:
        return
    if len(png) > LARGEST_FIGURE:
        log(
            f"a figure of {len(png) >> 20} MiB is not shown: the limit is {LARGEST_FIGURE >> 20}"
            " MiB; make it smaller (figsize, dpi), or save it to a file"
        )
        return
    _send("figure", png)


def _send(kind: str, data: bytes) -> bool:
    """Send a message; False without a driver or after its loss, which must not fail the
    training.
    """
    connection = Connection.from_env()
    if not connection.store:
        return False
    try:
        _client_of(connection).set(keys.message(kind, Placement.from_env().rank), data)
    except (HorovodInternalError, RendezvousError, AuthenticationError, OSError):
        return False
    return True


def _client_of(connection: Connection) -> StoreClient:
    """Return this process's client; a forked child must not use its parent's."""
    global _client
    with _lock:
        if _client is None or _client[0] != os.getpid() or _client[1].address != connection.store:
            _client = os.getpid(), StoreClient(connection.store, connection.secret, timeout=10.0)
        return _client[1]
