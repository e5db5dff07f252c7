"""Asynchronous work, messages, groups, deadlines, and what does not fit."""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import farandole
from tests import pool
from tests.kits.messages import mentioning, mentions
from tests.kits.worlds import until
from tests.pool import Died
from tests.torch.distributed.tools import members

pytest.importorskip("torch")


def error_of(call: Any) -> str:
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


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
    # Tags: received in another order than sent; of one tag in order.
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
    assert "no other member" in error_of(lambda: dist.group.WORLD.send([torch.ones(1)], 5, 0))


def torchs_overloads(rank: int) -> None:
    """On 2 ranks: a group's own methods, by the names that torch gives their arguments."""
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
    """On 2 ranks: an error on both, and the group goes on."""
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
        assert mentions(text, "call"), (what, text)
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
    assert "none below 0" in error_of(lambda: dist.all_to_all_single(rows, rows, [4, -2], [4, -2]))
    assert "give tensor.to_dense()" in error_of(lambda: dist.broadcast(sparse, 0))
    assert "give tensor.to_dense()" in error_of(lambda: dist.reduce(sparse, 0))
    assert mentions(
        error_of(lambda: dist.all_reduce(sparse, dist.ReduceOp.MAX)), "ReduceOp.SUM", "MAX"
    )
    assert "one is in sparse_csr: give tensor.to_sparse_coo()" in error_of(
        lambda: dist.all_reduce(sparse.to_sparse_csr())
    )
    wide = torch.ones(1).expand(4)
    for call in (
        lambda: dist.all_reduce(wide),
        lambda: dist.all_gather([wide, wide], torch.ones(4)),
        lambda: dist.reduce_scatter_tensor(wide, torch.ones(8)),
        lambda: dist.all_to_all_single(wide, torch.ones(4)),
    ):
        assert "expand() made" in error_of(call), "before anything is sent, so the group goes on"
    given = wide if rank == 0 else torch.zeros(4)
    dist.broadcast(given, 0)
    assert given.tolist() == [1.0] * 4


def of_another_size(rank: int) -> str:
    """On 2 ranks: a message that does not fit ends both."""
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
        assert "12000000 bytes, where 8000000" in text


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


def in_turn() -> None:
    """On 3 ranks: what a call reads is what those before it gave, also with gaps or a factor."""
    import torch
    from torch import distributed as dist

    for whole in (torch.ones(200_000), torch.ones(8)):
        gaps = whole[::2]
        half = dist._make_nccl_premul_sum(0.5)
        works = [
            dist.all_reduce(gaps, op, async_op=True)
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.SUM, half)
        ]
        parts = [torch.zeros_like(gaps) for _ in range(3)]
        works.append(dist.all_gather(parts, gaps, async_op=True))
        works.append(dist.all_reduce(whole, half, async_op=True))
        for work in works:
            work.wait()
        assert [part[0].item() for part in parts] == [13.5] * 3
        assert whole[:2].tolist() == [20.25, 1.5]
        assert whole.untyped_storage().resizable()  # as FSDP does with its parameters


def what_a_fork_leaves() -> None:
    """A child cannot call the group of its parent, in whose memory it would; nor does it end it,
    whatever it does.
    """
    child = os.fork()
    if child == 0:
        try:
            of_a_fork()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def of_a_fork() -> None:
    import torch
    from torch import distributed as dist

    from farandole.torch.distributed import process_group

    world: Any = dist.group.WORLD
    tensor, other = torch.ones(1), (world.rank() + 1) % world.size()
    for call in (
        dist.all_reduce,
        lambda each: dist.send(each, other),
        lambda each: dist.recv(each, other),
    ):
        assert mentions(error_of(lambda call=call: call(tensor)), "fork", "member")
    world.abort()
    process_group._leave()
    dist.destroy_process_group()


def met(rank: int, group: Any) -> None:
    """A call after a barrier that rank 0 has left already, while others may be in it still."""
    import torch
    from torch import distributed as dist

    if rank:
        dist.barrier(group=group)
    dist.all_reduce(torch.ones(1), group=group)


def interrupted(rank: int, group: Any) -> None:
    """On 3 ranks: Ctrl-C in a collective ends the group, on all; before it, nothing."""
    from torch import distributed as dist

    def before() -> None:
        raise KeyboardInterrupt

    def within() -> None:
        group.state.collectives.calls += 1  # as if others had seen it
        raise KeyboardInterrupt

    if rank == 0:
        assert isinstance(
            group.state.run("a call", before, 5.0, wait=True).error, KeyboardInterrupt
        )
        dist.barrier(group=group)
        assert isinstance(
            group.state.run("a call", within, 5.0, wait=True).error, KeyboardInterrupt
        )

    text = error_of(lambda: met(rank, group))
    assert (
        "has failed before: KeyboardInterrupt"
        if rank == 0
        else "rank 0, in a call: KeyboardInterrupt"
    ) in text


