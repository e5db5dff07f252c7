"""The rank whose gradient makes all weights NaN is reported; other ranks, and programs that handle
it, are not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from farandole.checks.catalogue import NONFINITE_STEP
from tests.kits.heard import heard
from tests.kits.messages import mentions
from tests.run_job import job

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="torch is not installed")

SPOILT = 3  # the step that one rank's rows spoil


def step_only(optimizer: Any, model: Any) -> None:
    optimizer.step()


def synchronized(optimizer: Any, model: Any) -> None:
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()


def skip(optimizer: Any, model: Any) -> None:
    if all(
        parameter.grad is None or torch.isfinite(parameter.grad).all()
        for parameter in model.parameters()
    ):
        optimizer.step()


def mend(optimizer: Any, model: Any) -> None:
    for parameter in model.parameters():
        parameter.grad.nan_to_num_()
    optimizer.step()


def train(
    rank: int,
    do: Callable[[Any, Any], Any] = step_only,
    *,
    steps: int = SPOILT + 2,
    spoilt: int = SPOILT,
    dtype: Any = None,
    **options: Any,
) -> None:
    """``do(optimizer, model)`` steps."""
    import farandole.torch as hvd

    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.Linear(3, 0), torch.nn.Linear(0, 2)
    ).to(dtype)
    model.add_module("bias", torch.nn.Linear(4, 2, dtype=dtype))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters(), **options
    )
    for step in range(1, steps + 1):
        rows = torch.randn(
            2, 4, generator=torch.Generator().manual_seed(10 * step + rank), dtype=dtype
        )
        if step == spoilt and rank == 1:
            rows[0, 0] = float("nan")
        optimizer.zero_grad()
        (model[:3](rows) + model[3](rows)).square().mean().backward()
        do(optimizer, model)


def test_the_rank_and_the_step_are_named() -> None:
    def added_up(rank: int) -> None:
        import farandole.torch as hvd

        train(rank, op=hvd.Sum)

    programs = (
        train,
        partial(train, dtype=torch.bfloat16),
        partial(train, do=synchronized),
        added_up,
    )
    quiet, texts_by_rank = heard(2, *programs)
    assert quiet == [[]] * len(programs)
    for texts in texts_by_rank:
        assert len(texts) == 1
        assert "gradient of 'bias." in texts[0]
        assert mentions(texts[0], f"step {SPOILT}", "NaN")


def test_the_first_step_is_named_too() -> None:
    def at_once(rank: int) -> None:
        train(rank, spoilt=1)

    quiet, texts_by_rank = heard(2, at_once, partial(train, spoilt=1, dtype=torch.bfloat16))
    assert quiet == [[], []]
    assert all(
        len(texts) == 1 and mentions(texts[0], "step 1", "NaN") for texts in texts_by_rank
    ), texts_by_rank


def test_nonfinite_gradients_the_program_handles_are_silent() -> None:
    def skipping(rank: int) -> None:
        train(rank, skip)

    assert heard(2, skipping, partial(train, do=mend)) == [[[], []]] * 2


@pytest.mark.parametrize("check", ["raise", "off"])
def test_it_is_an_error_or_nothing_as_the_check_says(check: str) -> None:
    def program(rank: int) -> str:
        from farandole.errors import RanksDifferError

        try:
            train(rank, steps=SPOILT)
        except RanksDifferError as error:
            return f"{error} {[finding.code for finding in error.findings]}"
        return ""

    (first, second) = job(2, program, check=check)
    assert not first
    assert (f"step {SPOILT}" in second) == (check == "raise")
    assert second.endswith(f"[{NONFINITE_STEP.code}] {[NONFINITE_STEP.code]}") == (check == "raise")
