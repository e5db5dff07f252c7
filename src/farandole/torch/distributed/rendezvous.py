"""The rendezvous of a group's ranks, through the store from torch.distributed."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import distributed

from farandole.base.contracts import Transport
from farandole.core.groups.departure_watch import DepartureWatch
from farandole.core.groups.group import CollectiveGroup
from farandole.core.groups.inbox import error_text
from farandole.core.observe.stall.direct_query import DirectQuery
from farandole.core.transports import shm
from farandole.errors import PeerLostError, RendezvousError, SettingsError
from farandole.job.config import Connection, Placement, Settings
from farandole.job.config.torchrun import AGENT_STORE
from farandole.job.context import wiring
from farandole.job.context.malloc import keep_freed_memory
from farandole.job.plugins.autoload import check_rank
from farandole.job.report import keys
from farandole.net import interfaces
from farandole.net.handshake import new_secret

# the second counts the arrivals of each rank, per group size
_WIRE, _COMES = "farandole/wire", "farandole/comes"
_PAUSE, _LONGEST_PAUSE = 1e-3, 0.1  # seconds between checks of the store, at first and later
_GRACE = 1.0  # seconds for a lost member to give its reason
# by MASTER_PORT: a reference that keeps the server alive, see keep_served
_served: dict[str, Any] = {}


class Meeting(NamedTuple):
    """``transport``: the new group's. ``secret`` and ``scope``: equal on its members."""

    transport: Transport
    secret: str
    scope: str


def meet(store: Any, rank: int, size: int, timeout: float, ranks: Sequence[int] = ()) -> Meeting:
    """Connect the members of a new group. Collective. ``store``: the group's own; ``ranks``: see
    ``FarandoleProcessGroup``.

    In a Farandole job, connections are authenticated by the job's secret, and only a name goes
    through the store. Elsewhere rank 0 creates a secret, which is as safe as the store.
    """
    check_rank(rank, size)
    if size == 1:
        return Meeting(shm.connect(0, 1, "", secrets.token_hex(8)), secret="", scope="")
    keep_freed_memory()
    # groups of other backends have none
    world = getattr(distributed.group.WORLD, "state", None) if ranks else None
    # A store may outlive a group and serve the next one, with other ranks.
    comes = f"{_COMES}/{size}/{rank}"
    wire = f"{_WIRE}/{size}/{store.add(comes, 1)}"
    departures = DepartureWatch(world, ranks) if isinstance(world, CollectiveGroup) else None
    with contextlib.closing(GroupStore(store, departures, meeting=wire)) as client:
        try:
            if (begun := _begin(client, wire, rank, timeout)) is not None:
                return _join(client, begun, rank, size, timeout)
        except BaseException as error:
            if isinstance(error, PeerLostError):  # its reason may follow
                with contextlib.suppress(distributed.DistError):  # the server is gone
                    client.check_given_up(_GRACE)
            client.give_up(rank, error)
            raise
        # Member 0 may begin this meeting later. If the store is gone, this raises.
        store.add(comes, -1)
        raise _absent([0], size, timeout, client)


def _begin(client: GroupStore, wire: str, rank: int, timeout: float) -> Any:
    """Return member 0's message to the others; None if it does not arrive."""
    if rank == 0:
        secret = "" if Connection.from_env().secret else new_secret(tls=Settings.from_env().tls)
        client.set(wire, json.dumps({"scope": secrets.token_hex(8), "secret": secret}).encode())
    found = client.wait(wire, timeout, source=0)
    return None if found is None else json.loads(found)


def _join(
    client: GroupStore, begun: dict[str, str], rank: int, size: int, timeout: float
) -> Meeting:
    patient = min(max(timeout, 0.001), 1e9)  # the range of --start-timeout
    settings, own = Settings.from_env().replace(start_timeout=patient), Connection.from_env().secret
    # A client with access to the store can write to it, so its value never replaces the job's
    # secret.
    if bool(own) == bool(begun["secret"]):
        ours, others = (f"rank {rank}", "rank 0") if own else ("rank 0", f"rank {rank}")
        raise SettingsError(
            f"{ours} of this group was started by Farandole, but {others} was not. Start all ranks"
            " with farandole run, or all with torchrun"
        )
    secret, scope = own or begun["secret"], f"c10d/{begun['scope']}"
    try:
        transport = wiring.connect(
            Placement(rank=rank, size=size),
            Connection(secret=secret),
            settings,
            client,
            scope,
            patience=timeout + 60.0,
        )
    except RendezvousError as error:
        if not error.missing:
            raise
        raise _absent(error.missing, size, timeout, client) from error
    return Meeting(transport, secret, scope)


def _absent(
    missing: Sequence[int], size: int, timeout: float, client: GroupStore
) -> RendezvousError:
    members = ", ".join(map(str, missing))
    if {*missing} <= {*client.left()}:
        return RendezvousError(
            f"the members {members} of a group of {size} ended, or left the default group, without"
            " calling new_group. Call new_group on all its members; a member that catches an"
            " exception must not continue alone",
            missing,
        )
    return RendezvousError(
        f"the members {members} of a group of {size} did not call init_process_group or new_group"
        f" within the timeout of {timeout:g} s",
        missing,
    )


