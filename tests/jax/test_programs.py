"""Collectives inside programs: their order, the threads they hold, errors, and differences between
ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentioning, mentions
from tests.run_job import job

pytest.importorskip("jax", reason="jax is not installed")
ROOT = Path(__file__).parent.parent.parent


def test_a_hundred_collectives_in_one_program() -> None:
    """Their data dependencies differ between ranks, so XLA would choose different orders."""

    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        def program(x: Any) -> Any:
            heavy = x
            for _ in range(3):
                heavy = jnp.tanh(heavy @ x)
            results = []
            for number in range(100):
                mine = x[number % 8] * (number + 1)
                if number % 3 == rank:
                    mine = mine + 0 * heavy.sum()  # late on one rank, early on the other
                if number % 7 == 2 + rank and results:
                    mine = mine + 0 * results[-1 - rank]
                unnamed = number % 2
                results.append(
                    hvd.allreduce(mine, name=None if unnamed else f"t{number}", op=hvd.Sum)
                )
            return jnp.stack(results)

        x = jnp.ones((256, 256)) * (rank + 1) / 256
        step = jax.jit(program)
        for _ in range(3):
            found = step(x)
            np.testing.assert_allclose(found[:, 0], 3 * np.arange(1.0, 101) / 256, rtol=1e-5)

    job(2, check)


def test_a_hundred_programs_in_another_order_on_each_rank() -> None:
    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        order = np.random.default_rng(rank).permutation(100).tolist()

        def program(x: Any) -> Any:
            handles = {
                number: hvd.allreduce_async(x * number, name=f"t{number}", op=hvd.Sum)
                for number in order
            }
            handles[-1] = hvd.grouped_allreduce_async([x, x * 2], op=hvd.Sum)
            results = {
                number: hvd.synchronize(handle) for number, handle in reversed(handles.items())
            }
            return jnp.stack([results[number] for number in range(100)]), results[-1]

        x = jnp.ones((2, 3)) * (rank + 1)
        for function in (jax.jit(program), program):
            every, pair = function(x)
            assert every[:, 1, 2].tolist() == [3.0 * number for number in range(100)]
            assert [each[0, 0].item() for each in pair] == [3.0, 6.0]

    job(2, check)


def test_every_form_that_does_not_wait() -> None:
    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        def program(x: Any) -> list[Any]:
            handles = [
                hvd.allgather_async(x),
                hvd.grouped_allgather_async([x, x]),
                hvd.broadcast_async(x, 1),
                hvd.alltoall_async(x),
                hvd.reducescatter_async(x, op=hvd.Sum),
                hvd.grouped_reducescatter_async([x, x]),
            ]
            return [hvd.synchronize(handle) for handle in handles]

        x = jnp.arange(2, dtype=jnp.uint8) + rank * 2
        for function in (program, jax.jit(program)):
            gathered, both, sent, dealt, part, parts = function(x)
            assert gathered.tolist() == both[1].tolist() == [0, 1, 2, 3]
            assert sent.tolist() == [2, 3]
            assert dealt.tolist() == [rank, rank + 2]
            assert (part.tolist(), parts[0].tolist()) == ([2 + 2 * rank], [1 + rank])
        out, received = hvd.synchronize(hvd.alltoall_async(x, [0, 2]))
        assert (out.tolist(), received.tolist()) == (
            [[], [0, 1, 2, 3]][rank],
            [[0, 0], [2, 2]][rank],
        )
        handle = hvd.allreduce_async(x, op=hvd.Max)
        hvd.synchronize(hvd.allreduce_async(x, op=hvd.Max))
        assert hvd.poll(handle) in (True, False)
        assert hvd.synchronize(handle).tolist() == [2, 3]
        assert hvd.poll(handle) is None

    job(2, check)


def test_steps_that_are_dispatched_before_others_are_done() -> None:
    """Programs wait for each other while Python continues; in between, collectives outside of
    programs.
    """

    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        @jax.jit
        def step(w: Any, x: Any) -> Any:
            for _ in range(4):
                x = jnp.tanh(x @ w)
            return w - 0.01 * hvd.allreduce(x), hvd.allreduce(x.sum())

        metric = jax.jit(lambda w: hvd.allreduce((w @ w).sum()))
        w = jnp.eye(500)
        x = jnp.ones((500, 500)) * (rank + 1)
        sums = []
        for number in range(12):
            w, loss = step(w, x)
            if number % 3 == rank:
                jax.block_until_ready(w)  # one rank is behind, the other ahead
            sums.append(metric(w))
            if number % 5 == 4:
                sums.append(hvd.allreduce(loss))
                hvd.barrier()
        hvd.check_replicas({"w": w, "sums": sums})

    job(2, check)


def test_one_thread_for_everything() -> None:
    """Two ranks on one core, XLA with one thread: a waiting collective holds it, and must not need
    another.
    """
    code = """
