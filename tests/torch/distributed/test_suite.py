"""PyTorch's own tests of torch.distributed pass, but for those of a file that says why they
do not.
"""

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
