"""Whole programs on real GPUs: the numbers of the same program on the CPU, and equal bits on all
ranks.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from tests.torch.gpus import WAYS, gpu_job, with_gpu
from tests.torch.test_optimizer import OPTIMIZERS, data, loss_of, net, part, values

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = with_gpu

STEPS = 4
OPTIONS: dict[str, dict[str, Any]] = {
    "groups": {"groups": 2},
    "passes": {"backward_passes_per_step": 2},
    "predivide": {"gradient_predivide_factor": 2.0},
    **{f"compression {name}": {"compression": name} for name in ("fp16", "bf16")},
    **{f"op {name}": {"op": name} for name in ("Sum", "Adasum")},
    **{
        f"codec {codec}": {"codec": codec}
        for codec in (
            "fp16",
            "bf16",
            "int8",
            "onebit",
            "sign",
            "topk:0.3",
            "randomk:0.5",
            "threshold:0.01",
            "powersgd:2",
        )
    },
    **{
        f"strategy {strategy}": {"strategy": strategy}
        for strategy in (
            "local_sgd:2",
            "bmuf:2",
            "diloco:2",
            "easgd:2",
            "ps",
            "gossip:complete",
            "gossip:ring",
        )
    },
    "local_sgd with a codec": {"strategy": "local_sgd:2", "codec": "int8"},
    "gossip with a codec": {"strategy": "gossip:ring", "codec": "topk:0.5"},
}


def optimized(
    rank: int, n: int, device: Any, options: dict[str, Any], kind: str = "momentum"
) -> list[Any]:
    """Return the weights after some steps, on the host."""
    import farandole.torch as hvd

    options = dict(options)
    for name, kinds in (("compression", hvd.Compression), ("op", hvd)):
        if name in options:
            options[name] = getattr(kinds, options[name])
    model = net().to(device)
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS[kind](model.parameters()), model.named_parameters(), **options
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        for _ in range(options.get("backward_passes_per_step", 1)):
            loss_of(model, *(each.to(device) for each in part(rank, n, *data(step)))).backward()
        optimizer.step()
    assert all(parameter.device == device for parameter in model.parameters())
    optimizer.average_weights()
    return [each.cpu() for each in values(model)]


@pytest.mark.parametrize(("n", "settings"), WAYS)
def test_options_strategies_and_codecs(n: int, settings: dict[str, Any]) -> None:
    def train(rank: int, device: Any) -> dict[str, tuple[list[Any], list[Any]]]:
        return {
            name: (
                optimized(rank, n, device, options),
                optimized(rank, n, torch.device("cpu"), options),
            )
            for name, options in OPTIONS.items()
        }

    results = gpu_job(n, train, **settings)
    wrong = []
    for name in OPTIONS:
        for rank, result in enumerate(results):
            there, here = result[name]
            loose = (
                2e-2 if any(word in name for word in ("fp16", "bf16", "int8", "codec")) else 1e-4
            )
            for place, (one, other) in enumerate(zip(there, here, strict=True)):
                if not torch.allclose(one, other, rtol=loose, atol=loose):
                    wrong.append(
                        f"{name}: rank {rank}, parameter {place}: off by"
                        f" {(one - other).abs().max():.2g}"
                    )
                if not torch.equal(one, results[0][name][0][place]):
                    wrong.append(f"{name}: rank {rank}, parameter {place}: other bits than rank 0")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("n", "settings"), WAYS)
@pytest.mark.parametrize("strategy", ["ps_async:1", "ssp:2", "gossip_async:ring"])
def test_asynchronous_strategies_learn(n: int, settings: dict[str, Any], strategy: str) -> None:
    def train(rank: int, device: Any) -> tuple[float, float]:
        import farandole.torch as hvd

        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1).to(device)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05), strategy=strategy
        )
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(rank)).to(device)
        losses = []
        for _ in range(100):
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        optimizer.average_weights()
        return losses[0], (model(x) - x.sum(1, keepdim=True)).square().mean().item()

    for first, last in gpu_job(n, train, **settings):
        assert last < first / 20


@pytest.mark.parametrize(("n", "settings"), WAYS)
@pytest.mark.parametrize("kind", ["adam", "adamw", "fused", "capturable", "scaled"])
def test_optimizers_of_the_gpu_continue_from_their_state(
    n: int, settings: dict[str, Any], kind: str
) -> None:
    """Rank 0's weights and state go to all ranks; gradients are clipped; with ``scaled``, a loss
    scale is kept.
    """

    def train(rank: int, device: Any) -> tuple[list[Any], list[Any]]:
        import farandole.torch as hvd

        def make(params: Any) -> Any:
            if kind == "capturable":
                return torch.optim.Adam(params, lr=0.01, capturable=device.type == "cuda")
            return OPTIMIZERS["adam" if kind == "scaled" else kind](params)

        def steps(model: Any, optimizer: Any, scaler: Any, begin: int, end: int) -> None:
            for step in range(begin, end):
                optimizer.zero_grad()
                parts = [each.to(device) for each in part(rank, n, *data(step))]
                with torch.autocast("cuda", torch.float16, enabled=kind == "scaled"):
                    loss = loss_of(model, *parts)
                scaler.scale(loss).backward()
                optimizer.synchronize()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
                scaler.update()

        def wrapped(model: Any, plain: Any) -> Any:
            return hvd.DistributedOptimizer(plain, model.named_parameters())

        scaler = torch.amp.GradScaler("cuda", enabled=kind == "scaled")
        model = net().to(device)
        optimizer = wrapped(model, make(model.parameters()))
        steps(model, optimizer, scaler, 0, 2)
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        steps(model, optimizer, scaler, 2, 4)

        again = net().to(device)
        plain = make(again.parameters())
        if rank == 0:
            file.seek(0)
            kept = torch.load(file, map_location=device)
            again.load_state_dict(kept["model"])
            plain.load_state_dict(kept["optimizer"])
        hvd.broadcast_parameters(again.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(plain, root_rank=0)
        assert all(
            each.device == device
            for state in plain.state.values()
            for name, each in state.items()
            if name.startswith("exp_avg")
        )
        steps(again, wrapped(again, plain), scaler, 2, 4)
        return [each.cpu() for each in values(model)], [each.cpu() for each in values(again)]

    results = gpu_job(n, train, **settings)
    for whole, resumed in results:
        for one, other, first in zip(whole, resumed, results[0][0], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
            assert torch.equal(one, first)


@pytest.mark.parametrize(("n", "settings"), WAYS)
def test_cuda_programs_beyond_dense_gradients(n: int, settings: dict[str, Any]) -> None:
    """Sparse gradients, SyncBatchNorm, gradients of collectives, objects, process sets, elastic
    state.
    """

    def sparse(hvd: Any, rank: int, device: Any) -> list[Any]:
        table = torch.nn.Embedding(6, 2, sparse=True, device=device)
        torch.nn.init.ones_(table.weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), op=hvd.Sum
        )
        table(torch.tensor([rank, 3], device=device)).sum().backward()
        optimizer.step()
        return [table.weight.detach()]

    def normalised(hvd: Any, rank: int, device: Any) -> list[Any]:
        torch.manual_seed(2)
        layer = hvd.SyncBatchNorm(3).to(device)
        x = (
            torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(rank))
            .to(device)
            .requires_grad_()
        )
        (layer(x) * torch.arange(4.0, device=device)).pow(2).sum().backward()
        return [x.grad, layer.weight.grad, layer.bias.grad, layer.running_mean, layer.running_var]

    def differentiated(hvd: Any, rank: int, device: Any) -> list[Any]:
        x = torch.full((2 * n, 2), rank + 1.0, device=device, requires_grad=True)
        y = [
            hvd.allreduce(x),
            hvd.allgather(x),
            hvd.broadcast(x, n - 1),
            hvd.alltoall(x),
            hvd.reducescatter(x),
        ]
        sum((each * each).sum() for each in y).backward()
        return [x.grad, *(each.detach() for each in y)]

    def in_sets(hvd: Any, rank: int, device: Any) -> list[Any]:
        if n == 1:
            return []
        mine = hvd.add_process_set([n - 1])
        x = torch.full((3,), rank + 1.0, device=device)
        found = [hvd.allreduce(x, op=hvd.Sum, process_set=mine)] if rank == n - 1 else [x]
        hvd.remove_process_set(mine)
        return found

    def broadcast_objects(hvd: Any, rank: int, device: Any) -> list[Any]:
        found = hvd.broadcast_object(
            {"x": torch.full((2,), rank + 1.0, device=device)}, root_rank=n - 1
        )
        all_of_them = hvd.allgather_object(torch.full((1,), float(rank), device=device))
        return [found["x"], *all_of_them]

    def elastic(hvd: Any, rank: int, device: Any) -> list[Any]:
        from farandole.torch.elastic import TorchState

        model = net().to(device)
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["adam"](model.parameters()))
        state = TorchState(model=model, optimizer=optimizer, batch=rank)
        state.sync()
        for step in range(3):
            if step == 2:
                state.commit()
            optimizer.zero_grad()
            loss_of(model, *(each.to(device) for each in part(rank, n, *data(step)))).backward()
            optimizer.step()
        state.restore()
        return [
            *values(model),
            *(each["exp_avg"] for each in optimizer.state.values()),
            torch.tensor(state.batch),
        ]

    def joined(hvd: Any, rank: int, device: Any) -> list[Any]:
        found = [hvd.allreduce(torch.full((2,), 1.0 + rank, device=device))]
        if rank == 0:
            found.append(hvd.allreduce(torch.ones(3, device=device), op=hvd.Sum))
        return [*found, torch.tensor(hvd.join())]

    def closed(hvd: Any, rank: int, device: Any) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32, 2)).to(device)
        model = torch.compile(model, backend="eager")
        optimizer = hvd.DistributedOptimizer(
            torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        )

        def closure() -> Any:
            optimizer.zero_grad()
            loss = loss_of(model, *(each.to(device) for each in part(rank, n, *data())))
            loss.backward()
            return loss

        optimizer.step(closure)
        return values(model)

    programs: list[Callable[..., list[Any]]] = [
        sparse,
        normalised,
        differentiated,
        in_sets,
        broadcast_objects,
        elastic,
        joined,
        closed,
    ]

    def check(rank: int, device: Any) -> None:
        import farandole.torch as hvd

        for program in programs:
            there, here = program(hvd, rank, device), program(hvd, rank, torch.device("cpu"))
            for place, (one, other) in enumerate(zip(there, here, strict=True)):
                text = f"{program.__name__}, {place}: "
                torch.testing.assert_close(
                    one.cpu(), other, rtol=1e-4, atol=1e-5, msg=lambda said, text=text: text + said
                )

    gpu_job(n, check, dynamic_process_sets=True, **settings)


def test_memory_that_is_used_again_is_not_read_too_early() -> None:
    """Gradients are freed while they are in transit; the allocator must not reuse their memory yet."""

    def check(rank: int, device: Any) -> None:
        import farandole.torch as hvd

        for step in range(200):
            mine = torch.full((1 << 18,), float(step + rank), device=device)
            wait = hvd.allreduce_async(mine, op=hvd.Sum)
            del mine
            noise = [torch.full((1 << 18,), -1.0, device=device) for _ in range(3)]
            total = hvd.synchronize(wait)
            del noise
            assert torch.equal(total, torch.full_like(total, 2.0 * step + 1)), step

    gpu_job(2, check, nccl="off")
