"""The store of a job without a driver: its ranks agree on a store, which rank 0 hosts until the
others have left.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass

from farandole.base.log import logger
from farandole.errors import (
    AuthenticationError,
    HorovodInternalError,
    RendezvousError,
    SettingsError,
)
from farandole.job.bootstrap import starter
from farandole.job.bootstrap.contract import Bootstrap
from farandole.job.bootstrap.origin import origin
from farandole.job.bootstrap.siblings import LOOK, Siblings
from farandole.job.bootstrap.store_host import (
    ENDED,
    LEFT,
    NODE,
    SLACK,
    Assignment,
    StoreHost,
    assignment_key,
)
from farandole.job.config import Connection, Placement, Settings
from farandole.job.config.fields import variables
from farandole.job.config.output_files import FILES, files
from farandole.job.config.rank_variables import ORIGIN
from farandole.job.config.torchrun import torch_variables
from farandole.job.report import keys
from farandole.net import interfaces
from farandole.net.handshake import encrypted
from farandole.net.store import StoreClient, reach
from farandole.net.store.exchange import redeem

PATIENCE = 10.0  # seconds for the other ranks to end after a failure, before they are killed
# Seconds for each of several addresses of rank 0's host, before a longer attempt.
REACH = 5.0


@dataclass(frozen=True)
class _Membership:
    """This process's membership in such a job."""

    pid: int
    bootstrap: Bootstrap
    placement: Placement
    client: StoreClient
    host: StoreHost | None


_membership: _Membership | None = None


def join(
    bootstrap: Bootstrap, placement: Placement, settings: Settings
) -> tuple[Placement, Connection]:
    """Agree on a store with all ranks of ``bootstrap``. Collective.

    Afterwards the environment holds the variables that a launcher would set, including
    torch.distributed's. Raises RendezvousError naming ranks that do not arrive within
    ``settings.start_timeout`` seconds.
    """
    global _membership
    host = StoreHost(placement, settings) if placement.rank == 0 else None
    client: StoreClient | None = None
    try:
        siblings = bootstrap.siblings(placement, os.environ)
        contact = bootstrap.broadcast(
            placement, lambda: host.contact() if host else "", settings.start_timeout, siblings
        )
        client = _reach_store(contact, placement, settings)
        client.announce(f"rank/{placement.rank}")
        node = [placement.hostname, placement.local_rank, placement.size]
        client.set(f"{NODE}{placement.rank}", json.dumps(node).encode())
        if host:
            host.assign(siblings, bootstrap.on_assigned)
        assignment = _await_assignment(
            client, placement.rank, settings.start_timeout + SLACK, siblings
        )
        _check_assignment(assignment, settings.start_timeout, bootstrap.absence_hint)
    except BaseException as error:
        if client is not None:
            client.close()
        if host:
            host.dismiss(SLACK if isinstance(error, RendezvousError) else 0.0)
        raise
    placement = Placement(**assignment.placement)
    connection = Connection(store=client.address, secret=client.secret, launcher=bootstrap.name)
    _membership = _Membership(
        pid=os.getpid(), bootstrap=bootstrap, placement=placement, client=client, host=host
    )
    _export(placement, connection, settings, assignment.port)
    starter.watch(bootstrap.starter(os.environ), placement.rank, settings.grace_seconds)
    logger.info(
        "rank %d of %d, started by %s: the store is at %s",
        placement.rank,
        placement.size,
        bootstrap.name,
        client.address,
    )
    return placement, connection


def _reach_store(contact: str, placement: Placement, settings: Settings) -> StoreClient:
    """Return a client of the store; ``contact`` holds its addresses and secret."""
    *addresses, secret = contact.split(",")
    if encrypted(secret) != settings.tls:
        raise SettingsError(
            f"rank {placement.rank} was started with FARANDOLE_TLS={int(settings.tls)}, rank 0"
            f" with FARANDOLE_TLS={int(encrypted(secret))}: set it for all ranks, or for none"
        )
    rounds = [REACH, settings.start_timeout] if len(addresses) > 1 else [settings.start_timeout]
    client = reach(addresses, secret, *rounds)
    # With TLS, the secret in ``contact`` is only a token, because others may read it.
    return redeem(client, placement.rank) if settings.tls else client


def _await_assignment(
    client: StoreClient, rank: int, timeout: float, siblings: Siblings
) -> Assignment:
    """Return rank 0's assignment. Meanwhile, report ranks of this host that have ended to rank
    0.
    """
    deadline = time.monotonic() + timeout
    while True:
        last = time.monotonic() > deadline
        try:
            return Assignment.from_bytes(client.get(assignment_key(rank), LOOK))
        except RendezvousError:
            if last:
                raise
        for other in siblings.ended():
            client.set(f"{ENDED}{other}", b"")


def _check_assignment(assignment: Assignment, timeout: float, hint: str) -> None:
    """Raise the error of an assignment for a job that cannot begin."""
    if assignment.wrong_size:
        raise SettingsError(assignment.wrong_size)
    if assignment.ended:
        raise RendezvousError.ended(assignment.ended)
    if assignment.missing:
        raise RendezvousError.late(assignment.missing, timeout, otherwise=hint)


def _export(
    placement: Placement, connection: Connection, settings: Settings, torch_port: int
) -> None:
    """Set the variables that a launcher would have set, for the program and its child processes."""
    os.environ.update(environment(placement, connection))
    os.environ[ORIGIN] = origin(os.environ)
    os.environ[FILES] = files(settings)
    address = interfaces.split(connection.store)[0]
    for name, text in torch_variables(placement, address, torch_port).items():
        os.environ.setdefault(name, text)


def current_bootstrap() -> Bootstrap | None:
    """Return the bootstrap of this process's job without a driver; None outside such a job."""
    return None if _membership is None else _membership.bootstrap


def leave(failed: bool) -> None:
    """End this process's membership; rank 0's also ends the store. Does nothing in a forked
    process.
    """
    global _membership
    ended = _membership
    _membership = None
    if ended is None or ended.pid != os.getpid():
        return
    if ended.host is not None:
        ended.host.close(PATIENCE if failed else None)
    if failed and ended.bootstrap.ends_together and not _all_ended(ended, PATIENCE):
        sys.stderr.flush()
        ended.bootstrap.abort()
    if ended.host is None:
        # Closed explicitly, because a forked process that is still running keeps the connection
        # open.
        with contextlib.suppress(
            HorovodInternalError, RendezvousError, AuthenticationError, OSError
        ):
            ended.client.set(f"{LEFT}{ended.placement.rank}", b"")
    ended.client.close()


def _all_ended(membership: _Membership, seconds: float) -> bool:
    """Return whether the other ranks report their outcomes within ``seconds``."""
    if membership.host is not None:
        return not membership.host.remaining()
    deadline = time.monotonic() + seconds
    try:
        for rank in range(membership.placement.size):
            membership.client.get(keys.outcome(rank), max(0.0, deadline - time.monotonic()))
    except RendezvousError:
        return False
    except HorovodInternalError:
        pass  # rank 0 has ended, and the store with it
    return True


def environment(placement: Placement, connection: Connection) -> dict[str, str]:
    """Return the variables that a launcher would have set, for the program and its child
    processes.
    """
    return {**placement.to_env(variables(Placement)), **connection.to_env()}
