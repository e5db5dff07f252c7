# ruff: noqa -- written as users of Horovod write
"""An elastic training with Keras' fit: see ``elastic_torch.py``."""

import time

from elastic_log import changes, check_exit, write_log

import horovod.tensorflow.keras as hvd
import numpy as np
from tensorflow import keras

hvd.init()
keras.utils.set_random_seed(hvd.rank())
x = np.random.RandomState(0).randn(16, 2).astype("float32")
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2)])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.001 * hvd.size(), momentum=0.9))
model.compile(loss="mse", optimizer=optimizer)
state = hvd.elastic.KerasState(model, batch=0, epoch=0, commits=0, rendezvous=0)


class Script(keras.callbacks.Callback):
    """Fails as scheduled, and writes the log."""

    def on_train_batch_begin(self, batch, logs=None):
        check_exit(state.epoch, state.batch)

    def on_train_batch_end(self, batch, logs=None):
        state.commits += 1

    def on_epoch_end(self, epoch, logs=None):
        done, state.epoch = state.epoch, state.epoch - 1
        if hvd.rank() == 0:
            write_log(hvd, state)
        state.epoch = done
        state.commits += 1
        if done - 1 in changes:
            changes.remove(done - 1)
            for _ in range(2000):  # until the discovery script has another answer
                state.commit()
                time.sleep(0.02)
            raise RuntimeError("the hosts have not changed")


callbacks = [
    hvd.elastic.UpdateEpochStateCallback(state),
    hvd.elastic.UpdateBatchStateCallback(state),
    Script(),
    hvd.elastic.CommitStateCallback(state),
]


@hvd.elastic.run
def train(state):
    state.rendezvous += 1
    rest = 4 * state.batch
    model.fit(x[rest:], x[rest:], 4, epochs=3 - state.epoch, callbacks=callbacks, verbose=0)


train(state)
weights = hvd.allgather(model.get_weights()[0].reshape(1, -1))
weights = np.asarray(weights)
assert weights[0].tolist() == weights[-1].tolist(), "ranks hold different weights"