def life_of_groups(rank: int) -> None:
    """On 3 ranks: begin, end, begin again; parts of parts."""
    import torch
    from torch import distributed as dist

    from farandole.torch.distributed import FarandoleProcessGroup, monitored_barrier

    world = dist.group.WORLD
    assert dist.get_backend() == "farandole"
    # see autoload; torch has some of its own
    assert "FARANDOLE" not in dist.Backend._plugins.keys()  # noqa: SIM118
    assert world.name() == "farandole"
    assert (world.rank(), world.size()) == (rank, 3)
    for _ in range(3):
        pair = dist.new_group([0, 2])
        if rank != 1:
            tensor = torch.ones(2) * rank
            dist.all_reduce(tensor, group=pair)
            assert tensor.tolist() == [2.0, 2.0]
            dist.destroy_process_group(pair)
    pair_store = dist.PrefixStore("pair", world.get_group_store())
    for _ in range(2 if rank != 1 else 0):  # one store for one group after the other
        again = FarandoleProcessGroup(pair_store, rank // 2, 2, 20.0, [0, 2], "pair")
        again.barrier().wait()
        again.shutdown()
    part = world.split_group([1, 2])
    assert (part is None) == (rank == 0)
    if part is not None:
        tensor = torch.ones(1)
        part.allreduce([tensor]).wait()
        assert tensor.item() == 2.0
        assert part.name() == "farandole"
        part.shutdown()
        assert "was destroyed" in error_of(lambda: part.allreduce([tensor]))
    alone = dist.new_subgroups(1)[0]
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=alone)
    gathered = torch.zeros(3)
    dist.all_gather_into_tensor(gathered, tensor, group=alone)
    assert gathered.tolist() == [1.0] * 3
    in_turn()
    what_a_fork_leaves()
    objects: list[Any] = [None] * 3
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": number} for number in range(3)]
    monitored_barrier()
    text = (
        error_of(lambda: monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=True))
        if rank == 0
        else ""
    )
    assert rank or "Ranks 1, 2 failed to pass monitoredBarrier in 1000 ms" in text
    dist.barrier()  # it has broken nothing
    group = dist.new_group()
    if rank == 0:
        dist.barrier(group=group)
        group.abort()
    text = error_of(lambda: met(rank, group))
    assert "rank 0 called abort()" in text
    interrupted(rank, dist.new_group())
    dist.barrier()
    if rank == 1:
        assert "cpu:farandole,cuda:nccl" in error_of(
            lambda: world._get_backend(torch.device("cuda"))
        )


def test_groups_begin_end_and_begin_again() -> None:
    for _ in range(2):
        members(3, life_of_groups)


def left_barrier(rank: int, left: Path) -> str:
    """On 3 ranks: a handler of a signal raises on rank 0, which waits for rank 2; then ``left``
    exists.
    """
    from torch import distributed as dist

    from farandole.torch.distributed import monitored_barrier

    def preempt(number: int, frame: Any) -> None:
        while frame is not None and frame.f_code is not monitored_barrier.__code__:
            frame = frame.f_back
        if frame is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise ValueError("preempted")

    before = signal.signal(signal.SIGALRM, preempt) if rank == 0 else None
    try:
        if rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
        if rank == 2:
            until(left.exists, "the end of rank 0's wait")
        # longer than a test may take
        text = error_of(lambda: monitored_barrier(timeout=timedelta(seconds=600)))
    finally:
        if rank == 0:
            signal.signal(signal.SIGALRM, before)
            left.touch()
    dist.barrier()
    monitored_barrier()
    return text


def test_a_monitored_barrier_reports_that_rank_0_has_left(tmp_path: Path) -> None:
    """Whether it waits already or comes later. It waited twice the timeout."""
    texts = members(3, lambda rank: left_barrier(rank, tmp_path / "left"))
    assert texts[0] == "preempted"
    assert [mentions(text, "ValueError", "barrier") for text in texts] == [
        False,
        True,
        True,
    ]


def barrier_of_a_dead_rank(rank: int) -> str:
    """On 3 ranks."""
    from farandole.torch.distributed import monitored_barrier

    monitored_barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return error_of(lambda: monitored_barrier(timeout=timedelta(seconds=20)))


