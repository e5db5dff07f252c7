"""Collectives among MXNet's own operations: dependencies, forks, errors, endings."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.net.handshake import new_secret
from tests.kits.messages import mentioning, mentions
from tests.pool import Died, spread
from tests.run_job import job

mx = pytest.importorskip("mxnet", reason="mxnet is not installed")


def test_two_hundred_calls_in_another_order_on_each_rank() -> None:
    def fn(rank: int) -> None:
        import farandole.mxnet as hvd

        order = list(range(200))
        random.Random(rank).shuffle(order)
        found = {}
        for number in order:
            mine = mx.nd.full((number % 5 + 1,), float(number * (rank + 1)))
            if number % 4:
                found[number] = hvd.allreduce(mine, op=hvd.Sum, name=f"{number}", priority=-number)
            elif number % 8:
                found[number] = hvd.grouped_allreduce_(
                    [mine, mine.copy()], op=hvd.Sum, name=f"{number}"
                )[1]
            else:
                found[number] = hvd.broadcast_(mine, 1, name=f"{number}")
        for number, result in found.items():
            factor = 3 if number % 8 else 2
            assert (result.asnumpy() == number * factor).all(), number

    job(2, fn)
    job(2, fn, wire="tcp")


def test_a_call_returns_before_the_others_have_come() -> None:
    def fn(rank: int) -> float:
        import farandole.mxnet as hvd

        if rank == 1:
            assert hvd.allgather_object("go") == ["later", "go"]  # rank 0 comes here after its call
        result = hvd.allreduce(mx.nd.ones((3,)), op=hvd.Sum, name="late") * 10
        if rank == 0:
            hvd.allgather_object("later")
        return float(result.asnumpy()[0])

    assert job(2, fn) == [20.0, 20.0]


def test_reads_before_and_after_a_pending_write() -> None:
    def fn(rank: int) -> None:
        import farandole.mxnet as hvd

        size = 400_000
        for _ in range(5):
            x = mx.nd.full((size,), 1.0 + rank)
            before = x
            for _ in range(6):  # a queue of work that reads x first
                before = mx.nd.broadcast_add(before, x)
            y = x * 2
            hvd.allreduce_(x, op=hvd.Sum)
            after = x * 10
            x += 1
            hvd.allreduce_(x, op=hvd.Sum)
            assert (before.asnumpy() == 7 * (1 + rank)).all()
            assert (y.asnumpy() == 2 * (1 + rank)).all()
            assert (after.asnumpy() == 30).all()
            assert (x.asnumpy() == 8).all()

    job(2, fn)


def test_an_input_may_be_overwritten_right_after_the_call() -> None:
    def fn(rank: int) -> None:
        import farandole.mxnet as hvd

        for step in range(20):
            x = mx.nd.full((50_000,), float(step))
            total = hvd.allreduce(x, op=hvd.Sum)
            x[:] = -1
            del x
            assert (total.asnumpy() == 2 * step).all()

    job(2, fn)


def test_convolution_weights_are_read_in_their_own_layout() -> None:
    """Outside of record(), oneDNN reorders weights while it reads them."""

    def fn(rank: int) -> None:
        import farandole.mxnet as hvd

        calls = {
            "allgather": lambda w: hvd.allgather(w)[64 * rank : 64 * (rank + 1)],
            "alltoall": hvd.alltoall,
            "view": lambda w: hvd.allgather(w.reshape(-1)).reshape((2, *w.shape))[rank],
            "reducescatter": lambda w: hvd.reducescatter(w, op=hvd.Sum),
            "allreduce": lambda w: hvd.allreduce(w, op=hvd.Sum),
            "allreduce_": lambda w: hvd.allreduce_(w, op=hvd.Sum),
            "broadcast_": lambda w: hvd.broadcast_(w, 1),
        }
        half = slice(32 * rank, 32 * rank + 32)
        for number in range(8):
            for name, call in calls.items():
                net = mx.gluon.nn.HybridSequential()
                net.add(*(mx.gluon.nn.Conv2D(64, 3, padding=1, in_channels=64) for _ in range(3)))
                net.initialize()
                generator = np.random.default_rng(number)
                both = generator.standard_normal((2, 64, 64, 3, 3)).astype("float32")
                weight = net[2].weight
                weight.set_data(mx.nd.array(both[rank]))
                x = mx.nd.array(generator.standard_normal((2, 64, 24, 24)))
                mx.nd.waitall()
                hvd.barrier()
                out = net(x)  # no rank waits for it
                found = call(weight.data()).asnumpy()
                total = both[0] + both[1]
                wanted = {
                    "allgather": both[rank],
                    "view": both[rank],
                    "alltoall": np.concatenate([both[0][half], both[1][half]]),
                    "reducescatter": total[half],
                    "broadcast_": both[1],
                }.get(name, total)
                np.testing.assert_array_equal(found, wanted, err_msg=name)
                out.wait_to_read()
        weight = net[0].weight.data()  # in oneDNN's order now
        view = weight.reshape(-1)
        found = hvd.allgather(view)[weight.size * rank :].asnumpy()[: weight.size]
        before = weight.asnumpy()
        np.testing.assert_array_equal(found, before.reshape(-1))
        mx.nd.waitall()
        net(x).wait_to_read()
        hvd.allreduce_(view, op=hvd.Sum)
        np.testing.assert_array_equal(weight.asnumpy(), sum(hvd.allgather_object(before)))

    job(2, fn)


def test_rows_of_one_array_in_a_group() -> None:
    def fn(rank: int) -> Any:
        import farandole.mxnet as hvd

        x = mx.nd.arange(6).reshape((3, 2)) + rank
        hvd.grouped_allreduce_([x[0:1], x[2:3]], op=hvd.Sum)
        hvd.broadcast_(x[1:2], 1)
        return x.asnumpy().tolist()

    assert job(2, fn) == [[[1.0, 3.0], [3.0, 4.0], [9.0, 11.0]]] * 2


def test_collectives_follow_each_other_without_waiting() -> None:
    def fn(rank: int) -> float:
        import farandole.mxnet as hvd

        x = mx.nd.full((10,), float(rank))
        for _ in range(10):
            x = hvd.broadcast(hvd.allreduce(x + 1, op=hvd.Max), 0)
        return float(x.asnumpy()[0])

    assert job(2, fn) == [11.0, 11.0]


def test_several_threads() -> None:
    def fn(rank: int) -> None:
        import farandole.mxnet as hvd

        wrong: list[str] = []

        def work(thread: int) -> None:
            for step in range(30):
                total = hvd.allreduce(
                    mx.nd.full((7,), float(thread)), op=hvd.Sum, name=f"{thread}.{step}"
                )
                if not (total.asnumpy() == 2 * thread).all():
                    wrong.append(f"{thread}.{step}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert not wrong

    job(2, fn)


# Errors.

MISTAKES = {
    "shapes": (
        lambda rank: mx.nd.ones((3 + rank,)),
        (
            "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of "
            "shape [3], but another rank sent a tensor of shape [4]."
        ),
    ),
    "types": (
        lambda rank: mx.nd.ones((3,), dtype=["float32", "int32"][rank]),
        "Mismatched data types: One rank had type float32, but another rank had type int32.",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mismatch_is_raised_to_readers_on_all_ranks(
    mistake: str,
) -> None:
    make, text = MISTAKES[mistake]

    def fn(rank: int) -> None:
        import farandole.mxnet as hvd

        good = hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum, name="good")
        # programs catch any of these
        for kind in (hvd.HorovodInternalError, mx.MXNetError, RuntimeError):
            for call in (hvd.allreduce, hvd.allreduce_):
                bad = call(make(rank), name="bad")
                with pytest.raises(kind, match=re.escape(text)):
                    bad.wait_to_read()
        later = hvd.allreduce(make(rank), name="bad") + 1
        with pytest.raises(hvd.HorovodInternalError, match=re.escape(text)):
            later.asnumpy()
        group = hvd.grouped_allreduce([mx.nd.ones((2,)), make(rank)], name="group")
        for each in group:
            with pytest.raises(hvd.HorovodInternalError):
                each.asnumpy()
        with pytest.raises(
            hvd.HorovodInternalError, match=mentioning("Mismatched BROADCAST", "root ranks")
        ):
            hvd.broadcast(mx.nd.ones((2,)), rank, name="root").wait_to_read()
        with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
            hvd.allgather(mx.nd.ones((2, 3 + rank)), name="rows")
        assert good.asnumpy().tolist() == [2, 2]
        assert hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum, name="bad").asnumpy().tolist() == [2, 2]
        mx.nd.waitall()

    job(2, fn)


def test_errors_of_one_rank_are_raised_by_the_call() -> None:
    def fn(rank: int) -> None:
        import farandole.mxnet as hvd

        x = mx.nd.ones((4,))
        first = hvd.allreduce(x, name="a") if rank == 0 else None
        if rank == 0:
            with pytest.raises(hvd.HorovodInternalError, match=mentioning("name", "tensor")):
                hvd.allreduce(x, name="a")
            for call, error, text in (
                (
                    lambda: hvd.allreduce(np.ones(3)),
                    TypeError,
                    ("NDArray", "ndarray"),
                ),
                (lambda: hvd.allreduce(x.tostype("row_sparse")), ValueError, "Densify"),
                (
                    lambda: hvd.allreduce(x, average=True, op=hvd.Sum),
                    ValueError,
                    ("op", "parameter"),
                ),
                (lambda: hvd.allreduce(x, op=17), ValueError, "reduction"),
                (
                    lambda: hvd.reducescatter(x, op=hvd.Max),
                    ValueError,
                    ("AVERAGE", "SUM"),
                ),
                (lambda: hvd.broadcast(x, 5), ValueError, "root"),
                (lambda: hvd.alltoall(x, splits=[1, 1]), ValueError, "splits"),
                (
                    lambda: hvd.alltoall(x, splits=[9, 1]),
                    ValueError,
                    ("Sum", "splits"),
                ),
                (lambda: hvd.broadcast_parameters([x]), ValueError, ("params", "type")),
                (lambda: hvd.broadcast_parameters({}, prefix=3), ValueError, "string"),
                (
                    lambda: hvd.DistributedTrainer({}, "sgd", prefix=3),
                    ValueError,
                    "string",
                ),
            ):
                with pytest.raises(error, match=mentioning(text)):
                    call()
        else:
            first = hvd.allreduce(x, name="a")
        assert first is not None
        assert first.asnumpy().tolist() == [1.0] * 4

    job(2, fn)


def test_trainers_of_different_models_are_reported_and_continue() -> None:
    def fn(rank: int) -> str:
        import farandole.mxnet as hvd

        def step(units: int) -> None:
            net = mx.gluon.nn.Dense(units, in_units=3)
            net.initialize()
            trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
            with mx.autograd.record():
                loss = net(mx.nd.ones((1, 3))).sum()
            loss.backward()
            trainer.step(1)

        with pytest.raises(ValueError, match=mentioning("arrays")) as caught:
            step(2 + rank)
        step(2)
        return str(caught.value)

    one, two = job(2, fn)
    assert one == two
    assert "'dense0_bias' has shape (2,) on rank 0 and (3,) on rank 1" in one


def test_before_init_and_after_shutdown() -> None:
    import farandole.mxnet as hvd

    with pytest.raises(ValueError, match=mentioning("hvd.init")):
        hvd.allreduce(mx.nd.ones((1,)))
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.allreduce(mx.nd.ones((2,)) * 3).asnumpy().tolist()) == (
        0,
        1,
        [3, 3],
    )
    hvd.shutdown()
    with pytest.raises(ValueError, match=mentioning("initialized")):
        hvd.broadcast_parameters({})


def test_arrays_pending_at_shutdown_raise_when_read() -> None:
    def fn(rank: int) -> None:
        import farandole.mxnet as hvd

        lonely = hvd.allreduce(mx.nd.ones((2,)), name="lonely") if rank == 0 else None
        hvd.barrier()
        hvd.shutdown()
        if lonely is not None:
            with pytest.raises(hvd.HorovodInternalError, match=mentioning("shut down")):
                lonely.asnumpy()

    job(2, fn)


# Processes.

PROGRAM = """
import os, sys
import numpy as np
import mxnet as mx
import farandole.mxnet as hvd

