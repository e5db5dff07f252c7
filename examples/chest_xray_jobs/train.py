"""Classify chest X-rays as normal or with signs of pneumonia, in one process or in several.

    farandole submit --nodes 4 -- python train.py --data chests.npz --epochs 12

The images are divided among the ranks, gradients are averaged in each step, and all ranks stop
together. ``chests.npz`` has the arrays x, y, x_val and y_val.
"""

import argparse

import keras
import numpy as np

import farandole
import farandole.keras as hvd

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", required=True, help="file with the images")
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
parser.add_argument("--lr", type=float, default=0.003, help="learning rate of one rank")
parser.add_argument("--patience", type=int, default=3)
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()

hvd.init()
hvd.seed_everything(arguments.seed)
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
# Four ranks have a batch four times as large: with Adam, the rate scales with its square root.
rate = arguments.lr * hvd.size() ** 0.5
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(rate), shard=True)
model.compile(optimizer, "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
history = model.fit(
    data["x"],
    data["y"],
    batch_size=arguments.batch_size,
    epochs=arguments.epochs,
    validation_data=(data["x_val"], data["y_val"]),
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        keras.callbacks.EarlyStopping(
            "val_auc",
            mode="max",
            min_delta=0.002,
            patience=arguments.patience,
            restore_best_weights=True,
        ),
    ],
    verbose=2 if hvd.rank() == 0 else 0,
).history

if hvd.rank() == 0:
    model.save("model.keras")
    farandole.log_artifact("model.keras")
    print(f"best val_auc {max(history['val_auc']):.3f} in {len(history['loss'])} epochs")
