# ruff: noqa -- written as users of Horovod write
"""An elastic training with TensorFlow's own loop: see ``elastic_torch.py``."""

import time

from elastic_log import changes, check_exit, write_log

import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.keras.utils.set_random_seed(hvd.rank())
data = tf.random.stateless_normal((24, 2), (0, 0))
model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(2)])
optimizer = tf.optimizers.SGD(0.001 * hvd.size(), momentum=0.9)


@tf.function
def training_step(batch, allreduce=True):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(batch, training=True)))
    if allreduce:
        tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


@hvd.elastic.run
def train(state):
    state.rendezvous += 1
    while state.epoch < 3:
        while state.batch < 4:
            check_exit(state.epoch, state.batch)
            training_step(data[state.batch :: hvd.size()][:4])
            state.batch += 1
            state.commits += 1
            state.commit()
        if hvd.rank() == 0:
            write_log(hvd, state)
        changed = state.epoch in changes
        state.epoch += 1
        state.batch = 0
        state.commits += 1
        state.commit()
        if changed:
            changes.remove(state.epoch - 1)
            for _ in range(2000):  # until the discovery script has another answer
                state.commit()
                time.sleep(0.02)
            raise RuntimeError("the hosts have not changed")


training_step(data[:4], allreduce=False)
state = hvd.elastic.TensorFlowKerasState(
    model, optimizer, batch=0, epoch=0, commits=0, rendezvous=0
)
train(state)
weights = hvd.allgather(tf.reshape(model.trainable_variables[0], (1, -1)))
assert weights.numpy()[0].tolist() == weights.numpy()[-1].tolist(), "ranks hold different weights"
