"""Process sets: members, ids, errors, and independence of each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.base.types import Buffer, DType, Kind, Request
from farandole.core.engine import Entry
from farandole.errors import MismatchError, NotInitializedError, RequestError, ShutDownError
from farandole.job import context
from tests.kits.messages import mentioning, mentions
from tests.run_job import job


def total(process_set: Any, value: float, name: str = "x") -> float:
    array = np.full(3, value, np.float32)
    request = Request(name, Kind.ALLREDUCE, DType.FLOAT32, (3,))
    context.engine(process_set).run([Entry(request, Buffer(array, array, DType.FLOAT32))])
    return float(array[0])


@pytest.mark.parametrize("wire", ["shm", "tcp"])
def test_sets_reduce_among_themselves(wire: str) -> None:
    def fn(rank: int) -> list[Any]:
        even, odd = (
            context.add_process_set([2, 0]),
            context.add_process_set(context.ProcessSet([1, 3])),
        )
        mine = even if rank % 2 == 0 else odd
        seen = [
            even.process_set_id,
            odd.process_set_id,
            even.ranks,
            mine.size(),
            mine.rank(),
            odd.included(),
        ]
        if rank == 0:  # the even ones go ahead while the odd ones do nothing
            seen.append(total(even, 1.0))
        elif rank == 2:
            seen.append(total(even, 10.0))
        whole = total(context.global_process_set, 1.0)
        if rank % 2:
            seen.append(total(odd, float(rank)))
        return [*seen, whole, context.process_sets()]

    results = job(4, fn, wire=wire, dynamic_process_sets=True)
    sets = {0: [0, 1, 2, 3], 1: [0, 2], 2: [1, 3]}
    assert results == [
        [1, 2, [0, 2], 2, rank // 2, rank % 2 == 1, 4.0 if rank % 2 else 11.0, 4.0, sets]
        for rank in range(4)
    ]


@pytest.mark.parametrize("wire", ["shm", "tcp"])
def test_sets_and_messages_of_the_library_itself(wire: str) -> None:
    """They need no permission, and exist once."""

    def fn(rank: int) -> list[Any]:
        mine = context.process_set_among([2, 0])
        assert (context.process_set_among([0, 2]), mine.process_set_id) == (mine, 1)
        assert context.process_set_among(range(3)) is context.global_process_set
        messages = context.messages_among([2, 0])
        assert context.messages_among([0, 2]) is messages
        if messages is not None and rank == 0:
            messages.abort("of an error here")
        renewed = context.messages_among([0, 2])
        assert renewed is context.messages_among([0, 2])
        assert (renewed is None) == (rank == 1)
        assert renewed is None or renewed is not messages
        messages = renewed
        if messages is None:
            return [mine.included(), None]
        data = np.arange(3_000_000, dtype=np.uint8) if rank == 2 else np.zeros(3_000_000, np.uint8)
        if rank == 2:  # it leaves before all of it has gone
            messages.send(0, 7, data, 0, 60.0)
            return [True, 3_000_000]
        came = messages.receive(1, 7, data, 0, 60.0)
        assert messages.wait(came)
        return [True, int((data == np.arange(3_000_000, dtype=np.uint8)).sum())]

    assert job(3, fn, wire=wire) == [[True, 3_000_000], [False, None], [True, 3_000_000]]


@pytest.mark.parametrize("wire", ["shm", "tcp"])
def test_errors_of_a_set_call_ranks_by_their_numbers_in_the_job(wire: str) -> None:
    """Ranks with different requests, and a rank that leaves while another waits for it."""

    def fn(rank: int) -> list[Any]:
        mine = context.add_process_set([1, 2])
        if rank == 0:
            return []
        array = np.zeros(rank, np.float32)
        entry = Entry(
            Request("y", Kind.ALLREDUCE, DType.FLOAT32, (rank,)),
            Buffer(array, array, DType.FLOAT32),
        )
        with pytest.raises(MismatchError) as unlike:
            context.engine(mine).run([entry])
        if rank == 2:
            context.shutdown()
            return [str(unlike.value)]
        with pytest.raises(ShutDownError) as left:
            total(mine, 1.0)
        return [str(unlike.value), left.value.rank, str(left.value)]

    nobody, one, two = job(3, fn, wire=wire, dynamic_process_sets=True)
    assert nobody == []
    assert all("rank 2 differs from rank 1" in message for message in (one[0], *two))
    assert one[1] == 2
    assert mentions(one[2], "Rank 2", "rank 1")


def test_ids_are_used_again() -> None:
    def fn(rank: int) -> list[Any]:
        one, two = context.add_process_set([0]), context.add_process_set([1])
        assert context.remove_process_set(one)
        assert one.process_set_id is None
        assert not context.remove_process_set(one)
        assert not context.remove_process_set(context.global_process_set)
        asked = context.process_set_among([1])
        assert asked is two
        three = context.add_process_set([1, 2])
        return [two.process_set_id, three.process_set_id, total(three, 1.0) if rank else 2.0]

    assert job(3, fn, dynamic_process_sets=True) == [[2, 1, 2.0]] * 3


def test_invalid_process_sets_are_refused() -> None:
    def fn(rank: int) -> None:
        made = context.add_process_set([0, 1])
        with pytest.raises(ValueError, match=mentioning("duplicate", "process set")):
            context.add_process_set([1, 0])
        for bad in ([], [0, 0], [0, 3], [-1, 0]):
            with pytest.raises(ValueError, match=mentioning("0", "2", "process set")):
                context.add_process_set(bad)
        with pytest.raises(ValueError, match=mentioning("Process set", "registered")):
            context.ProcessSet([0]).size()
        with pytest.raises(RequestError, match=mentioning("Process set", "registered")):
            context.engine(context.ProcessSet([0]))
        if rank == 2:
            with pytest.raises(ValueError, match=mentioning("Process", "process set")):
                made.rank()
            with pytest.raises(RequestError, match=mentioning("Rank 2", "member")):
                context.engine(made)

    job(3, fn, dynamic_process_sets=True)


def test_ranks_with_different_sets_are_reported() -> None:
    def fn(rank: int) -> float:
        with pytest.raises(ValueError, match=mentioning("process sets", "order")):
            context.add_process_set([0] if rank else [1])
        return total(context.global_process_set, 1.0)

    assert job(2, fn, dynamic_process_sets=True) == [2.0, 2.0]


def test_sets_are_fixed_unless_asked_for() -> None:
    def fn(rank: int) -> None:
        with pytest.raises(ValueError, match=mentioning("HOROVOD_DYNAMIC_PROCESS_SETS=1")):
            context.add_process_set([0])

    job(2, fn)


def test_without_init_and_with_nonsense() -> None:
    with pytest.raises(NotInitializedError):
        context.add_process_set([0])
    with pytest.raises(NotInitializedError):
        context.global_process_set.size()
    with pytest.raises(ValueError, match=mentioning("list", "mpi4py")):
        context.ProcessSet(3)
    assert (
        str(context.ProcessSet([1, 0]))
        == "ProcessSet(process_set_id=None, ranks=[0, 1], mpi_comm=None)"
    )


def test_a_process_set_does_not_outlive_its_session() -> None:
    def fn(rank: int) -> None:
        mine = context.add_process_set([0])
        assert mine.process_set_id == 1
        context.shutdown()
        assert mine.process_set_id is None

    job(2, fn, dynamic_process_sets=True)


def test_static_sets_and_reinit_on_one_rank() -> None:
    for _ in range(3):
        mine = context.ProcessSet([0])
        with pytest.raises(ValueError, match=mentioning("duplicate", "process set")):
            context.init(process_sets=[mine])  # the same ranks as the set of all
        # or the next init() would do nothing, and register nothing
        assert not context.is_initialized()
        context.init(process_sets="dynamic")
        assert (context.rank(), context.size(), context.process_sets()) == (0, 1, {0: [0]})
        context.shutdown()
        assert not context.is_initialized()


@pytest.mark.parametrize("given", [[[0]], "static"])
def test_invalid_process_sets_are_reported_before_joining(given: object) -> None:
    with pytest.raises(ValueError, match=mentioning("ProcessSet")):
        context.init(process_sets=given)
    assert not context.is_initialized()


class Comm:
    """The used part of mpi4py's communicators."""

    def __init__(self, members: list[int], rank: int = 0) -> None:
        self.members, self.rank = members, rank

    def Get_group(self) -> None: ...

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return len(self.members)

    def allgather(self, mine: int) -> list[int]:
        assert mine in self.members
        return self.members


