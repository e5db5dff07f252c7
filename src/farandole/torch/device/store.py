"""The job's store as a torch.distributed store, for clients that have proved knowledge of the job's
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
    """Keys under ``prefix`` in the job's store. Torch's threads call it too.

    ``prefix``: unique to the group, equal on all of its ranks. A key that is missing after the
    timeout raises RendezvousError, which torch converts to a RuntimeError.
    """

    def __init__(self, client: StoreClient, prefix: str, seconds: float) -> None:
        super().__init__()
        self._client = client
        self._prefix = prefix
        self._seconds = seconds

    def set(self, key: str, value: bytes | str) -> None:
        self._client.set(self._key(key), _bytes(value))

    def get(self, key: str) -> bytes:
        """Return the value, waiting until it is set."""
        return self._client.get(self._key(key), self._seconds)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set."""
        end = time.monotonic() + (self._seconds if timeout is None else timeout.total_seconds())
        for key in keys:
            self._client.get(self._key(key), max(0.0, end - time.monotonic()))

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are set."""
        return all(self._client.try_get(self._key(key)) is not None for key in keys)

    def add(self, key: str, amount: int) -> int:
        """Add ``amount`` to the number in ``key`` (0 if it is missing) and return the sum."""
        place = self._key(key)
        while True:
            now = self._client.try_get(place) or b""
            total = str(int(now or b"0") + amount).encode()
            if self._client.swap(place, now, total)[0]:
                return int(total)

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Set ``key`` if it has the ``expected`` value, or is missing and nothing is expected.
        Return the value afterwards; if there is none, the expected one.
        """
        _, found = self._client.swap(self._key(key), _bytes(expected), _bytes(desired))
        return _bytes(expected) if found is None else found

    def delete_key(self, key: str) -> bool:
        """Delete ``key``. Return whether it existed."""
        return self._client.take(self._key(key), 0.0) is not None

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of ``get``, and of ``wait`` without one."""
        self._seconds = timeout.total_seconds()

    def clone(self) -> JobStore:
        """Return the store itself, which is thread-safe."""
        return self

    def _key(self, key: str) -> str:
        return f"torch/{self._prefix}/{key}"


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
