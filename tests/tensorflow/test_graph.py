"""Graphs with few threads, functions that are traced again, errors, XLA."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd
from tests.kits.messages import mentioning
from tests.run_job import job

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize(("threads", "also"), [("1", "functions"), ("2", "sessions")])
def test_200_collectives_in_another_order_on_each_rank(threads: str, also: str) -> None:
    program = [sys.executable, str(PROGRAMS / "any_order.py"), also]
    command = [sys.executable, "-m", "farandole.cli", "run", "-np", "2", *program]
    env = {**os.environ, "TF_NUM_INTEROP_THREADS": threads}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env=env, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "[0]<stdout>:all 200", "[1]<stdout>:all 200"]


def test_unnamed_collectives_are_named_by_their_tensors() -> None:
    def body(rank: int) -> None:
        def both(x: Any, y: Any) -> tuple[Any, Any]:
            one, two = tf.identity(x, "one"), tf.identity(y, "two")
            pair = [lambda: hvd.allreduce(one, op=hvd.Sum), lambda: hvd.allreduce(two, op=hvd.Sum)]
            first = pair[rank]()  # each rank in an order of its own
            second = pair[1 - rank]()
            return (first, second) if rank == 0 else (second, first)

        function = tf.function(both, autograph=False)
        for _ in range(2):
            for length in (1, 2, 3):
                x = tf.fill([length], rank + 1.0)
                one, two = function(x, x * 10.0)
                assert one.numpy().tolist() == [3.0] * length
                assert two.numpy().tolist() == [30.0] * length

    job(2, body)


def test_scopes_count_unless_they_are_ignored() -> None:
    def body(rank: int) -> None:
        @tf.function(autograph=False)
        def function(x: Any) -> Any:
            with tf.name_scope(f"scope{rank}"):
                return hvd.allreduce(x, op=hvd.Sum, name="same", ignore_name_scope=True)

        assert function(tf.constant(rank + 1.0)).numpy() == 3.0

    job(2, body)


def test_a_while_loop_and_a_branch() -> None:
    def body(rank: int) -> None:
        @tf.function(autograph=False)
        def function(x: Any) -> Any:
            total = tf.while_loop(
                lambda i, _: i < 5,
                lambda i, total: (i + 1, hvd.allreduce(total + x, op=hvd.Sum)),
                (0, tf.zeros([])),
            )[1]
            return tf.cond(total > 0.0, lambda: hvd.allreduce(total), lambda: total)

        expected = 0.0
        for _ in range(5):
            expected = 2 * expected + 3.0
        assert function(tf.constant(rank + 1.0)).numpy() == expected
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.constant(rank + 1.0)
            total = tf.while_loop(
                lambda i, _: i < 5,
                lambda i, total: (i + 1, hvd.allreduce(total + x, op=hvd.Sum)),
                (0, tf.zeros([])),
            )[1]
            assert session.run(total) == expected

    job(2, body)


def test_errors_reach_every_rank_and_the_next_call_works() -> None:
    def body(rank: int) -> None:
        function = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum), autograph=False)
        text = ("Mismatched ALLREDUCE", "shapes")
        for _ in range(3):
            with pytest.raises(tf.errors.UnknownError, match=mentioning(text)):
                function(tf.ones([2 + rank]))
            assert function(tf.ones([2])).numpy().tolist() == [2.0, 2.0]
            with pytest.raises(hvd.HorovodInternalError, match=mentioning(text)):
                hvd.allreduce(tf.ones([2 + rank]))
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            place = tf.compat.v1.placeholder(tf.float32)
            total = hvd.allreduce(place, op=hvd.Sum)
            for _ in range(2):
                with pytest.raises(tf.errors.UnknownError, match=mentioning(text)):
                    session.run(total, {place: np.ones(2 + rank)})
                assert session.run(total, {place: np.ones(2)}).tolist() == [2.0, 2.0]
        with pytest.raises(tf.errors.InvalidArgumentError, match=mentioning("alltoall")):
            tf.function(lambda x: hvd.alltoall(x, tf.ones([2, 2], tf.int32)), autograph=False)(
                tf.ones([2])
            )
        with pytest.raises(ValueError, match=mentioning("type object")):
            hvd.allreduce(tf.constant("text"))

    job(2, body)


@pytest.mark.parametrize("session", [False, True])
def test_a_failed_step_does_not_wait_for_its_collectives(session: bool) -> None:
    """An error on one rank must be raised there, though the others never come."""

    def step(x: Any, name: str, limit: float) -> Any:
        total = hvd.allreduce(x, op=hvd.Sum, name=name)
        with tf.control_dependencies([tf.debugging.assert_less(x, limit, "wrong here")]):
            return total + 1.0

    def call(name: str, limit: float = 0.0) -> Any:
        if not session:
            return tf.function(lambda x: step(x, name, limit), autograph=False)(tf.constant(1.0))
        with tf.Graph().as_default(), tf.compat.v1.Session() as opened:
            place = tf.compat.v1.placeholder(tf.float32, [])
            return opened.run(step(place, name, limit), {place: 1.0})

    def body(rank: int) -> None:
        if rank == 0:
            with pytest.raises(tf.errors.InvalidArgumentError, match="wrong here"):
                call("never")
        hvd.barrier()
        if rank == 1:  # now the other one comes
            with pytest.raises(tf.errors.InvalidArgumentError, match="wrong here"):
                call("never")
        hvd.barrier()
        assert call("again", 2.0) == 3.0

    job(2, body)


def test_xla_is_detected_before_it_fails() -> None:
    def body(rank: int) -> None:
        for call in (hvd.allreduce, hvd.allgather, lambda x: hvd.size_op()):
            with pytest.raises(NotImplementedError, match=mentioning("XLA", "jit_compile=True")):
                tf.function(call, jit_compile=True, autograph=False)(tf.ones([2]))
        inner = tf.function(lambda x: x * 2.0, jit_compile=True, autograph=False)
        outer = tf.function(lambda x: inner(hvd.allreduce(inner(x), op=hvd.Sum)), autograph=False)
        assert outer(tf.constant(1.0)).numpy() == 8.0

    job(2, body)


def test_threads_call_functions_at_the_same_time() -> None:
    def body(rank: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        functions = [
            tf.function(
                lambda x, n=n: hvd.allreduce(x * n, op=hvd.Sum, name=f"thread.{n}"), autograph=False
            )
            for n in range(8)
        ]
        order = range(8) if rank == 0 else reversed(range(8))
        with ThreadPoolExecutor(8) as threads:
            futures = {n: threads.submit(functions[n], tf.constant(1.0)) for n in order}
            assert [futures[n].result().numpy() for n in range(8)] == [2.0 * n for n in range(8)]

    job(2, body)


def test_one_name_on_several_process_sets() -> None:
    """Rank 1 is in both, so it builds a call more than the others."""

    def body(rank: int) -> None:
        sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([1, 2])]
        mine = [each for each in sets if each.included()]

        @tf.function(autograph=False)
        def function(x: Any) -> list[Any]:
            return [
                hvd.allreduce(x, op=hvd.Sum, name="same", process_set=each)
                for each in (*mine, *mine)
            ]

        expected = [3.0 if each is sets[0] else 5.0 for each in (*mine, *mine)]
        assert [total.numpy() for total in function(tf.constant(rank + 1.0))] == expected

    job(3, body, dynamic_process_sets=True)
