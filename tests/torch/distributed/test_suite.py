"""PyTorch's own tests of torch.distributed pass, except those listed in a file with the reasons."""

from __future__ import annotations

import tempfile

import pytest

from tests import pool
from tests.torch.distributed import suite

pytest.importorskip("torch")

# The quick ones; the others are ``python -m tests.torch.distributed.suite``: DDP, and what waits
# for deadlines.
QUICK = (
    "test_all_",
    "test_broadcast",
    "test_gather",
    "test_reduce",
    "test_scatter",
    "test_isend",
    "test_irecv",
    "test_send_recv",
    "test_batch_isend_irecv_gloo",
    "test_get_",
    "test_destroy",
)
# PyTorch wants 8 ranks for tests of subgroups.
EIGHT = ("test_all_", "test_barrier_group", "test_broadcast", "test_gather", "test_re", "test_sc")


@pytest.mark.slow
def test_pytorchs_own_tests_pass() -> None:
    left_out = suite.exceptions()
    known, _ = pool.spread(2, lambda rank: suite.names())  # both have imported them then
    assert sorted(left_out.keys() - set(known)) == [], "exceptions that are no tests"
    wanted = [name for name in known if name.startswith(QUICK) and name not in left_out]
    with tempfile.TemporaryDirectory() as folder:
        first, second = pool.spread(2, lambda rank: suite.outcomes(rank, folder, wanted))
    ended = {name: {first[name], second[name]} for name in wanted}
    passed = [name for name, both in ended.items() if both == {suite.PASSED}]
    skipped = [
        name for name, both in ended.items() if any(text.startswith("skipped") for text in both)
    ]
    assert {name: both for name, both in ended.items() if name not in (*passed, *skipped)} == {}
    assert len(passed) >= 50, passed
    # behind a gate for MPI
    assert len([name for name in passed if name.startswith("test_all_to_all")]) >= 6, passed


def on_eight_ranks(_: int) -> dict[str, set[str]]:
    """Return the result of each test of subgroups, on all ranks."""
    left_out = suite.exceptions()
    wanted = [
        name
        for name in suite.names(8)
        if "_group" in name and name.startswith(EIGHT) and name not in left_out
    ]
    with tempfile.TemporaryDirectory() as folder:
        every = suite.forked(8, lambda rank: suite.outcomes(rank, folder, wanted, ranks=8))
    return {name: {outcomes[name] for outcomes in every} for name in wanted}


@pytest.mark.slow
def test_pytorchs_own_tests_of_subgroups_pass() -> None:
    (ended,) = pool.spread(1, on_eight_ranks)
    assert {name: every for name, every in ended.items() if every != {suite.PASSED}} == {}
    assert len(ended) >= 23, sorted(ended)
