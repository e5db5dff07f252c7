"""The same training, with common mistakes of a first distributed program.

The optimizer is not wrapped, so no gradient is exchanged. All ranks read all images in the same
order. The epochs are divided by the number of ranks, so early stopping never triggers. Four ranks
finish in a fraction of the time because each has done the same quarter of the training. The log,
the dashboard and ``farandole compare`` report this within the first 20 steps.
"""

import argparse

import keras
import numpy as np

import farandole.keras as hvd

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", required=True, help="file with the images")
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--lr", type=float, default=0.003)
arguments = parser.parse_args()

hvd.init()
keras.utils.set_random_seed(0)
data = np.load(arguments.data)

layers = keras.layers
model = keras.Sequential(
    [
        keras.Input(data["x"].shape[1:]),
        layers.Conv2D(16, 3, strides=2, use_bias=False),
        layers.BatchNormalization(momentum=0.8),
        layers.Activation("relu"),
        layers.Conv2D(32, 3, strides=2, use_bias=False),
        layers.BatchNormalization(momentum=0.8),
        layers.Activation("relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(
    keras.optimizers.Adam(arguments.lr),
    "binary_crossentropy",
    metrics=[keras.metrics.AUC(name="auc")],
)
epochs = arguments.epochs // hvd.size()
model.fit(
    data["x"],
    data["y"],
    batch_size=arguments.batch_size,
    epochs=epochs,
    validation_data=(data["x_val"], data["y_val"]),
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        keras.callbacks.EarlyStopping("val_auc", mode="max", patience=3),
    ],
    verbose=2 if hvd.rank() == 0 else 0,
)
