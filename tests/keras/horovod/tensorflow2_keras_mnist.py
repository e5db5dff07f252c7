"""A program for horovod.tensorflow.keras: an unbuilt model, all callbacks, checkpoints on rank 0."""

import sys

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()

gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

random = np.random.default_rng(0)
labels = random.integers(0, 10, 1200)
images = random.normal(0, 0.2, (1200, 28, 28))
for image, label in zip(images, labels, strict=True):
    image[2 * label + 4 : 2 * label + 6, 4:24] += 1

dataset = tf.data.Dataset.from_tensor_slices(
    (tf.cast(images[..., tf.newaxis], tf.float32), tf.cast(labels, tf.int64))
)
dataset = dataset.repeat().shuffle(1200, seed=hvd.rank()).batch(32)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(8, [3, 3], activation="relu"),
        tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
        tf.keras.layers.Dropout(0.25),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)

scaled_lr = 0.002 * hvd.size()
opt = tf.keras.optimizers.Adam(scaled_lr)
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)
model.compile(
    loss=tf.losses.SparseCategoricalCrossentropy(),
    optimizer=opt,
    metrics=["accuracy"],
    experimental_run_tf_function=False,
)

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=2, verbose=1),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(sys.argv[1] + "/checkpoint-{epoch}.h5"))

verbose = 2 if hvd.rank() == 0 else 0
history = model.fit(
    dataset, steps_per_epoch=24 // hvd.size(), callbacks=callbacks, epochs=4, verbose=verbose
)

digest = [float(np.sum(np.abs(each))) for each in model.get_weights()]
everybody = hvd.allgather(np.asarray([digest], "float64")).numpy()
print(
    f"rank {hvd.rank()} accuracy {history.history['accuracy'][-1]:.4f} same"
    f" {(everybody == everybody[0]).all()}"
)
