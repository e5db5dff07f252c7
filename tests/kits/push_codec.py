"""Conformance kit of codecs that compress pushes to parameter servers. A new codec runs it in three
lines:

class TestMine(PushCodecKit):
    def codec(self):
        return Mine()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from farandole.base.contracts import Packed, Part, PushCodec
from farandole.base.types import Buffer, DType
from tests.kits.codec import Arrays, gradients

SHAPES = ((1,), (7,), (64, 96), (130, 3, 5), (20_001,), (3,))
FLOATS = (DType.FLOAT32, DType.FLOAT64)


def parts_of(
    arrays: Arrays, dtype: DType = DType.FLOAT32, shapes: Sequence[tuple[int, ...]] = SHAPES
) -> list[Part]:
    datas = [array.astype(dtype.storage) for array in arrays]
    return [
        Part(f"t{number}", shape, Buffer(data, data, dtype))
        for number, (shape, data) in enumerate(zip(shapes, datas, strict=True))
    ]


def kept_of(codec: PushCodec, parts: Sequence[Part]) -> np.ndarray[Any, Any]:
    """Return the residuals of the parts, flat."""
    state = codec.state_dict()
    zeros = [state.get(f"residual/{part.key}", np.zeros(len(part.buffer.data))) for part in parts]
    return np.concatenate(zeros).astype(np.float64)


class PushCodecKit:
    def codec(self) -> PushCodec:
        raise NotImplementedError

    def parts(self, step: int, rank: int = 0, dtype: DType = DType.FLOAT32) -> list[Part]:
        return parts_of(gradients(rank, step, SHAPES), dtype)

    def unpacked(self, packed: Packed, parts: Sequence[Part]) -> np.ndarray[Any, Any]:
        """Unpack as a server does, which keeps nothing."""
        out = np.full(sum(len(part.buffer.data) for part in parts), 7, parts[0].buffer.data.dtype)
        with np.errstate(all="ignore"):
            self.codec().unpack(packed.payload, out)
        return out

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_pushed_plus_residual_equals_the_input(self, dtype: DType) -> None:
        """For each element. A refused push changes nothing, and the last push sends the residual."""
        codec = self.codec()
        given: Any = 0.0
        found: Any = 0.0
        for step in range(5):
            parts = self.parts(step, dtype=dtype)
            values = np.concatenate([part.buffer.data for part in parts]).astype(np.float64)
            packed = codec.pack_all(parts) if step == 4 else codec.pack(parts, 0)
            if step == 4:
                arrived = packed.payload.view(dtype.storage).astype(np.float64)
            else:
                arrived = self.unpacked(packed, parts).astype(np.float64)
            codec.arrived(packed, taken=step != 2)
            if step != 2:
                given, found = given + values, found + arrived
            most = np.abs(given).max()
            # those without round, and forget
            close = 1e-5 if getattr(codec, "feedback", False) else 0.05
            np.testing.assert_allclose(
                found + kept_of(codec, parts), given, rtol=0, atol=close * most
            )
        assert not kept_of(codec, parts).any()
        assert any(name.startswith("residual/") for name in codec.state_dict()) == getattr(
            codec, "feedback", False
        )

    def test_nothing_is_kept_before_it_has_arrived(self) -> None:
        codec = self.codec()
        for step in range(2):
            parts = self.parts(step)
            copies = [part.buffer.data.copy() for part in parts]
            before, sent = codec.state_dict(), codec.sent
            one, other = codec.pack(parts, 1), codec.pack(parts, 1)
            assert one.payload.tobytes() == other.payload.tobytes()
            after = codec.state_dict()
            assert before.keys() == after.keys()
            assert all(np.array_equal(array, after[name]) for name, array in before.items())
            assert all(
                np.array_equal(part.buffer.data, copy)
                for part, copy in zip(parts, copies, strict=True)
            )
            codec.arrived(one, taken=True)
            assert codec.sent == sent + len(one.payload)
            assert {*one.kept} <= {*codec.state_dict()}
        assert codec.sent + codec.saved == 2 * sum(copy.nbytes for copy in copies)
        assert codec.saved > 0

    def test_a_resumed_run_continues_bit_for_bit(self) -> None:
        codec, resumed = self.codec(), self.codec()
        codec.arrived(codec.pack(self.parts(0), 2), taken=True)
        resumed.load_state_dict(codec.state_dict())
        for step in (1, 2):
            packed = [each.pack(self.parts(step), 2) for each in (codec, resumed)]
            assert packed[0].payload.tobytes() == packed[1].payload.tobytes()
            for each, own in zip((codec, resumed), packed, strict=True):
                each.arrived(own, taken=True)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_nonfinite_numbers_arrive_once(self, bad: float) -> None:
        codec = self.codec()
        for step in range(3):
            parts = self.parts(step)
            if step == 1:
                parts[2].buffer.data[17] = bad
            packed = codec.pack(parts, 0)
            assert np.isfinite(self.unpacked(packed, parts)).all() == (step != 1), step
            codec.arrived(packed, taken=True)

    def test_malformed_payloads_are_refused(self) -> None:
        parts = self.parts(0)
        payload = self.codec().pack(parts, 0).payload
        out = np.empty(sum(len(part.buffer.data) for part in parts), np.float32)
        for wrong in (payload[:-1], np.concatenate([payload, payload[:3]])):
            with pytest.raises((ValueError, IndexError)):
                self.codec().unpack(wrong.copy(), out)
