"""Tensors that are given again and again are worked on where they stand: with the same results,
apart from forks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from farandole.errors import PeerLostError
from tests.kits.worlds import until
from tests.torch.distributed.tools import members

pytest.importorskip("torch")
LENGTH = 300_001  # of float32: more than what is registered at all, and no multiple of a page
TIMES = 6


def regions(group: Any = None) -> Any:
    from torch import distributed as dist

    return (group or dist.group.WORLD).state._transport._remapped._regions


def registered(tensor: Any) -> bool:
    """By the calls that it takes until it is."""
    from torch import distributed as dist

    for _ in range(TIMES):
        dist.all_reduce(tensor.fill_(dist.get_rank()))
        assert (tensor == sum(range(dist.get_world_size()))).all()
    return tensor.untyped_storage()._cdata in regions()


@pytest.mark.parametrize("n", [2, 3])
def test_results_are_those_of_tensors_that_are_given_once(n: int) -> None:
    def fn(rank: int) -> None:
        import torch
        from torch import distributed as dist

        some = torch.Generator().manual_seed(rank)
        kinds = [
            torch.float32,
            torch.float64,
            torch.bfloat16,
            torch.float16,
            torch.int8,
            torch.int64,
            torch.complex64,
        ]
        for dtype in kinds:
            lasting = torch.empty(1_200_003 // dtype.itemsize, dtype=dtype)
            for turn in range(TIMES):
                op = (
                    dist.ReduceOp.AVG if dtype.is_floating_point and turn % 2 else dist.ReduceOp.SUM
                )
                given = torch.randn(len(lasting), generator=some).mul(10).to(dtype)
                lasting.copy_(given)
                dist.all_reduce(lasting, op)
                whole = given.new_empty(n, len(given))
                dist.all_gather_into_tensor(whole.view(-1), given)
                wide = torch.complex128 if dtype.is_complex else torch.float64
                wanted = (
                    whole.sum(0) if dtype in (torch.int8, torch.int64) else whole.to(wide).sum(0)
                ).to(wide)
                if op == dist.ReduceOp.AVG:
                    wanted /= n
                rough = {
                    torch.float32: 1e-5,
                    torch.complex64: 1e-5,
                    torch.bfloat16: 0.02,
                    torch.float16: 5e-3,
                }
                limit = rough.get(dtype, 1e-12)
                torch.testing.assert_close(lasting.to(wide), wanted, rtol=limit, atol=limit)
                dist.all_gather_into_tensor(whole.view(-1), lasting)
                assert all(torch.equal(row, whole[0]) for row in whole), "ranks have other bits"
                root = turn % n
                if rank == root:
                    lasting.copy_(given)
                dist.broadcast(lasting, root)
                dist.broadcast(given, root)
                assert torch.equal(lasting, given)
            assert lasting.untyped_storage()._cdata in regions()

    members(n, fn)


def test_what_is_given_once_and_what_is_no_memory_of_this_process_alone_stays_as_it_is() -> None:
    def fn(rank: int) -> list[bool]:
        import mmap

        import numpy as np
        import torch
        from torch import distributed as dist

        tensors = {
            "ordinary": torch.empty(LENGTH),
            "shared with other processes": torch.empty(LENGTH).share_memory_(),
            "a map": torch.from_numpy(np.frombuffer(mmap.mmap(-1, 4 * LENGTH), np.float32)),
            "a part": torch.empty(2 * LENGTH)[:LENGTH],
        }
        found = [registered(tensor) for tensor in tensors.values()]
        for _ in range(TIMES):  # new on rank 1
            tensor = tensors["ordinary"] if rank == 0 else torch.empty(LENGTH)
            dist.all_reduce(tensor.fill_(rank))
            assert (tensor == 1).all()
        fresh = torch.empty(2 * LENGTH)
        for _ in range(TIMES):
            given = fresh if rank == 0 else torch.empty(2 * LENGTH)
            dist.all_reduce(given.fill_(rank))
            assert (given == 1).all()
        return [*found, fresh.untyped_storage()._cdata in regions()]

    assert members(2, fn) == [[True, False, False, False, False]] * 2


def test_a_map_that_others_have_a_part_in_keeps_its_results() -> None:
    def fn(rank: int) -> None:
        import torch
        from torch import distributed as dist

        tensor = torch.empty(LENGTH).share_memory_()
        other = torch.UntypedStorage._new_shared_filename_cpu(
            *tensor.untyped_storage()._share_filename_cpu_()
        )
        seen = torch.empty(0).set_(other)
        for turn in range(TIMES):
            dist.all_reduce(tensor.fill_(turn))
            assert (seen == 2 * turn).all()

    members(2, fn)


@pytest.mark.parametrize("freed", [False, True])
def test_a_fork_has_memory_of_its_own(freed: bool) -> None:
    def fn(rank: int) -> None:
        import gc
        import os

        import torch
        from torch import distributed as dist

        tensors = [torch.empty(LENGTH)]
        for _ in range(2):  # it is registered again
            assert registered(tensors[0])
            result = tensors[0].clone()
            there, back = os.pipe(), os.pipe()
            child = os.fork()
            if child == 0:
                os.read(there[0], 1)  # when the parent has gone on
                good = torch.equal(tensors[0], result)
                tensors[0].fill_(-1)
                os.write(back[1], b"1" if good else b"0")
                os._exit(0)
            tensors[0].fill_(7)
            dist.all_reduce(tensors[0])
            assert (tensors[0] == 14).all()
            if freed:
                identity = tensors.pop().untyped_storage()._cdata
                tensors.append(torch.full((LENGTH,), 14.0))
                assert registered(torch.empty(LENGTH))
                gc.collect()
                assert identity not in regions()
            os.write(there[1], b"1")
            assert os.read(back[0], 1) == b"1", "the child sees what the parent does"
            os.waitpid(child, 0)
            assert (tensors[0] == 14).all(), "the parent sees what the child does"

    members(2, fn)


def test_forks_while_ranks_reduce() -> None:
    def fn(rank: int) -> int:
        import os
        import threading

        import torch
        from torch import distributed as dist

        tensor, end = torch.empty(4 * LENGTH), threading.Event()
        forks = 0

        def fork() -> None:
            nonlocal forks
            while not end.is_set():
                child = os.fork()
                if child == 0:
                    os._exit(0)
                os.waitpid(child, 0)
                forks += 1
                end.wait(0.002)

        forking = threading.Thread(target=fork)
        if rank == 0:
            forking.start()
        try:
            for turn in range(150):
                tensor.fill_(turn + rank)
                dist.all_reduce(tensor)
                assert (tensor == 2 * turn + 1).all()
        finally:
            end.set()
            if rank == 0:
                forking.join()
        return forks

    assert members(2, fn)[0] > 5


def test_a_fork_that_cannot_wait_for_a_collective_has_memory_of_its_own() -> None:
    def fn(rank: int) -> None:
        import importlib
        import os
        from unittest import mock

        import torch
        from torch import distributed as dist

        remapped: Any = importlib.import_module("farandole.core.transports.shm.remapped")
        idle, given = torch.empty(LENGTH), torch.empty(LENGTH)
        assert registered(idle)
        assert registered(given)
        idle.fill_(5)
        if rank == 1:
            dist.recv(torch.empty(1), 0)
            dist.all_reduce(given.fill_(2))
        else:
            work: Any = dist.all_reduce(given.fill_(2), async_op=True)
            while not dist.group.WORLD.state._transport._remapped._busy.locked():
                os.sched_yield()
            there, back = os.pipe(), os.pipe()
            with mock.patch.object(remapped, "_WAIT_SECONDS", 0.1):
                child = os.fork()
            if child == 0:
                os.write(back[1], b"1")
                os.read(there[0], 1)  # when the parent has gone on
                good = (idle == 5).all() and (given == 2).all()
                given.fill_(-1)
                idle.fill_(-1)
                os.write(back[1], b"1" if good else b"0")
                os._exit(0)
            os.read(back[0], 1)
            idle.fill_(7)
            dist.send(torch.ones(1), 1)
            work.wait()
            os.write(there[1], b"1")
            assert os.read(back[0], 1) == b"1", "the child sees what the parent does"
            os.waitpid(child, 0)
            assert (idle == 7).all(), "the parent sees what the child does"
            for file in (*there, *back):
                os.close(file)
        assert (given == 4).all()
        assert registered(idle)
        assert registered(given)

    members(2, fn)


def test_a_fork_after_a_group_was_forgotten() -> None:
    def fn(rank: int) -> None:
        import gc
        import os

        import torch
        from torch import distributed as dist

        world: Any = dist.group.WORLD
        group, tensor = world.split_group([0, 1]), torch.empty(LENGTH)
        for _ in range(TIMES):
            dist.all_reduce(tensor.fill_(5), group=group)
        assert tensor.untyped_storage()._cdata in regions(group)
        del group
        gc.collect()
        child = os.fork()
        if child == 0:
            tensor.fill_(-1)
            os._exit(0)
        os.waitpid(child, 0)
        assert (tensor == 10).all()

    members(2, fn)


def test_memory_that_the_program_has_freed_is_given_back() -> None:
    def fn(rank: int) -> None:
        import torch
        from torch import distributed as dist

        kept, freed = torch.empty(LENGTH), torch.empty(2 * LENGTH)
        assert registered(kept)
        array = kept.numpy()
        assert (array == 1).all()
        assert registered(freed)
        del freed
        for _ in range(TIMES):
            dist.all_reduce(kept.fill_(rank))
        assert list(regions()) == [kept.untyped_storage()._cdata]
        assert (array == 1).all()

    members(2, fn)


def test_memory_that_the_program_holds_without_a_tensor_is_kept() -> None:
    def fn(rank: int) -> list[bool]:
        import gc
        from collections.abc import Callable

        import numpy as np
        import torch
        from torch import distributed as dist

        array, some_bytes = np.zeros(LENGTH, np.float32), bytearray(4 * LENGTH)
        own = torch.empty(LENGTH)
        of_storage = own.untyped_storage()
        reads: list[Callable[[], Any]] = [
            lambda: torch.from_numpy(array),
            lambda: torch.frombuffer(some_bytes, dtype=torch.float32),
            lambda: torch.empty(0).set_(of_storage),
        ]
        tensors, found = (
            [torch.from_numpy(array), torch.frombuffer(some_bytes, dtype=torch.float32), own],
            [],
        )
        del own
        while tensors:
            found.append(registered(tensors[0]))
            tensors.pop(0).fill_(5)
        other = torch.empty(LENGTH)
        for _ in range(TIMES):
            dist.all_reduce(other.fill_(rank))
        gc.collect()
        assert all((read() == 5).all() for read in reads)
        return found

    assert members(2, fn) == [[False, False, True]] * 2


def test_a_rank_that_goes_on_late_writes_to_no_memory_of_one_that_has_given_up(
    tmp_path: Path,
) -> None:
    given_up = tmp_path / "rank 0 has given up"

    def fn(rank: int) -> Any:
        import importlib
        from datetime import timedelta

        import torch
        from torch import distributed as dist

        from farandole.errors import HorovodInternalError

        remapped: Any = importlib.import_module("farandole.core.transports.shm.remapped")
        group = dist.new_group()
        tensor, reduce = torch.empty(LENGTH), remapped.reduce_shares
        for _ in range(TIMES):
            dist.all_reduce(tensor.fill_(rank), group=group)
        assert tensor.untyped_storage()._cdata in regions(group)

        def late(*args: Any) -> None:
            until(given_up.exists, "that rank 0 gives up")
            reduce(*args)

        if rank == 1:
            remapped.reduce_shares = late
        else:
            group.set_timeout(timedelta(seconds=1))
        try:
            dist.all_reduce(tensor.fill_(1), group=group)
        except HorovodInternalError:
            tensor.fill_(7)
            given_up.touch()
        finally:
            remapped.reduce_shares = reduce
        dist.barrier()
        return tensor.unique().tolist()

    assert members(2, fn) == [[7.0], [2.0]]


def test_ranks_fork_at_once_while_calls_of_several_groups_run() -> None:
    """One that waited for a group's call to end, and held another group, would wait for the other
    rank's fork.
    """

    def fn(rank: int) -> float:
        import os
        import threading
        import time

        import torch
        from torch import distributed as dist

        groups, end = [dist.new_group() for _ in range(2)], threading.Event()

        def reduce(group: Any) -> None:
            tensor = torch.empty(LENGTH)
            for turn in range(40):
                dist.all_reduce(tensor.fill_(turn + rank), group=group)
                assert (tensor == 3 * turn + 3).all()

        def fork() -> None:
            while not end.is_set():
                child = os.fork()
                if child == 0:
                    os._exit(0)
                os.waitpid(child, 0)
                end.wait(0.002)

        reducing = [threading.Thread(target=reduce, args=(group,)) for group in groups]
        forking, begin = threading.Thread(target=fork), time.monotonic()
        for thread in (forking, *reducing):
            thread.start()
        for thread in reducing:
            thread.join()
        took = time.monotonic() - begin
        end.set()
        forking.join()
        return took

    assert max(members(3, fn)) < 10


def test_a_rank_that_may_open_no_more_files() -> None:
    def fn(rank: int) -> int:
        import os
        import resource

        import torch
        from torch import distributed as dist

        tensors = [torch.empty(LENGTH) for _ in range(20)]
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        if rank == 1:
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 10, before[1])
            )
        try:
            for turn in range(TIMES):
                for tensor in tensors:
                    dist.all_reduce(tensor.fill_(turn + rank))
                    assert (tensor == 2 * turn + 1).all()
            return len(regions())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert all(0 < count < 20 for count in members(2, fn))


def test_a_rank_that_may_open_no_more_files_once_tensors_are_registered() -> None:
    def fn(rank: int) -> bool:
        import contextlib
        import os
        import resource

        import torch
        from torch import distributed as dist

        tensors = [torch.empty(LENGTH) for _ in range(2)]
        assert all(registered(tensor) for tensor in tensors)
        tensor = tensors.pop()
        tensors[0].untyped_storage().resize_(8 * LENGTH)
        before, files = resource.getrlimit(resource.RLIMIT_NOFILE), []
        if rank == 1:
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 50, before[1])
            )
            with contextlib.suppress(OSError):
                while True:
                    files.append(os.open("/dev/null", os.O_RDONLY))
        try:
            for turn in range(TIMES):
                dist.all_reduce(tensor.fill_(turn + rank))
                assert (tensor == 2 * turn + 1).all()
                dist.broadcast(tensor.fill_(turn + rank), 1)
                assert (tensor == turn + 1).all()
        finally:
            for file in files:
                os.close(file)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        return registered(tensor)

    assert members(2, fn) == [True, True]


def test_memory_that_the_program_resizes() -> None:
    """As FSDP does: its pages are somebody else's then."""

    def fn(rank: int) -> None:
        import torch
        from torch import distributed as dist

        tensor = torch.empty(LENGTH)
        assert registered(tensor)
        for length in (0, LENGTH, 3 * LENGTH):
            tensor.untyped_storage().resize_(4 * length)
            other = torch.full((LENGTH,), 5.0)
            if length:
                tensor.fill_(rank)
                for turn in range(TIMES):
                    dist.all_reduce(tensor.fill_(turn))
                    assert (tensor == 2 * turn).all()
                    dist.all_reduce(other.fill_(5))
                    assert (other == 10).all()

    members(2, fn)


