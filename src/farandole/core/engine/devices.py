"""Transports for device memory.

For each device, a framework registers a factory that wraps an engine's host transport in a
DeviceTransport, which coordinates ranks over the host transport and falls back on it. An engine
calls the factory at the first collective with memory of the device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from farandole.base.contracts import DeviceTransport, Transport
from farandole.errors import HorovodInternalError
from farandole.job.config import Settings

if TYPE_CHECKING:
    Lost = Callable[[HorovodInternalError], None]
    Factory = Callable[[Transport, Settings, Lost], DeviceTransport]

T = TypeVar("T")
HOST = "CPU"
_factories: dict[str, Factory] = {}


def register(device: str, factory: Factory) -> None:
    """Register the ``factory`` of transports for ``device``: ``factory(host, settings, lost)``.

    The transport calls ``lost`` when it detects the loss of a peer, before it aborts the operations
    on the device.
    """
    _factories[device] = factory


class Devices:
    """The device transports of one engine."""

    def __init__(self, host: Transport, settings: Settings, lost: Lost) -> None:
        self._host = host
        self._settings = settings
        self._lost = lost
        self._lock = threading.Lock()
        self._made: dict[str, DeviceTransport] = {}

    def record_event(self, device: str) -> Any:
        """Record an event on the device; see ``DeviceTransport``."""
        return self._of(device).record_event()

    def run(
        self, device: str, events: Sequence[Any], work: Callable[[DeviceTransport], T]
    ) -> tuple[T, Callable[[], None]]:
        """Run ``work`` on the device's transport; see ``DeviceTransport``."""
        transport = self._of(device)
        return transport.run(events, lambda: work(transport))

    def abort(self, why: str) -> None:
        """Abort this rank's collectives on devices."""
        for transport in list(self._made.values()):
            transport.abort(why)

    def close(self) -> None:
        """Close the device transports, which finish their operations first unless aborted."""
        for transport in self._made.values():
            transport.close()

    def _of(self, device: str) -> DeviceTransport:
        with self._lock:
            found = self._made.get(device)
            if found is None:
                if device not in _factories:
                    raise LookupError(
                        f"no module runs collectives on a {device} here: import farandole.torch"
                        " on all ranks"
                    )
                found = self._made[device] = _factories[device](
                    self._host, self._settings, self._lost
                )
            return found