def stack_query(store: Any, meeting: Meeting, rank: int) -> DirectQuery | None:
    """Return a query for all groups of the job that owns the store; None if that is impossible."""
    client, key = GroupStore(store), f"{meeting.scope}/stacks"

    def look_up(other: int) -> bytes | None:
        try:
            return client.try_get(f"{key}/{other}")
        except (distributed.DistError, RuntimeError):  # the server is gone
            return None

    with contextlib.suppress(OSError, RuntimeError):
        return DirectQuery(
            meeting.secret,
            meeting.scope,
            rank,
            meeting.transport.size,
            client.host,
            lambda entry: client.set(f"{key}/{rank}", entry),
            look_up,
        )
    return None


def keep_served(store: Any, rank: int) -> None:
    """Keep the store's server on rank 0 alive until the process ends. It would otherwise end with
    the default group, while other ranks may be on their way to the next one. Torchrun's server
    outlives both.
    """
    port = os.environ.get("MASTER_PORT", "")
    if rank or not port or port in _served or os.environ.get(AGENT_STORE) == "True":
        return
    store = _innermost(store)
    if isinstance(store, distributed.TCPStore) and str(store.port) == port:
        # the program created the store itself
        with contextlib.suppress(distributed.DistError, RuntimeError):
            _served[port] = distributed.TCPStore(
                store.host, store.port, None, True, wait_for_workers=False, multi_tenant=True
            )


class GroupStore:
    """A torch.distributed store with the methods of ``farandole.net.store.StoreClient`` that
    transports need.
    """

    def __init__(
        self, store: Any, departures: DepartureWatch | None = None, meeting: str = ""
    ) -> None:
        self._store = store
        self._departures = departures
        self._gave_up = f"{meeting}/gave_up" if meeting else ""
        self.host = _own_address(store)

    def left(self) -> list[int]:
        """Return the members that have left."""
        return self._departures.departed() if self._departures is not None else []

    def give_up(self, rank: int, error: BaseException) -> None:
        """Notify the other members that this one gives up. The first reason counts."""
        with contextlib.suppress(distributed.DistError, RuntimeError):  # the server is gone
            if self._find(self._gave_up) is None:
                self.set(self._gave_up, json.dumps([rank, error_text(error)]).encode())

    def close(self) -> None:
        if self._departures is not None:
            self._departures.close()

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str, timeout: float) -> bytes:
        """Return a value. Raises RendezvousError if it is not set within ``timeout`` seconds, or a
        member gave up.
        """
        found = self.wait(key, timeout)
        if found is None:
            raise RendezvousError(
                f"{key!r} did not appear in torch.distributed's store within {timeout:g} s"
            )
        return found

    def wait(self, key: str, timeout: float, source: int = -1) -> bytes | None:
        """Return a value; None if it is not set within ``timeout`` seconds, or the member
        ``source`` has left.

        The store's own ``wait`` is unsuitable: it warns on stderr after its timeout, which is short
        if the caller checks other conditions between waits, and it delays signal handlers until it
        returns.
        """
        end, pause, gone = time.monotonic() + timeout, _PAUSE, False
        try:
            while (found := self._find(key)) is None:
                left = end - time.monotonic()
                if left <= 0 or gone:
                    return None
                time.sleep(min(pause, left))
                pause = min(2 * pause, _LONGEST_PAUSE)
                if pause == _LONGEST_PAUSE:
                    self.check_given_up()
                    gone = source >= 0 and source in self.left()
        except RendezvousError:
            raise
        except (distributed.DistError, RuntimeError) as error:
            raise RendezvousError(
                f"{key!r} did not appear in torch.distributed's store: {error}"
            ) from error
        return found

    def try_get(self, key: str) -> bytes | None:
        if key == keys.FINISHED:
            self.check_given_up()
            return json.dumps(self.left()).encode()
        return self._find(key)

    def _find(self, key: str) -> bytes | None:
        return bytes(self._store.get(key)) if self._store.check([key]) else None

    def check_given_up(self, seconds: float = 0.0) -> None:
        """Raise RendezvousError if a member reports within ``seconds`` that it gave up."""
        end = time.monotonic() + seconds
        while self._gave_up:
            if (found := self._find(self._gave_up)) is not None:
                rank, why = json.loads(found)
                raise RendezvousError(
                    f"the member {rank} gave up while this group was created: {why}"
                )
            if time.monotonic() >= end:
                return
            time.sleep(_PAUSE)

    def gather(self, prefix: str, count: int, timeout: float) -> list[bytes | None]:
        """Return the values of ``prefix/0`` ...; None for values that are not set in time."""
        end = time.monotonic() + timeout
        found: list[bytes | None] = []
        for number in range(count):
            try:
                found.append(self.get(f"{prefix}/{number}", end - time.monotonic()))
            except RendezvousError:
                found.append(None)
        return found


def _own_address(store: Any) -> str:
    """Return this host's address on the route to the store, which other ranks try first."""
    address = _route_to(getattr(_innermost(store), "host", "") or os.environ.get("MASTER_ADDR", ""))
    several = os.environ.get("WORLD_SIZE", "") != os.environ.get("LOCAL_WORLD_SIZE", "")
    # a loopback address, which other hosts cannot use
    if interfaces.is_loopback(address) and several:
        outside: Sequence[interfaces.Interface] = interfaces.chosen(interfaces.interfaces())
        return outside[0].address if outside else address
    return address


def _innermost(store: Any) -> Any:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def _route_to(host: str) -> str:
    """Return this host's address on the route to ``host``; the loopback address without a route."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, there in socket.getaddrinfo(
            host or "127.0.0.1", 9, type=socket.SOCK_DGRAM
        ):
            with contextlib.suppress(OSError), socket.socket(family, kind) as sock:
                sock.connect(there)  # sends nothing
                return str(sock.getsockname()[0])
    return "127.0.0.1"
