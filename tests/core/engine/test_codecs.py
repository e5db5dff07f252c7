"""Codecs in the engine: ranks agree on them as on the operation, they are never mixed, and other
distributions can add them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.base.contracts import Part, Transport
from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request, Response
from farandole.core.engine import Engine, Entry
from farandole.core.engine.fusion import plan
from farandole.errors import HorovodInternalError, RequestError
from tests.core.engine.test_engine import engines


class Rounding:
    """A codec of another distribution, which sends 8-bit integers."""

    spec, sent, saved = "rounding", 0, 0

    def allreduce(self, parts: Sequence[Part], scale: float, transport: Transport) -> None:
        for part in parts:
            small = np.rint(part.buffer.data).astype(np.int8)
            received = np.empty(transport.size * len(small), np.int8)
            transport.allgather(
                small.view(np.uint8), received.view(np.uint8), [len(small)] * transport.size
            )
            part.buffer.out[:] = received.reshape(transport.size, -1).sum(axis=0) * scale
            self.sent += len(small) * (transport.size - 1)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is none."""


def entry(
    name: str,
    array: np.ndarray[Any, Any],
    codec: Any,
    op: ReduceOp = ReduceOp.SUM,
    spec: str | None = None,
    out: Any = None,
    **group: Any,
) -> Entry:
    dtype = DType(array.dtype.name)
    named = (codec.spec if codec else "") if spec is None else spec
    request = Request(name, Kind.ALLREDUCE, dtype, array.shape, op, codec=named, **group)
    return Entry(request, Buffer(array, array if out is None else out, dtype), codec=codec)


def test_a_codec_runs_only_where_ranks_agreed_on_it() -> None:
    def body(engine: Engine) -> int:
        codec = Rounding()
        for turn in range(3):  # new, known, remembered
            plain = np.full(5, 0.25 + turn, np.float32)
            coded, other = np.full(4, 1.4 + engine.rank, np.float32), np.full(3, 2.6, np.float32)
            handles = [
                engine.submit([entry("plain", plain, None)]),
                engine.submit([entry("coded", coded, codec, ReduceOp.AVERAGE)]),
                engine.submit(
                    [
                        entry("g_1of2", other, codec, group="g", group_size=2),
                        entry(
                            "g_2of2",
                            flags := np.array([0.5], np.float32),
                            None,
                            group="g",
                            group_size=2,
                        ),
                    ]
                ),
            ]
            for handle in handles:
                handle.wait()
            assert plain.tolist() == [3 * (0.25 + turn)] * 5
            assert coded.tolist() == [2.0] * 4  # of 1, 2 and 3
            assert other.tolist() == [9.0] * 3
            assert flags.tolist() == [1.5]
        return codec.sent

    assert engines(3, body) == [3 * 7 * 2] * 3


def test_one_rank_alone_loses_nothing() -> None:
    def body(engine: Engine) -> list[float]:
        out = np.empty(2, np.float32)
        engine.run([entry("alone", np.array([0.25, 1.4], np.float32), Rounding(), out=out)])
        return list(map(float, out))

    assert engines(1, body) == [pytest.approx([0.25, 1.4])]


def test_ranks_with_different_codecs_get_the_codec_of_each() -> None:
    def body(engine: Engine) -> str:
        spec = ("topk:0.1", "", "topk:0.1", "onebit")[engine.rank]
        with pytest.raises(HorovodInternalError) as error:
            engine.run([entry("grad", np.ones(3, np.float32), None, spec=spec)])
        # the engine continues
        engine.run([entry("after", after := np.ones(2, np.float32), Rounding())])
        assert after.tolist() == [4, 4]
        return str(error.value)

    assert set(engines(4, body)) == {
        "Mismatched codecs: ranks 0, 2 'topk:0.1' and rank 1 none and rank 3 'onebit'. Use the same"
        " codec on all ranks. (tensor: grad)"
    }


@pytest.mark.parametrize(
    ("array", "op", "text"),
    [
        (np.ones(2, np.int32), ReduceOp.SUM, "not SUM of int32"),
        (np.ones(2, np.float32), ReduceOp.MAX, "not MAX of float32"),
        (np.ones(2, np.float32), ReduceOp.ADASUM, "not ADASUM of float32"),
    ],
)
def test_codecs_refuse_unsupported_tensors(array: Any, op: ReduceOp, text: str) -> None:
    def body(engine: Engine) -> None:
        with pytest.raises(RequestError, match=text):
            engine.run([entry("bad", array, Rounding(), op)])

    engines(1, body)


def test_tensors_with_a_codec_fuse_only_within_their_group() -> None:
    def response(name: str, codec: str, members: int = 1) -> Response:
        names = tuple(f"{name}{number}" for number in range(members))
        return Response(
            Kind.ALLREDUCE,
            names,
            tuple(Request(each, Kind.ALLREDUCE, shape=(2,), codec=codec) for each in names),
        )

    responses = [
        response("a", ""),
        response("b", "int8"),
        response("c", "int8", 2),
        response("d", ""),
    ]
    units = plan(responses, lambda name: None, 1 << 20)
    assert [unit.names for unit in units] == [("a0", "d0"), ("b0",), ("c0", "c1")]


def test_a_joined_rank_finds_a_codec_of_another_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rounding-1.0.dist-info").mkdir()
    (tmp_path / "rounding-1.0.dist-info" / "entry_points.txt").write_text(
        f"[farandole.codecs]\nrounding = {__name__}:Rounding\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def body(engine: Engine) -> list[float]:
        from farandole.strategies.codecs import codec

        array = np.full(2, 3.2, np.float32)
        if engine.rank:
            engine.run([entry("g", array, codec("rounding"))])
        none = np.empty(0, np.uint8)
        engine.run(
            [Entry(Request("join", Kind.JOIN, DType.UINT8), Buffer(none, none, DType.UINT8))]
        )
        return list(map(float, array))

    assert engines(3, body)[1:] == [[6.0, 6.0]] * 2
