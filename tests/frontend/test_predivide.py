"""gradient_predivide_factor, for all frameworks."""

from __future__ import annotations

import pytest

from farandole.frontend.predivide import predivided
from farandole.types import ReduceOp


def test_what_is_divided_before_the_sum_is_multiplied_after_it() -> None:
    assert predivided(ReduceOp.AVERAGE, 4.0) == (0.25, 4.0)
    assert predivided(ReduceOp.SUM, 1.0) == (1.0, 1.0)


@pytest.mark.parametrize("factor", [0.0, -2.0, float("nan")])
def test_a_factor_that_is_not_positive(factor: float) -> None:
    with pytest.raises(ValueError, match=f"gradient_predivide_factor must be > 0, not {factor}"):
        predivided(ReduceOp.AVERAGE, factor)


@pytest.mark.parametrize(("op", "name"), [(ReduceOp.SUM, "Sum"), (1, "Sum"), (2, "Adasum"), (77, "77")])
def test_only_averages_are_predivided(op: int, name: str) -> None:
    with pytest.raises(ValueError, match=rf"not supported with op != Average .*=2\.0, op={name}\).*use op=hvd.Average"):
        predivided(op, 2.0)
