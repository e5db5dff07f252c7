# ruff: noqa -- written as users of Horovod write
"""Elastic training with TensorFlow and with Keras, as users of Horovod write it, in a job of fixed
size.
"""

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as khvd
import numpy as np
import tensorflow as tf
from tensorflow import keras

hvd.init()
x = np.random.RandomState(hvd.rank()).randn(256, 4).astype("float32")
y = (x.sum(1) > 0).astype("int64")


def net():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
    return model


# ---- a loop of one's own ----

model = net()
optimizer = tf.optimizers.Adam(0.02 * hvd.size())
loss_of = tf.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def training_step(images, labels, allreduce=True):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    if allreduce:
        tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


@hvd.elastic.run
def train(state):
    start_batch = state.batch
    for batch_idx in range(start_batch, 40):
        low = 32 * (batch_idx % 8)
        loss = training_step(x[low : low + 32], y[low : low + 32])
        if batch_idx % 10 == 0 and batch_idx > 0:
            state.batch = batch_idx
            state.commit()
    return float(loss)


# Horovod's programs make the optimizer's variables so
training_step(x[:32], y[:32], allreduce=False)
state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)
state.register_reset_callbacks([lambda: optimizer.learning_rate.assign(0.02 * hvd.size())])
loss = train(state)
same = hvd.allgather_object(
    [variable.numpy().tolist() for variable in [*model.weights, *optimizer.variables]]
)
print(f"loop {hvd.rank()} loss {loss:.3f} same {same[0] == same[-1]} batch {state.batch}")

# ---- Keras ----

model = net()
model.compile(
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=khvd.DistributedOptimizer(keras.optimizers.Adam(0.02 * khvd.size())),
    metrics=["accuracy"],
)
state = khvd.elastic.KerasState(model, batch=0, epoch=0)
state.register_reset_callbacks([lambda: None])
callbacks = [
    khvd.callbacks.MetricAverageCallback(),
    khvd.elastic.UpdateEpochStateCallback(state),
    khvd.elastic.UpdateBatchStateCallback(state),
    khvd.elastic.CommitStateCallback(state),
]


@khvd.elastic.run
def fit(state):
    state.model.fit(x, y, batch_size=32, epochs=4 - state.epoch, callbacks=callbacks, verbose=0)


fit(state)
same = hvd.allgather_object([weight.tolist() for weight in model.get_weights()])
print(
    f"keras {hvd.rank()} loss {model.evaluate(x, y, verbose=0)[0]:.3f} same {same[0] == same[-1]}"
    f" batch {state.epoch}"
)
