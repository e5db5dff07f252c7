"""Every mode when a rank is killed, or has a different strategy, codec or model."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farandole.errors import HorovodInternalError
from farandole.strategies.options import GradientOptions
from farandole.strategies.specs import strategy_of
from farandole.strategies.weights import WeightExchange
from tests.kits.messages import mentions
from tests.pool import Died
from tests.run_job import job

WITH_WEIGHTS = [
    "local_sgd:1",
    "bmuf:1",
    "diloco:1",
    "easgd:1",
    "ps",
    "ps_async",
    "ssp:1",
    "gossip",
    "gossip_async",
]


def stepping(spec: str) -> tuple[Callable[[int], None], Callable[[], None]]:
    """A step of a rank, and what ends its training."""
    import farandole.numpy as hvd

    weights = [np.zeros(8)]
    if spec in ("allreduce", "adasum"):
        op = hvd.Adasum if spec == "adasum" else hvd.Average
        return (
            lambda step: np.copyto(weights[0], hvd.allreduce(np.ones(8), op=op, name="w")),
            hvd.barrier,
        )
    exchange = WeightExchange("test", GradientOptions(), strategy_of(spec))  # type: ignore[arg-type]
    slots = exchange.slots(weights)

    def step_on(step: int) -> None:
        weights[0] += 1
        exchange(weights, slots, step)

    return step_on, lambda: exchange.average(weights, slots)


def test_a_rank_without_requests_learns_of_a_killed_rank() -> None:
    """The lower of two ranks makes the requests, so the highest never does; no launcher ends this
    job.
    """

    def fn(rank: int) -> str:
        step, _ = stepping("gossip_async:complete")
        end = time.monotonic() + 20.0
        try:
            for number in itertools.count(1):
                if rank == 1 and number == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                step(number)
                time.sleep(0.01)
                if time.monotonic() > end or (rank == 0 and number == 10):
                    break
        except HorovodInternalError as error:
            return str(error)
        time.sleep(2.0)  # a rank that ends here with no error would be in order
        return ""

    _, one, two = job(3, fn, store=True, deaths=True)
    assert one == Died(-signal.SIGKILL)
    assert mentions(two, "rank 1")


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["allreduce", "adasum", *WITH_WEIGHTS])
def test_a_killed_rank_is_named_and_not_awaited(spec: str) -> None:
    def fn(rank: int) -> str:
        step, end = stepping(spec)
        try:
            for number in range(1, 21):
                if rank == 1 and number == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                step(number)
            end()
        except HorovodInternalError as error:
            return str(error)
        return ""

    zero, one, two = job(3, fn, store=True, deaths=True)
    assert one == Died(-signal.SIGKILL)
    assert zero, "rank 0 goes on as if nothing had been"
    assert two, "rank 2 goes on as if nothing had been"
    assert "rank 1 " in zero + two


@pytest.mark.slow
def test_a_killed_parameter_server_is_named() -> None:
    def fn(rank: int) -> str:
        step, _ = stepping("ssp:1")
        try:
            for number in range(1, 21):
                if rank == 0 and number == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                step(number)
        except HorovodInternalError as error:
            return str(error)
        return ""

    zero, one = job(2, fn, store=True, deaths=True)
    assert zero == Died(-signal.SIGKILL)
    assert one.startswith("parameter server 0 on ")
    assert mentions(one, "replica")


def test_other_strategies_and_models_are_errors_in_every_mode() -> None:
    def fn(rank: int) -> list[str]:
        import farandole.numpy as hvd

        messages = []

        def fails(spec: str, codec: str, weights: list[Any]) -> None:
            exchange = WeightExchange("test", GradientOptions(codec=codec), strategy_of(spec))  # type: ignore[arg-type]
            slots, text = exchange.slots(weights), ""
            for step in (1, 2):  # a rank that pushes without waiting learns it at the next push
                try:
                    if not text:
                        exchange(weights, slots, step)
                except ValueError as error:
                    text = str(error)
                hvd.barrier()
            messages.append(text)

        for place, spec in enumerate(WITH_WEIGHTS):
            fails(WITH_WEIGHTS[place - rank], "", [np.zeros(3)])
            fails(spec, "", [np.zeros(3), np.zeros((4, 2) if rank else 8)])
        fails("local_sgd:1", "int8" if rank else "", [np.zeros(3)])
        return messages

    zero, one = job(2, fn, store=True)
    for texts in (zero, one):
        for place, spec in enumerate(WITH_WEIGHTS):
            assert mentions(texts[2 * place], "strategy"), spec
            assert repr(spec)[:-1] in texts[2 * place], spec
            assert "all ranks must" in texts[2 * place + 1], (spec, texts[2 * place + 1])
            assert "weight 1" in texts[2 * place + 1] or "number 1" in texts[2 * place + 1], texts[
                2 * place + 1
            ]
        assert "with the codec int8" in texts[-1]