def test_memory_that_grows() -> None:
    """Where it was, there may be nothing any more: who looks there dies."""

    def fn(rank: int) -> bool:
        from unittest import mock

        import torch
        from torch import distributed as dist

        from farandole.core.transports.shm import pages, remapped

        # mapped apart, and given back to the system
        *_used_up, tensor = (torch.empty(10_000_000) for _ in range(6))
        assert registered(tensor)
        before = tensor.data_ptr()
        tensor.resize_(2 * len(tensor))
        gone = not pages.mapped(before + 4096, before + 8192)
        # it sees one region in each call: others here
        with mock.patch.object(remapped.RemappedBuffers, "_look"):
            dist.all_reduce(tensor.fill_(rank))
        assert (tensor == 1).all()
        assert registered(tensor)
        return gone

    assert any(members(2, fn)), "something else is there: nothing was tried"


def test_memory_that_the_program_frees_and_gets_again_at_the_same_address() -> None:
    def fn(rank: int) -> bool:
        import torch
        from torch import distributed as dist

        tensor = torch.empty(10_000_000)  # malloc maps it apart, and gives it back to the system
        assert registered(tensor)
        again = False
        for turn in range(2 * TIMES):
            before = tensor.data_ptr()
            tensor.untyped_storage().resize_(0)
            tensor.untyped_storage().resize_(4 * len(tensor))
            again = again or tensor.data_ptr() == before
            # so that it is registered anew, now and then, where it stands now
            for _ in range(turn % 3 + 1):
                dist.all_reduce(tensor.fill_(turn + rank))
                assert (tensor == 2 * turn + 1).all()
        return again

    assert any(members(2, fn)), "it never came back to the same place: nothing was tried"