def test_a_monitored_barrier_says_that_a_rank_was_lost() -> None:
    """At once. It said that its time was over."""
    texts = members(3, barrier_of_a_dead_rank, deaths=True)
    assert "Rank 2 failed to pass monitoredBarrier: " in texts[0]
    assert ["timed out" in text or "20000 ms" in text for text in texts[:2]] == [False, False]
    assert texts[2] == Died(-signal.SIGKILL)


def memory_of_groups(rank: int) -> None:
    """On 2 ranks: what a group held goes when it ends, not when Python looks for garbage."""
    import torch
    from torch import distributed as dist

    gc.disable()
    try:
        for _ in range(2):
            group = dist.new_group()
            tensor = torch.ones(1000)
            dist.all_reduce(tensor, group=group)
            dist.all_reduce(tensor, group=group, async_op=True).wait()
            if rank == 0:
                dist.send(tensor, 1, group=group)
            else:
                dist.recv(tensor, 0, group=group)
            held = [weakref.ref(each) for each in (group.state, group.state._transport)]
            dist.destroy_process_group(group)
            del group
            assert [each() for each in held] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("wire", ["auto", "tcp"])
def test_a_group_that_was_destroyed_holds_nothing(wire: str) -> None:
    members(2, memory_of_groups, wire=wire)


def default_groups() -> float:
    """Rank 0 ends each later than the others, which are at the next one then."""
    import time

    import torch
    from torch import distributed as dist

    import farandole.torch.distributed  # noqa: F401

    total = 0.0
    for _ in range(5):
        dist.init_process_group("farandole")
        rank, tensor = dist.get_rank(), torch.ones(1)
        dist.all_reduce(tensor)
        total += tensor.item()
        time.sleep(0.0 if rank else 0.05)
        dist.destroy_process_group()
        time.sleep(0.0 if rank else 0.1)
    return total


def test_one_default_group_after_the_other() -> None:
    """No rank is cut off by the end of the store that rank 0 serves."""
    assert farandole.run(default_groups, np=2) == [10.0, 10.0]


def too_late(rank: int, what: str) -> str:
    """On 3 ranks: rank 2 comes when the others have given up, stops, or is killed."""
    import torch
    from torch import distributed as dist

    aside = dist.new_group()
    pids: list[Any] = [None] * 3
    dist.all_gather_object(pids, os.getpid())
    if what == "killed":
        return error_of(lambda: killed_together(rank))
    dist.barrier()
    dist.group.WORLD.set_timeout(timedelta(seconds=1))
    if rank == 2:
        if what == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)  # until rank 0 has seen it
            return error_of(lambda: dist.all_reduce(torch.ones(4)))
        error_of(lambda: dist.recv(torch.ones(1), 0, group=aside))  # it waits for something else
        return error_of(lambda: dist.all_reduce(torch.ones(4)))
    text = error_of(lambda: dist.all_reduce(torch.ones(4)))
    if rank == 0 and what == "stopped":
        os.kill(pids[2], signal.SIGCONT)
    if rank == 0 and what == "elsewhere":
        dist.send(torch.ones(1), 2, group=aside)
    return text


def killed_together(rank: int) -> None:
    """Rank 2 is killed, while others are in the barrier still, or have begun what comes after
    it.
    """
    import torch
    from torch import distributed as dist

    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def names_rank_2(text: str) -> bool:
    """Beside rank 1, where that was late, too."""
    return re.search(r"\branks? (1, )?2\b", text) is not None


@pytest.mark.parametrize("wire", ["auto", "tcp"])
def test_a_rank_that_does_not_come_is_named_on_all(wire: str) -> None:
    texts = members(3, lambda rank: too_late(rank, "elsewhere"), wire=wire)
    for text in texts:
        # on rank 2 too: it gets no result that the others do not have
        assert names_rank_2(text), texts
    stands = (" is at:\n", f"    {__file__}, line ", "error_of(lambda: dist.")
    told = any(all(part in text for part in stands) for text in texts)
    # on a machine that is too busy
    assert told or any("does not answer" in text for text in texts), texts
    first, second, died = members(3, lambda rank: too_late(rank, "killed"), wire=wire, deaths=True)
    assert isinstance(died, Died)
    assert "rank 2" in first
    assert "rank 2" in second


