"""Errors of a group of torch.distributed: their types, and the ranks that they name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.core.collectives import over
from farandole.core.groups.calls import Call
from farandole.core.groups.group import CollectiveGroup
from farandole.core.groups.inbox import Transfer
from farandole.core.transports import shm, tcp
from farandole.errors import MismatchError, PeerLostError, StalledError
from farandole.net.handshake import new_secret
from tests import pool
from tests.core.transports.double_store import ThreadStore
from tests.kits.messages import mentions
from tests.kits.transport import fresh_scope


def test_a_lost_member_is_named_by_its_rank_in_the_job() -> None:
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


def late_call(group: CollectiveGroup) -> Call:
    """Rank 2 calls after the others have given up."""
    data = np.zeros(1, np.uint8)
    if group.rank == 2:
        group.messages.wait(group.messages.receive(0, 1, data, 0, 60.0))
    call = group.run("barrier", lambda: group.collectives.barrier((9,), str), 1.0, wait=True)
    if group.rank == 0:
        group.messages.wait(group.messages.send(2, 1, data, 0, 60.0))
    return call


def late_message(group: CollectiveGroup) -> Call:
    """Rank 0 gives up."""
    seconds, source = (0.3, 2) if group.rank == 0 else (60.0, 0)
    return group.messages.receive(source, 5, np.zeros(1, np.uint8), 0, seconds)


def longer_message(group: CollectiveGroup) -> Call:
    """Rank 1 sends more bytes than rank 0 expects."""
    if group.rank == 1:
        group.messages.send(0, 5, np.zeros(9, np.uint8), 0, 60.0)
    source = 1 if group.rank == 0 else 0
    return group.messages.receive(source, 5, np.zeros(1, np.uint8), 0, 60.0)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (late_call, StalledError),
        (late_message, StalledError),
        (longer_message, MismatchError),
    ],
)
@pytest.mark.parametrize("wire", ["shm", "tcp"])
def test_one_event_raises_one_type_on_all_ranks(wire: str, event: Any, kind: type) -> None:
    secret, scope, store = new_secret(), fresh_scope(), ThreadStore()

    def join(rank: int) -> Any:
        if wire == "shm":
            return shm.connect(rank, 3, secret, scope)
        return over(tcp.connect(rank, 3, secret, scope, store, 60.0))

    def body(transport: Any) -> BaseException | None:
        group = CollectiveGroup(transport, [3, 5, 7], "three", 60.0)
        try:
            call = event(group)
            if isinstance(call, Transfer):
                group.messages.wait(call)
            return call.error
        finally:
            group.close()

    errors = pool.threads(3, join, body)
    assert [type(error) for error in errors] == [kind] * 3, errors
    if event is late_call:
        assert {error.rank for error in errors} == {7}
        *punctual, late = map(str, errors)
        assert all(mentions(text, "barrier", "1 s", "rank 7") for text in punctual), punctual
        assert late in punctual  # both may reach their timeouts, each naming itself
