"""Asynchronous work, messages, and calls that do not match."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from tests.kits.messages import mentions
from tests.torch.distributed.tools import error_of, members

pytest.importorskip("torch")


def work_and_messages(rank: int) -> None:
    """On 2 ranks."""
    import torch
    from torch import distributed as dist

    other = 1 - rank
    tensors = [torch.full((1000,), float(rank + number)) for number in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    heard: list[float] = []
    futures = [
        work.get_future().then(lambda future: heard.append(float(future.value()[0][0])))
        for work in works[:5]
    ]
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
    torch.futures.wait_all(futures)
    assert [float(tensor[0]) for tensor in tensors] == [2.0 * number + 1 for number in range(50)]
    assert sorted(heard) == [1.0, 3.0, 5.0, 7.0, 9.0]

    # In flight past the collectives, and both send first; one message is larger than any ring.
    for length in (0, 3, 5_000_003):
        given, taken = torch.full((length,), float(rank)), torch.full((length,), -1.0)
        sent, received = dist.isend(given, other), dist.irecv(taken, other)
        dist.barrier()
        received.wait()
        sent.wait()
        assert (taken == other).all()
    # Tags: received in a different order; messages of one tag in order.
    if rank == 0:
        for tag, value in ((7, 1.0), (8, 2.0), (7, 3.0)):
            dist.send(torch.full((300_000,), value), 1, tag=tag)
        assert dist.recv(torch.zeros(1), tag=5) == 1
    else:
        found = torch.zeros(300_000)
        assert [dist.recv(found, 0, tag=tag) or float(found[0]) for tag in (8, 7, 7)] == [
            2.0,
            1.0,
            3.0,
        ]
        work = dist.isend(torch.ones(1), 0, tag=5)
        work.wait()
        gaps = torch.zeros(6)[::2]
    ops = [
        dist.P2POp(dist.isend, torch.ones(3) * rank, other),
        dist.P2POp(dist.irecv, torch.zeros(3), other),
    ]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    assert ops[1].tensor.tolist() == [other] * 3
    if rank == 0:
        dist.send(torch.ones(3), 1)
    else:
        dist.recv(gaps, 0)
        assert gaps.tolist() == [1.0, 1.0, 1.0]
    # Who hears of a message may wait for others.
    first, answer, last = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    if rank == 0:
        work = dist.irecv(first, 1, tag=11)
        heard_of = work.get_future().then(
            lambda _: (dist.send(first + 1, 1, tag=12), dist.recv(last, 1, tag=13))
        )
        work.wait()
        heard_of.wait()
        assert (first[0].item(), last[0].item()) == (5.0, 12.0)
    else:
        dist.send(torch.full((2,), 5.0), 0, tag=11)
        dist.recv(answer, 0, tag=12)
        dist.send(answer * 2, 0, tag=13)
    assert "not another member" in error_of(lambda: dist.group.WORLD.send([torch.ones(1)], 5, 0))


def torchs_overloads(rank: int) -> None:
    """On 2 ranks: a group's methods, with torch's argument names."""
    import torch
    from torch import distributed as dist

    world, most, parts = dist.group.WORLD, dist.ReduceOp.MAX, [torch.zeros(2) for _ in range(2)]
    soon = timedelta(seconds=30)

    def mine() -> Any:
        return torch.full((2,), float(rank + 1))

    tensor = mine()
    world.broadcast(tensor, root=1).wait()
    assert tensor.tolist() == [2.0] * 2
    world.broadcast(tensor=tensor.fill_(rank), root=0, timeout=soon).wait()
    assert tensor.tolist() == [0.0] * 2
    world.allreduce(tensor=(tensor := mine()), op=most, timeout=soon).wait()
    assert tensor.tolist() == [2.0] * 2
    world.reduce(tensor=(tensor := mine()), root=1, op=most).wait()
    assert tensor.tolist() == [2.0 if rank else 1.0] * 2
    world.allgather(output_tensors=parts, input_tensor=mine()).wait()
    assert torch.stack(parts).tolist() == [[1.0] * 2, [2.0] * 2]
    world.reduce_scatter(output=tensor, input=parts, op=most).wait()
    assert torch.equal(tensor, parts[rank])
    world.gather(output_tensors=parts if rank else [], input_tensor=mine() * 3, root=1).wait()
    assert parts[0].tolist() == [3.0 if rank else 1.0] * 2
    world.scatter(output_tensor=tensor, input_tensors=parts if rank else [], root=1).wait()
    assert torch.equal(tensor, mine() * 3)
    world.alltoall_base(
        output=tensor, input=mine(), output_split_sizes=[], input_split_sizes=[], timeout=soon
    ).wait()
    assert tensor.tolist() == [1.0, 2.0]
    world.barrier(soon).wait()


def what_does_not_fit(rank: int) -> None:
    """On 2 ranks: an error on both, and the group continues."""
    import torch
    from torch import distributed as dist

    pairs = {
        "shape": (
            lambda: dist.all_reduce(torch.ones(2, 3)),
            lambda: dist.all_reduce(torch.ones(3, 2)),
        ),
        "large": (
            lambda: dist.all_reduce(torch.ones(100)),
            lambda: dist.all_reduce(torch.ones(1_000_000)),
        ),
        "dtype": (
            lambda: dist.all_reduce(torch.ones(2)),
            lambda: dist.all_reduce(torch.ones(2).int()),
        ),
        "op": (
            lambda: dist.all_reduce(torch.ones(2)),
            lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.MAX),
        ),
        "call": (lambda: dist.all_reduce(torch.ones(2)), lambda: dist.broadcast(torch.ones(2), 0)),
        "root": (
            lambda: dist.broadcast(torch.ones(2), 1),
            lambda: dist.broadcast(torch.ones(2), 0),
        ),
        "splits": (
            lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [1, 2], [1, 2]),
            lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [1, 2], [1, 2]),
        ),
        "parts": (
            lambda: dist.all_to_all([torch.ones(2), torch.ones(2)], [torch.ones(2)] * 2),
            lambda: dist.all_to_all([torch.ones(2), torch.ones(3)], [torch.ones(2)] * 2),
        ),
        "barrier": (dist.barrier, lambda: dist.all_reduce(torch.ones(2))),
    }
    for what, calls in pairs.items():
        text = error_of(calls[rank])
        assert mentions(text, "calls", "same"), (what, text)
        assert "rank 0: call" in text, (what, text)
        assert "rank 1: call" in text, (what, text)
        assert what != "splits" or mentions(text, "[3]", "float32", "[1, 2]")
        assert what != "parts" or all(
            f"float32 [2], [2] into float32 [2], [{rows}]" in text for rows in (2, 3)
        ), text
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2.0, 2.0]
    assert "integers" in error_of(lambda: dist.all_reduce(torch.ones(1), dist.ReduceOp.BAND))
    assert "boolean" in error_of(
        lambda: dist.all_reduce(torch.ones(1, dtype=torch.bool), dist.ReduceOp.AVG)
    )
    assert "dtypes" in error_of(
        lambda: dist.all_gather([torch.ones(1), torch.ones(1).int()], torch.ones(1))
    )
    rows, sparse = torch.ones(2), torch.eye(2).to_sparse()
    assert "non-negative" in error_of(lambda: dist.all_to_all_single(rows, rows, [4, -2], [4, -2]))
    assert "tensor.to_dense()" in error_of(lambda: dist.broadcast(sparse, 0))
    assert "tensor.to_dense()" in error_of(lambda: dist.reduce(sparse, 0))
    assert mentions(
        error_of(lambda: dist.all_reduce(sparse, dist.ReduceOp.MAX)), "ReduceOp.SUM", "MAX"
    )
    assert "sparse_csr. Pass tensor.to_sparse_coo()" in error_of(
        lambda: dist.all_reduce(sparse.to_sparse_csr())
    )
    wide = torch.ones(1).expand(4)
    for call in (
        lambda: dist.all_gather([wide, wide], torch.arange(4.0)),
        lambda: dist.reduce_scatter_tensor(wide, torch.arange(8.0)),
        lambda: dist.all_to_all_single(wide, torch.arange(4.0)),
    ):
        assert mentions(error_of(call), "tensor.clone()", "[4]")
    given = wide if rank == 0 else torch.zeros(4)
    dist.broadcast(given, 0)
    assert given.tolist() == [1.0] * 4


def of_another_size(rank: int) -> str:
    """On 2 ranks: a message of the wrong size ends both."""
    import torch
    from torch import distributed as dist

    if rank == 0:
        return error_of(lambda: dist.send(torch.ones(3_000_000), 1))
    return error_of(lambda: dist.recv(torch.ones(2_000_000), 0))


@pytest.mark.parametrize("wire", ["auto", "tcp"])
def test_work_messages_and_misfits(wire: str) -> None:
    members(2, work_and_messages, wire=wire)
    members(2, what_does_not_fit, wire=wire)
    members(2, torchs_overloads, wire=wire)
    for text in members(2, of_another_size, wire=wire):
        assert mentions(text, "12000000", "8000000")


def random_program(seed: int, rank: int) -> None:
    """200 calls on overlapping groups of 4 ranks, against a model: every rank knows what all ranks
    have.
    """
    import torch
    from torch import distributed as dist

    subsets = [[0, 1, 2, 3], [0, 1], [1, 2], [2, 3], [0, 2, 3], [1, 3]]
    groups = [dist.new_group(ranks) for ranks in subsets]
    chance = random.Random(seed)
    state = {member: torch.arange(6, dtype=torch.int64) + member for member in range(4)}
    mine, pending = state[rank].clone(), []
    for _ in range(200):
        which, kind, later = (
            chance.randrange(len(subsets)),
            chance.randrange(6),
            chance.random() < 0.4,
        )
        ranks, group = subsets[which], groups[which]
        root, peer = chance.sample(ranks, 2)
        everyone = torch.stack([state[member] for member in ranks])
        work: Any = None
        if kind == 0:
            work = rank in ranks and dist.all_reduce(
                mine, dist.ReduceOp.MAX, group=group, async_op=True
            )
            results = dict.fromkeys(ranks, everyone.max(dim=0).values)
        elif kind == 1:
            work = rank in ranks and dist.broadcast(mine, root, group=group, async_op=True)
            results = dict.fromkeys(ranks, state[root])
        elif kind == 2:
            work = rank in ranks and dist.all_reduce(mine, group=group, async_op=True)
            results = dict.fromkeys(ranks, everyone.sum(dim=0))
        elif kind == 3:
            if rank == root:
                work = dist.isend(mine, peer, group=group)
            elif rank == peer:
                work = dist.irecv(mine, root, group=group)
            results = {peer: state[root]}
        elif kind == 4:
            parts = list(mine.split(1)) if rank in ranks else []
            if rank in ranks:
                rows = [torch.zeros(1, dtype=torch.int64) for _ in ranks]
                dist.all_to_all(rows, [part.clone() for part in parts[: len(ranks)]], group=group)
                mine[: len(ranks)] = torch.cat(rows)
            results = {}
            for place, member in enumerate(ranks):
                results[member] = torch.cat([everyone[:, place], state[member][len(ranks) :]])
        else:
            if rank in ranks:
                dist.barrier(group=group)
            results = {}
        state = {
            member: results.get(member, values).clone() % 1000 for member, values in state.items()
        }
        if work and later and kind != 3:
            pending.append(work)
        if work:
            work.wait()
        mine %= 1000
        assert torch.equal(mine, state[rank]), (seed, kind, ranks)
    for work in pending:
        assert work.is_completed()


@pytest.mark.slow
def test_random_programs_on_overlapping_groups() -> None:
    members(4, lambda rank: [random_program(seed, rank) for seed in range(2)] and None)
