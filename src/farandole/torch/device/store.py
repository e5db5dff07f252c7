"""The job's store as one of torch.distributed: its clients have proved that they know the job's
secret.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch import distributed

from farandole.net.store import StoreClient


class JobStore(distributed.Store):  # type: ignore[misc]
    """Keys below ``prefix`` of the job's store. Calls of torch's own threads come here, too.

    What is not there within the timeout raises RendezvousError, which torch turns into a
    RuntimeError of its own where it calls. ``prefix``: new for every group, the same on all of its
    ranks.
    """

    def __init__(self, client: StoreClient, prefix: str, seconds: float) -> None:
        super().__init__()
        self._client = client
        self._prefix = prefix
        self._seconds = seconds

    def set(self, key: str, value: bytes | str) -> None:
        self._client.set(self._key(key), _bytes(value))

    def get(self, key: str) -> bytes:
        """Waits until it is set."""
        return self._client.get(self._key(key), self._seconds)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return when all are set."""
        end = time.monotonic() + (self._seconds if timeout is None else timeout.total_seconds())
        for key in keys:
            self._client.get(self._key(key), max(0.0, end - time.monotonic()))

    def check(self, keys: Sequence[str]) -> bool:
        """Are all set?"""
        return all(self._client.try_get(self._key(key)) is not None for key in keys)

    def add(self, key: str, amount: int) -> int:
        """The number in ``key`` (0 if nothing is) and ``amount``, which stands there afterwards."""
        place = self._key(key)
        while True:
            now = self._client.try_get(place) or b""
            total = str(int(now or b"0") + amount).encode()
            if self._client.swap(place, now, total)[0]:
                return int(total)

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Set ``key`` if it is the ``expected`` value, or not there and nothing is expected. The
        value afterwards; if there is none, the expected one.
        """
        _, found = self._client.swap(self._key(key), _bytes(expected), _bytes(desired))
        return _bytes(expected) if found is None else found

    def delete_key(self, key: str) -> bool:
        """Was it there?"""
        return self._client.take(self._key(key), 0.0) is not None

    def set_timeout(self, timeout: timedelta) -> None:
        """For ``get`` and ``wait`` without one."""
        self._seconds = timeout.total_seconds()

    def clone(self) -> JobStore:
        """Itself: its calls may come from several threads at once."""
        return self

    def _key(self, key: str) -> str:
        return f"torch/{self._prefix}/{key}"


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
