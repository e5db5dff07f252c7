"""A group of torch.distributed: what its errors say."""

from __future__ import annotations

from typing import Any

from farandole.core.groups.group import CollectiveGroup
from farandole.core.transports import shm
from farandole.errors import PeerLostError
from farandole.net.handshake import new_secret
from tests import pool


def test_who_is_lost_is_named_by_its_number_in_the_job() -> None:
    secret = new_secret()

    def body(transport: Any) -> tuple[int, str]:
        group = CollectiveGroup(transport, [3, 5], "pairs", 60.0)
        try:
            if transport.rank == 1:
                return -1, ""
            error = group.run("barrier", transport.barrier, 60.0, wait=True).error
            assert isinstance(error, PeerLostError)
            return error.rank, str(error)
        finally:
            group.close()

    (rank, text), _ = pool.threads(2, lambda rank: shm.connect(rank, 2, secret, "pairs"), body)
    assert rank == 5
    assert text.endswith("(rank 5 (1 of the group))")
