"""Every collective gives Gloo's result: to the bit for integers, bits, minimum and maximum; to
rounding for sums.
"""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from tests.kits.messages import mentioning
from tests.torch.distributed.tools import members

pytest.importorskip("torch")


def against_gloo(rank: int) -> None:
    """Compare with Gloo, the default group, on 3 ranks."""
    import torch
    from torch import distributed as dist

    group, op, n = dist.new_group(backend="farandole"), dist.ReduceOp, dist.get_world_size()
    integers = (torch.uint8, torch.int8, torch.int32, torch.int64)
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    some = torch.Generator().manual_seed(rank)

    def values(dtype: Any, *shape: int) -> Any:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(shape, generator=some, dtype=torch.float32).to(dtype)
        return torch.randint(0, 3, shape, generator=some).to(dtype)

    def same(mine: Any, theirs: Any, exact: bool, what: object) -> None:
        assert mine.dtype == theirs.dtype, what
        assert mine.shape == theirs.shape, what
        if exact:
            assert torch.equal(mine, theirs), (what, mine, theirs)
        else:
            rough = mine.dtype in (torch.float16, torch.bfloat16)
            wide = torch.complex128 if mine.is_complex() else torch.float64
            torch.testing.assert_close(
                mine.to(wide),
                theirs.to(wide),
                rtol=2e-2 if rough else 1e-5,
                atol=2e-2 if rough else 1e-5,
            )
        digests.append((what, zlib.crc32(mine.contiguous().reshape(-1).view(torch.uint8).numpy())))

    digests: list[tuple[object, int]] = []
    cases = [
        (dtype, kind)
        for dtype in (*integers, torch.bool, *floats)
        for kind in (op.SUM, op.PRODUCT, op.MIN, op.MAX)
    ]
    cases += [(dtype, kind) for dtype in integers for kind in (op.BAND, op.BOR, op.BXOR)]
    cases += [(torch.complex64, op.SUM), (torch.complex128, op.SUM)]
    for dtype, kind in cases:
        for shape in ((3, 5),) if kind != op.SUM else ((), (3, 5), (70_001,), (0,)):
            given = values(dtype, *shape)
            mine, theirs = given.clone(), given.clone()
            dist.all_reduce(mine, kind, group=group)
            dist.all_reduce(theirs, kind)
            exact = not (dtype.is_floating_point or dtype.is_complex) or kind in (op.MIN, op.MAX)
            same(mine, theirs, exact, (dtype, kind, shape))
    all_digests: list[Any] = [None] * n
    dist.all_gather_object(all_digests, digests)
    assert all_digests[0] == all_digests[rank], "ranks have other bits"

    for dtype in (
        torch.float32,
        torch.bfloat16,
        torch.int64,
        torch.bool,
        torch.complex64,
        torch.uint8,
    ):
        for length in (4, 100_003):
            moves(rank, n, group, values(dtype, length), same)
    reduces(rank, n, group, values, same)
    shapes(rank, group, same)


def moves(rank: int, n: int, group: Any, given: Any, same: Any) -> None:
    import torch
    from torch import distributed as dist

    what = (given.dtype, given.shape)
    for root in range(n):
        mine, theirs = given.clone(), given.clone()
        dist.broadcast(mine, root, group=group)
        dist.broadcast(theirs, root)
        same(mine, theirs, True, ("broadcast", *what))
    lists = [[torch.zeros_like(given) for _ in range(n)] for _ in range(2)]
    dist.all_gather(lists[0], given, group=group)
    dist.all_gather(lists[1], given)
    assert all(map(torch.equal, *lists)), ("all_gather", *what)
    whole = torch.zeros(n * len(given), dtype=given.dtype)
    dist.all_gather_into_tensor(whole, given, group=group)
    assert torch.equal(whole, torch.cat(lists[0])), ("all_gather_into_tensor", *what)
    gathered = [torch.zeros_like(given) for _ in range(n)] if rank == 1 else None
    dist.gather(given, gathered, dst=1, group=group)
    assert gathered is None or all(map(torch.equal, gathered, lists[0])), ("gather", *what)
    part = torch.zeros_like(given)
    dist.scatter(part, lists[0] if rank == 2 else None, src=2, group=group)
    assert torch.equal(part, lists[0][rank]), ("scatter", *what)
    parts = [torch.zeros_like(given) for _ in range(n)]
    dist.all_to_all(
        parts, [given if peer == rank else lists[0][peer] for peer in range(n)], group=group
    )
    assert all(torch.equal(part, lists[0][rank]) for part in parts), ("all_to_all", *what)
    splits = [rank + 1] * n  # to rank i go rank + 1 numbers, from it come i + 1
    rows = given[: (rank + 1) * n] if len(given) > 100 else given.repeat(3)[: (rank + 1) * n]
    taken = [torch.zeros(sum(range(1, n + 1)), dtype=given.dtype) for _ in range(2)]
    dist.all_to_all_single(taken[0], rows, list(range(1, n + 1)), splits, group=group)
    dist.all_to_all_single(taken[1], rows, list(range(1, n + 1)), splits)
    assert torch.equal(*taken), ("all_to_all_single", *what)


