"""TLS 1.3 below the handshake and the frames, for jobs whose secret requires it.

Both ends present the certificate derived from the job's secret (``certificate``) and trust no
other. A ``TlsStream`` has a socket's methods for moving bytes; other operations use the socket
itself. The stream may have read more from the socket than was requested. A caller that waits with a
selector must therefore read until its buffer is not filled, or until BlockingIOError: then all
received data has been read.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from farandole.errors import AuthenticationError, SettingsError
from farandole.net.handshake.certificate import make
from farandole.net.handshake.session import RECORDS, Content, TamperedError

if TYPE_CHECKING:
    import ssl

# Bytes to encrypt before sending, or to receive before decrypting.
PIECE = 1 << 17
RECORD = 1 << 14  # maximum bytes of content in one TLS record
# A TLS alert (protocol_version), padded to the length of a nonce.
REFUSAL = bytes([0x15, 3, 3, 0, 2, 2, 0x46]).ljust(32, b"\0")


class TlsStream:
    """One end of an encrypted connection over ``sock``. Not thread-safe."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server: bool) -> None:
        import ssl

        self._sock = sock
        self._ssl = ssl
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._end = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        self._dry = True  # all received data is decrypted
        self._sealed = memoryview(b"")  # encrypted data that the kernel has not accepted yet
        self._owed = 0  # plaintext bytes in ``_sealed``
        self._broken = ""
        self.failures = ssl.SSLError

    def shake_hands(self, deadline: float, incoming: bytes = b"") -> bool:
        """Continue the handshake with ``incoming`` bytes. Return False if more are needed.

        Raises ssl.SSLError and socket errors.
        """
        self._incoming.write(incoming)
        try:
            self._end.do_handshake()
        except self._ssl.SSLWantReadError:
            return False
        finally:
            if self._outgoing.pending:  # includes the reason of a failure
                self._sock.settimeout(max(0.001, deadline - time.monotonic()))
                self._sock.sendall(self._outgoing.read())
        self._dry = False
        return True

    def send(self, content: Content) -> int:
        """See ``sendmsg``."""
        return self.sendmsg((content,))

    def sendmsg(self, parts: Sequence[Content]) -> int:
        """Return the number of bytes sent. After BlockingIOError, the next call must pass the
        same bytes.
        """
        if not self._owed:
            self._owed = self._seal(parts)
        while self._sealed:
            self._sealed = self._sealed[self._sock.send(self._sealed) :]
        count, self._owed = self._owed, 0
        return count

    def sendall(self, content: Content) -> None:
        with memoryview(content) as view:
            while view:
                count = self._seal((view,))
                self._sock.sendall(self._sealed)
                self._sealed, view = memoryview(b""), view[count:]

    def recv(self, count: int) -> bytes:
        room = memoryview(bytearray(min(count, RECORD)))
        pieces = [bytes(room[: self.recv_into(room)])]
        left = count - len(pieces[0])
        while left and (got := self._open((room[:left],))):
            pieces.append(bytes(room[:got]))
            left -= got
        return b"".join(pieces)

    def recv_into(self, memory: bytearray | memoryview) -> int:
        return self.recvmsg_into((memory,))[0]

    def recvmsg_into(self, parts: Sequence[bytearray | memoryview]) -> tuple[int, Any, Any, Any]:
        """Receive into ``parts`` and return a socket's four values, first the number of bytes.

        The number is less than the capacity of ``parts`` only if no more data has arrived.
        """
        while not (count := self._open(parts)):
            data = self._sock.recv(PIECE)
            if not data:
                break
            self._incoming.write(data)
            self._dry = False
        return count, (), 0, None

    def _seal(self, parts: Sequence[Content]) -> int:
        """Encrypt a piece and return its number of bytes."""
        count = 0
        for part in parts:
            view = memoryview(part)[: PIECE - count]
            while view:
                done = self._end.write(view)
                count += done
                view = view[done:]
        self._sealed = memoryview(self._outgoing.read())
        return count

    def _open(self, parts: Sequence[bytearray | memoryview]) -> int:
        """Decrypt received data into ``parts`` and return the number of bytes."""
        count = 0
        if self._dry:
            return count
        if self._broken:
            raise TamperedError(self._broken)
        try:
            for part in parts:
                view = memoryview(part)
                while view:
                    done: Any = self._end.read(
                        len(view),
                        view,  # type: ignore[arg-type, unused-ignore]
                    )
                    if not done:
                        raise TamperedError("unexpected end of the TLS stream")
                    count += done
                    view = view[done:]
        except self._ssl.SSLWantReadError:
            self._dry = True
        except (self.failures, TamperedError) as error:
            self._broken = str(error)
            if not self._sealed:  # send the reason to the peer
                with contextlib.suppress(OSError):
                    self._sock.send(self._outgoing.read())
            if not count:  # earlier data is valid
                raise TamperedError(self._broken) from error
        return count


_making = threading.Lock()


def contexts(key: bytes) -> dict[bool, ssl.SSLContext]:
    """Return the TLS settings of a job with the secret ``key``, by whether the end is a server."""
    with _making:  # many threads may call this, but only one should create the settings
        return _contexts(key)


@functools.lru_cache(maxsize=8)
def _contexts(key: bytes) -> dict[bool, ssl.SSLContext]:
    try:
        import ssl
    except ImportError as error:
        raise SettingsError(
            f"--tls (FARANDOLE_TLS=1): this Python has no ssl module ({error})"
        ) from error
    certificate, private = make(key)
    found = {}
    for server, protocol in ((True, ssl.PROTOCOL_TLS_SERVER), (False, ssl.PROTOCOL_TLS_CLIENT)):
        context = found[server] = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the job's only certificate names no host
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=certificate)
        # ssl accepts only files, and the key must not be on a disk.
        with os.fdopen(os.memfd_create("farandole"), "w") as file:
            file.write(certificate + private)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        if server:
            context.num_tickets = 0  # connections are never resumed
    return found


def encrypt(
    sock: socket.socket, key: bytes, purpose: str, *, server: bool, begin: float, deadline: float
) -> TlsStream:
    """Return a TLS stream over ``sock``, established by ``deadline``. On a server, the client's
    first byte must arrive by ``begin``.

    Raises AuthenticationError if the peer lacks the certificate for the secret ``key``; also
    TimeoutError, OSError and EOFError.
    """
    stream = TlsStream(sock, contexts(key)[server], server)
    if not server:
        stream.shake_hands(deadline)
    incoming = arrived(sock, PIECE, begin if server else deadline)
    if incoming[0] not in RECORDS:
        if server:
            sock.sendall(REFUSAL)
        raise AuthenticationError(
            f"the peer on the {purpose} socket does not use TLS, but this process does (--tls,"
            " FARANDOLE_TLS=1): it does not belong to the job, or was started without"
        )
    try:
        while not stream.shake_hands(deadline, incoming):
            incoming = arrived(sock, PIECE, deadline)
    except stream.failures as error:
        raise AuthenticationError(
            f"the peer on the {purpose} socket does not have the certificate of this job, which"
            f" --tls (FARANDOLE_TLS=1) requires: {error}"
        ) from error
    return stream


def arrived(sock: socket.socket, most: int, deadline: float) -> bytes:
    """Return the next bytes, received by ``deadline``. Raises TimeoutError and EOFError."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)
    data = sock.recv(most)
    if not data:
        raise EOFError("the peer closed the connection")
    return data
