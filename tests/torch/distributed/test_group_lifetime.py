"""Groups begin, end, and begin again, also after a fork, and release their memory."""

from __future__ import annotations

import gc
import os
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import farandole
from tests import pool
from tests.kits.messages import mentioning, mentions
from tests.torch.distributed.tools import error_of, members

pytest.importorskip("torch")


def in_turn() -> None:
    """On 3 ranks: a call reads the results of earlier calls, also with gaps or a factor."""
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
    """A child can neither call nor end the group of its parent, whose memory it would write."""
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
    """A call after a barrier that rank 0 has already left, while others may still be in it."""
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
        "failed earlier: KeyboardInterrupt" if rank == 0 else "rank 0, in a call: KeyboardInterrupt"
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


def memory_of_groups(rank: int) -> None:
    """On 2 ranks: a group's memory is released when it ends, not by the garbage collector."""
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
    """Rank 0 ends each group later than the others, which have already begun the next."""
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
    """The end of rank 0's store disconnects no rank."""
    assert farandole.run(default_groups, np=2) == [10.0, 10.0]


def without_an_import(rank: int) -> None:
    """As PyTorch does when it is imported."""
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
    """Lightning does, and torch then looks for the GPU's backend before it knows the requested one."""
    import torch

    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda")
    )
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    begins_beside_nccl(device_id=gpu)


def with_another_secret(_: int) -> None:
    """Values in the store never replace the job's secret."""
    import json

    from torch import distributed as dist

    from farandole.errors import SettingsError
    from farandole.torch.distributed.rendezvous import meet

    before = os.environ.get("FARANDOLE_SECRET")
    try:
        for own, by_other, started in (("a" * 64, "b" * 64, "rank 1"), ("", "", "rank 0")):
            os.environ["FARANDOLE_SECRET"] = own
            store = dist.HashStore()
            store.set("farandole/wire/2/1", json.dumps({"scope": "s", "secret": by_other}))
            with pytest.raises(SettingsError, match=mentioning(started, "Farandole")):
                meet(store, 1, 2, 5.0)
    finally:
        os.environ.pop("FARANDOLE_SECRET")
        os.environ.update({} if before is None else {"FARANDOLE_SECRET": before})


def test_no_rank_answers_for_a_failed_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither if the group could not begin, nor if its end was interrupted."""
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