def reduces(rank: int, n: int, group: Any, values: Any, same: Any) -> None:
    import torch
    from torch import distributed as dist

    for length in (2, 20_001, 40_001):
        given = values(torch.float32, n * length)
        mine, theirs = given.clone(), given.clone()
        dist.reduce(mine, 1, group=group)
        dist.reduce(theirs, 1)
        if rank == 1:
            torch.testing.assert_close(mine, theirs)
        else:
            assert torch.equal(mine, given), "reduce changed what it only reads"
        total = given.clone()
        dist.all_reduce(total, group=group)
        out = torch.zeros(length)
        dist.reduce_scatter_tensor(out, given, group=group)
        torch.testing.assert_close(out, total[rank * length : (rank + 1) * length])
        out.zero_()
        dist.reduce_scatter(
            out, [part.clone() for part in given.split(length)], dist.ReduceOp.AVG, group=group
        )
        torch.testing.assert_close(out, total[rank * length : (rank + 1) * length] / n)
        factor = torch.distributed._make_nccl_premul_sum(0.5)
        scaled = given.clone()
        dist.all_reduce(scaled, factor, group=group)
        torch.testing.assert_close(scaled, total / 2)
        pair = [given.clone(), given[:1].clone()]
        with dist._coalescing_manager(group=group):
            for tensor in pair:
                dist.all_reduce(tensor, group=group)
        torch.testing.assert_close(pair[0], total)
        torch.testing.assert_close(pair[1], total[:1])
    sparse = torch.eye(4).to_sparse() * (rank + 1)
    dist.all_reduce(sparse, group=group)
    assert torch.equal(sparse.to_dense(), torch.eye(4) * 6)


def shapes(rank: int, group: Any, same: Any) -> None:
    """Memory with gaps, in different orders, of parameters, empty."""
    import torch
    from torch import distributed as dist

    columns = torch.arange(12.0).reshape(3, 4).t()
    expected = columns * 3
    columns = columns.clone(memory_format=torch.preserve_format)
    assert not columns.is_contiguous()
    dist.all_reduce(columns, group=group)
    assert torch.equal(columns, expected)
    gaps = torch.full((10,), float(rank))[::2]
    dist.broadcast(gaps, 2, group=group)
    assert torch.equal(gaps, torch.full((5,), 2.0))
    parameter = torch.nn.Parameter(torch.ones(3))
    dist.all_reduce(parameter.data, group=group)
    dist.broadcast(parameter, 0, group=group)
    assert torch.equal(parameter.data, torch.full((3,), 3.0))
    dist.all_reduce(torch.empty(0, 3), group=group)


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["auto", "tcp"])
def test_all_collectives_give_the_results_of_gloo(wire: str) -> None:
    members(3, against_gloo, backend="gloo", wire=wire)