def without_rank_0(rank: int) -> None:
    """Rank 1 of 3 comes to a store where rank 0 never was."""
    from torch import distributed as dist

    from farandole.errors import RendezvousError
    from farandole.torch.distributed import rendezvous

    store = dist.HashStore()
    with pytest.raises(
        RendezvousError, match=mentioning("members 0", "3", "0.2", "group")
    ) as caught:
        rendezvous.meet(store, 1, 3, 0.2)
    assert caught.value.missing == (0,)


def test_rank_0_that_does_not_come_is_named() -> None:
    pool.spread(1, without_rank_0)


@pytest.mark.slow
def test_a_rank_that_stopped_is_named() -> None:
    texts = members(3, lambda rank: too_late(rank, "stopped"))[:2]
    assert all(names_rank_2(text) for text in texts), texts
    # it may be asked before it stops
    assert any(" is stopped" in text or " is at:\n" in text for text in texts), texts


def without_an_import(rank: int) -> None:
    """As PyTorch does it when it is imported."""
    from torch import distributed as dist

    from farandole.job.plugins import autoload

    # of torch's own tests
    others = {name: made for name, made in dist.Backend._plugins.items() if name != "FARANDOLE"}
    dist.Backend._plugins = {}
    try:
        autoload.register()
        autoload.register()
        # with any, torch.distributed gives "cpu:gloo" no default backend
        assert not dist.Backend._plugins.keys()
        dist.init_process_group("cpu:gloo", store=dist.HashStore(), rank=0, world_size=1)
        assert dist.group.WORLD.name() == "gloo"
        dist.destroy_process_group()
    finally:
        dist.Backend._plugins.update(others)
    begins_beside_nccl()


def begins_beside_nccl(**options: Any) -> None:
    import torch
    from torch import distributed as dist

    dist.init_process_group(
        "cpu:farandole,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1, **options
    )
    try:
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [1.0, 1.0]
        assert [device.type for device in dist.group.WORLD._device_types] == ["cpu", "cuda"]
    finally:
        dist.destroy_process_group()


def test_a_program_may_name_its_gpu_when_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning does, and torch then looks for the GPU's backend before it knows what the group was
    asked for.
    """
    import torch

    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda")
    )
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    begins_beside_nccl(device_id=gpu)


def with_another_secret(_: int) -> None:
    """What the store tells never replaces the job's secret."""
    import json

    from torch import distributed as dist

    from farandole.errors import SettingsError
    from farandole.torch.distributed.rendezvous import meet

    before = os.environ.get("FARANDOLE_SECRET")
    try:
        for own, told, started in (("a" * 64, "b" * 64, "rank 1"), ("", "", "rank 0")):
            os.environ["FARANDOLE_SECRET"] = own
            store = dist.HashStore()
            store.set("farandole/wire/2/1", json.dumps({"scope": "s", "secret": told}))
            with pytest.raises(SettingsError, match=mentioning(started, "Farandole")):
                meet(store, 1, 2, 5.0)
    finally:
        os.environ.pop("FARANDOLE_SECRET")
        os.environ.update({} if before is None else {"FARANDOLE_SECRET": before})


def test_nobody_answers_for_a_group_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where it could not begin, nor where its end was interrupted."""
    from farandole.torch.distributed import process_group

    meeting, answers = Mock(), Mock()
    monkeypatch.setattr(process_group.rendezvous, "meet", lambda *_: meeting)
    monkeypatch.setattr(process_group.rendezvous, "stack_query", lambda *_: answers)
    monkeypatch.setattr(
        process_group, "CollectiveGroup", Mock(side_effect=OSError("too many open files"))
    )
    with pytest.raises(OSError, match=mentioning("open files")):
        process_group.FarandoleProcessGroup(Mock(), 0, 2, 1.0)
    assert answers not in process_group._stack_queries
    answers.close.assert_called_once_with()
    meeting.transport.close.assert_called_once_with()
    state = Mock()
    state.close.side_effect = KeyboardInterrupt
    monkeypatch.setattr(process_group, "CollectiveGroup", lambda *_: state)
    group = process_group.FarandoleProcessGroup(Mock(), 0, 2, 1.0)
    assert answers in process_group._stack_queries
    with pytest.raises(KeyboardInterrupt):
        group.shutdown()
    assert answers not in process_group._stack_queries
    assert answers.close.call_count == 2


def test_the_word_alone_suffices() -> None:
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert (
        '[project.entry-points."torch.backends"]\nfarandole = "farandole.job.plugins.autoload:register"\n'
        in project
    )
    pool.spread(1, without_an_import)
    pool.spread(1, with_another_secret)
