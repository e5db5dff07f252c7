"""A job that exchanges no gradients is reported at its end; jobs that exchange, predict or fail are
not.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from farandole.base.types import DType, Kind, Request, Response
from farandole.checks.finding import Finding
from farandole.checks.missing_exchange import missing_exchange
from farandole.core.observe.exchanges import ExchangeCounts
from tests.kits.messages import mentions
from tests.run_job import job


def check(broadcast: int, *pieces: Request) -> ExchangeCounts:
    found = ExchangeCounts()
    found.add_broadcast(broadcast)
    for piece in pieces:
        found.agreed([Response(piece.kind, (piece.name,), (piece,))])
    return found


def text_of(finding: Finding | None) -> str:
    return finding.text if finding is not None else ""


def piece(
    shape: tuple[int, ...], kind: Kind = Kind.ALLREDUCE, dtype: DType = DType.FLOAT32
) -> Request:
    return Request("x", kind, dtype, shape)


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [piece((3,))],  # metrics
        [piece((1000, 1000), Kind.BROADCAST)],
        [piece((5000,), Kind.ALLGATHER, DType.UINT8)],  # an object
    ],
)
def test_metrics_and_objects_are_no_gradients(pieces: list[Request]) -> None:
    found = missing_exchange(check(1_000_000, *pieces), 4)
    assert found is not None
    assert mentions(found.text, "4", "1,000,000", "parameters")


@pytest.mark.parametrize("kind", [Kind.ALLREDUCE, Kind.REDUCESCATTER, Kind.ALLGATHER])
def test_gradients(kind: Kind) -> None:
    assert missing_exchange(check(1_000_000, piece((8, 8), kind, DType.BFLOAT16)), 4) is None


def test_small_models_have_small_gradients() -> None:
    assert missing_exchange(check(3, piece((3,))), 2) is None
    assert "exchanged nothing" in text_of(missing_exchange(check(3), 2))


def test_several_small_models_have_small_gradients() -> None:
    found = check(100, piece((48,)))
    for _ in range(9):
        found.add_broadcast(149)
        found.add_broadcast(-49)  # an optimizer's
    assert found.broadcast == 1000
    assert missing_exchange(found, 2) is None
    found.add_broadcast(1000)  # a large one
    assert mentions(text_of(missing_exchange(found, 2)), "2,000", "48", "parameters")


@pytest.mark.parametrize(
    ("unchanged", "is_reported"),
    [([None], True), ([True, None], False), ([True, False], True), ([True, True], False)],
)
def test_unchanged_parameters(unchanged: list[bool | None], is_reported: bool) -> None:
    found = check(1000)
    found.unchanged = [lambda answer=answer: answer for answer in unchanged]  # type: ignore[misc]
    assert (missing_exchange(found, 2) is not None) == is_reported


def test_a_restarted_job_keeps_its_learned_state() -> None:
    learned, forgot = check(1000, piece((1000,))), check(1000)
    forgot.unchanged = [lambda: False]
    anew = check(1000)
    anew.continue_from(learned)
    assert missing_exchange(anew, 2) is None
    for later in (0, 1000):  # after hosts were only removed, nothing is broadcast again
        anew = ExchangeCounts()
        anew.continue_from(forgot)
        anew.add_broadcast(later)
        anew.unchanged.append(lambda: True)  # since then
        assert mentions(text_of(missing_exchange(anew, 2)), "1,000", "parameters")


def test_no_finding_without_training_on_several_ranks() -> None:
    assert missing_exchange(check(0), 4) is None  # nothing was broadcast: no training
    assert missing_exchange(check(1000), 1) is None


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def heard(fn: Any) -> list[str]:
    """Return rank 0's warnings at the end of a job of two ranks that runs ``fn(rank)``."""

    def program(rank: int) -> list[str]:
        from farandole.base.log import logger
        from farandole.job import context

        handler = Heard()
        logger.addHandler(handler)
        try:
            fn(rank)
            context.shutdown()
        finally:
            logger.removeHandler(handler)
        return handler.texts

    first, second = job(2, program)
    assert second == []
    return list(first)


@pytest.mark.slow
def test_a_job_that_predicts_and_one_that_forgets() -> None:
    def train(rank: int) -> None:
        import torch

        import farandole.torch as hvd

        model = torch.nn.Linear(30, 40)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.allreduce(model(torch.ones(2, 30)).detach().mean(), name="prediction")
        if not predicts:
            torch.optim.SGD(model.parameters(), lr=0.1).step()
            hvd.allreduce(torch.ones(2), name="loss")

    predicts = True
    assert heard(train) == []
    predicts = False
    (text,) = heard(train)
    assert mentions(text, "1,240", "parameters")


def test_a_job_that_does_not() -> None:
    def train(rank: int) -> None:
        import torch

        import farandole.torch as hvd

        model = torch.nn.Linear(30, 40)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.ones(2, 30)).sum().backward()
        optimizer.step()

    assert heard(train) == []


def test_a_job_that_is_excused_stays_so() -> None:
    def train(rank: int) -> None:
        from farandole.job import context

        context.skip_exchange_check()
        context.add_parameters_broadcast(1000)

    assert heard(train) == []


def test_a_job_without_parameters() -> None:
    import farandole.numpy as hvd

    assert heard(lambda rank: hvd.allreduce(np.ones(2))) == []


def test_a_job_that_fails() -> None:
    def train(rank: int) -> None:
        from farandole.job import context

        context.add_parameters_broadcast(1000)
        try:
            raise ValueError(f"rank {rank}")
        except ValueError:
            context.shutdown()

    assert heard(train) == []
