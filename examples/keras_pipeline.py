"""A Keras 3 model whose layers are in different processes, on PyTorch or TensorFlow.

KERAS_BACKEND=torch farandole run -np 2 python examples/keras_pipeline.py        # 2 stages
# 2 pipelines of 2 stages each
KERAS_BACKEND=tensorflow farandole run -np 4 python examples/keras_pipeline.py
"""

import argparse

import keras
import numpy as np

import farandole.keras as hvd


def make_model() -> keras.Model:
    middle = [
        keras.layers.Dense(64, activation="tanh", name=f"middle_{number}") for number in range(6)
    ]
    return keras.Sequential([keras.Input((8,)), *middle, keras.layers.Dense(1)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stages", type=int, default=2, help="stages per pipeline")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--save", metavar="FILE", help="file for the plain model (.keras)")
    arguments = parser.parse_args()

    hvd.init()
    hvd.seed_everything(1)
    x = np.random.default_rng(0).normal(size=(1024, 8)).astype("float32")
    y = np.sin(x.sum(axis=1, keepdims=True))

    pipeline = hvd.Pipeline(
        make_model(), stages=arguments.stages, micro_batches=arguments.micro_batches
    )
    pipeline.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003), shard=True), "mse")
    history = pipeline.fit(
        x, y, batch_size=64 // pipeline.replicas, epochs=arguments.epochs, shuffle=False, verbose=0
    ).history["loss"]
    if arguments.save:
        pipeline.save(arguments.save)

    mine = ", ".join(layer.name for layer in pipeline.layers_of_stage.layers)
    for rank, names in enumerate(hvd.allgather_object(mine)):
        if hvd.rank() == 0:
            print(f"rank {rank}: {names}")
    if hvd.rank() == 0:
        backend = keras.backend.backend()
        print(
            f"{backend}, {pipeline.replicas} x {arguments.stages} ranks: loss {history[0]:.4f} ->"
            f" {history[-1]:.4f}"
        )


if __name__ == "__main__":
    main()
