"""The protocol between ranks and parameter servers: JSON messages, some followed by arrays.

Messages are authenticated completely, but arrays only by their number, length and end, as between
ranks. A receiver knows the length of the arrays in advance.
"""

from __future__ import annotations

import json
from _operator import _compare_digest as compare_digest
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.errors import PeerLostError, WireError
from farandole.net.handshake import HEAD, TAG, Session

if TYPE_CHECKING:
    from farandole.base.types import Array

PURPOSE = "parameter-server"
# bytes of a message, which may contain the names and shapes of all tensors of a model
LIMIT = 64 << 20
TYPES = ("<f4", "<f8")
PIECE = 1 << 18  # bytes that a socket must be able to send within its timeout
Message = dict[str, Any]


def send(
    session: Session,
    message: Message,
    arrays: Sequence[Array] | None = None,
    stalled: Callable[[], None] | None = None,
) -> None:
    """Send a message followed by ``arrays``. Raises OSError.

    ``stalled`` is called when no byte is sent for the socket's timeout, and may raise.
    """
    session.send(json.dumps(message).encode())
    if arrays is not None:
        parts = [as_bytes(array) for array in arrays]
        head, tail = session.outgoing.envelope(sum(map(len, parts)))
        for part in (memoryview(head), *filter(None, parts), memoryview(tail)):
            if stalled is None:
                session.stream.sendall(part)
            else:
                _send_all(session, part, stalled)


def _send_all(session: Session, memory: memoryview, stalled: Callable[[], None]) -> None:
    while memory:
        try:
            memory = memory[session.stream.send(memory[:PIECE]) :]
        except TimeoutError:
            stalled()


def receive(session: Session) -> Message | None:
    """Receive a message; None if the other end has closed the connection. Raises WireError for an
    invalid message, OSError, PeerLostError.
    """
    data = session.receive(LIMIT)
    if data is None:
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{session.peer} sent a malformed message: {error}") from None
    if not isinstance(found, dict):
        raise WireError(f"{session.peer} sent {str(found)[:100]} instead of a message")
    return found


def receive_into(
    session: Session, arrays: Sequence[Array], stalled: Callable[[], None] | None = None
) -> None:
    """Receive the arrays that follow a message. ``stalled``: see ``send``. Raises WireError,
    OSError, PeerLostError.
    """
    parts = [as_bytes(array) for array in arrays]
    expected = session.incoming.envelope(sum(map(len, parts)))
    head, tail = (memoryview(bytearray(size)) for size in (HEAD, TAG))
    fill(session, head, stalled)
    if not compare_digest(head, expected[0]):
        length = session.incoming.instead(head)
        if length is None:
            raise session.tampered()
        raise WireError(f"{session.peer} sent {length} bytes; {sum(map(len, parts))} were expected")
    for part in parts:
        fill(session, part, stalled)
    fill(session, tail, stalled)
    if not compare_digest(tail, expected[1]):
        raise session.tampered()


def as_bytes(array: Array) -> memoryview:
    """Return a view of the array's memory as bytes."""
    view: Any = array.view(np.uint8)
    return memoryview(view)


def fill(session: Session, memory: memoryview, stalled: Callable[[], None] | None = None) -> None:
    while memory:
        try:
            count = session.stream.recv_into(memory)
        except TimeoutError:
            if stalled is None:
                raise
            stalled()
            continue
        if not count:
            raise PeerLostError(f"{session.peer} closed the connection in the middle of a message")
        memory = memory[count:]
