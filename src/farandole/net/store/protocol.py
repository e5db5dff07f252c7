"""What a wire needs of a store, the job's own or one of torch.distributed."""

from __future__ import annotations

from typing import Protocol


class KeyValueStore(Protocol):
    """Values by key, for all ranks. ``StoreClient`` is one."""

    @property
    def host(self) -> str:
        """This host's address towards the store."""

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str, timeout: float) -> bytes:
        """Wait for a value. Raises RendezvousError after ``timeout`` seconds."""

    def try_get(self, key: str) -> bytes | None: ...

    def gather(self, prefix: str, count: int, timeout: float) -> list[bytes | None]:
        """Return ``prefix/0`` to ``prefix/<count-1>``; None for those that are not set in time."""
