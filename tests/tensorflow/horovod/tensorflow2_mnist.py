# A program as users of Horovod 0.28 write it for TensorFlow 2.
import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

random = np.random.default_rng(hvd.rank())
labels = random.integers(0, 10, 2000)
images = random.normal(0, 0.3, (2000, 12, 12, 1)).astype(np.float32)
for image, label in zip(images, labels):
    image[label + 1 : label + 3, 2:10] += 1.0
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().shuffle(1000).batch(64)

mnist_model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(8, [3, 3], activation="relu"),
        tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
loss = tf.losses.SparseCategoricalCrossentropy()
opt = tf.optimizers.Adam(0.002 * hvd.size())
checkpoint = tf.train.Checkpoint(model=mnist_model, optimizer=opt)


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = mnist_model(images, training=True)
        loss_value = loss(labels, probs)
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, mnist_model.trainable_variables)
    opt.apply_gradients(zip(grads, mnist_model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(mnist_model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)
    return loss_value


for batch, (images, labels) in enumerate(dataset.take(200 // hvd.size())):
    loss_value = training_step(images, labels, batch == 0)
    if batch % 50 == 0 and hvd.local_rank() == 0:
        print(f"Step #{batch}\tLoss: {loss_value:.6f}")

if hvd.rank() == 0:
    checkpoint.save(sys.argv[1] + "/checkpoint")
mean = hvd.allreduce(loss_value, name="loss")
weights = hvd.allgather(tf.reshape(mnist_model.trainable_variables[0], (1, -1)))
print(
    f"rank {hvd.rank()} loss {mean.numpy():.4f} same {np.ptp(weights.numpy(), axis=0).max() == 0}"
)
