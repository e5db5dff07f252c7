"""A job inside a test: ``job(n, fn)`` runs ``fn(rank)`` in n initialised processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle

from farandole.net.handshake import new_secret
from farandole.net.store import StoreServer
from tests import pool


@contextmanager
def stored() -> Iterator[Callable[[Callable[[Any], Any]], Callable[[Any], Any]]]:
    """Yield a decorator for functions of ranks that use the store of their job."""
    secret = new_secret()
    server = StoreServer(secret)
    address = server.address

    def having(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def body(of_rank: Any) -> Any:
            from farandole.job.context import session
            from farandole.net.store import StoreClient

            client = StoreClient(address, secret)
            session.use_store(client)
            try:
                return fn(of_rank)
            finally:
                session.use_store(None)
                client.close()

        return body

    try:
        yield having
    finally:
        server.close()


def job(
    n: int,
    fn: Callable[[int], Any],
    *,
    wire: str = "",
    deadline: float = 300.0,
    store: bool = False,
    deaths: bool = False,
    **settings: Any,
) -> list[Any]:
    """Return the results of ``fn(rank)`` on all ranks, over ``wire`` ("shm" or "tcp"), with
    ``Settings(**settings)``; ``store``: with a store. ``deaths``: see ``pool``.
    """

    def body(transport: Any) -> Any:
        from farandole.job import context
        from farandole.job.config import Connection, Placement, Settings
        from farandole.job.context import lifecycle, parameter_servers

        placement = Placement(rank=transport.rank, size=n, local_rank=transport.rank, local_size=n)
        lifecycle.enter(placement, Settings(**settings), transport, Connection())
        try:
            return fn(transport.rank)
        except BaseException as error:
            context.engine().abort(f"rank {transport.rank} failed: {error!r}")
            raise
        finally:
            context.shutdown()
            parameter_servers.close_kept(failed=True)  # this process does not end with the job

    # test modules need not be importable over there
    cloudpickle.register_pickle_by_value(sys.modules[fn.__module__])
    if not store:
        return pool.procs(n, body, wire=wire, deadline=deadline, deaths=deaths)
    with stored() as having:
        return pool.procs(n, having(body), wire=wire, deadline=deadline, deaths=deaths)
