"""The exception tree: types that programs catch, and texts that they match."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import signal
from collections.abc import Sequence

import pytest

from farandole import errors
from farandole.compat.exceptions import HorovodVersionMismatchError
from farandole.job.launch.watch import Interrupted

TREE = {
    "HorovodInternalError": RuntimeError,
    "PeerLostError": errors.HorovodInternalError,
    "ServerLostError": errors.PeerLostError,
    "StalledError": errors.PeerLostError,
    "WireError": errors.HorovodInternalError,
    "MismatchError": errors.HorovodInternalError,
    "JoinedError": errors.HorovodInternalError,
    "ShutDownError": errors.HorovodInternalError,
    "RequestError": errors.HorovodInternalError,
    "RefusedError": errors.RequestError,
    "HostsUpdatedInterrupt": RuntimeError,
    "RanksDifferError": RuntimeError,
    "RepeatedFailureError": RuntimeError,
    "JobFailedError": RuntimeError,
    "RunError": RuntimeError,
    "RunFailedError": errors.RunError,
    "NotInitializedError": ValueError,
    "DataError": ValueError,
    "CommitDirError": errors.DataError,
    "SettingsError": ValueError,
    "AuthenticationError": ConnectionError,
    "UnfinishedHandshakeError": errors.AuthenticationError,
    "RendezvousError": ConnectionError,
}
DEFINED = {
    name: each
    for name, each in vars(errors).items()
    if inspect.isclass(each) and issubclass(each, Exception) and each.__module__ == errors.__name__
}


@pytest.mark.parametrize("name", DEFINED)
def test_exceptions_are_where_programs_expect_them(name: str) -> None:
    assert DEFINED[name].__bases__[0] is TREE[name]


def test_a_bad_request_is_a_bad_value_too() -> None:
    assert issubclass(errors.RequestError, ValueError)


def test_the_docstring_draws_the_tree() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in errors.__doc__.splitlines()[1:]:
        found = re.match(r"([\s│├└─]*)(\w+)", line)
        if found:
            depth = len(found[1]) // 4
            path = [*path[:depth], found[2]]
            drawn[found[2]] = path[depth - 1] if depth else ""
    assert {name: parent for name, parent in drawn.items() if parent} == {
        name: parent.__name__ for name, parent in TREE.items()
    }


def test_texts_that_programs_match_on() -> None:
    assert (
        str(errors.NotInitializedError()) == "Farandole has not been initialized; use hvd.init()."
    )
    assert str(errors.ShutDownError()).startswith(
        "Farandole has been shut down. This was caused by an exception on"
    )
    assert errors.DUPLICATE_NAME.startswith(
        "Requested to allreduce, allgather, or broadcast a tensor with the same name"
    )


def test_details_travel_with_the_exception() -> None:
    assert str(errors.ShutDownError("Rank 1 left.")).endswith(
        "the first shutdown message. Rank 1 left."
    )
    assert errors.PeerLostError("gone", rank=3).rank == 3
    assert errors.HostsUpdatedInterrupt(skip_sync=True).skip_sync is True
    failed = errors.JobFailedError("x", rank=2, host="h", exit_code=137, remote_traceback="t")
    assert (failed.rank, failed.host, failed.exit_code, failed.remote_traceback) == (
        2,
        "h",
        137,
        "t",
    )


def test_a_late_rank_is_named_with_the_cure() -> None:
    text = str(errors.RendezvousError.late([1, 3], 30.0))
    assert text.startswith("ranks 1, 3 did not reach init() within 30 s.")
    assert "--start-timeout" in text


MADE: list[BaseException] = [
    errors.PeerLostError("gone", 3, left=True),
    errors.ServerLostError("gone"),
    errors.StalledError("late", 2),
    errors.WireError("changed", 1),
    errors.ShutDownError("Rank 1 left.", 1),
    errors.RequestError("wrong"),
    errors.HostsUpdatedInterrupt(skip_sync=True),
    errors.JobFailedError("x", rank=2, host="h", exit_code=137, remote_traceback="t"),
    errors.NotInitializedError(),
    errors.NotInitializedError(forked=True),
    errors.RendezvousError("late", [1, 3]),
    Interrupted(signal.SIGTERM),
    HorovodVersionMismatchError("torch", "2", "1"),
]


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_they_travel_between_processes(error: BaseException) -> None:
    """A process pool whose function raises an unpicklable exception waits forever."""
    for read in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(read), str(read), vars(read)) == (type(error), str(error), vars(error))


def test_counts_have_the_right_plural() -> None:
    assert [errors.counted(number, "rank") for number in (0, 1, 2)] == [
        "0 ranks",
        "1 rank",
        "2 ranks",
    ]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([0, 2], "ranks 0, 2"),
        ([5, 1, 0], "ranks 0, 1, 5"),
        ([0, 1, 2, 5], "ranks 0-2, 5"),
        (range(1000), "ranks 0-999"),
        (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14, ... (20 of them)"),
    ],
)
def test_ranks_by_name(ranks: Sequence[int], text: str) -> None:
    assert errors.ranks_named(ranks) == text
