"""This process's access to the job's parameter servers.

The driver starts them as processes on the first request of a rank; without a driver, they are
threads of rank 0.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from farandole.core.ps.client import Servers
from farandole.errors import HorovodInternalError, RendezvousError, SettingsError
from farandole.job.config import Connection, Placement, Settings
from farandole.job.report import keys
from farandole.net import interfaces
from farandole.net.store import StoreClient

if TYPE_CHECKING:
    from farandole.core.gossip.peer_group import PeerServer
    from farandole.core.ps.saved_states import SavedOptimizer

# Seconds for which rank 0 keeps serving after its end; the other ranks can train without it for
# that time.
AFTER = 3600.0


class ServerAccess:
    """Access to parameter servers and to a peer server; ``scope`` is the id of this session.
    ``elastic``: whether the job is elastic.
    """

    def __init__(
        self, placement: Placement, settings: Settings, scope: str, elastic: bool = False
    ) -> None:
        self._elastic = elastic
        self._placement = placement
        self._settings = settings
        self._scope = scope
        self._servers: Servers | None = None
        self._peer: PeerServer | None = None
        self._store: StoreClient | None = None  # set together with a peer
        self._close: list[Callable[[float], None]] = []  # closers of the servers in this process

    def open(self, store: StoreClient | None) -> Servers:
        """Connect to all servers and return them.

        Raises SettingsError without a store, and RendezvousError if the servers do not start.
        """
        if self._servers is None:
            if store is None:
                raise SettingsError(
                    "parameter servers need the store of a job, and this process has none: start"
                    " it with farandole run, farandole.run, mpirun or srun"
                )
            scope = "" if store.try_get(keys.JOB) is not None else self._scope
            if scope:
                self._serve(store, scope)
            else:
                store.set(keys.SERVERS_WANTED, b"")
            self._servers = self._connected(store, scope)
        return self._servers

    def peer(self, store: StoreClient | None) -> PeerServer:
        """Return the server that publishes this rank's weights, which ends with ``disconnect``.

        Raises SettingsError without a store.
        """
        if self._peer is None:
            if store is None:
                raise SettingsError(
                    "averaging in the background needs the store of a job, and this process has"
                    " none: start it with farandole run, farandole.run, mpirun or srun"
                )
            from farandole.core.gossip.peer_group import PeerServer

            at = interfaces.offered(store.host, self._settings.network_interfaces)
            hosts = [interfaces.parted(address)[0] for address in at.split(",")]
            self._peer = PeerServer(
                self._placement.rank,
                store.secret,
                hosts,
                functools.partial(self._left, store),
                survives_losses=Connection.from_env().member >= 0,
            )
            self._store = store
        return self._peer

    def _left(self, store: StoreClient, rank: int) -> bool:
        """Return whether the rank has left this session normally; also true if the job's store is
        gone.
        """
        try:
            return store.try_get(keys.left(self._scope, rank)) is not None
        except (OSError, HorovodInternalError):
            return True

    def _end_peer(self, failed: bool) -> None:
        peer, self._peer = self._peer, None
        if peer is not None and self._store is not None:
            if not failed:
                with contextlib.suppress(OSError, HorovodInternalError):
                    self._store.set(keys.left(self._scope, self._placement.rank), b"")
            peer.close()

    def leave(self, store: StoreClient | None) -> None:
        """Mark this rank as out of data: no other rank waits for it until it pushes again."""
        if store is not None and self._placement.size > 1:
            store.set(keys.away(self._scope, self._placement.rank), b"")
        if self._servers is not None:
            self._servers.leave()
        for averages in self._peer.attended if self._peer is not None else ():
            averages.step_away()

    def revoke_leave(self, store: StoreClient) -> None:
        """Revoke ``leave`` for ranks that have not received a message from this rank yet."""
        store.set(keys.away(self._scope, self._placement.rank), b"back")

    def disconnect(self, failed: bool) -> None:
        """Leave the servers: no other rank waits for this one from then on."""
        self._end_peer(failed)
        servers, self._servers = self._servers, None
        if servers is not None:
            servers.close(failed)

    @property
    def follows_centre(self) -> bool:
        """True if an optimizer follows an asynchronous centre."""
        return self._servers is not None and self._servers.follows_centre

    def commit(self, number: int) -> None:
        """Let the servers keep the states of their optimizers for commit ``number`` of an
        elastic job, or of a job that writes commits to a folder.
        """
        # In a job of a fixed size, only rank 0 writes commits.
        writes = self._settings.commit_dir and self._placement.rank == 0
        if self._servers is not None and (self._elastic or writes):
            self._servers.commit(number)

    def optimizer_states(self, number: int) -> list[SavedOptimizer]:
        """Return the states of the servers' optimizers; see ``Servers``."""
        return [] if self._servers is None else self._servers.optimizer_states(number)

    def close(self, failed: bool) -> None:
        """End the servers in this process once all ranks have left; immediately if this rank
        failed.
        """
        while self._close:
            self._close.pop()(0.0 if failed else AFTER)

    def _connected(self, store: StoreClient, scope: str) -> Servers:
        if self._elastic:
            return self._connected_to_chains(store)
        replicas = 1 if scope else self._settings.replicas
        count = self._settings.servers * replicas
        found = store.gather(keys.servers(scope), count, self._settings.start_timeout)
        late = [number for number, address in enumerate(found) if address is None]
        if late:
            cure = "if starting takes longer, raise --start-timeout (FARANDOLE_START_TIMEOUT)"
            if scope:
                cure += (
                    ". Without a driver, rank 0 must start it: include rank 0 in the process set,"
                    " or start the job with farandole run"
                )
            number = late[0] // replicas
            raise RendezvousError(
                f"parameter server {number} did not start within {self._settings.start_timeout:g}"
                f" s; {cure}"
            )
        texts = [address.decode() for address in found if address is not None]
        addresses = [texts[begin : begin + replicas] for begin in range(0, count, replicas)]
        host, _ = interfaces.split(store.address)
        patience = self._settings.stall_shutdown_seconds
        return Servers(addresses, host, store.secret, self._placement.rank, self._scope, patience)

    def _connected_to_chains(self, store: StoreClient) -> Servers:
        """Connect to the servers of an elastic job, whose processes may be replaced."""

        def look_up(number: int) -> list[str]:
            addresses: list[str] = json.loads(store.try_get(keys.chain(number)) or b"[]")
            return addresses

        chains = [self._first_chain(store, number) for number in range(self._settings.servers)]
        host, _ = interfaces.split(store.address)
        rank, patience = self._placement.rank, self._settings.stall_shutdown_seconds
        return Servers(chains, host, store.secret, rank, self._scope, patience, look_up)

    def _first_chain(self, store: StoreClient, number: int) -> list[str]:
        """Wait for the first addresses of a server and return its current ones."""
        seconds = self._settings.start_timeout
        try:
            addresses: list[str] = json.loads(store.get(keys.chain(number), seconds))
        except RendezvousError as error:
            raise RendezvousError(
                f"parameter server {number} did not start within {seconds:g} s; if starting takes"
                " longer, raise --start-timeout (FARANDOLE_START_TIMEOUT)"
            ) from error
        return addresses

    def _serve(self, store: StoreClient, scope: str) -> None:
        if self._settings.replicas > 1:
            raise SettingsError(
                f"--replicas {self._settings.replicas} needs server processes, and only a driver"
                " starts them: start the job with farandole run, or leave out --replicas"
            )
        if self._placement.rank:
            return
        from farandole.core.ps.server import CentreServer, stored_end

        host, _ = interfaces.split(store.address)
        interface = host if interfaces.is_loopback(host) else interfaces.EVERYWHERE
        for index in range(self._settings.servers):
            server = CentreServer(store.secret, [interface], stored_end(store))
            self._close.append(server.close)
            store.set(keys.server(scope, index), server.address.encode())
