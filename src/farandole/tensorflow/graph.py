"""Collectives as operations of a graph, without holding one of TensorFlow's threads while they
wait.

There are as few such threads as cores. If each were held by a collective that waits for another
rank, and the other rank's by others, all would wait for ever. So a collective is three operations:
one starts it, and returns; one waits; one fetches the result. What waits is TensorFlow's own: a
queue's dequeue, which leaves its thread until something is put into the queue. Each execution has a
queue to itself, out of a pool, so nothing can be mistaken for another's.

In a session the queues of this process cannot be reached. There, those that wait stand in a line,
which is TensorFlow's own, too: its mutex. The first one watches for a moment (the longer nothing
happens, the longer), and then goes to the end of the line; so between two moments a thread is free
for others.
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

# AutoGraph would rewrite all that a tf.function calls, down to the engine, which then crawls
# wherever it runs.
autograph.CONVERSION_RULES = (autograph.DoNotConvert("farandole"), *autograph.CONVERSION_RULES)

# seconds that one of those that wait in sessions watches, at least and at most
_MOMENT = 0.002, 0.2


class Task(Protocol):
    """Something that was started and will be done."""

    def when_done(self, call: Callable[[], None]) -> None:
        """Have ``call`` called once when it is done, or at once."""

    def result(self) -> Sequence[Array]:
        """Its result, or its error."""


Start = Callable[..., Task]  # from arrays
Form = tuple[Any, Any]  # a tensor's dtype and static shape


class Call:
    """A Task: a function that blocks, in a thread of its own."""

    def __init__(self, function: Callable[[], Sequence[Array]]) -> None:
        self._function = function
        self._results: Sequence[Array] = []
        self._error: Exception | None = None

    def when_done(self, call: Callable[[], None]) -> None:
        threading.Thread(target=self.run, args=(call,), name="farandole-call", daemon=True).start()

    def run(self, call: Callable[[], None]) -> None:
        """The function, and then ``call()``, in this thread."""
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
_completions = 0  # of those that wait in sessions; this and what follows is guarded by _changed
# of those that have watched in vain: how many completions each has heard of
_watched: dict[int, int] = {}
_last_change = 0.0


def compiled() -> bool:
    """Is what is being traced for XLA?"""
    return not tf.executing_eagerly() and bool(
        control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    )


def check_not_compiled(what: str) -> None:
    """XLA compiles no Python; its own message would not say what to do."""
    if compiled():
        raise NotImplementedError(
            f"{what} cannot be compiled by XLA, for it talks to other processes. Take"
            " jit_compile=True off the tf.function (or the model's compile()) around it, or"
            " compile only the functions that it calls: those that compute the forward and"
            " backward pass, say."
        )


def run(
    what: str, start: Start, inputs: Sequence[Any], forms: Sequence[Form], *, in_order: bool = False
) -> list[Any]:
    """Operations in the current graph that give ``start``'s tensors (of ``forms``) for the tensors
    ``inputs``.

    ``what``: the function's name, for messages. ``in_order``: in functions, after what has side
    effects and stands before it in the program, and before what stands behind it; others wait for
    their inputs alone. Errors come as TensorFlow's: UnknownError for a collective that failed,
    InvalidArgumentError for one that could not be started.
    """
    check_not_compiled(what)
    started = (
        _started if tf.compat.v1.executing_eagerly_outside_functions() else _started_in_session
    )
    # a hint, where XLA names what it cannot do
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
    """An eager tensor's memory, to be read."""
    try:
        return np.asarray(tensor)
    except ValueError:  # a single number of bfloat16, of which TensorFlow makes no array
        return np.asarray(tensor.numpy())


def uses_of(variables: Sequence[Any]) -> list[Any]:
    """Operations that put into order who looks at ``variables`` from Python, in functions of
    TensorFlow 2: they run after what changes a variable before this place in the program, and
    before what changes it behind.

    Of reads alone TensorFlow knows that order; these are of shapes, for the reads of tables with
    sparse updates copy.
    """
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return []
    # those of Keras 3 wrap TensorFlow's
    inner = [getattr(variable, "_value", variable) for variable in variables]
    kept = [variable for variable in inner if isinstance(variable, BaseResourceVariable)]
    return [tf.raw_ops.VariableShape(input=variable.handle).op for variable in kept]


def _run_freely(operations: Sequence[Any]) -> None:
    """TensorFlow runs what has side effects in the order of the program. That of another rank may
    be another.
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
    """The condition and the body of the loops that wait: made once for a graph."""
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
    lock = tf.raw_ops.MutexLock(mutex=mutex)  # the line: whoever stands in it holds no thread
    with tf.control_dependencies([lock]):
        done = tf.numpy_function(_watch, [number], tf.bool)
    done.set_shape([])
    with (
        tf.control_dependencies([done]),
        tf.control_dependencies([tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)]),
    ):
        return number, tf.identity(done)


def _watch(number: Any) -> Any:
    """Is it done? Waits a moment for that, or for another one, which is to ask then."""
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


# In both.


def _begin(start: Start, arrays: Sequence[Array], waiting: Any) -> int:
    global _last_change
    _forget_the_dead()
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


def _forget_the_dead() -> None:
    """Collectives of an earlier life of this rank that were never fetched: a step failed
    half-way.
    """
    if len(_running) > 1000:
        engine = context.engine()
        for number, running in list(_running.items()):
            if running.engine is not engine:
                _running.pop(number, None)
                _watched.pop(number, None)
