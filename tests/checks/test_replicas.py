"""Findings from the digests of the ranks: differing ranks, values, cause and cure; none if nothing
is wrong.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.base.digests import SAMPLE, digest, gradient_digest, stride
from farandole.checks.replicas import (
    Cures,
    History,
    ReplicaReport,
    Schedule,
    differences_of,
    same_gradients,
    same_gradients_of_some,
)
from tests.kits.messages import mentions

CURES = Cures("CALL BROADCAST", "DEAL DATA")
NAMES = ["first", "second"]


def report_of(*reports: ReplicaReport | None, history: History | None = None, step: int = 1) -> str:
    found = differences_of(reports, NAMES, history or History(), step, CURES)
    return " & ".join(each.text for each in found)


def test_the_schedule_becomes_rare_but_never_ends() -> None:
    schedule = Schedule()
    looked = []
    for step in range(1, 6001):
        soon = schedule.soon()
        due = schedule.due()
        assert soon == due
        if due:
            looked.append(step)
    assert looked == [*(1 << power for power in range(11)), 2048, 3072, 4096, 5120]


def test_never_broadcast() -> None:
    text = report_of(ReplicaReport((1, 2)), ReplicaReport((3, 4)), ReplicaReport((1, 2)))
    assert mentions(text, "different weights")
    assert "rank 1 differs from ranks 0, 2 in 2 of 2 parameters, first in first" in text
    assert mentions(text, "first step", "CALL BROADCAST")
    assert mentions(
        report_of(ReplicaReport((1, 2)), ReplicaReport((3, 4)), ReplicaReport((5, 2))), "3 ranks"
    )


def test_loaded_between_broadcast_and_training() -> None:
    text = report_of(ReplicaReport((1, 2), broadcast=True), ReplicaReport((1, 3), broadcast=True))
    assert "rank 1 differs from rank 0 in 1 of 2 parameters, first in second" in text
    assert mentions(text, "rank 0", "CALL", "BROADCAST")


def test_diverged_replicas_are_reported() -> None:
    text = report_of(
        ReplicaReport((1, 2), steps=4),
        ReplicaReport((1, 3), steps=4),
        history=History(equal_at=4),
        step=8,
    )
    assert mentions(text, "step 4", "step 8")
    assert "learning rate" in text  # the settings are unknown
    assert "some ranks skipped" not in text
    text = report_of(
        ReplicaReport((1, 2), steps=4),
        ReplicaReport((1, 3), steps=3),
        history=History(equal_at=4),
        step=8,
    )
    assert mentions(text, "optimizer.step()", "3", "rank 1", "4", "rank 0")


def test_a_state_that_some_ranks_have_alone() -> None:
    cures = CURES._replace(state="CALL STATE")
    reports = [ReplicaReport((1, 2), {"lr": "0.1"}, 4), ReplicaReport((1, 3), {"lr": "0.1"}, 4)]
    (found,) = differences_of(reports, NAMES, History(equal_at=1), 2, cures)
    assert mentions(found.text, "momentum")
    assert mentions(found.text, "CALL BROADCAST", "CALL STATE")


def test_parameters_that_came_later() -> None:
    """The other parameters were and are equal; a checkpoint loaded by all ranks is not the cause."""
    history = History()
    assert report_of(ReplicaReport((1,)), ReplicaReport((1,)), history=history, step=2) == ""
    text = report_of(ReplicaReport((2, 3)), ReplicaReport((2, 4)), history=history, step=4)
    assert mentions(text, "1", "step 2", "parameters")
    assert mentions(text, "next step", "CALL BROADCAST")
    history.reported.clear()
    assert mentions(
        report_of(ReplicaReport((2, 3)), ReplicaReport((5, 4)), history=history, step=8), "step 2"
    )


def test_different_settings_are_named_before_their_effects() -> None:
    history = History(equal_at=1)
    reports = [
        ReplicaReport((1, 2), {"lr": "0.1"}),
        ReplicaReport((1, 3), {"lr": "0.2"}),
        ReplicaReport((1, 2), {"lr": "0.1"}),
    ]
    text = report_of(*reports, history=history, step=2)
    assert "lr is 0.1 on ranks 0, 2, 0.2 on rank 1" in text
    assert "hold different weights" not in text
    assert report_of(*reports, history=history, step=4) == ""  # once


def test_a_kind_is_reported_once() -> None:
    history = History()
    assert report_of(ReplicaReport((1, 2)), ReplicaReport((3, 4)), history=history)
    assert report_of(ReplicaReport((5, 2)), ReplicaReport((3, 4)), history=history, step=2) == ""


def test_frameworks_whose_first_step_comes_before_the_broadcast() -> None:
    history = History(patient=True)
    assert report_of(ReplicaReport((1, 2)), ReplicaReport((3, 4)), history=history) == ""
    text = report_of(ReplicaReport((5, 2)), ReplicaReport((3, 4)), history=history, step=2)
    assert mentions(text, "different weights", "rank 1", "rank 0", "broadcast")


def test_same_data_is_believed_the_second_time() -> None:
    history = History()
    assert same_gradients(history, True, 4, CURES) == []
    (found,) = same_gradients(history, True, 4, CURES)
    assert mentions(found.text, "4", "gradients")
    assert found.text.count("DEAL DATA") == 1
    assert same_gradients(history, True, 4, CURES) == []
    history = History()
    same_gradients(history, True, 4, CURES)
    (found,) = same_gradients(history, True, 4, CURES._replace(reduced="THE TAPE"))
    assert mentions(found.text, "THE TAPE", "optimizer")
    history = History()
    for same in (True, False, True, None, False, None):  # a batch of zeros to warm up, say
        assert same_gradients(history, same, 4, CURES) == []


def test_some_ranks_read_the_same_data() -> None:
    history = History()
    assert same_gradients_of_some(history, [7, 8, 7, 8], CURES) == []
    (found,) = same_gradients_of_some(history, [5, 6, 5, 6], CURES)
    assert mentions(found.text, "rank 2", "rank 0", "1", "4")
    assert mentions(found.text, "rank()", "size()", "local_rank()", "DEAL DATA")
    # by chance; unknown; once
    for looks in ([[7, 7, 8], [7, 8, 8]], [[0, 0, 1], [0, 0, 1]], [[1, 2, 3], [4, 4, 4]]):
        history = History()
        assert [same_gradients_of_some(history, digests, CURES) for digests in looks] == [[], []]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5),
    st.integers(0, 4),
)
def test_equal_ranks_are_not_reported(weights: list[tuple[int, int]], joined: int) -> None:
    """For any weights of a step; ranks that have joined, or have no report, do not count."""
    history = History()
    for step, each in enumerate(weights, 1):
        reports: list[ReplicaReport | None] = [
            ReplicaReport(each, {"lr": "0.1"}, 1) for _ in range(5)
        ]
        reports[joined] = None if step % 2 else ReplicaReport()
        assert report_of(*reports, history=history, step=step) == ""


@given(st.integers(1, 9), st.integers(1, 9))
def test_values_local_to_a_rank_may_differ(one: int, other: int) -> None:
    assert (
        report_of(ReplicaReport((0, one)), ReplicaReport((other, one)), ReplicaReport((0, one)))
        == ""
    )


@given(
    st.integers(0, 200_000),
    st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.bool_]),
)
def test_a_digest_samples_elements_of_the_whole_array(count: int, dtype: type) -> None:
    array = np.zeros(count, dtype)
    seen = digest(array)
    assert 0 < seen <= 1 << 62
    assert seen == digest(array.copy())
    looked_at = len(range(0, count, stride(count)))
    assert min(count, SAMPLE // 3) <= looked_at <= SAMPLE
    if count:
        array[(looked_at - 1) * stride(count)] = 1
        assert digest(array) != seen


def test_a_digest_knows_type_shape_and_bits() -> None:
    nan = np.full(3, np.nan, np.float32)
    assert digest(nan) == digest(nan.copy())
    assert (
        len(
            {
                digest(np.zeros(shape, dtype))
                for shape in [(6,), (2, 3), (3, 2)]
                for dtype in ["f4", "i4"]
            }
        )
        == 6
    )
    assert digest(np.arange(12).reshape(3, 4).T) == digest(
        np.ascontiguousarray(np.arange(12).reshape(3, 4).T)
    )
    assert digest(np.float32(1.0).reshape(())) != digest(np.float32(2.0).reshape(()))


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_gradients_that_tell_nothing_about_data(value: float) -> None:
    """A loss that is NaN on all ranks gives equal gradients."""
    gradient = np.ones(3, np.float32)
    assert gradient_digest(gradient)
    gradient[:] = value
    assert gradient_digest(gradient) == 0
