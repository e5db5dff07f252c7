"""``python -m farandole.core.ps``: a server process of a job, started and ended by the driver."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import signal
import sys
import threading

from farandole.base import log
from farandole.core.ps.server import CentreServer, stored_end, stored_end_of_member
from farandole.errors import HorovodInternalError
from farandole.job.config import Connection, Settings
from farandole.job.report import keys
from farandole.net import interfaces
from farandole.net.store import StoreClient

_FOREVER = 1e8  # seconds: the driver ends the servers


def main() -> int:
    connection, settings = Connection.from_env(), Settings.from_env()
    if not connection.store or "FARANDOLE_SERVER" not in os.environ:
        sys.stderr.write(
            "farandole.core.ps is started by farandole run --strategy ps, not by hand\n"
        )
        return 2
    index, interface = (
        int(os.environ["FARANDOLE_SERVER"]),
        os.environ.get("FARANDOLE_SERVER_INTERFACE"),
    )
    log.configure(settings.log_level, who=f"server {index}", hide_time=settings.log_hide_time)
    store = StoreClient(connection.store, connection.secret, timeout=settings.start_timeout)
    # each server is followed by its replicas
    last = (index // settings.replicas + 1) * settings.replicas

    def others() -> list[str]:
        return [
            store.get(keys.server("", other), settings.start_timeout).decode()
            for other in range(index + 1, last)
        ]

    elastic = os.environ.get("FARANDOLE_SERVER_PLACE")
    speaks = not index and not settings.stall_check_disable  # a single server warns
    warning = settings.stall_warning_seconds if speaks else math.inf
    listening = [interface] if interface is not None else _own(store, settings)
    if elastic is not None:
        return _serve_elastic(index, int(elastic), connection, settings, listening)
    server = CentreServer(connection.secret, listening, stored_end(store), others, warning)
    address = {**json.loads(server.address), "on_driver_host": interface is not None}
    store.set(keys.server("", index), json.dumps(address).encode())
    while True:
        signal.pause()


def _serve_elastic(
    number: int, place: int, connection: Connection, settings: Settings, listening: list[str]
) -> int:
    """Serve shard ``number`` of an elastic job as process ``place``, counted from 0, until another
    process replaces this one. The driver names the first primary, and replaces processes that have
    ended; each later process becomes a replica.
    """
    store, waiting = (
        StoreClient(connection.store, connection.secret, timeout=settings.start_timeout)
        for _ in range(2)
    )

    def publish(addresses: list[str]) -> None:
        with contextlib.suppress(OSError, HorovodInternalError):  # the job has ended
            store.set(keys.chain(number), json.dumps(addresses).encode())

    def adopt_later() -> None:
        with contextlib.suppress(OSError, HorovodInternalError):
            for later in itertools.count(place + 1):
                server.adopt(waiting.get(keys.replica(number, later), _FOREVER).decode())

    warning = math.inf if settings.stall_check_disable else settings.stall_warning_seconds
    ended = stored_end_of_member(store)
    warning = warning if not number else math.inf
    server = CentreServer(connection.secret, listening, ended, list, warning, publish)
    store.set(keys.replica(number, place), server.address.encode())
    if os.environ.get("FARANDOLE_SERVER_LEADS") == "1":
        server.lead()
    threading.Thread(target=adopt_later, name="farandole-ps-adopt", daemon=True).start()
    server.run()
    return 0


def _own(store: StoreClient, settings: Settings) -> list[str]:
    """Return this host's addresses for the ranks, on a host other than the driver's."""
    at = interfaces.offered(store.host, settings.network_interfaces)
    return [interfaces.parted(address)[0] for address in at.split(",")]


if __name__ == "__main__":
    sys.exit(main())
