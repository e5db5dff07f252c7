"""Trains a classifier of digits with a gradient tape, and checkpoints on rank 0."""

import os

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from azureml.core import Run

hvd.init()
run = Run.get_context()
assert int(os.environ["OMPI_COMM_WORLD_RANK"]) == hvd.rank()
assert int(os.environ["OMPI_COMM_WORLD_SIZE"]) == hvd.size()
print(f"rank {hvd.rank()} of {hvd.size()} at {os.environ['AZ_BATCH_MASTER_NODE']}", flush=True)

draw = np.random.default_rng(hvd.rank())
labels = draw.integers(0, 10, 128)
pixels = np.eye(10, 64)[labels] + draw.normal(0, 0.1, (128, 64))
dataset = tf.data.Dataset.from_tensor_slices(
    (pixels.astype(np.float32), labels.astype(np.int64))
).batch(32)

model = tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(10)])
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(0.01 * hvd.size())


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables, root_rank=0)
    return loss


for batch, (images, labels) in enumerate(dataset.repeat().take(100 // hvd.size())):
    loss = training_step(images, labels, batch == 0)
    if batch % 10 == 0 and hvd.rank() == 0:
        print(f"Step #{batch}\tLoss: {float(loss):.6f}", flush=True)
        run.log("loss", float(loss))
if hvd.rank() == 0:
    os.makedirs("outputs", exist_ok=True)
    model.save_weights("outputs/mnist.weights.h5")
