"""Collectives as graph operations that do not block TensorFlow's threads while waiting.

TensorFlow has one thread per core. If collectives that wait for another rank blocked all of them,
here and on the other rank, both ranks would wait forever. A collective is therefore three
operations: one starts it and returns, one waits, and one fetches the result. The waiting operation
is a queue's dequeue, which releases its thread until an element is queued. Each execution has a
separate queue from a pool, so results cannot be confused.

A session cannot access the queues of this process. Its waiting operations therefore form a line
with TensorFlow's mutex. The first one polls for a moment, which grows while no task completes, and
then moves to the end of the line; in between, the thread is free for others.
"""

from __future__ import annotations

import functools
import itertools
import re
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core import config as autograph
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from farandole.core.engine import Engine
from farandole.job import context

if TYPE_CHECKING:
    from farandole.base.types import Array

# AutoGraph would convert all functions that a tf.function calls, including the engine, which would
# become very slow.
autograph.CONVERSION_RULES = (autograph.DoNotConvert("farandole"), *autograph.CONVERSION_RULES)

# shortest and longest time in seconds that a waiting operation in a session watches
_MOMENT = 0.002, 0.2


class Task(Protocol):
    """Work in progress."""

    def when_done(self, call: Callable[[], None]) -> None:
        """Call ``call`` once when the task is done, or immediately if it is."""

    def result(self) -> Sequence[Array]:
        """Return the result, or raise the task's error."""


Start = Callable[..., Task]  # takes arrays
Form = tuple[Any, Any]  # a tensor's dtype and static shape


class Call:
    """A Task that runs a blocking function in a separate thread."""

    def __init__(self, function: Callable[[], Sequence[Array]]) -> None:
        self._function = function
        self._results: Sequence[Array] = []
        self._error: Exception | None = None

    def when_done(self, call: Callable[[], None]) -> None:
        threading.Thread(target=self.run, args=(call,), name="farandole-call", daemon=True).start()

    def run(self, call: Callable[[], None]) -> None:
        """Run the function and then ``call()`` in this thread."""
        try:
            self._results = self._function()
        except Exception as error:
            self._error = error
        call()

    def result(self) -> Sequence[Array]:
        if self._error is not None:
            raise self._error
        return self._results


class _Running(NamedTuple):
    task: Task
    engine: Engine
    queue: Any
    done: threading.Event


_numbers = itertools.count(1)
_running: dict[int, _Running] = {}
_queues: list[Any] = []
_changed = threading.Condition()
_completions = 0  # of tasks that sessions wait for; _changed guards this and the following
# tasks that were polled without a result, and the number of completions at that time
_watched: dict[int, int] = {}
_last_change = 0.0


def compiled() -> bool:
    """Return whether the current trace is for XLA."""
    return not tf.executing_eagerly() and bool(
        control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    )


def check_not_compiled(what: str) -> None:
    """Raise an error with advice, which XLA's message lacks: XLA compiles no Python."""
    if compiled():
        raise NotImplementedError(
            f"{what} cannot be compiled by XLA, because it communicates with other processes."
            " Remove jit_compile=True from the surrounding tf.function (or the model's"
            " compile()), or compile only inner functions, for example the forward and backward"
            " pass"
        )


def run(
    what: str, start: Start, inputs: Sequence[Any], forms: Sequence[Form], *, in_order: bool = False
) -> list[Any]:
    """Return the tensors, of ``forms``, from graph operations that call ``start`` with ``inputs``.

    ``what``: the function's name, for messages. ``in_order``: in functions, run in program order
    with operations that have side effects; otherwise an operation waits for its inputs only. Errors
    arrive as TensorFlow's: UnknownError for a failed collective, InvalidArgumentError for one that
    could not be started.
    """
    check_not_compiled(what)
    started = (
        _started if tf.compat.v1.executing_eagerly_outside_functions() else _started_in_session
    )
    # a hint in XLA's message, which contains the name of the operation that it cannot compile
    with tf.name_scope(re.sub(r"\W", "_", f"{what}_outside_of_XLA")):
        operations, number, permit = started(start, inputs)
        with tf.control_dependencies([permit]):
            outputs = tf.numpy_function(_fetch, [number], [dtype for dtype, _ in forms])
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    if not in_order:
        _run_freely([*operations, outputs[0].op])
    for output, (_, shape) in zip(outputs, forms, strict=True):
        output.set_shape(shape)
    return outputs


def array(tensor: Any) -> Array:
    """Return an eager tensor's memory, read-only."""
    try:
        return np.asarray(tensor)
    except ValueError:  # a bfloat16 scalar, which TensorFlow cannot convert to an array
        return np.asarray(tensor.numpy())


