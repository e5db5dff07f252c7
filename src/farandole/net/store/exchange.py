"""Exchange of a bootstrap token, which others may read, for the job's secret."""

from __future__ import annotations

from farandole.errors import AuthenticationError
from farandole.net import interfaces
from farandole.net.handshake import new_secret
from farandole.net.store.client import StoreClient
from farandole.net.store.server import StoreServer


class SecretExchange:
    """A small store that gives the secret of ``store`` to processes whose arguments and environment
    are public.

    They receive a bootstrap ``token``, which requires TLS and opens only this exchange. Each of
    ``slots`` yields the secret once. Afterwards the exchange is closed, and the token is worthless,
    even to an eavesdropper who has captured the token and all packets.
    """

    def __init__(
        self,
        store: StoreServer,
        secret: str,
        slots: int,
        host: str = "127.0.0.1",
        advertise: str = "",
    ) -> None:
        self.token = new_secret(tls=True)
        self._server = StoreServer(self.token, host, advertise)
        self.address = self._server.address
        for slot in range(slots):
            self._server.set(
                f"slot/{slot}", f"{store.address.rpartition(':')[2]} {secret}".encode()
            )

    def close(self) -> None:
        self._server.close()


def redeem(exchange: StoreClient, slot: int) -> StoreClient:
    """Return a client of the store whose secret the ``exchange`` holds in ``slot``.

    Raises AuthenticationError if another process has taken the secret.
    """
    content = exchange.take(f"slot/{slot}", 0.0)
    exchange.close()
    if content is None:
        raise AuthenticationError(
            f"another process has used this job's one-time token number {slot}, and may know its"
            " secret: check who can read the arguments and environment of the cluster's"
            " processes. Start the job again; with ssh (-H) the token is not readable"
        )
    port, _, secret = content.decode().partition(" ")
    return StoreClient(
        interfaces.joined(interfaces.split(exchange.address)[0], port), secret, exchange.timeout
    )
