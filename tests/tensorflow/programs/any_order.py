"""200 collectives that every rank requests in a different order: in eager mode, in a function and
in a session.
"""

import random
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

import farandole.tensorflow as hvd
from farandole.base.contracts import Observer
from farandole.job import context

COUNT = 200


def build(order, x, chained):
    """Build collectives, some of which depend on earlier ones, so that not all can start together."""
    results = {}
    before = None
    for number in order:
        tensor = x * float(number)
        if chained and before is not None and number % 5 == 0:
            with tf.control_dependencies([before]):
                tensor = tf.identity(tensor)
        results[number] = before = hvd.allreduce(tensor, op=hvd.Sum, name=f"number.{number}")
    return [results[number] for number in range(COUNT)]


def check(results):
    for number, result in enumerate(results):
        np.testing.assert_array_equal(result, [number * 2.0, number * 4.0])


class Files(Observer):
    """An observer that collects the source files from which collectives were called."""

    def __init__(self):
        self.seen = set()

    def started(self, *_):
        self.seen |= {frame.filename for frame in traceback.extract_stack()}


def check_that_autograph_rewrites_this_file_alone():
    variables, rewritten = [tf.Variable([1.0])], []

    @tf.function
    def function():
        hvd.barrier()
        hvd.broadcast_variables(variables, root_rank=0)
        rewritten.append((lambda: 0).__code__.co_filename)

    files = Files()
    context.engine().observers.add(files)
    function()
    context.engine().observers.remove(files)
    assert "autograph_generated" in rewritten[0]
    assert any(each.endswith("engine.py") for each in files.seen)
    assert not [each for each in files.seen if "autograph_generated" in each]


if __name__ == "__main__":
    hvd.init()
    free = random.Random(hvd.rank()).sample(range(COUNT), COUNT)
    # with dependencies, an order that some dependency turns round would never end on any system
    common = [number for number in free if number % 5] + list(range(0, COUNT, 5))
    x = tf.constant([1.0, 2.0])
    with ThreadPoolExecutor(COUNT) as threads:
        one = {
            number: threads.submit(hvd.allreduce, x * float(number), op=hvd.Sum, name=f"{number}")
            for number in free
        }
        check([one[number].result().numpy() for number in range(COUNT)])
    check_that_autograph_rewrites_this_file_alone()
    for order, chained in () if "sessions" in sys.argv else ((free, False), (common, True)):
        function = tf.function(lambda x, order=order, chained=chained: build(order, x, chained))
        for _ in range(3):
            check(function(x))
    for threads in (1, 2) if "sessions" in sys.argv else ():
        with tf.Graph().as_default():
            place = tf.compat.v1.placeholder(tf.float32, [2])
            fetches = build(free, place, False) if threads == 1 else build(common, place, True)
            config = tf.compat.v1.ConfigProto(
                inter_op_parallelism_threads=threads, use_per_session_threads=True
            )
            with tf.compat.v1.Session(config=config) as session:
                for _ in range(3):
                    check(session.run(fetches, {place: [1.0, 2.0]}))
    print("all 200")