def test_each_rank_gives_its_own_communicator() -> None:
    """Made before ``init``, as in Horovod's example: its members are known by their ranks in the
    job.
    """

    def fn(rank: int) -> list[Any]:
        parts = [2, 0] if rank % 2 == 0 else [1, 3]
        early = context.add_process_set(Comm(parts))
        seen = [
            early.process_set_id,
            early.ranks,
            total(early, float(rank)),
            context.process_sets(),
        ]
        assert context.remove_process_set(early)
        assert early.process_set_id is None
        late = context.ProcessSet([0, 3])
        context.add_process_set(late)
        half = context.add_process_set(Comm([0, 1] if rank < 2 else [3, 2]))
        return [*seen, half.ranks, total(half, float(rank)), context.process_sets()]

    sets = {0: [0, 1, 2, 3], 1: [0, 2], 2: [1, 3]}
    then = {0: [0, 1, 2, 3], 1: [0, 3], 2: [0, 1], 3: [2, 3]}
    even, odd = [1, [0, 2], 2.0, sets], [2, [1, 3], 4.0, sets]
    low, high = [[0, 1], 1.0, then], [[2, 3], 5.0, then]
    assert job(4, fn, dynamic_process_sets=True) == [even + low, odd + low, even + high, odd + high]


def test_a_communicator_has_no_ranks_of_the_job_before_init() -> None:
    early = context.ProcessSet(Comm([0, 1]))
    assert early.ranks is None


@pytest.mark.parametrize("comm", [[1], "x", [0, 1], Comm([0, 1]), Comm([0], rank=1)])
def test_a_communicator_that_is_not_all_ranks(comm: Any) -> None:
    with pytest.raises(ValueError, match="comm"):
        context.init(comm=comm)
    assert not context.is_initialized()
