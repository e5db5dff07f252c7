"""The process of ``farandole dashboard``: a socket, and uvicorn."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from farandole.dashboard.server.app import make_app
from farandole.dashboard.server.security import Access
from farandole.errors import SettingsError
from farandole.job.runs.home import RunsHome

_BACKLOG = 128
_SHUTDOWN_SECONDS = 1  # for responses in progress; event streams never end by themselves


def bound(host: str, port: int, *, exactly: bool) -> socket.socket:
    """Return a socket that listens at an address.

    Unless ``exactly``, use a free port if ``port`` is in use. Raises SettingsError if the address
    cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            listener.bind((host, port))
        except OSError:
            if exactly:
                raise
            listener.bind((host, 0))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"the page cannot be served at {host} port {port}: {error.strerror or error}; choose"
            " another --port or --host"
        ) from None
    return listener


def serve(
    home: RunsHome, listener: socket.socket, access: Access, ready: Callable[[], Any]
) -> None:
    """Serve the page until SIGINT or SIGTERM; call ``ready`` once the server answers requests."""
    app = make_app(home, access, lambda: server.should_exit)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="on",
        server_header=False,
        ws="none",
        loop="asyncio",
        http="h11",
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    server = _Server(config, ready)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again when it ends
        server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """Uvicorn's server, which reports its start."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], Any]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()