def step(x):
    return hvd.allreduce(x, op=hvd.Sum)

hvd.init()
"""


def run(program: str, *, np: int = 2, fails: bool = False, **env: str) -> str:
    from tests.job.launch.tools import Marked

    marked = Marked()
    command = [
        "-m",
        "farandole.cli",
        "run",
        "-np",
        str(np),
        sys.executable,
        "-W",
        "ignore",
        "-c",
        PROGRAM + program,
    ]
    done = marked.finish(
        subprocess.Popen(
            [sys.executable, *command],
            env={**marked.env, **env},
            text=True,
            cwd=Path(__file__).parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ),
        60,
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def test_the_engine_that_runs_everything_immediately() -> None:
    said = run(
        "x = mx.nd.ones((3,))\nhvd.allreduce_(x, op=hvd.Sum)\n"
        "group = hvd.grouped_allreduce([x, x], op=hvd.Sum)\n"
        "print(x.asnumpy().tolist(), group[1].asnumpy().tolist())",
        MXNET_ENGINE_TYPE="NaiveEngine",
    )
    assert said.count("[2.0, 2.0, 2.0] [4.0, 4.0, 4.0]") == 2


def test_forks_while_something_is_pending() -> None:
    """Workers of a DataLoader are forked: MXNet then stops its threads, and must not wait forever."""
    said = run("""