def uses_of(variables: Sequence[Any]) -> list[Any]:
    """Return operations that order reads of ``variables`` by Python, in functions of TensorFlow 2.

    They run after all earlier changes of a variable in the program and before all later ones.
    TensorFlow knows this order only for its own reads. These operations read shapes, because
    reading the values of tables with sparse updates would copy them.
    """
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return []
    # Keras 3 variables wrap TensorFlow's
    inner = [getattr(variable, "_value", variable) for variable in variables]
    kept = [variable for variable in inner if isinstance(variable, BaseResourceVariable)]
    return [tf.raw_ops.VariableShape(input=variable.handle).op for variable in kept]


def _run_freely(operations: Sequence[Any]) -> None:
    """Exempt operations from TensorFlow's program order for side effects, because another rank's
    order may differ.
    """
    manager: Any = getattr(tf.compat.v1.get_default_graph(), "experimental_acd_manager", None)
    for operation in operations if manager is not None else ():
        manager.run_independently(operation)


# In functions of TensorFlow 2.


def _started(start: Start, inputs: Sequence[Any]) -> tuple[list[Any], Any, Any]:
    def begin(*tensors: Any) -> tuple[Any, Any]:
        number = _begin(start, [array(tensor) for tensor in tensors], _borrowed_queue())
        return _running[number].queue.queue_ref, np.int64(number)

    handle, number = tf.py_function(begin, list(inputs), [tf.resource, tf.int64])
    (permit,) = tf.raw_ops.QueueDequeueV2(handle=handle, component_types=[tf.bool])
    number.set_shape([])
    return [number.op, permit.op], number, permit


def _borrowed_queue() -> Any:
    try:
        return _queues.pop()
    except IndexError:
        return tf.queue.FIFOQueue(-1, [tf.bool], [()])


# In sessions.


def _started_in_session(start: Start, inputs: Sequence[Any]) -> tuple[list[Any], Any, Any]:
    def begin(*arrays: Array) -> Any:
        return np.int64(_begin(start, arrays, None))

    number = tf.numpy_function(begin, list(inputs), tf.int64)
    number.set_shape([])
    until, turn = _turns()
    done = tf.raw_ops.While(
        input=[number, tf.constant(False)], cond=until, body=turn, parallel_iterations=1
    )[1]
    return [number.op], number, done


def _turns() -> tuple[Any, Any]:
    """Return the condition and body of the waiting loops, created once per graph."""
    current: Any = tf.compat.v1.get_default_graph()
    found: tuple[Any, Any] | None = getattr(current, "_farandole_turns", None)
    if found is None:
        state = [tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.bool)]
        made = [
            tf.function(part, state, autograph=False).get_concrete_function()
            for part in (_not_done, _turn)
        ]
        found = current._farandole_turns = (made[0], made[1])
    return found


def _not_done(number: Any, done: Any) -> Any:
    return tf.logical_not(done)


def _turn(number: Any, done: Any) -> Any:
    mutex = tf.raw_ops.MutexV2(container="", shared_name="farandole")
    lock = tf.raw_ops.MutexLock(mutex=mutex)  # the line: an operation in it holds no thread
    with tf.control_dependencies([lock]):
        done = tf.numpy_function(_watch, [number], tf.bool)
    done.set_shape([])
    with (
        tf.control_dependencies([done]),
        tf.control_dependencies([tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)]),
    ):
        return number, tf.identity(done)


def _watch(number: Any) -> Any:
    """Return whether task ``number`` is done, after waiting for a moment until it or another task,
    whose loop should check next, is done.
    """
    number = int(number)
    done = _running[number].done
    with _changed:
        heard = _watched.get(number, 0)
        least, most = _MOMENT
        moment = min(max((monotonic() - _last_change) / 4, least), most)
        _changed.wait_for(lambda: done.is_set() or _completions > heard, moment)
        if not done.is_set():
            _watched[number] = _completions
        return np.bool_(done.is_set())


# In functions and sessions.


def _begin(start: Start, arrays: Sequence[Array], waiting: Any) -> int:
    global _last_change
    _drop_unfetched()
    task = start(*arrays)
    number = next(_numbers)
    running = _running[number] = _Running(task, context.engine(), waiting, threading.Event())
    if waiting is None:
        with _changed:
            _last_change = monotonic()

    def done() -> None:
        global _completions, _last_change
        if waiting is not None:
            tf.raw_ops.QueueEnqueueV2(handle=waiting.queue_ref, components=[_permit()])
            return
        with _changed:
            running.done.set()
            _watched.pop(number, None)
            _completions, _last_change = _completions + 1, monotonic()
            _changed.notify_all()

    task.when_done(done)
    return number


@functools.cache
def _permit() -> Any:
    return tf.constant(True)


def _fetch(number: Any) -> list[Any]:
    running = _running.pop(int(number))
    if running.queue is not None:
        _queues.append(running.queue)
    return list(running.task.result())


def _drop_unfetched() -> None:
    """Drop unfetched collectives of an earlier session of this rank, left by an interrupted
    step.
    """
    if len(_running) > 1000:
        engine = context.engine()
        for number, running in list(_running.items()):
            if running.engine is not engine:
                _running.pop(number, None)
                _watched.pop(number, None)
