"""Discovery of the ranks of a TCP mesh.

Every rank listens on each of its interfaces and writes the addresses to the store under
``tcp/<scope>/<rank>``. It dials all lower ranks and is dialled by all higher ranks: ``streams``
times for data, and once more between neighbours of the board. The first responding address of a
peer is used. Both ends prove that they know the job's secret before any byte is trusted. The
listeners close once all ranks are connected.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence

from farandole.base import threads
from farandole.base.log import logger
from farandole.core.transports.tcp.overlay import overlay
from farandole.errors import (
    AuthenticationError,
    HorovodInternalError,
    PeerLostError,
    RendezvousError,
    SettingsError,
    ranks_named,
)
from farandole.net import interfaces, liveness
from farandole.net.handshake import Newcomers, Session, authenticate
from farandole.net.store.protocol import KeyValueStore

DATA, BOARD, MORE = 0, 1, 2  # from MORE on: further data connections
SELDOM = 4  # seconds after which an idle data connection is probed, if there are many
PATIENCE = 5.0  # maximum seconds of one handshake
# seconds for each of several addresses of a peer at the first attempt; doubled at each further one
FIRST = 0.5
_HELLO = struct.Struct("<IB")  # the dialling rank, and the connection
_WELCOME = b"\1"


_logged_networks: set[str] = set()  # the networks that this process has logged


class _Reachability:
    """The networks that have answered, and the silence of the dialled host."""

    def __init__(self) -> None:
        self.last_sign = 0.0  # time of the last sign of life of the dialled peer's host
        self.silent = False  # whether one of its addresses has been silent since
        self._reached: set[str] = set()  # networks on which peers answered
        self._failed: set[str] = set()  # networks on which peers did not answer

    def silence(self) -> float:
        """Return the seconds since the last sign of life of the dialled peer's host."""
        return time.monotonic() - self.last_sign

    def order(self, addresses: list[str]) -> list[str]:
        """Return the addresses, most promising first."""
        if len(addresses) <= 1:
            return addresses
        return interfaces.order(addresses, self._reached, self._failed)

    def record(self, address: str, *, met: bool) -> None:
        """Record whether the peer was reached at ``address``."""
        network = interfaces.network_of(*interfaces.parted(address))
        (self._reached if met else self._failed).add(network)


