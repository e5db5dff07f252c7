"""The message of a rank in a round: known signatures by number, new signatures in full.

A message is: flags (1 byte), count (4 bytes), signature numbers (4 bytes each), serial numbers (8
bytes each), and then JSON: ``[[serial, name, kind, dtype, shape, ...], ...]`` for the signatures
without a number. An empty message has no requests.

An objection is a message without requests: flags, and JSON, a list of names
(``Negotiation.conflicts``).

A note may follow: information that needs no agreement. It has its length (4 bytes) at the end: new
sizes (8 bytes each; -1: none), then the time of each request (8 bytes each).

Elements may be attached to a message that consists only of numbers and has no note (``attached``).
They start at the next multiple of 8, one request after another.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from farandole.base.types import DType, Kind, ReduceOp, Request, Sizes

SHUTDOWN, NOTED, ATTACHED, OBJECTION = 1, 2, 4, 8  # flags
_ATTACHED = bytes([ATTACHED])
_HEAD, _ONE, _ONE_ATTACHED = struct.Struct("<BI"), struct.Struct("<BIIQ"), struct.Struct("<BIIQ7x")
_SIZES, _LENGTH = struct.Struct("<qq"), struct.Struct("<I")


class Post(NamedTuple):
    """A decoded message of a rank.

    - ``known``: (signature number, serial) pairs.
    - ``new``: (request, serial) pairs.
    - ``objections``: Names under which this rank is stuck.
    """

    shutdown: bool
    known: list[tuple[int, int]]
    new: list[tuple[Request, int]]
    objections: Sequence[str] = ()


def encode(
    known: Sequence[tuple[int, int]],
    new: Sequence[tuple[Request, int]],
    *,
    shutdown: bool = False,
    elements: bytes | None = None,
) -> bytes:
    """Encode a message. ``elements``: the elements of the requests, allowed only without ``new``
    ones.
    """
    if len(known) == 1 and not new and not shutdown:
        return alone(*known[0], elements)
    head = _HEAD.pack(SHUTDOWN if shutdown else 0 if elements is None else ATTACHED, len(known))
    numbers = array("I", [number for number, _ in known]).tobytes()
    serials = array("Q", [serial for _, serial in known]).tobytes()
    if elements is not None:
        return (head + numbers + serials).ljust(elements_at(len(known)), b"\0") + elements
    rest = json.dumps([[serial, *request] for request, serial in new]).encode() if new else b""
    return head + numbers + serials + rest


def alone(number: int, serial: int, elements: bytes | None) -> bytes:
    """Encode one known request, the most frequent message: a synchronous collective."""
    if elements is not None:
        return _ONE_ATTACHED.pack(ATTACHED, 1, number, serial) + elements
    return _ONE.pack(0, 1, number, serial)


def objection(names: Sequence[str]) -> bytes:
    """Return the message that objects to waiting under ``names``; empty without names."""
    return _HEAD.pack(OBJECTION, 0) + json.dumps(names).encode() if names else b""


class Note(NamedTuple):
    """A note. ``sizes``: proposed from this round on; only rank 0's count. ``since``: the times of
    the requests.
    """

    sizes: Sizes | None
    since: list[float]


def with_note(message: bytes, note: Note) -> bytes:
    tail = _SIZES.pack(*(note.sizes or (-1, -1))) + array("d", note.since).tobytes()
    return bytes([message[0] | NOTED]) + message[1:] + tail + _LENGTH.pack(len(tail))


def noted(message: bytes) -> bool:
    """Return whether a message has a note."""
    return bool(message) and bool(message[0] & NOTED)


def without_note(message: bytes) -> tuple[bytes, Note]:
    """Return a message without its note and elements, and its note."""
    if not noted(message):
        return (_without_elements(message) if has_elements(message) else message), Note(None, [])
    (length,) = _LENGTH.unpack_from(message, len(message) - _LENGTH.size)
    end = len(message) - _LENGTH.size - length
    sizes = Sizes(*_SIZES.unpack_from(message, end))
    since = array("d", message[end + _SIZES.size : len(message) - _LENGTH.size]).tolist()
    return bytes([message[0] & ~NOTED]) + message[1:end], Note(
        None if sizes.fusion_threshold < 0 else sizes, since
    )


def _without_elements(message: bytes) -> bytes:
    return b"\0" + message[1 : _HEAD.size + 12 * _HEAD.unpack_from(message)[1]]


def elements_at(count: int) -> int:
    """Return the offset of attached elements in a message with ``count`` numbers."""
    return (_HEAD.size + 12 * count + 7) & ~7


def in_step(messages: Sequence[bytes]) -> bool:
    """Return whether all ranks post the same requests and serial numbers. Attached elements may
    differ.
    """
    first = messages[0]
    if first[:1] != _ATTACHED:
        return messages.count(first) == len(messages)
    head = first[: elements_at(_HEAD.unpack_from(first)[1])]
    # a list is faster here than a generator
    return all([message.startswith(head) for message in messages])  # noqa: C419


def has_elements(message: bytes) -> bool:
    return message[:1] == _ATTACHED


def signatures(message: bytes) -> bytes | None:
    """Return the signature numbers if the message contains only these and elements, as in repeated
    steps.
    """
    flags, count = _HEAD.unpack_from(message)
    end = _HEAD.size + 4 * count
    alone = flags == ATTACHED or (not flags and len(message) == end + 8 * count)
    return message[_HEAD.size : end] if alone else None


def decode(message: bytes) -> Post:
    if not message:
        return Post(False, [], [])
    flags, count = _HEAD.unpack_from(message)
    if flags & OBJECTION:
        return Post(False, [], [], json.loads(message[_HEAD.size :]))
    middle = _HEAD.size + 4 * count
    end = middle + 8 * count
    numbers = array("I", message[_HEAD.size : middle])
    serials = array("Q", message[middle:end])
    more = len(message) > end and not flags & ATTACHED
    new = [_request(row) for row in json.loads(message[end:])] if more else []
    return Post(bool(flags & SHUTDOWN), list(zip(numbers, serials, strict=True)), new)


def _request(row: list[Any]) -> tuple[Request, int]:
    (
        serial,
        name,
        kind,
        dtype,
        shape,
        op,
        root,
        prescale,
        postscale,
        splits,
        group,
        group_size,
        device,
        codec,
        dense,
    ) = row
    return (
        Request(
            name,
            Kind(kind),
            DType(dtype),
            tuple(shape),
            ReduceOp(op),
            root,
            prescale,
            postscale,
            tuple(splits),
            group,
            group_size,
            device,
            codec,
            tuple(dense),
        ),
        serial,
    )
