"""What the driver makes of what the agents on Spark say."""

from __future__ import annotations

import logging

import pytest

from farandole.handshake import new_secret
from farandole.launch.launchers.spark.desk import Desk
from farandole.launch.plan import plan
from farandole.store import StoreServer


def test_agents_that_tell_nonsense_are_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    store = StoreServer(new_secret())
    desk = Desk(store, plan(None, 2))
    try:
        desk.assign(desk.workers[0].slot, 0, {})
        with caplog.at_level(logging.WARNING, "farandole"):
            for key in (
                "outcome/9", "outcome/x", "agent/", "agent/x/hello", "agent/7/hello", "agent/0/hello", "agent/0/out",
                "agent/0/exit", "agent/0/failed",
            ):  # fmt: skip
                store.receive(key, b"")
        assert len(caplog.records) == 9
        assert desk.posts == {}
        assert desk.workers[0].code is None
    finally:
        desk.close()
        store.close()
