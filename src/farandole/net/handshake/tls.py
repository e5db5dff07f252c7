"""TLS 1.3 below the handshake and the frames, for jobs whose secret says so.

Both ends have the certificate that is made from the job's secret (``certificate``), present it, and
trust no other. A ``TlsStream`` has the methods of a socket by which bytes are moved; everything
else is done to the socket below it. It may have taken more from that than it was asked for. So
whoever waits with a selector reads first, until there is less than there is room for, or
BlockingIOError: then all that has come has been read.
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

# bytes that are encrypted before they are sent, or received before they are decrypted
PIECE = 1 << 17
RECORD = 1 << 14  # bytes of content in one record of TLS, at most
# an alert of TLS (protocol_version), as long as a nonce
REFUSAL = bytes([0x15, 3, 3, 0, 2, 2, 0x46]).ljust(32, b"\0")


class TlsStream:
    """One end of an encrypted connection over ``sock``. For one thread at a time."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server: bool) -> None:
        import ssl

        self._sock = sock
        self._ssl = ssl
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._end = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        self._dry = True  # all that has come is decrypted
        self._sealed = memoryview(b"")  # encrypted, and not taken by the kernel yet
        self._owed = 0  # bytes of the content of ``_sealed``
        self._broken = ""
        self.failures = ssl.SSLError

    def shake_hands(self, deadline: float, came: bytes = b"") -> bool:
        """Go on with the other end, which has sent ``came``. False if it has to send more.

        Raises ssl.SSLError, and what sockets raise.
        """
        self._incoming.write(came)
        try:
            self._end.do_handshake()
        except self._ssl.SSLWantReadError:
            return False
        finally:
            if self._outgoing.pending:  # the reason, too, if it fails
                self._sock.settimeout(max(0.001, deadline - time.monotonic()))
                self._sock.sendall(self._outgoing.read())
        self._dry = False
        return True

    def send(self, content: Content) -> int:
        """See ``sendmsg``."""
        return self.sendmsg((content,))

    def sendmsg(self, parts: Sequence[Content]) -> int:
        """The number of bytes that went. After BlockingIOError, the next call must bring the same
        bytes.
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
        """As with sockets, the number of bytes is the first of four; it is less than ``parts`` have
        room for only when nothing more has come.
        """
        while not (count := self._open(parts)):
            data = self._sock.recv(PIECE)
            if not data:
                break
            self._incoming.write(data)
            self._dry = False
        return count, (), 0, None

    def _seal(self, parts: Sequence[Content]) -> int:
        """Encrypt a piece; returns the number of its bytes."""
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
        """Decrypt what has come into ``parts``; returns the number of bytes."""
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
                        raise TamperedError("the end of TLS, which no end of ours says")
                    count += done
                    view = view[done:]
        except self._ssl.SSLWantReadError:
            self._dry = True
        except (self.failures, TamperedError) as error:
            self._broken = str(error)
            if not self._sealed:  # the reason, for the other end
                with contextlib.suppress(OSError):
                    self._sock.send(self._outgoing.read())
            if not count:  # what came before it is good
                raise TamperedError(self._broken) from error
        return count


_making = threading.Lock()


def contexts(key: bytes) -> dict[bool, ssl.SSLContext]:
    """The settings of TLS for a job with the secret ``key``, at a server and (False) at a
    client.
    """
    with _making:  # many may come at once, and one has to make them
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
        context.check_hostname = False  # it has no names: it is the one certificate of the job
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=certificate)
        # ssl takes files only, and this is on no disk
        with os.fdopen(os.memfd_create("farandole"), "w") as file:
            file.write(certificate + private)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        if server:
            context.num_tickets = 0  # nobody comes again with them
    return found


def encrypt(
    sock: socket.socket, key: bytes, purpose: str, *, server: bool, begin: float, deadline: float
) -> TlsStream:
    """TLS over ``sock``, by ``deadline``; at a server, the client's first byte must come by
    ``begin``.

    Raises AuthenticationError if the other end has not the certificate of the job with the secret
    ``key``; TimeoutError, OSError and EOFError.
    """
    stream = TlsStream(sock, contexts(key)[server], server)
    if not server:
        stream.shake_hands(deadline)
    came = arrived(sock, PIECE, begin if server else deadline)
    if came[0] not in RECORDS:
        if server:
            sock.sendall(REFUSAL)
        raise AuthenticationError(
            f"the other end of the {purpose} socket does not speak TLS, as this one does by --tls"
            " (FARANDOLE_TLS=1): it is no part of the job, or was started without"
        )
    try:
        while not stream.shake_hands(deadline, came):
            came = arrived(sock, PIECE, deadline)
    except stream.failures as error:
        raise AuthenticationError(
            f"the other end of the {purpose} socket does not have the certificate of this job,"
            f" which --tls (FARANDOLE_TLS=1) asks for: {error}"
        ) from error
    return stream


def arrived(sock: socket.socket, most: int, deadline: float) -> bytes:
    """The next bytes, by ``deadline``; raises TimeoutError, EOFError."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)
    data = sock.recv(most)
    if not data:
        raise EOFError("the other end hung up")
    return data
