"""The interface of a store that a wire needs: the job's own, or torch.distributed's."""

from __future__ import annotations

from typing import Protocol


class KeyValueStore(Protocol):
    """Values by key, shared by all ranks; ``StoreClient`` is an implementation."""

    @property
    def host(self) -> str:
        """This host's address towards the store."""

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str, timeout: float) -> bytes:
        """Wait for a value and return it. Raises RendezvousError after ``timeout`` seconds."""

    def try_get(self, key: str) -> bytes | None: ...

    def gather(self, prefix: str, count: int, timeout: float) -> list[bytes | None]:
        """Return ``prefix/0`` to ``prefix/<count-1>``; None for values that are not set in time."""
