"""Handwritten digits with MXNet's gluon: the five lines that make a program distributed.

    # the folder with MNIST's IDX files
    farandole run -np 2 python examples/mxnet_mnist.py --data DIR
    # digits drawn by this program
    farandole run -np 2 python examples/mxnet_mnist.py

Each process trains on a part of the images; all end with the same network.
"""

import argparse
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from pictures import draw_digits, load_idx

import farandole.mxnet as hvd
from farandole.data import DistributedSampler


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="with train-images-idx3-ubyte, ... (or .gz)"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=50, help="images per process and step")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of one process")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send half the bytes")
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


def make_network() -> gluon.Block:
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(12, kernel_size=5, strides=2, activation="relu"),
        gluon.nn.Conv2D(24, kernel_size=3, strides=2, activation="relu"),
        gluon.nn.Dense(64, activation="relu"),
        gluon.nn.Dense(10),
    )
    # shapes are unknown until the first batch
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def to_arrays(images: np.ndarray, labels: np.ndarray) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    return mx.nd.array(images[:, None] / 255.0), mx.nd.array(labels)


def accuracy(net: gluon.Block, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the accuracy over all ranks; each rank evaluates a part of the images."""
    mine = slice(hvd.rank(), None, hvd.size())
    batch, targets = to_arrays(images[mine], labels[mine])
    correct = (net(batch).argmax(axis=1) == targets).sum()
    return hvd.allreduce(correct, op=hvd.Sum, name="correct").asscalar() / len(labels)


def main() -> None:
    arguments = parse_arguments()
    hvd.init()  # 1
    mx.random.seed(arguments.seed)
    if arguments.data:
        (images, labels), (test_images, test_labels) = load_idx(arguments.data)
    else:
        (images, labels), (test_images, test_labels) = draw_digits(4000, 1), draw_digits(1000, 2)
    sampler = DistributedSampler(range(len(images)), seed=arguments.seed)  # 2

    net = make_network()
    parameters = net.collect_params()
    hvd.broadcast_parameters(parameters, root_rank=0)  # 3
    compression = hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none
    options = {"learning_rate": arguments.lr * hvd.size(), "momentum": 0.9}  # 4
    trainer = hvd.DistributedTrainer(parameters, "sgd", options, compression=compression)  # 5

    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        order = np.fromiter(sampler, dtype=np.int64)
        for begin in range(0, len(order), arguments.batch_size):
            rows = order[begin : begin + arguments.batch_size]
            batch, targets = to_arrays(images[rows], labels[rows])
            with autograd.record():
                loss = loss_of(net(batch), targets)
            loss.backward()
            trainer.step(len(rows))
        share = accuracy(net, test_images, test_labels)
        if hvd.rank() == 0:
            print(
                f"epoch {epoch + 1}: loss {loss.mean().asscalar():.4f}, test accuracy {share:.2%}",
                flush=True,
            )
    hvd.shutdown()


if __name__ == "__main__":
    main()
