"""Signatures known to all ranks, by number. Pure: the content depends only on the messages.

A full cache is cleared, on all ranks in the same round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.base.types import Request
from farandole.core.engine import attached, wire

if TYPE_CHECKING:
    from farandole.core.engine.handle import Item
    from farandole.core.engine.negotiation import Named


class SignatureCache:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.generation = 0
        self._numbers: dict[Request, int] = {}
        self._requests: list[Request] = []
        self._weights: list[int] = []  # bytes to attach to a message (``attached``)

    def number(self, request: Request) -> int | None:
        """Return the number of ``request``, or None if it has none."""
        return self._numbers.get(request)

    def request(self, number: int) -> Request:
        return self._requests[number]

    def learn(self, requests: list[Request]) -> None:
        """Number the new requests, in order. All ranks call this with the same requests."""
        for request in requests:
            if request in self._numbers or not self.capacity:
                continue
            if len(self._requests) >= self.capacity:
                self._numbers.clear()
                self._requests.clear()
                self._weights.clear()
                self.generation += 1
            self._numbers[request] = len(self._requests)
            self._requests.append(request)
            self._weights.append(attached.weight(request))

    def encode(self, batch: list[Item], room: int = -1) -> bytes:
        """Return the message that requests ``batch``, and sort ``batch`` into the order of the
        message.

        The elements are attached if all requests have numbers and the elements take at most
        ``room`` bytes.
        """
        known: list[tuple[int, int]] = []
        new = []
        number = self._numbers.get
        weights, weight = self._weights, 0
        for item in batch:
            entry = item.entry
            found = number(entry.request)
            if found is None:
                new.append((entry.request, entry.serial))
            else:
                known.append((found, entry.serial))
                weight += weights[found]
        if known and new:  # requests with numbers are decoded first
            batch.sort(key=lambda item: number(item.entry.request) is None)
        elements = None
        if weight <= room and not new:
            elements = (
                b"".join([item.entry.buffer.data.tobytes() for item in batch]) if weight else b""
            )
        return wire.encode(known, new, elements=elements)

    def named(self, message: wire.Post) -> list[Named]:
        """Return the names and requests in a rank's message."""
        requests = self._requests
        pairs = [(requests[number], serial) for number, serial in message.known] + message.new
        return [
            (f"{request.name}.{serial}" if serial else request.name, request)
            for request, serial in pairs
        ]