data = mx.gluon.data.ArrayDataset(np.arange(32.0), np.arange(32.0))
total = 0.0
for epoch in range(3):
    pending = [step(mx.nd.full((1000,), 1.0)) for _ in range(20)]
    for x, y in mx.gluon.data.DataLoader(data, batch_size=4, num_workers=2):
        total += float(step(x).sum().asscalar())
    assert all((each.asnumpy() == 2).all() for each in pending)
for _ in range(30):
    pending = step(mx.nd.ones((5,)))
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert (pending.asnumpy() == 2).all()
print("total", total)
""")
    assert said.count("total 2976.0") == 2


def test_a_killed_rank_is_the_cause_and_not_the_one_that_reads() -> None:
    said = run(
        "x = step(mx.nd.ones((2,)))\nx.wait_to_read()\n"
        "if hvd.rank() == 1:\n    os.kill(os.getpid(), 9)\n"
        "step(mx.nd.ones((2,))).asnumpy()",
        fails=True,
    )
    assert mentions(said, "Rank 1", "signal 9", "SIGKILL")
    assert mentions(said, "Rank 0", "consequence")


def test_a_program_may_end_with_something_in_flight() -> None:
    assert (
        run(
            "if hvd.rank() == 0:\n    x = hvd.allreduce(mx.nd.ones((2,)),"
            " name='lonely')\nprint('over')"
        ).count("over")
        == 2
    )


def test_readers_learn_of_a_dead_rank() -> None:
    secret = new_secret()

    def fn(rank: int) -> str:
        import os

        from farandole.core.transports import shm
        from farandole.job import context
        from farandole.job.config import Connection, Placement, Settings
        from farandole.job.context import lifecycle

        transport = shm.connect(rank, 2, secret, "test", 150.0)
        placement = Placement(rank=rank, size=2, local_rank=rank, local_size=2)
        lifecycle.enter(placement, Settings(), transport, Connection())
        import farandole.mxnet as hvd
        from farandole.errors import PeerLostError

        try:
            hvd.allreduce(mx.nd.ones((2,))).wait_to_read()
            if rank == 1:
                os._exit(7)
            with pytest.raises(PeerLostError) as caught:
                hvd.allreduce(mx.nd.ones((2,))).wait_to_read()
            return f"{caught.value.rank} {isinstance(caught.value, mx.MXNetError)}"
        finally:
            context.shutdown()

    assert spread(2, fn, deaths=True) == ["1 True", Died(7)]
