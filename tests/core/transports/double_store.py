"""The store, between threads."""

from __future__ import annotations

import threading

from farandole.errors import RendezvousError


class ThreadStore:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str, timeout: float) -> bytes:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, timeout):
                raise RendezvousError(f"{key} was not set within {timeout} s")
            return self.values[key]

    def gather(self, prefix: str, count: int, timeout: float) -> list[bytes | None]:
        keys = [f"{prefix}/{index}" for index in range(count)]
        with self.changed:
            self.changed.wait_for(lambda: all(key in self.values for key in keys), timeout)
            return [self.values.get(key) for key in keys]

    def try_get(self, key: str) -> bytes | None:
        with self.changed:
            return self.values.get(key)