def test_a_fork_after_memory_was_freed_and_got_again_at_the_same_address() -> None:
    def fn(rank: int) -> bool:
        import os

        import torch

        again = False
        for length in range(10_000_000, 18_000_000, 1_000_000):
            tensor = torch.empty(length)
            assert registered(tensor)
            before = tensor.data_ptr()
            tensor.untyped_storage().resize_(0)
            tensor.untyped_storage().resize_(4 * len(tensor))
            again = again or tensor.data_ptr() == before
            tensor.fill_(5)
            child = os.fork()
            if child == 0:
                os._exit(0 if (tensor == 5).all() else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert (tensor == 5).all()
        return again

    assert any(members(2, fn)), "it never came back to the same place: nothing was tried"


def test_memory_of_another_size_is_other_memory() -> None:
    """Also at the same address: what was behind it may be somebody else's."""
    from types import SimpleNamespace

    from farandole.torch.distributed.lasting import StorageKeeper

    sizes = [800]
    keeper = StorageKeeper(
        SimpleNamespace(_cdata=1, data_ptr=lambda: 4096, nbytes=lambda: sizes[-1])
    )
    assert not keeper.moved()
    sizes.append(400)
    assert keeper.moved()


def test_buckets_of_ddp_are_registered() -> None:
    def fn(rank: int) -> Any:
        import copy

        import torch
        from torch import distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(300, 700), torch.nn.ReLU(), torch.nn.Linear(700, 10)
        )
        groups = (dist.group.WORLD, dist.new_group(backend="gloo"))
        models = [
            DistributedDataParallel(copy.deepcopy(net), process_group=group) for group in groups
        ]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        for step in range(TIMES):
            images = torch.randn(8, 300, generator=torch.Generator().manual_seed(10 * step + rank))
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                model(images).square().mean().backward()
                optimizer.step()
        for mine, gloos in zip(*(model.parameters() for model in models), strict=True):
            torch.testing.assert_close(mine, gloos)
        return len(regions())

    assert members(2, fn) == [1, 1]


