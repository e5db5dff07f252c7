"""Checkpoints of optimizers whose ranks exchange weights."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

from farandole.strategies.codecs import codec as codec_of
from farandole.strategies.modes.local_sgd import LocalSGD
from tests.kits.messages import mentioning
from tests.run_job import job
from tests.torch.test_optimizer import OPTIMIZERS, net, values
from tests.torch.test_strategies import steps_of

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_a_resumed_run_continues_bit_for_bit() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        ends = []
        for resumed in (False, True):
            model = net()
            strategy = LocalSGD(2, outer="nesterov", lr=0.7)
            codec = codec_of("topk:0.3")
            optimizer = hvd.DistributedOptimizer(
                OPTIMIZERS["adam"](model.parameters()), strategy=strategy, codec=codec
            )
            steps_of(rank, 2, model, optimizer, 0, 3)
            if resumed:
                file = io.BytesIO()
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
                file.seek(0)
                loaded = torch.load(file)
                model = net()
                model.load_state_dict(loaded["model"])
                plain = OPTIMIZERS["adam"](model.parameters())
                plain.load_state_dict(loaded["optimizer"])  # it loads without Farandole, too
                residuals = codec.state_dict()
                codec = codec_of("topk:0.3")
                codec.load_state_dict(residuals)
                optimizer = hvd.DistributedOptimizer(
                    OPTIMIZERS["adam"](model.parameters()), strategy=strategy, codec=codec
                )
                optimizer.load_state_dict(loaded["optimizer"])
                other = hvd.DistributedOptimizer(
                    OPTIMIZERS["adam"](net().parameters()), strategy="local_sgd:2"
                )
                with pytest.raises(
                    ValueError,
                    match=(mentioning("outer=nesterov", "'local_sgd:2'")),
                ):
                    other.load_state_dict(loaded["optimizer"])
            steps_of(rank, 2, model, optimizer, 3, 7)
            ends.append(values(model))
        assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))

    job(2, fn)


@pytest.mark.parametrize(
    "strategy", ["local_sgd:4", "diloco:3", "bmuf:3", "easgd:3", "gossip:exponential"]
)
def test_rank_0_alone_may_load_a_checkpoint(strategy: str) -> None:
    """Horovod's way: rank 0 loads, and gives the others what it has."""

    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(
            OPTIMIZERS["momentum"](model.parameters()), strategy=strategy
        )
        # equal on all ranks, so that a checkpoint of one fits all
        steps_of(0, 1, model, optimizer, 0, 6)
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        ends = []
        for loads in (True, rank == 0):
            model = net()
            optimizer = hvd.DistributedOptimizer(
                OPTIMIZERS["momentum"](model.parameters()), strategy=strategy
            )
            if loads:
                model.load_state_dict(saved[0])
                optimizer.load_state_dict(copy.deepcopy(saved[1]))
            if ends:
                hvd.broadcast_parameters(model.state_dict(), root_rank=0)
                hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            steps_of(rank, 2, model, optimizer, 6, 13)
            ends.append(values(model))
        assert optimizer.state_dict()["farandole"]["step"] == 13
        return ends

    for found, wanted in ((ends[1], ends[0]) for ends in job(2, fn)):
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    "strategy", ["local_sgd:2 int8", "diloco:2", "easgd:2", "gossip:ring topk:0.5", "ps"]
)
def test_a_state_of_another_model_is_refused(strategy: str) -> None:
    """numpy would stretch what was kept of a head with one output over one with three."""

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        spec, _, codec = strategy.partition(" ")
        found = []
        for count in (1, 3):
            model = torch.nn.Linear(4, count)
            plain = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer = hvd.DistributedOptimizer(
                plain, model.named_parameters(), strategy=spec, codec=codec
            )
            found.append((model, optimizer))

        def two_steps(model: Any, optimizer: Any) -> None:
            for _ in range(2):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()

        two_steps(*found[0])
        found[1][1].load_state_dict(found[0][1].state_dict())
        with pytest.raises(ValueError, match=mentioning("(1, 4)", "'weight'", "(3, 4)")):
            two_steps(*found[1])

    job(2, fn, store=True)


@pytest.mark.parametrize("strategy", ["allreduce", "diloco:3", "ps"])
def test_residuals_are_in_the_checkpoint_of_their_rank(strategy: str) -> None:
    """With the codec of the job. A checkpoint of rank 0 gives the others nothing, nor does one of
    another codec.
    """

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        ends = []
        for resumed in (False, True):
            model = net()
            optimizer = hvd.DistributedOptimizer(
                OPTIMIZERS["momentum"](model.parameters()), strategy=strategy
            )
            steps_of(rank, 2, model, optimizer, 0, 4)
            if resumed:
                file = io.BytesIO()
                torch.save([model.state_dict(), optimizer.state_dict()], file)
                weights, state = torch.load(io.BytesIO(file.getvalue()))
                model = net()
                model.load_state_dict(weights)
                OPTIMIZERS["momentum"](model.parameters()).load_state_dict(state)
                for spec, kept in (
                    ("topk:0.2", [False] * 2),
                    ("", [rank == 0, False]),
                    ("", [True] * 2),
                ):
                    codec = codec_of(spec or "topk:0.3")
                    plain = OPTIMIZERS["momentum"](model.parameters())
                    optimizer = hvd.DistributedOptimizer(plain, strategy=strategy, codec=codec)
                    own = all(kept)
                    optimizer.load_state_dict(state if own else hvd.broadcast_object(state))
                    assert bool(codec.state_dict()) == kept[rank]
            steps_of(rank, 2, model, optimizer, 4, 8)
            ends.append(values(model))
        assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))

    job(2, fn, codec="topk:0.3", store=True)


def test_a_broadcast_restarts_the_strategy() -> None:
    """It took the difference for a way that a rank has gone, and went back or twice as far."""
    chosen = [
        ("diloco:2", ""),
        ("bmuf:2", "topk:0.3"),
        ("local_sgd:2", "topk:0.3"),
        ("easgd:2", ""),
        ("ps:2", ""),
        ("ps_async:2", "topk:0.3"),
        ("ssp:1,every=2", ""),
        ("gossip_async:ring,every=2", ""),
        ("gossip", "topk:0.3"),
    ]

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        for strategy, codec in chosen:
            ends = []
            for goes_on in (True, False):
                parameter, other = (torch.nn.Parameter(torch.arange(6.0)) for _ in range(2))
                plain = torch.optim.SGD([parameter], lr=1.0)
                optimizer = hvd.DistributedOptimizer(
                    plain, [("p", parameter)], strategy=strategy, codec=codec
                )
                for step in range(4 + 4):
                    if step == 4:
                        # not the optimizer's
                        hvd.broadcast_parameters([("other", other)], root_rank=0)
                        with torch.no_grad():
                            parameter.copy_(torch.full((6,), 100.0 * (rank + 1)))
                        hvd.broadcast_parameters([("p", parameter)], root_rank=1)
                    if goes_on or step >= 4:
                        optimizer.zero_grad()
                        (parameter * torch.arange(6.0) * (rank + 1)).sum().backward()
                        optimizer.step()
                hvd.barrier()
                optimizer.average_weights()
                ends.append(parameter.detach().clone())
            torch.testing.assert_close(*ends, msg=f"{strategy} {codec}: {ends}")

    job(2, fn, store=True, servers=1)
