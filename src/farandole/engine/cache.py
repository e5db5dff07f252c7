"""Signatures that all ranks have seen, by number. Pure: its content follows from the messages alone.

When it is full it starts anew, on all ranks in the same round.
"""

from __future__ import annotations

from farandole.types import Request


class SignatureCache:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.generation = 0
        self._numbers: dict[Request, int] = {}
        self._requests: list[Request] = []

    def number(self, request: Request) -> int | None:
        """The number under which ``request`` can be sent, if it has one."""
        return self._numbers.get(request)

    def request(self, number: int) -> Request:
        return self._requests[number]

    def learn(self, requests: list[Request]) -> None:
        """Give a number to each new request, in order (all ranks call this with the same requests)."""
        for request in requests:
            if request in self._numbers or not self.capacity:
                continue
            if len(self._requests) >= self.capacity:
                self._numbers.clear()
                self._requests.clear()
                self.generation += 1
            self._numbers[request] = len(self._requests)
            self._requests.append(request)
