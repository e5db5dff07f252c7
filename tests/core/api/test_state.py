"""The state of an elastic job: notices of the driver, and changes that a program reports."""

from __future__ import annotations

import pytest

from farandole.core.api.state import ObjectState
from farandole.errors import HostsUpdatedInterrupt
from farandole.job import context
from farandole.job.elastic.changes import HostUpdateResult


def interrupts(state: ObjectState) -> list[bool]:
    """Return ``skip_sync`` of the interrupt that a check raises, or an empty list."""
    try:
        state.check_host_updates()
    except HostsUpdatedInterrupt as interrupt:
        return [interrupt.skip_sync]
    return []


def test_each_notice_of_the_driver_interrupts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks of the driver and of the program do not matter."""
    notice: list[tuple[int, int]] = []
    monkeypatch.setattr(context, "is_elastic", lambda: True)
    monkeypatch.setattr(context, "notice", lambda: notice[-1] if notice else None)
    state = ObjectState(lambda values: values, lambda: 0)
    assert interrupts(state) == []
    state.on_hosts_updated(1e12, HostUpdateResult.added)
    assert interrupts(state) == [False]
    notice.append((1, HostUpdateResult.removed))
    assert interrupts(state) == [True]
    assert interrupts(state) == []
    notice.append((2, HostUpdateResult.added))
    assert interrupts(state) == [False]
    state.on_hosts_updated(1e11, HostUpdateResult.added)  # no newer than the last one
    assert interrupts(state) == []


def test_all_ranks_follow_rank_0() -> None:
    state = ObjectState(lambda values: (True, 3.0, 5, HostUpdateResult.removed), lambda: 1)
    assert interrupts(state) == [True]
    assert (state._last_update, state._last_notice) == (3.0, 5)