class TcpRendezvous:
    """One rendezvous. ``run`` returns the sessions by rank: the list of data connections, and the
    board connection or None.

    ``host``: this host's addresses, separated by commas, in order of preference, each with its
    prefix if known. ``streams``: data connections between two ranks. Raises SettingsError if
    ``streams`` differs between ranks, and RendezvousError with the missing ranks after ``timeout``
    seconds.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        secret: str,
        scope: str,
        store: KeyValueStore,
        timeout: float,
        host: str,
        check: Callable[[], None] = lambda: None,
        streams: int = 1,
        names: Sequence[int] = (),
    ) -> None:
        """Prepare the rendezvous. ``names``: the numbers of the ranks in messages, see
        ``contracts.End``.
        """
        self.rank = rank
        self.size = size
        self.secret = secret
        self.scope = scope
        self.store = store
        self.timeout = timeout
        self.host = host
        self.check = check
        self.streams = streams
        self.names = names or range(size)
        self.overlay = overlay(rank, size)
        self.deadline = time.monotonic() + timeout
        self.sessions: dict[tuple[int, int], Session] = {}
        self.changed = threading.Condition()
        self.open = True
        self.newcomers = Newcomers(f"rank {self.names[rank]}", logger, (1 + streams) * size + 64)
        self.trouble = ""
        self._reachability = _Reachability()

    def run(self) -> tuple[list[list[Session]], list[Session | None]]:
        listeners = [(address, self._listen(address)) for address in self.host.split(",")]
        acceptors = [
            threading.Thread(
                target=self.newcomers.accept_all,
                args=(listener, self._accept, "farandole-tcp-greet"),
                name="farandole-tcp-accept",
                daemon=True,
            )
            for _, listener in listeners
        ]
        for acceptor in acceptors:
            threads.start(acceptor)
        try:
            entry = ",".join(
                f"{address}|{listener.getsockname()[1]}" for address, listener in listeners
            )
            entry += f";{self.streams}" if self.streams > 1 else ""
            self.store.set(self._key(self.rank), entry.encode())
            addresses = self._all_entries() if self.rank else []
            for peer in range(self.rank):
                for channel in self._channels(peer):
                    self._dial(peer, channel, addresses[peer])
            self._wait_for_higher_ranks()
        except BaseException:
            self._end(listeners, acceptors)
            for session in self.sessions.values():
                session.close()
            raise
        self._end(listeners, acceptors)
        self._log_networks()
        data = [
            [self.sessions[peer, channel] for channel in self._channels(peer) if channel != BOARD]
            for peer in range(self.size)
        ]
        return data, [self.sessions.get((peer, BOARD)) for peer in range(self.size)]

    def _channels(self, peer: int) -> tuple[int, ...]:
        """Return the connections that this rank has with ``peer``."""
        if peer == self.rank:
            return ()
        board = (BOARD,) if peer in self.overlay.reachable else ()
        return (DATA, *board, *range(MORE, MORE + self.streams - 1))

    def _listen(self, address: str) -> socket.socket:
        host, _ = interfaces.parted(address)
        room = max(128, 2 * (1 + self.streams) * self.size)
        try:
            return interfaces.listening(host, backlog=room)
        except OSError as error:
            raise RendezvousError(
                f"rank {self.names[self.rank]} cannot listen on {host}: {error}"
            ) from error

    def _log_networks(self) -> None:
        """Log, once and on the first rank only, the networks that the ranks use."""
        taken = {session.sock.getsockname()[0] for session in self.sessions.values()}
        parts = [interfaces.parted(address) for address in self.host.split(",")]
        used = ", ".join(
            interfaces.network_of(host, prefix) for host, prefix in parts if host in taken
        )
        if not self.rank and used and used not in _logged_networks:
            _logged_networks.add(used)
            offered = self.host.replace(",", ", ")
            logger.info(
                "rank %d: TCP to the other hosts uses %s (of %s)", self.names[0], used, offered
            )

    def _end(
        self, listeners: list[tuple[str, socket.socket]], acceptors: list[threading.Thread]
    ) -> None:
        with self.changed:
            self.open = False
        for (_, listener), acceptor in zip(listeners, acceptors, strict=True):
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
            acceptor.join(2.0)
            listener.close()
        self.newcomers.close()

    def _key(self, rank: int) -> str:
        return f"tcp/{self.scope}/{rank}"

    def _remaining(self) -> float:
        return self.deadline - time.monotonic()

    def _dial(self, peer: int, channel: int, known: bytes | None) -> None:
        """Connect to a lower rank.

        If it does not answer, its entry in the store may be outdated and is read again. Raises
        RendezvousError if there is an entry, but the host shows no sign of life: it is unreachable
        from this host.
        """
        patience = FIRST
        reachability = self._reachability
        reachability.last_sign = time.monotonic()
        while True:
            entry = self._entry(peer) if known is None else known.decode()
            known = None
            entry, _, streams = entry.partition(";")
            if int(streams or 1) != self.streams:
                raise SettingsError(
                    f"rank {self.names[self.rank]} was started with --tcp-streams {self.streams}"
                    f" (FARANDOLE_TCP_STREAMS), rank {self.names[peer]} with {streams or 1}: set"
                    " the same number for all ranks"
                )
            listeners = dict(listener.rsplit("|", 1) for listener in entry.split(","))
            addresses = reachability.order(list(listeners))
            seconds = min(PATIENCE, patience) if len(listeners) > 1 else PATIENCE
            reachability.silent = False
            for address in addresses:
                met = self._try_address(
                    peer, channel, interfaces.parted(address)[0], int(listeners[address]), seconds
                )
                if len(listeners) > 1:
                    reachability.record(address, met=met)
                if met:
                    return
            patience *= 2
            if not reachability.silent:
                reachability.last_sign = time.monotonic()
            elif reachability.silence() >= liveness.LOST_SECONDS:
                raise self._unreachable([peer, *self._silent_peers(peer)])
            try:
                self._pause()
            except PeerLostError as error:  # another rank gave up first
                if reachability.silence() < liveness.LOST_SECONDS / 2:
                    raise
                raise self._unreachable([peer]) from error

    def _unreachable(self, peers: Sequence[int]) -> RendezvousError:
        """Return the error for ranks that have set an entry, but whose hosts are silent."""
        entry = self.store.try_get(self._key(peers[0])) or b""
        return RendezvousError(
            f"rank {self.names[self.rank]} cannot reach rank {self.names[peers[0]]}"
            f" ({_hosts(entry)}): no answer for {self._reachability.silence():.0f} s. The network"
            " between the hosts is down, or a firewall blocks it",
            unreached=[self.names[peer] for peer in peers],
        )

    def _silent_peers(self, known: int) -> list[int]:
        """Return one rank of each silent host except the host of the rank ``known``: this rank's
        host may be the one without a network.
        """
        entries = self.store.gather(f"tcp/{self.scope}", self.size, 0.0)
        listeners = {peer: _listeners(entry) for peer, entry in enumerate(entries) if entry}
        by_host = {tuple(listeners[peer]): peer for peer in reversed(listeners)}
        for peer in (self.rank, known):
            by_host.pop(tuple(listeners.get(peer, ())), None)
        asked = {
            peer: [(host, int(port)) for host, port in listeners[peer].items()]
            for peer in by_host.values()
        }
        silent = liveness.unanswered([each for found in asked.values() for each in found])
        return [peer for peer, found in asked.items() if silent.issuperset(found)]

    def _try_address(self, peer: int, channel: int, host: str, port: int, seconds: float) -> bool:
        """Connect to one address of ``peer``. Return False, with the reason in ``trouble``, on
        failure.
        """
        reachability = self._reachability
        lost = reachability.last_sign + liveness.LOST_SECONDS - time.monotonic()
        try:
            sock = liveness.connected(
                host, port, max(0.1, min(seconds, self._remaining(), max(FIRST, lost)))
            )
        except OSError as error:
            self.trouble = (
                f"cannot connect to rank {self.names[peer]} at {host}, port {port}: {error}"
            )
            if isinstance(error, TimeoutError) or error.errno in liveness.UNREACHABLE:
                reachability.silent = True
            return False
        reachability.last_sign = time.monotonic()
        try:
            session = authenticate(
                sock, self.secret, self._key(peer), server=False, seconds=PATIENCE
            )
            sock.settimeout(PATIENCE)
            session.send(_HELLO.pack(self.rank, channel))
            if session.receive(len(_WELCOME)) is None:
                raise ConnectionError("it closed the connection")
            self._add(peer, channel, session)
        except (OSError, HorovodInternalError) as error:
            if liveness.silence(sock)[0]:
                reachability.silent = True
            sock.close()
            self.trouble = (
                f"rank {self.names[peer]} at {host}, port {port} did not accept rank"
                f" {self.names[self.rank]}: {error}"
            )
            return False
        return True

    def _pause(self) -> None:
        if self._remaining() <= 0:
            raise RendezvousError(self._missing_text())
        self.check()
        time.sleep(0.05)

    def _all_entries(self) -> list[bytes | None]:
        """Return all ranks' entries from one request. Separate requests would number as many as
        pairs of ranks.
        """
        while True:
            found = self.store.gather(
                f"tcp/{self.scope}", self.size, max(0.0, min(1.0, self._remaining()))
            )
            if None not in found or self._remaining() <= 0:
                return found
            self.check()

    def _entry(self, peer: int) -> str:
        while True:
            try:
                return self.store.get(
                    self._key(peer), max(0.0, min(1.0, self._remaining()))
                ).decode()
            except RendezvousError:
                self._pause()

    def _wait_for_higher_ranks(self) -> None:
        wanted = {
            (peer, channel)
            for peer in range(self.rank + 1, self.size)
            for channel in self._channels(peer)
        }
        while True:
            with self.changed:
                if wanted <= self.sessions.keys():
                    return
                self.changed.wait(max(0.01, min(1.0, self._remaining())))
                if wanted <= self.sessions.keys():
                    return
            self.check()
            if full := self.newcomers.full(PATIENCE):
                raise RendezvousError(
                    f"rank {self.names[self.rank]} cannot accept other ranks: {full}"
                )
            if self._remaining() <= 0:
                raise RendezvousError(self._missing_text())

    def _missing_text(self) -> str:
        absent: list[int] = []
        silent: list[str] = []
        for peer in range(self.size):
            if {(peer, channel) for channel in self._channels(peer)} <= self.sessions.keys():
                continue
            entry = self.store.try_get(self._key(peer))
            if entry is None:
                absent.append(self.names[peer])
            else:
                silent.append(f"{self.names[peer]} ({_hosts(entry)})")
        if absent:
            return f"{ranks_named(absent)} did not arrive within {self.timeout:g} s"
        ranks = "rank" if len(silent) == 1 else "ranks"
        return (
            f"rank {self.names[self.rank]} and {ranks} {', '.join(silent)} did not connect within"
            f" {self.timeout:g} s ({self.trouble or self._refusal_hint()})"
        )

    def _refusal_hint(self) -> str:
        if not self.newcomers.refused:
            return "check firewalls"
        return f"{self.newcomers.refused} connections from other programs were refused"

    def _add(self, peer: int, channel: int, session: Session) -> None:
        session.peer, sock = f"rank {self.names[peer]}", session.sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A tree has many data connections, and the board's connections reveal a lost host: probe
        # the data connections less often.
        liveness.probe(sock, after=SELDOM if channel != BOARD and self.overlay.relays else None)
        sock.setblocking(False)
        with self.changed:
            if not self.open:
                sock.close()
                return
            # the same rank dialled again, without having received the welcome
            old = self.sessions.get((peer, channel))
            self.sessions[peer, channel] = session
            self.changed.notify_all()
        if old is not None:
            old.close()

    def _accept(self, sock: socket.socket) -> None:
        caller = interfaces.caller(sock)
        try:
            session = self.newcomers.admit(
                sock, self.secret, self._key(self.rank), seconds=PATIENCE
            )
            sock.settimeout(PATIENCE)
            peer, channel = _HELLO.unpack(session.receive(_HELLO.size) or b"")
            if not self.rank < peer < self.size or channel not in self._channels(peer):
                raise AuthenticationError(f"it presents itself as rank {peer} of {self.size}")
            session.send(_WELCOME)
            self._add(peer, channel, session)
        except (OSError, HorovodInternalError, struct.error) as error:
            sock.close()
            if self.open:
                self.newcomers.refuse(caller, error)


def _hosts(entry: bytes) -> str:
    """Return the addresses in the entry of a rank, as text."""
    return ", ".join(_listeners(entry))


def _listeners(entry: bytes) -> dict[str, str]:
    """Return the ports in the entry of a rank, by address."""
    listeners = entry.decode().partition(";")[0].split(",")
    split = (listener.rpartition("|") for listener in listeners)
    return {interfaces.parted(address)[0]: port for address, _, port in split}
