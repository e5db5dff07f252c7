"""Collectives that wait for a member that only the driver knows to be lost."""

from __future__ import annotations

import numpy as np
import pytest

from farandole.base.contracts import Waiting
from farandole.base.types import Buffer, DType, Kind, Request
from farandole.core.collectives import over
from farandole.core.engine import Engine, Entry
from farandole.core.transports.inproc import World
from farandole.errors import PeerLostError
from farandole.job.config import Placement, Settings
from farandole.job.context import lost_members
from farandole.job.context.lost_members import LostMemberCheck
from farandole.job.report import keys
from tests.core.transports.double_store import ThreadStore
from tests.kits.messages import mentioning


def test_a_wait_ends_when_the_membership_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 is silent, like a process on a suspended host: its connections stay open."""
    monkeypatch.setattr(lost_members, "PATIENCE", 0.1)
    store, world = ThreadStore(), World(2)
    placement = Placement(rank=0, size=2, generation=7)
    check = LostMemberCheck(store, placement)
    engine = Engine(over(world.link(0)), Settings(), [check])
    array = np.ones(3, np.float32)
    request = Request("x", Kind.ALLREDUCE, DType.FLOAT32, (3,))
    handle = engine.submit([Entry(request, Buffer(array, array, DType.FLOAT32))])
    assert check.waiting([Waiting("x", 9.0, (1,))]) == ""
    store.set(keys.broken(7), b"")
    with pytest.raises(PeerLostError, match=mentioning("membership 7")):
        handle.wait()
    engine.shutdown()