import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax, jax.numpy as jnp, farandole.jax as hvd
hvd.init()
x = jnp.ones((400, 400)) * (hvd.rank() + 1)
def program(x):
    found = []
    for number in range(30):
        x = jnp.tanh(x @ x)
        found.append(hvd.allreduce(x, name=f"a{number}"))
    return sum(found)
step = jax.jit(program)
for _ in range(3):
    x = step(x) / 1e6 + hvd.rank()
print("done", hvd.allreduce(x).shape)
"""
    env = {
        **os.environ,
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
        "NPROC": "1",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-m", "farandole.cli", "run", "-np", "2", sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env=env, stdin=subprocess.DEVNULL
    )
    assert done.stdout.count("done (400, 400)") == 2, done.stdout + done.stderr


def test_errors_in_programs_are_reported_and_work_continues() -> None:
    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        named = jax.jit(lambda x: hvd.allreduce(x, name="grads"))
        x = jnp.ones(2 + rank)
        with pytest.raises(RuntimeError) as caught:
            jax.block_until_ready(named(x))
        text = str(caught.value)
        assert f"rank {rank}, allreduce(name='grads'): Mismatched ALLREDUCE tensor shapes" in text
        assert type(caught.value).__name__ in ("JaxRuntimeError", "XlaRuntimeError")
        with (
            pytest.raises(
                hvd.HorovodInternalError, match=mentioning("Mismatched ALLREDUCE", "shapes")
            ),
            hvd.plain_errors(),
        ):
            jax.block_until_ready(named(x))
        with (
            pytest.raises(ValueError, match=mentioning("[2, 3]", "rows")),
            hvd.plain_errors(),
        ):
            jax.block_until_ready(jax.jit(lambda x: hvd.allgather(x))(x))
        with pytest.raises(KeyError, match="others"), hvd.plain_errors():
            raise KeyError("others pass as they are")
        good = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
        assert good(jnp.ones(3)).tolist() == [2.0] * 3

    job(2, check)


def test_an_error_in_a_program_that_python_did_not_wait_for() -> None:
    """JAX passes the failed program's token to every later program. Farandole replaces it."""

    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        heavy = jax.jit(lambda x: jax.lax.fori_loop(0, 10, lambda _, y: y @ x, x))
        named = jax.jit(lambda x: hvd.allreduce(x @ x, name="late"))
        good = jax.jit(lambda x: hvd.allreduce(x @ x, name="good"))
        eye = jnp.eye(300 + rank)

        def dispatched() -> Any:
            """Return the result of a failing program; None if it failed immediately, which depends
            on JAX.
            """
            try:
                return named(heavy(eye))
            except RuntimeError as error:
                if "Mismatched" not in str(error):
                    raise
                return None

        def fails(result: Any) -> None:
            if result is not None:
                with pytest.raises(RuntimeError, match="Mismatched"):
                    jax.block_until_ready(result)

        for again in range(6):
            bad = dispatched()
            if again % 3 == 0:
                fails(bad)
            if again % 3 < 2:
                assert hvd.allreduce(1.0, op=hvd.Sum) == 2.0  # waits for it; it is not its error
            else:
                fails(bad)
            for _ in range(2):
                assert good(heavy(jnp.eye(200)))[0, 0] == 1.0
            fails(bad)
        jax.effects_barrier()

    job(2, check)


