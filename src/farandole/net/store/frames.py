"""The protocol of the store: verbs, requests and packed values."""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Sequence

from farandole.errors import WireError
from farandole.net.handshake import Session

PURPOSE = "store"  # purpose of the handshake
GET = 1
TRY = 2
SET = 3
CLOCK = 4
TAKE = 5
PRESENCE = 6
GATHER = 7
SWAP = 8
HEADER = struct.Struct("<Bd")
SECONDS = struct.Struct("<d")
LENGTH = struct.Struct("<I")
NO_VALUE = 0xFFFFFFFF  # replaces the length of a missing value
MISSING = b"\0"
FOUND = b"\1"
REFUSED = b"\2"
Value = bytes | bytearray  # bytes from the network are not copied, because they may be large


def reply(session: Session, found: Value | None) -> bool:
    """Send a value, or None for a missing one. Returns True."""
    session.send(MISSING if found is None else FOUND)
    if found is not None:
        session.send(found)
    return True


def swapped_value(swapped: bool, now: Value | None) -> Value | None:
    """Return the answer to a swap: whether it succeeded, and the value afterwards."""
    return None if now is None else bytes([swapped]) + now


def swap_parts(both: Value, session: Session) -> tuple[Value, Value]:
    """Split the expected and the new value of a swap. Raises WireError if they are malformed."""
    if len(both) < LENGTH.size or LENGTH.unpack_from(both)[0] > len(both) - LENGTH.size:
        raise WireError(f"{session.peer} sent an invalid swap of {len(both)} bytes")
    end = LENGTH.size + LENGTH.unpack_from(both)[0]
    return both[LENGTH.size : end], both[end:]


def packed(values: Sequence[Value | None]) -> bytes:
    """Pack values, including missing ones, into one."""
    parts: list[Value] = []
    for value in values:
        parts.append(LENGTH.pack(NO_VALUE if value is None else len(value)))
        parts.append(value or b"")
    return b"".join(parts)


def unpacked(data: bytes) -> list[bytes | None]:
    """Invert ``packed``."""
    values: list[bytes | None] = []
    place = 0
    while place < len(data):
        (length,) = LENGTH.unpack_from(data, place)
        place += LENGTH.size
        if length == NO_VALUE:
            values.append(None)
        else:
            values.append(data[place : place + length])
            place += length
    return values


def parsed(request: bytearray, session: Session) -> tuple[int, float, str]:
    """Parse a request into verb, seconds and key. Raises WireError if it is malformed."""
    try:
        verb, seconds = HEADER.unpack_from(request)
        key = request[HEADER.size :].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise WireError(f"{session.peer} sent an invalid request: {error}") from None
    if not GET <= verb <= SWAP:
        raise WireError(f"{session.peer} sent the verb {verb}; the store knows {GET} to {SWAP}")
    if not (math.isfinite(seconds) and seconds >= 0):
        raise WireError(
            f"{session.peer} asked to wait for {seconds} seconds; the number must be 0 or more"
        )
    return verb, min(seconds, threading.TIMEOUT_MAX), key
