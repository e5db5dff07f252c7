"""The state of an elastic job: notices of the driver, and changes that a program reports."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from farandole.base.log import logger
from farandole.core.api.state import ObjectState
from farandole.errors import HostsUpdatedInterrupt
from farandole.job import context
from farandole.job.elastic.changes import HostUpdateResult
from tests.kits.messages import mentioning, mentions
from tests.kits.replicas import check_state
from tests.run_job import job


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
    monkeypatch.setattr(context, "agree_on_changes", lambda *found: found)
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
    state = ObjectState(lambda values: (True, 3.0, 5, HostUpdateResult.removed, False), lambda: 1)
    assert interrupts(state) == [True]
    assert (state._last_update, state._last_notice) == (3.0, 5)


def test_ranks_agree_on_the_changes_of_each() -> None:
    def check(rank: int) -> tuple[bool, float, int, int, bool]:
        return context.agree_on_changes(rank == 1, 2.5 * rank, 3 - rank, 1 + rank, rank == 0)

    assert job(2, check) == [(True, 2.5, 3, HostUpdateResult.mixed, True)] * 2


def test_a_commit_returns_when_all_ranks_have_saved(tmp_path: Path) -> None:
    saved, returned = tmp_path / "saved", tmp_path / "returned"

    def check(rank: int) -> bool:
        class Watched(ObjectState):
            def save(self) -> None:
                if rank == 1:
                    give_up = time.monotonic() + 0.5
                    while not returned.exists() and time.monotonic() < give_up:
                        time.sleep(0.01)
                    saved.touch()
                super().save()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(context, "is_elastic", lambda: True)
            patch.setattr(context, "notice", lambda: None)
            Watched(step=1).commit()
        returned.touch()
        return saved.exists()

    assert job(2, check) == [True, True]


def test_replicas_exclude_values_local_to_a_rank() -> None:
    state = ObjectState(
        weights=np.ones(3), counts=np.ones(3, int), own=np.ones(2), step=0, empty=np.ones(0)
    )
    state.register_per_rank("own")
    check_state(state, ["weights"])
    assert list(state.replicas()) == ["weights"]


@pytest.mark.parametrize(
    ("there", "here"),
    [((3,), (4,)), ((3,), (3, 1)), ((2, 3), (3, 2)), ((4, 3), (2, 2)), ((), (1,)), ((0,), (2,))],
)
def test_an_array_of_another_shape_is_refused(
    there: tuple[int, ...], here: tuple[int, ...]
) -> None:
    """The commit is of another model."""
    packed = ObjectState(w=np.ones(there)).to_bytes({"w": np.ones(there)})
    state = ObjectState(w=np.zeros(here))
    with pytest.raises(ValueError, match=mentioning("w", str(there), str(here))):
        state.from_bytes(packed)
    assert not state.w.any()


@pytest.mark.parametrize(
    ("there", "here", "warned"),
    [((3,), (3,), False), ((9,), (0,), False), ((3, 40), (3, 1), True), ((9,), (1,), True)],
)
def test_an_array_may_have_grown(
    there: tuple[int, ...], here: tuple[int, ...], warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The array is a history, such as the losses of all epochs."""
    shown: list[str] = []
    monkeypatch.setattr(logger, "warning", lambda text, *args: shown.append(text % args))
    packed = ObjectState(w=0).to_bytes({"w": np.ones(there)})
    state = ObjectState(w=np.zeros(here))
    state.from_bytes(packed)
    assert state.w.shape == there
    assert mentions(shown, "w", str(there), str(here)) if warned else not shown


def test_own_arrays_of_ranks_may_have_any_shape() -> None:
    packed = ObjectState(w=0).to_bytes({"w": np.ones(3)})
    state = ObjectState(w=np.zeros((4, 2)))
    state.register_per_rank("w")
    state.from_bytes(packed)
    assert state.w.shape == (3,)