def test_gradients_that_differ_between_ranks_are_named() -> None:
    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        def loss(w: Any, x: Any) -> Any:
            return (w["kernel"] @ x).sum() + w["bias"].sum()

        step = jax.jit(hvd.value_and_grad(loss))
        w = {"kernel": jnp.ones((2, 3 + rank)), "bias": jnp.ones(2)}
        with (
            pytest.raises(ValueError, match=mentioning("arrays")) as caught,
            hvd.plain_errors(),
        ):
            jax.block_until_ready(step(w, jnp.ones(3 + rank)))
        assert "['kernel']\" has shape (2, 3) on rank 0 and (2, 4) on rank 1" in str(caught.value)
        w = {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(2)}
        _, gradients = step(w, jnp.ones(3) * rank)
        assert gradients["kernel"].tolist() == [[0.5] * 3] * 2
        with pytest.raises(ValueError, match=r"'odd'|\['odd'\].*complex64 are not supported"):
            jax.jit(hvd.grad(lambda w: jnp.real(w["odd"]).sum()))({"odd": jnp.ones(2) * 1j})

    job(2, check)


def test_barriers_join_and_sets() -> None:
    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        def program(x: Any) -> Any:
            hvd.barrier()
            return x + 1

        assert jax.jit(program)(jnp.ones(2)).tolist() == [2.0, 2.0]
        pair, alone = hvd.add_process_set([0, 2]), hvd.add_process_set([1])
        mine = alone if rank == 1 else pair
        x = jnp.arange(2.0) + rank

        def inside(x: Any) -> Any:
            return hvd.allreduce(x, op=hvd.Sum, process_set=mine), hvd.allgather(
                x, process_set=mine
            )

        for function in (inside, jax.jit(inside)):
            total, gathered = function(x)
            assert total.tolist() == ([1.0, 2.0] if rank == 1 else [2.0, 4.0])
            assert gathered.tolist() == ([1.0, 2.0] if rank == 1 else [0.0, 1.0, 2.0, 3.0])
        if rank != 1:
            slope = jax.jit(
                jax.grad(lambda x: (hvd.broadcast(x, 2, process_set=pair) * (rank + 1)).sum())
            )(x)
            assert slope.tolist() == ([2.0, 2.0] if rank == 2 else [0.0, 0.0])
            with pytest.raises(ValueError, match=mentioning("rank 1", "root rank")):
                hvd.broadcast(x, 1, process_set=pair)
        else:
            with pytest.raises(ValueError, match=mentioning("Rank 1", "member")):
                jax.jit(lambda x: hvd.allgather(x, process_set=pair))(x)
        step = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
        for _ in range(rank):
            step(x)
        assert hvd.join() == 2
        assert step(jnp.ones(1)).tolist() == [3.0]

    job(3, check, dynamic_process_sets=True)


def test_unawaited_programs_end_before_the_process() -> None:
    code = """
import jax, jax.numpy as jnp, farandole.jax as hvd
hvd.init()
step = jax.jit(lambda x: hvd.allreduce(jax.lax.fori_loop(0, 20, lambda _, y: y @ x, x)))
step(jnp.eye(600))
print("end")
"""
    command = [sys.executable, "-m", "farandole.cli", "run", "-np", "2", sys.executable, "-c", code]
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env=env, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("end") == 2
    assert done.stderr.strip() == ""


def test_a_program_on_several_devices_gets_the_cure() -> None:
    code = """
import jax, jax.numpy as jnp, numpy as np, farandole.jax as hvd
hvd.init()
places = jax.sharding.NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), "i"), jax.sharding.PartitionSpec("i"))
jax.jit(hvd.allreduce)(jax.device_put(jnp.ones(4), places))
"""
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env=env, stdin=subprocess.DEVNULL
    )
    assert mentions(done.stderr, "Farandole", "collectives")


def test_calls_before_init_name_init() -> None:
    import jax
    import jax.numpy as jnp

    import farandole.jax as hvd

    for function in (hvd.allreduce, jax.jit(lambda x: hvd.allreduce(x)), hvd.allgather):
        with pytest.raises(Exception, match=mentioning("hvd.init")):
            jax.block_until_ready(function(jnp.ones(2)))
