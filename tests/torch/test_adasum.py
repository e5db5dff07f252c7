"""op=hvd.Adasum, in collectives and in optimizers."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.core.collectives.test_adasum import tree
from tests.kits.messages import mentioning
from tests.run_job import job
from tests.torch.test_optimizer import OPTIMIZERS, data, loss_of, net, part

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="torch is not installed")


def given(rank: int, dtype: Any = torch.float32) -> list[Any]:
    generator = torch.Generator().manual_seed(rank)
    return [
        torch.randn(shape, generator=generator).to(dtype) for shape in ((3, 5), (), (0,), (1000,))
    ]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("n", [2, 3])
def test_every_form(n: int, dtype: str) -> None:
    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        mine = given(rank, getattr(torch, dtype))
        one = [hvd.allreduce(each, op=hvd.Adasum) for each in mine]
        two = hvd.grouped_allreduce(mine, op=hvd.Adasum, name="group")
        three = [hvd.allreduce_(each.clone(), op=hvd.Adasum) for each in mine]
        handles = [hvd.allreduce_async(each, op=hvd.Adasum) for each in mine]  # they may be fused
        for forms in zip(
            one, two, three, [hvd.synchronize(handle) for handle in handles], strict=True
        ):
            assert all(torch.equal(each, forms[0]) for each in forms)
        scaled = hvd.allreduce(mine[3], op=hvd.Adasum, prescale_factor=0.5, postscale_factor=4.0)
        assert torch.allclose(scaled.double(), 2 * one[3].double(), rtol=1e-2)
        for bad in (torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.bool)):
            with pytest.raises(
                hvd.HorovodInternalError, match=mentioning("Adasum", "floating point")
            ):
                hvd.allreduce(bad, op=hvd.Adasum)
            with pytest.raises(
                hvd.HorovodInternalError, match=mentioning("Adasum", "floating point")
            ):
                hvd.grouped_allreduce([mine[0], bad], op=hvd.Adasum)
        with pytest.raises(hvd.HorovodInternalError, match=mentioning("AVERAGE", "SUM")):
            hvd.reducescatter(mine[0], op=hvd.Adasum)
        if rank:
            hvd.join()
        else:
            assert torch.equal(hvd.allreduce(mine[0], op=hvd.Adasum, name="alone"), mine[0])
            hvd.join()
        return one

    results = job(n, fn)
    tolerance = {"float16": 4e-3, "bfloat16": 3e-2}.get(dtype, 1e-5)
    for index, first in enumerate(results[0]):
        whole = [
            given(rank, getattr(torch, dtype))[index].double().flatten().numpy()
            for rank in range(n)
        ]
        torch.testing.assert_close(
            first.double().flatten(),
            torch.from_numpy(tree(whole)).flatten(),
            rtol=tolerance,
            atol=tolerance,
        )
        assert all(torch.equal(first, result[index]) for result in results)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_the_steps_of_all_ranks_are_combined(make: Any) -> None:
    n = 3

    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(
            make(model.parameters()), named_parameters=model.named_parameters(), op=hvd.Adasum
        )
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, *part(rank, n, *data(step))).backward()
            optimizer.synchronize()
            optimizer.step()
            scheduler.step()
        plain = copy.deepcopy(optimizer)  # copies are of the optimizer that was wrapped
        assert type(plain).__mro__[:2] == type(make(net().parameters())).__mro__[:2]
        return [parameter.detach().clone() for parameter in model.parameters()]

    models = [net() for _ in range(n)]
    optimizers = [make(model.parameters()) for model in models]
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) for optimizer in optimizers]
    for step in range(3):
        starts = [parameter.detach().clone() for parameter in models[0].parameters()]
        for rank, (model, optimizer, scheduler) in enumerate(
            zip(models, optimizers, schedulers, strict=True)
        ):
            optimizer.zero_grad()
            loss_of(model, *part(rank, n, *data(step))).backward()
            optimizer.step()
            scheduler.step()
        for start, *parameters in zip(
            starts, *(model.parameters() for model in models), strict=True
        ):
            steps = [
                (parameter.detach() - start).double().flatten().numpy() for parameter in parameters
            ]
            combined = start + torch.from_numpy(tree(steps)).reshape(start.shape).float()
            for parameter in parameters:
                parameter.detach().copy_(combined)
    for result in job(n, fn):
        for found, wanted in zip(result, models[0].parameters(), strict=True):
            torch.testing.assert_close(found, wanted.detach(), rtol=1e-4, atol=1e-5)


def test_sets_unused_parameters_and_what_is_refused() -> None:
    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        some = hvd.add_process_set([0, 1])
        model = net()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            op=hvd.Adasum,
            process_set=some,
            compression=hvd.Compression.fp16,
        )
        with (
            pytest.raises(AssertionError, match=mentioning("synchronization")),
            optimizer.skip_synchronize(),
        ):
            optimizer.step()
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model, *data(rank), side=rank == 0).backward()  # rank 1 does not use all
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    one, other, alone = job(3, fn, dynamic_process_sets=True)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(one[0], alone[0])


def test_one_rank_just_steps() -> None:
    import farandole.torch as hvd

    hvd.init()
    try:
        model, plain = net(), net()
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), op=hvd.Adasum)
        other = torch.optim.Adam(plain.parameters())
        for each, stepping in ((model, optimizer), (plain, other)):
            loss_of(each, *data()).backward()
            stepping.step()
        assert all(
            torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True)
        )
    finally:
        hvd.shutdown()
