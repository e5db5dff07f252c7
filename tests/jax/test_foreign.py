"""Host calls as foreign functions of XLA: structures, lifetimes, errors, and versions that refuse
them.
"""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentioning
from tests.run_job import job

jax = pytest.importorskip("jax", reason="jax is not installed")
if jax.__version_info__ < (0, 6):
    pytest.skip(
        "does not apply: JAX before 0.6 calls the host another way", allow_module_level=True
    )
from farandole.jax import foreign  # noqa: E402

HEADER = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
NEWER = {"XLA_FFI_Extension_Base": "XLA_FFI_InternalExtension"}  # JAX 0.11 has other names
STRUCTURES = [found for name, found in vars(foreign).items() if name.startswith("XLA_FFI_")]


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.__name__)
def test_structures_are_those_of_the_header(structure: Any) -> None:
    """The names, in order; of most structures only the first fields are known."""
    text = re.sub(r"//[^\n]*", "", HEADER.read_text())
    name = structure.__name__
    names = f"(?:{name}|{NEWER.get(name, name)})"
    found = re.search(rf"struct {names} {{(.*?)}}", text, re.DOTALL)
    assert found is not None
    theirs = [
        re.sub(r"^_XLA_FFI_API_STRUCT_FIELD\((\w+)\)$", r"\1", line.split()[-1].lstrip("*"))
        for line in map(str.strip, found[1].split(";"))
        if line
    ]
    ours = [name for name, _ in structure._fields_]
    assert ours == theirs[: len(ours)]


def test_every_kind_of_array() -> None:
    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd
        from farandole.jax import foreign

        given = [
            jnp.float32(3),
            jnp.zeros((0, 3)),
            jnp.ones((2, 3), jnp.bfloat16),
            jnp.arange(5, dtype=jnp.int8),
            jnp.arange(6.0).reshape(2, 3).T,
            jnp.array([True, False]),
        ]
        found = jax.jit(lambda each: [hvd.broadcast(x, 0) for x in each])(
            [x if rank == 0 else jnp.zeros_like(x) for x in given]
        )
        for mine, theirs in zip(found, given, strict=True):
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))
            assert mine.dtype == theirs.dtype
        assert foreign._registered()

    job(2, check)


def test_a_program_takes_its_calls_along() -> None:
    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd
        from farandole.jax import foreign

        jax.clear_caches()
        gc.collect()
        before = len(foreign._calls)
        program = jax.jit(lambda x: hvd.allreduce(hvd.allreduce(x, op=hvd.Sum), op=hvd.Sum))
        for _ in range(2):
            assert program(jnp.ones(2)).tolist() == [4.0, 4.0]
            gc.collect()
        assert len(foreign._calls) > before
        del program
        jax.clear_caches()
        gc.collect()
        assert len(foreign._calls) == before

    job(2, check)


def test_a_program_of_another_process_is_an_error() -> None:
    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd
        from farandole.jax import foreign

        program = jax.jit(lambda x: hvd.allreduce(x)).lower(jnp.ones(2)).compile()
        kept = dict(foreign._calls)
        foreign._calls.clear()
        try:
            with pytest.raises(RuntimeError, match=mentioning("compiled", "process")):
                jax.block_until_ready(program(jnp.ones(2)))
        finally:
            foreign._calls.update(kept)

    job(2, check)


def test_a_result_that_has_no_room_is_refused() -> None:
    """No collective of Farandole returns one; a mistake must not write past the buffer."""

    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        from farandole.jax.primitive import host_call

        class Larger:
            elementwise, in_place = True, False

            def shapes(self, shapes: Any, dtypes: Any) -> Any:
                return list(zip(shapes, dtypes, strict=True))

            def run(self, arrays: Any, jitted: bool) -> Any:
                assert not arrays[0].flags.writeable
                return [np.zeros(arrays[0].size + 1, np.float32)]

        with pytest.raises(
            RuntimeError,
            match=mentioning("float32", "[3]", "[2]"),
        ):
            jax.block_until_ready(jax.jit(lambda x: host_call(Larger(), [x]))(jnp.ones(2)))

    job(1, check)


def test_gradients_that_the_program_needs_otherwise_stay() -> None:
    """Gradients are reduced in place, and XLA must know it."""

    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        reduced = hvd.distributed_gradients(op=hvd.Sum)

        @jax.jit
        def program(x: Any, y: Any) -> Any:
            mine = y * 3
            (of_x, of_mine, half, few), _ = reduced.update(
                (x, mine, mine.astype(jnp.bfloat16), x[:2]), ()
            )
            return of_x, x, of_mine, mine, half, few, of_x + x

        x, y = jnp.full(40_000, rank + 1.0), jnp.full((300, 200), rank + 1.0)
        for _ in range(3):
            found = [np.unique(np.asarray(each, np.float32)).tolist() for each in program(x, y)]
            assert found == [
                [3.0],
                [rank + 1.0],
                [9.0],
                [3.0 * rank + 3.0],
                [9.0],
                [3.0],
                [rank + 4.0],
            ]
            assert x[0] == rank + 1.0
        (now,), _ = reduced.update((x,), ())
        assert (now[0], x[0]) == (3.0, rank + 1.0)

    job(2, check)


def test_an_xla_that_does_not_take_our_version() -> None:
    """Calls then use JAX's own callbacks."""

    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd
        from farandole.jax import foreign

        kept = foreign._TARGET, foreign._OLDEST, foreign._NEWEST
        foreign._TARGET, foreign._OLDEST, foreign._NEWEST = "farandole_refused", (0, 0), (0, 0)
        foreign._registered.cache_clear()
        try:
            program = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
            assert program(jnp.ones(2)).tolist() == [2.0, 2.0]
            assert not foreign._registered()
            reduced = hvd.distributed_gradients(op=hvd.Sum)
            (large,), _ = jax.jit(lambda x: reduced.update((x,), ()))(jnp.ones(20_000))
            assert (large.min(), large.max()) == (2.0, 2.0)
        finally:
            foreign._TARGET, foreign._OLDEST, foreign._NEWEST = kept
            foreign._registered.cache_clear()

    job(2, check)


def test_for_gpus_a_call_is_that_of_io_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly: XLA's compiler for GPUs aborted the process if a call lacked parts of JAX's calls."""
    from jax._src.interpreters import mlir
    from jax.experimental import io_callback

    import farandole.jax as hvd

    here = jax.devices("cpu")[0].client
    # there is none for GPUs
    monkeypatch.setattr(mlir.ModuleContext, "get_backend", lambda *_, **__: here)

    def lowered(call: Any) -> str:
        def program(x: Any) -> Any:
            return jax.numpy.stack([call(x[number] * number) for number in range(3)])

        traced = jax.jit(program).trace(np.ones((3, 4), np.float32))
        return re.sub(r"index = \d+", "", traced.lower(lowering_platforms=("cuda",)).as_text())

    hvd.init()
    try:
        ours = lowered(lambda x: hvd.allreduce(x, op=hvd.Sum))
    finally:
        hvd.shutdown()
    theirs = lowered(
        lambda x: io_callback(lambda y: y, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True)
    )
    assert "gpu_callback" in ours
    assert ours == theirs
