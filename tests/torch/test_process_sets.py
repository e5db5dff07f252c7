"""Collectives and optimizers among some of the ranks."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.kits.messages import mentioning
from tests.run_job import job
from tests.torch.test_optimizer import OPTIMIZERS, data, loss_of, net, part, values

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="torch is not installed")

TAKES_A_SET = """
allreduce allreduce_async allreduce_ allreduce_async_ grouped_allreduce grouped_allreduce_async grouped_allreduce_
grouped_allreduce_async_ allgather allgather_async grouped_allgather grouped_allgather_async
broadcast broadcast_async broadcast_ broadcast_async_ alltoall alltoall_async reducescatter reducescatter_async
grouped_reducescatter grouped_reducescatter_async barrier
broadcast_object allgather_object broadcast_parameters broadcast_optimizer_state DistributedOptimizer
"""


@pytest.mark.parametrize("name", TAKES_A_SET.split())
def test_the_default_is_all_ranks(name: str) -> None:
    import farandole.torch as hvd

    parameters = inspect.signature(getattr(hvd, name)).parameters
    assert parameters["process_set"].default is hvd.global_process_set
    placed = [
        name
        for name, parameter in parameters.items()
        if parameter.kind is not parameter.KEYWORD_ONLY
    ]
    if "reducescatter" in name:  # Horovod's order, for those who pass by position
        assert placed[-3:] == ["process_set", "prescale_factor", "postscale_factor"]
    else:
        assert placed[-1] == "process_set"


def test_every_collective_stays_in_its_set() -> None:
    def fn(rank: int) -> list[Any]:
        import farandole.torch as hvd

        hvd.add_process_set([0])
        mine = hvd.add_process_set([1, 3])
        if rank not in (1, 3):
            return []
        one, some = torch.full((4, 2), float(rank)), {"process_set": mine}
        inplace, group = one.clone(), [one.clone(), one.clone()]
        seen = [
            hvd.allreduce(one, **some)[0, 0],
            hvd.synchronize(hvd.allreduce_async(one, name="a", op=hvd.Sum, **some))[0, 0],
            hvd.allreduce_(inplace, op=hvd.Max, **some)[0, 0],
            hvd.synchronize(hvd.allreduce_async_(one.clone(), op=hvd.Min, **some))[0, 0],
            hvd.grouped_allreduce(group, **some)[1][0, 0],
            hvd.synchronize(hvd.grouped_allreduce_async(group, **some))[0][0, 0],
            hvd.grouped_allreduce_(group, op=hvd.Sum, **some)[0][0, 0],
            hvd.synchronize(hvd.grouped_allreduce_async_(group, **some))[0][0, 0],
            hvd.allgather(one, **some)[:, 0].sum(),
            hvd.synchronize(hvd.allgather_async(one, **some))[0, 0],
            hvd.grouped_allgather([one], **some)[0][4, 0],
            hvd.broadcast(one, 3, **some)[0, 0],
            hvd.broadcast_(one.clone(), 1, **some)[0, 0],
            hvd.synchronize(hvd.broadcast_async(one, 1, **some))[0, 0],
            hvd.synchronize(hvd.broadcast_async_(one.clone(), 3, **some))[0, 0],
            hvd.alltoall(one, **some)[:, 0].sum(),
            hvd.alltoall(one, torch.tensor([1, 3]), **some)[1].sum(),
            hvd.reducescatter(one[:3], op=hvd.Sum, **some).sum(),
            hvd.grouped_reducescatter([one], op=hvd.Average, **some)[0].sum(),
        ]
        hvd.barrier(process_set=mine)
        assert hvd.broadcast_object(rank, 3, process_set=mine) == 3
        assert hvd.allgather_object(rank, process_set=mine) == [1, 3]
        return [float(each) for each in seen]

    index, wanted = 0, [2.0, 4, 3, 1, 2, 2, 4, 4, 16, 1, 3, 3, 1, 1, 3, 8]
    results = job(4, fn, dynamic_process_sets=True)
    assert results[0] == results[2] == []
    for index, rank in enumerate((1, 3)):
        rows = [2.0 + 0 * rank, 6.0][index]  # alltoall with splits: one row from each, or three
        assert results[rank] == [*wanted, rows, [16.0, 8.0][index], 8.0]


def test_errors_name_the_operation_and_the_rank() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        one, made = torch.ones(2), hvd.add_process_set([1])
        loose = hvd.ProcessSet([0])
        calls = {
            "Allreduce": lambda **some: hvd.allreduce(one, **some),
            "Allgather": lambda **some: hvd.allgather(one, **some),
            "Broadcast": lambda **some: hvd.broadcast(one, 0, **some),
            "Alltoall": lambda **some: hvd.alltoall(one, **some),
            "Reducescatter": lambda **some: hvd.reducescatter(one, **some),
            "Barrier": lambda **some: hvd.barrier(**some),
        }
        for name, call in calls.items():
            for kind in (hvd.HorovodInternalError, ValueError):
                text = mentioning(name, "Process set", "registered")
                with pytest.raises(kind, match=text):
                    call(process_set=loose)
                if rank == 0:
                    with pytest.raises(kind, match=mentioning(name, "Rank 0", "process set")):
                        call(process_set=made)
        if rank == 1:
            with pytest.raises(hvd.HorovodInternalError, match=mentioning("rank 0", "root rank")):
                hvd.broadcast(one, 0, process_set=made)
        with pytest.raises(hvd.HorovodInternalError, match=mentioning("rank 2", "root rank")):
            hvd.broadcast(one, 2)
        with pytest.raises(ValueError, match=mentioning("Process set", "registered")):
            hvd.DistributedOptimizer(torch.optim.SGD(net().parameters(), lr=0.1), process_set=loose)
        assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: [0, 1], 1: [1]}
        assert hvd.remove_process_set(made)
        assert hvd.allreduce(one, op=hvd.Sum).tolist() == [2, 2], "the engine works afterwards"

    job(2, fn, dynamic_process_sets=True)


def test_unnamed_calls_are_counted_per_set() -> None:
    def fn(rank: int) -> list[float]:
        import farandole.torch as hvd

        some = hvd.add_process_set([0, 1])
        seen = []
        for turn in range(3):  # by turns; rank 2 is only in every other call
            if rank < 2:
                seen.append(hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=some).item())
            seen.append(hvd.allreduce(torch.ones(1) * turn, op=hvd.Sum).item())
        return seen

    assert job(3, fn, dynamic_process_sets=True) == [
        [2, 0, 2, 3, 2, 6],
        [2, 0, 2, 3, 2, 6],
        [0, 3, 6],
    ]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_two_sets_train_two_models_concurrently(make: Any) -> None:
    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        sets = [hvd.add_process_set([0, 2]), hvd.add_process_set([1, 3])]
        mine = sets[rank % 2]
        torch.manual_seed(rank)
        model = torch.nn.Linear(4, 2)
        hvd.broadcast_parameters(model.state_dict(), root_rank=mine.ranks[0], process_set=mine)
        optimizer = make(model.parameters())
        hvd.broadcast_optimizer_state(optimizer, root_rank=mine.ranks[0], process_set=mine)
        optimizer = hvd.DistributedOptimizer(optimizer, process_set=mine)
        bystander = hvd.DistributedOptimizer(
            make(net().parameters()), process_set=sets[1 - rank % 2]
        )
        bystander.step()  # not our set: it waits for no rank
        for step in range(3):
            optimizer.zero_grad()
            x = torch.full((2, 4), float(rank + step))
            model(x).pow(2).mean().backward()
            optimizer.step()
        return values(model)

    results = job(4, fn, dynamic_process_sets=True)
    for one, other in ((0, 2), (1, 3)):
        assert all(torch.equal(a, b) for a, b in zip(results[one], results[other], strict=True))
    assert not torch.equal(results[0][0], results[1][0])


def test_a_set_of_some_trains_like_one_rank_with_the_whole_batch() -> None:
    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        some = hvd.add_process_set([1, 2])
        model = net()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), process_set=some
        )
        for step in range(3):
            batch = data(step)
            batch = part(some.rank(), 2, *batch) if some.included() else batch
            optimizer.zero_grad()
            loss_of(model, *batch).backward()
            optimizer.step()
        return values(model)

    alone, *others = job(3, fn, dynamic_process_sets=True)
    for result in others:
        for one, other in zip(result, alone, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
