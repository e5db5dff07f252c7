"""Discovery of the ranks of one host, through abstract Unix sockets whose names derive from the
job's secret.

"Same host" means that the socket can be reached and can pass memory. The connections stay open
during the lifetime of the transport, and their end reveals the death of a peer.
"""

from __future__ import annotations

import array
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence

from farandole.base import threads
from farandole.base.log import logger
from farandole.errors import (
    AuthenticationError,
    HorovodInternalError,
    PeerLostError,
    RendezvousError,
)
from farandole.net.handshake import Newcomers, authenticate, derive

_RANK = struct.Struct("<I")
_WELCOME = b"+"  # the peer is registered: once all ranks have dialled, each knows all other ranks
_ANSWER_SECONDS = 5.0
# for a rank whose socket exists but hangs up (strangers may occupy all its slots)
_LOOK_SECONDS = 10.0
_PENDING = 64  # connections in a handshake at one time, in addition to the ranks' own


def address(secret: str, scope: str, rank: int) -> str:
    """Return the abstract socket name of ``rank``, which cannot be computed without the secret."""
    return "\0farandole-" + derive(secret, f"shm|{scope}|{rank}")


class ShmRendezvous:
    """Opens this rank's listener, connects to every lower rank and accepts every higher rank."""

    def __init__(
        self, rank: int, size: int, secret: str, scope: str, names: Sequence[int] = ()
    ) -> None:
        """Open the listener. ``names``: the numbers of the ranks in messages; default: 0, 1, 2,
        ...
        """
        self.rank = rank
        self.size = size
        self.secret = secret
        self.scope = scope
        self.names = names or range(size)
        self.peers: dict[int, socket.socket] = {}
        self.trouble: dict[int, str] = {}  # why a rank could not be reached
        self._changed = threading.Condition()
        self._newcomers = Newcomers(
            f"rank {self.names[rank]}'s socket for shared memory", logger, size + _PENDING
        )
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address(secret, scope, rank))
        self._listener.listen(size + _PENDING)
        self._open = True
        self._acceptor = threading.Thread(
            target=self._newcomers.accept_all,
            args=(self._listener, self._accept, "farandole-shm-greet"),
            name="farandole-shm-listener",
            daemon=True,
        )
        threads.start(self._acceptor)

    def found(self) -> dict[int, socket.socket]:
        """Return the sockets of the connected ranks, including all ranks welcomed by this rank."""
        with self._changed:
            return dict(self.peers)

    def dial_lower_ranks(self) -> None:
        """Connect to the lower ranks on this host. Call it once all ranks' listeners are open."""
        for peer in range(self.rank):
            with contextlib.suppress(RendezvousError):
                self._dial(peer, time.monotonic() + _LOOK_SECONDS, 0.0)

    def gather(self, timeout: float) -> dict[int, socket.socket]:
        """Return the sockets to all other ranks. Raises RendezvousError with the missing ranks
        after ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        try:
            for peer in range(self.rank):
                self._dial(peer, deadline, timeout)
            with self._changed:
                everybody = self._changed.wait_for(
                    lambda: len(self.peers) == self.size - 1, max(0.0, deadline - time.monotonic())
                )
            if not everybody:
                raise RendezvousError.late(self._missing(), timeout)
        except BaseException:
            for sock in self.peers.values():
                sock.close()
            raise
        finally:
            self.close()
        return dict(self.peers)

    def close(self) -> None:
        """Close the listener. Existing connections stay open."""
        self._open = False
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(timeout=5)
        self._listener.close()
        self._newcomers.close()

    def _missing(self) -> list[int]:
        return [
            self.names[rank]
            for rank in range(self.size)
            if rank != self.rank and rank not in self.peers
        ]

    def _dial(self, peer: int, deadline: float, timeout: float) -> None:
        pause = 0.0005
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._introduce(sock, peer)
                return
            except (OSError, HorovodInternalError) as error:
                sock.close()
                if not isinstance(error, ConnectionRefusedError):  # a rank on a different host
                    self.trouble[peer] = str(error)
                # the peer will not arrive
                absent = not timeout and isinstance(error, ConnectionRefusedError)
                if absent or time.monotonic() > deadline:
                    raise RendezvousError.late(self._missing(), timeout) from None
                time.sleep(pause)  # the peer has not started yet
                pause = min(pause * 1.5, 0.02)

    def _introduce(self, sock: socket.socket, peer: int) -> None:
        sock.settimeout(_ANSWER_SECONDS)
        sock.connect(address(self.secret, self.scope, peer))
        session = authenticate(sock, self.secret, f"shm|{self.scope}|{peer}", server=False)
        sock.settimeout(_ANSWER_SECONDS)
        session.send(_RANK.pack(self.rank))
        if session.receive(len(_WELCOME)) is None:
            raise AuthenticationError(f"rank {self.names[peer]} did not answer")
        sock.settimeout(None)
        self._admit(peer, sock)

    def _admit(
        self, peer: int, sock: socket.socket, welcome: Callable[[bytes], None] | None = None
    ) -> None:
        with self._changed:  # the socket must not be used before the answer is sent
            if welcome is not None:
                welcome(_WELCOME)
            self.peers[peer] = sock
            self._changed.notify_all()

    def _accept(self, sock: socket.socket) -> None:
        try:
            session = self._newcomers.admit(sock, self.secret, f"shm|{self.scope}|{self.rank}")
            sock.settimeout(_ANSWER_SECONDS)
            (peer,) = _RANK.unpack(session.receive(_RANK.size) or b"")
            sock.settimeout(None)
            if not self.rank < peer < self.size or peer in self.peers:
                raise AuthenticationError(
                    f"a peer presents itself as rank {peer}, which is not expected"
                )
            self._admit(peer, sock, session.send)
        except (OSError, HorovodInternalError, struct.error) as error:
            sock.close()
            if self._open:
                self._newcomers.refuse("", error)


def hand_over(sock: socket.socket, fd: int) -> None:
    """Send a file descriptor."""
    sock.sendmsg([b"m"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])


def receive(sock: socket.socket, peer: int, timeout: float) -> int:
    """Receive a file descriptor. ``peer``: the sender's number in messages. Raises PeerLostError if
    none comes within ``timeout`` seconds.
    """
    sock.settimeout(timeout)
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    try:
        _, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(4), flags)
    except OSError as error:
        raise PeerLostError(f"rank {peer} did not pass its shared memory: {error}", peer) from error
    finally:
        sock.settimeout(None)
    if not ancillary:
        raise PeerLostError(f"rank {peer} ended before it passed its shared memory", peer)
    fds = array.array("i")
    fds.frombytes(ancillary[0][2][:4])
    return fds[0]
