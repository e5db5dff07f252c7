"""Codecs that compress pushes to parameter servers: the kit, and the sent values of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.base.contracts import PushCodec
from farandole.job.plugins import registry
from farandole.strategies.codecs import codec
from tests.kits.codec import gradients
from tests.kits.push_codec import PushCodecKit, parts_of
from tests.strategies.codecs.test_codecs import LENGTH, one_bit

SPECS = (
    "fp16",
    "bf16",
    "int8",
    "onebit",
    "topk:0.05",
    "randomk:0.1",
    "threshold:0.5",
    "powersgd:2",
)


def made(spec: str) -> PushCodec:
    found = codec(spec)
    assert isinstance(found, PushCodec)
    return found


def kit(spec: str) -> type[PushCodecKit]:
    return type(
        f"Test{spec.partition(':')[0].title()}", (PushCodecKit,), {"codec": lambda self: made(spec)}
    )


TestFp16, TestBf16, TestInt8, TestOnebit, TestTopk, TestRandomk, TestThreshold, TestPowersgd = map(
    kit, SPECS
)


def test_the_kit_runs_every_codec_that_compresses_pushes() -> None:
    others = {*registry.names("codec")} - {spec.partition(":")[0] for spec in SPECS}
    assert others == {"sign", "net"}
    assert not any(isinstance(codec(spec), PushCodec) for spec in ("sign", "net:int8"))


def sent(spec: str, steps: int) -> list[Any]:
    """Return the arriving values of one flat tensor in each step."""
    rank, found = made(spec), []
    for step in range(steps):
        packed = rank.pack(parts_of(gradients(0, step, [(LENGTH,)]), shapes=[(LENGTH,)]), 0)
        out = np.empty(LENGTH, np.float32)
        made(spec).unpack(packed.payload, out)
        rank.arrived(packed, taken=True)
        found.append(out)
    return found


@pytest.mark.parametrize("spec", ["onebit", "threshold:0.5", "topk:0.05"])
def test_a_push_is_its_model(spec: str) -> None:
    residual = np.zeros(LENGTH)
    for step, got in enumerate(sent(spec, 3)):
        values = residual + gradients(0, step, [(LENGTH,)])[0]
        if spec == "onebit":
            want = one_bit(values)
        else:
            size = np.abs(values)
            bound = 0.5 if spec == "threshold:0.5" else np.sort(size)[-int(np.ceil(0.05 * LENGTH))]
            want = np.where(size >= bound, values, 0)
        # one at the bound may fall on either side
        assert (np.abs(got - want) <= 1e-4).mean() > 0.99, step
        residual = values - got


def test_powersgd_sends_all_of_a_matrix_of_its_rank() -> None:
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 50))
    packed = made("powersgd:2").pack(parts_of([matrix.reshape(-1)], shapes=[(40, 50)]), 0)
    out = np.empty(2000, np.float32)
    made("powersgd:2").unpack(packed.payload, out)
    np.testing.assert_allclose(out.reshape(40, 50), matrix, atol=1e-4)
    assert len(packed.payload) == 8 + 3 * 8 + 2 * (40 + 50) * 4


def test_ranks_round_in_other_ways() -> None:
    parts = parts_of(gradients(0, 0, [(LENGTH,)]), shapes=[(LENGTH,)])
    one, other = (made("int8").pack(parts, rank).payload for rank in (0, 1))
    assert one.tobytes() != other.tobytes()