def test_where_it_cannot_be_seen_whose_pages_they_are_nothing_is_registered() -> None:
    def fn(rank: int) -> list[bool]:
        from unittest import mock

        import torch
        from torch import distributed as dist

        from farandole.core.transports.shm import pages

        found = []
        # that may be open is the one of the memory
        last_file = mock.Mock(side_effect=[False, OSError])
        for seen in (mock.Mock(return_value=False), mock.Mock(side_effect=OSError), last_file):
            tensor = torch.empty(LENGTH)
            with mock.patch.object(pages, "are_shared", seen):
                found.append(registered(tensor))
            where = tensor.data_ptr()
            found.append(
                all(each.rights == "rw-p" for each in pages.mapped(where, where + tensor.nbytes))
            )
            dist.barrier()
        return found

    assert members(2, fn) == [[False, True] * 3] * 2


def test_memory_of_another_allocator_than_glibcs_is_left_alone_and_all_where_one_rank_does_not_want_it() -> (
    None
):
    def fn(rank: int) -> list[bool]:
        from unittest import mock

        import torch

        from farandole.job.context import malloc
        from farandole.torch.distributed import lasting

        with mock.patch.object(malloc, "is_glibcs", return_value=False):
            found = [registered(torch.empty(LENGTH))]
        with mock.patch.dict("os.environ", {"FARANDOLE_REGISTRATION": "off"} if rank else {}):
            lasting._wanted.cache_clear()
            found.append(registered(torch.empty(LENGTH)))
        lasting._wanted.cache_clear()
        return [*found, registered(torch.empty(LENGTH))]

    assert members(2, fn) == [[False, False, True]] * 2


def broken_off(rank: int) -> str:
    """Ctrl-C on rank 0 while it registers a tensor, for which rank 1 waits."""
    import torch
    from torch import distributed as dist

    from farandole.core.transports.shm.remapped import RemappedBuffers

    tensor = torch.ones(LENGTH)
    for _ in range(2):
        dist.all_reduce(tensor)
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(RemappedBuffers, "_remap", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt if rank == 0 else PeerLostError) as found:
            dist.all_reduce(tensor)
    store = dist.group.WORLD.get_group_store()  # rank 0 goes on meanwhile: it has not gone
    if rank == 0:
        store.wait(["told"])
    else:
        store.set("told", "")
    return str(found.value)


def test_a_rank_that_breaks_off_while_it_registers_is_told() -> None:
    told = members(2, broken_off)[1]
    assert told.startswith("rank 0, in all_reduce: KeyboardInterrupt")
