"""The arguments of optimizers and tapes, for all frameworks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.base.types import DType, ReduceOp
from farandole.core.api.compression import CastCompressor, NoneCompressor
from farandole.errors import SettingsError
from farandole.strategies.options import LINEAR, GradientOptions, gradient_options, predivided
from tests.kits.messages import mentioning


def test_predivide_factors_cancel_out() -> None:
    assert predivided(ReduceOp.AVERAGE, 4.0) == (0.25, 4.0)
    assert predivided(ReduceOp.SUM, 1.0) == (1.0, 1.0)
    # they are sent
    assert [type(each) for each in predivided(ReduceOp.AVERAGE, np.float32(4))] == [float, float]


@pytest.mark.parametrize("factor", [0.0, -2.0, float("nan")])
def test_a_factor_that_is_not_positive(factor: float) -> None:
    with pytest.raises(
        ValueError, match=mentioning("gradient_predivide_factor", "> 0", str(factor))
    ):
        predivided(ReduceOp.AVERAGE, factor)


@pytest.mark.parametrize(
    ("op", "name"), [(ReduceOp.SUM, "Sum"), (1, "Sum"), (2, "Adasum"), (77, "77")]
)
def test_only_averages_are_predivided(op: int, name: str) -> None:
    with pytest.raises(
        ValueError,
        match=mentioning("=2.0", f"op={name}", "op=hvd.Average"),
    ):
        predivided(op, 2.0)


def test_arguments_under_the_names_of_horovod() -> None:
    assert gradient_options() == GradientOptions()
    options = gradient_options(
        ReduceOp.AVERAGE,
        4.0,
        backward_passes_per_step=2,
        average_aggregated_gradients=True,
        groups=3,
        sparse_as_dense=True,
        scale_local_gradients=False,
    )
    assert (options.prescale, options.postscale, options.passes, options.average_passes) == (
        0.25,
        4.0,
        2,
        True,
    )
    assert (options.groups, options.sparse_as_dense, options.scale_local) == (3, True, False)
    assert options.of_reduced()[:3] == (ReduceOp.AVERAGE, 1.0, 1.0)
    with pytest.warns(DeprecationWarning, match=mentioning("`num_groups`", "`groups`")):
        assert gradient_options(num_groups=2).groups == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"op": 77}, ("op=77", "Average", "Sum")),
        ({"op": ReduceOp.MIN}, ("Average", "Sum", "Adasum", "op=Min")),
        (
            {"op": ReduceOp.ADASUM, "ops": LINEAR},
            ("Average", "Sum", "op=Adasum"),
        ),
        (
            {"op": ReduceOp.ADASUM, "average_aggregated_gradients": True},
            ("Adasum", "average_aggregated_gradients"),
        ),
        (
            {"groups": -1},
            (("tf.Variable", "-1")),
        ),
        ({"groups": True}, "True"),
        (
            {"groups": ["a"], "tensor": "torch.Tensor"},
            ("torch.Tensor", "str"),
        ),
        (
            {"backward_passes_per_step": 0},
            ("backward_passes_per_step", "0", "1"),
        ),
    ],
)
def test_arguments_that_make_no_sense(
    arguments: dict[str, Any], text: str | tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match=mentioning(text)):
        gradient_options(**arguments)


def test_a_cast_is_done_on_flat_buffers() -> None:
    class Half(CastCompressor):
        dtype = DType.BFLOAT16

    class Own(Half):
        @classmethod
        def compress(cls, tensor: Any) -> tuple[Any, Any]:
            return tensor, None

    seen = [GradientOptions(compression=kind) for kind in (NoneCompressor, Half, Own)]
    assert [options.wire for options in seen] == [None, DType.BFLOAT16, None]
    assert [options.compressor for options in seen] == [NoneCompressor, NoneCompressor, Own]


@pytest.mark.parametrize("by_shares", [False, True])
def test_a_fixed_global_batch_needs_gradients_by_share(
    by_shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARANDOLE_FIXED_GLOBAL_BATCH", "1")
    if by_shares:
        assert gradient_options(by_shares=True) == gradient_options(
            op=ReduceOp.AVERAGE, by_shares=True
        )
    else:
        with pytest.raises(SettingsError, match=mentioning("--fixed-global-batch")):
            gradient_options()
