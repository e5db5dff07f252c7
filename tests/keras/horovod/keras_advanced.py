"""A program for horovod.keras: schedules, resuming from rank 0's checkpoint, compression."""

import os
import sys

import horovod.keras as hvd
import keras
import numpy as np
from horovod.keras.callbacks import BroadcastGlobalVariablesCallback, LearningRateScheduleCallback

hvd.init()

random = np.random.default_rng(0)
x = random.normal(size=(1024, 12)).astype("float32")
y = x[:, :4].argmax(axis=1)
mine = slice(hvd.rank(), None, hvd.size())
path = sys.argv[1] + "/checkpoint-{epoch}.keras"

resume_from_epoch = 0
for try_epoch in range(6, 0, -1):
    if os.path.exists(path.format(epoch=try_epoch)):
        resume_from_epoch = try_epoch
        break
resume_from_epoch = int(hvd.broadcast(resume_from_epoch, 0, name="resume_from_epoch"))
verbose = 1 if hvd.rank() == 0 else 0

if resume_from_epoch > 0 and hvd.rank() == 0:
    model = hvd.load_model(path.format(epoch=resume_from_epoch), compression=hvd.Compression.fp16)
else:
    model = keras.Sequential(
        [keras.Input((12,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(4)]
    )
    opt = keras.optimizers.SGD(learning_rate=0.1 * hvd.size(), momentum=0.9)
    opt = hvd.DistributedOptimizer(opt, compression=hvd.Compression.fp16)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=opt, loss=loss, metrics=["accuracy"])

callbacks = [
    BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1 * hvd.size(), warmup_epochs=1),
    LearningRateScheduleCallback(
        initial_lr=0.1 * hvd.size(), multiplier=1.0, start_epoch=1, end_epoch=3
    ),
    LearningRateScheduleCallback(initial_lr=0.1 * hvd.size(), multiplier=1e-1, start_epoch=3),
    keras.callbacks.ReduceLROnPlateau(patience=10, verbose=1),
]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint(path))

epochs = int(sys.argv[2])
history = model.fit(
    x[mine],
    y[mine],
    batch_size=64,
    epochs=epochs,
    initial_epoch=resume_from_epoch,
    callbacks=callbacks,
    validation_data=(x, y),
    verbose=0,
)
digest = [float(np.sum(np.abs(each))) for each in model.get_weights()]
everybody = np.asarray(hvd.allgather(np.asarray([digest], "float32")))
accuracy = history.history["val_accuracy"][-1]
print(
    f"rank {hvd.rank()} from {resume_from_epoch} accuracy {accuracy:.4f} same"
    f" {(everybody == everybody[0]).all()}"
)