def overlapping(rank: int) -> None:
    """On 3 ranks: inputs and outputs are in one piece of memory, at the same offset and at others."""
    import torch
    from torch import distributed as dist

    n = dist.get_world_size()
    for length in (3, 600_001):
        numbers = torch.arange(n * length, dtype=torch.float64)
        for begin in (length // 2, rank * length):
            whole = numbers * (rank + 1) ** 2
            part = whole[begin:][:length]
            dist.reduce_scatter_tensor(part, whole)
            expected = numbers[rank * length :][:length] * sum(peer**2 for peer in range(1, n + 1))
            assert torch.equal(part, expected), ("reduce_scatter", begin, length)

        whole = torch.zeros(n * length, dtype=torch.float64)
        part = whole[length // 2 :][:length]
        part.copy_(numbers[:length] + rank)
        dist.all_gather_into_tensor(whole, part)
        assert torch.equal(whole, torch.cat([numbers[:length] + peer for peer in range(n)])), (
            "all_gather",
            length,
        )

        rows = [[length + (source * 2 + target) % 3 for target in range(n)] for source in range(n)]
        sent, received = rows[rank], [rows[peer][rank] for peer in range(n)]
        whole = torch.zeros(n * (length + 3), dtype=torch.float64)
        whole[: sum(sent)] = torch.cat(
            [torch.full((sent[peer],), 10.0 * rank + peer) for peer in range(n)]
        )
        dist.all_to_all_single(whole[: sum(received)], whole[: sum(sent)], received, sent)
        expected = torch.cat(
            [torch.full((received[peer],), 10.0 * peer + rank) for peer in range(n)]
        )
        assert torch.equal(whole[: sum(received)], expected.double()), ("all_to_all", length)

        parts = [torch.full((length,), 10.0 * rank + peer) for peer in range(n)]
        dist.all_to_all([parts[(peer + 1) % n] for peer in range(n)], parts)
        for peer in range(n):
            assert (parts[(peer + 1) % n] == 10.0 * peer + rank).all(), (
                "all_to_all of a list",
                length,
            )


@pytest.mark.parametrize("wire", ["auto", "tcp"])
def test_results_may_overlap_inputs(wire: str) -> None:
    members(3, overlapping, wire=wire)


def of_functional_collectives(rank: int) -> None:
    """Pass on results that were not awaited, and views of them."""
    import torch
    import torch.distributed._functional_collectives as functional
    from torch import distributed as dist

    n = dist.get_world_size()
    total = torch.arange(4.0) * n + sum(range(n))

    def made() -> Any:
        return functional.all_reduce(torch.arange(4.0) + rank, "sum", dist.group.WORLD)

    given = made()
    dist.all_reduce(given)
    assert torch.equal(given * 1, total * n)
    given = made()
    dist.all_reduce(given[1:3])
    assert torch.equal(given * 1, total * torch.tensor([1.0, n, n, 1.0]))
    given = made().view(2, 2)
    dist.broadcast(given.t(), 0)
    assert torch.equal(given * 1, total.view(2, 2))
    whole = torch.zeros(n * 3)
    dist.all_gather_into_tensor(whole, made()[1:])
    assert torch.equal(whole, total[1:].repeat(n))
    taken = torch.zeros(2)
    receives = dist.irecv(taken, (rank - 1) % n)
    dist.send(made()[2:], (rank + 1) % n)
    receives.wait()
    assert torch.equal(taken, total[2:])

    with functional.allow_inflight_collective_as_graph_input_ctx():
        for waits_itself in (False, True):
            given = torch.arange(4.0) + rank
            if rank == 1:  # the others wait for its call
                dist.recv(taken, 0, tag=7)
            work = dist.all_reduce(given, async_op=True)
            if rank == 0:
                dist.send(taken, 1, tag=7)
            if waits_itself:
                work.wait()
            assert torch.equal(torch.ops._c10d_functional.wait_tensor(given), total)
            assert not torch._C._distributed_c10d._get_work_registry_size()

    given = torch.arange(4.0) + rank
    # as C++ takes it: of the work itself, nothing is kept
    box = dist.all_reduce(given, async_op=True).boxed()
    dist.Work.unbox(box).wait()
    assert torch.equal(given, total)

    freed = torch.ones(8)
    view = freed[4:]
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=mentioning("storage")):
        dist.all_reduce(view)


def test_results_of_functional_collectives_compose() -> None:
    members(3, of_functional_collectives)


def strange_roots(_: int) -> None:
    import torch
    from torch import distributed as dist

    ones: Any = torch.ones(3)
    calls: list[Any] = [
        lambda root: dist.broadcast(ones, root),
        lambda root: dist.reduce(ones, root),
        lambda root: dist.gather(ones, None, root),
        lambda root: dist.scatter(ones, None, root),
    ]
    for call in calls:
        for root in (2, 7):
            with pytest.raises(ValueError, match=mentioning(f"root {root}", "0 to 1")):
                call(root)
    dist.all_reduce(ones)
    assert ones.tolist() == [2.0, 2.0, 2.0]


def test_a_root_outside_the_group_is_refused() -> None:
    members(2, strange_roots)


def averages_of_int64(rank: int) -> None:
    """Times in nanoseconds, for example: the sum of some ranks overflows, the average does not."""
    import torch
    from torch import distributed as dist

    n, mean = dist.get_world_size(), dist.ReduceOp.AVG
    for count in (0, 1, 2, 70_000):
        chance = [torch.Generator().manual_seed(k) for k in range(n)]
        some = [torch.randint(-(2**63), 2**63 - 1, (count * n,), generator=each) for each in chance]
        some = [
            torch.where(torch.arange(count * n) % 3 == 0, 2**63 - 1 - k, each)
            for k, each in enumerate(some)
        ]
        sums = [sum(row) for row in zip(*[each.tolist() for each in some], strict=True)]
        right = torch.tensor(
            [abs(total) // n * (1 if total > 0 else -1) for total in sums], dtype=torch.int64
        )
        reduced, to_one = some[rank].clone(), some[rank].clone()
        dist.all_reduce(reduced, mean)
        assert torch.equal(reduced, right)
        dist.reduce(to_one, 1, mean)
        assert torch.equal(to_one, right if rank == 1 else some[rank])
        part = torch.empty(count, dtype=torch.int64)
        dist.reduce_scatter_tensor(part, some[rank], mean)
        assert torch.equal(part, right[count * rank : count * (rank + 1)])
        both = [some[rank].clone(), some[rank][:1].clone()]
        dist.all_reduce_coalesced(both, mean)
        assert torch.equal(torch.cat(both), torch.cat([right, right[:1]]))


@pytest.mark.parametrize("wire", ["auto", "tcp"])
def test_an_average_is_right_where_the_sum_does_not_fit(wire: str) -> None:
    members(3, averages_of_int64, wire=wire)


def of_the_meta_device(_: int) -> None:
    import torch
    from torch import distributed as dist

    nothing = torch.ones(3, device="meta")
    calls: list[Any] = [dist.all_reduce, lambda tensor: dist.send(tensor, 1 - dist.get_rank())]
    for call in calls:
        with pytest.raises(ValueError, match=mentioning("module.to_empty", "meta device")):
            call(nothing)
    dist.barrier()


def test_an_empty_tensor_gets_an_error_with_the_cure() -> None:
    members(2, of_the_meta_device)


def in_inference_mode(rank: int) -> None:
    """With gaps, so that they are copied, on a thread of the group: the mode belongs to the
    program's thread.
    """
    import torch
    from torch import distributed as dist

    n = dist.get_world_size()
    with torch.inference_mode():
        given = (torch.arange(6.0) + rank).view(2, 3)
        total = given.new_tensor(range(6)).view(2, 3) * n + sum(range(n))
        summed, first = given.clone().t(), given.clone().t()
        dist.all_reduce(summed, async_op=True).get_future().wait()
        assert torch.equal(summed, total.t())
        dist.broadcast(first, 0, async_op=True).get_future().wait()
        assert torch.equal(first, torch.arange(6.0).view(2, 3).t())
        taken = torch.zeros(2, 3).t()
        receives = dist.irecv(taken, (rank - 1) % n)
        dist.isend(given.t(), (rank + 1) % n).wait()
        receives.wait()
        assert torch.equal(taken, given.t() - rank + (rank - 1) % n)
        table = given.to_sparse()
        dist.all_reduce(table, async_op=True).get_future().wait()
        assert torch.equal(table.to_dense(), total)
        scaled = given.clone()
        dist.all_reduce(scaled, dist._make_nccl_premul_sum(2.0), async_op=True).get_future().wait()
        assert torch.equal(scaled, 2 * total)


def test_inference_tensors_of_calls_that_run_on_another_thread() -> None:
    members(2, in_inference_mode)
