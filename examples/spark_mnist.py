"""Handwritten digits on Spark: a script that runs one function in a cluster's tasks, with
checkpoints.

    spark-submit examples/spark_mnist.py --num-proc 4 --checkpoint /shared/mnist.pt
    # try it on this machine
    python examples/spark_mnist.py --master "local-cluster[2,1,1024]" --num-proc 2

Without ``--data`` it uses scikit-learn's digits; with it, MNIST's IDX files from a folder that all
executors can read. A checkpoint on shared storage is written after every epoch, and training
resumes from it.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
from pyspark.sql import SparkSession
from torch import nn
from torch_digits import load_digits, load_mnist, make_model

import farandole.torch as hvd
from farandole.data import DistributedSampler
from farandole.spark import LoopLog, log_to_driver, run


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--master", help="default: spark-submit's master, else all cores of this machine"
    )
    parser.add_argument(
        "--num-proc", type=int, metavar="N", help="default: spark.default.parallelism"
    )
    parser.add_argument("--data", metavar="DIR")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32, help="rows per process and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one process")
    parser.add_argument("--checkpoint", metavar="FILE")
    return parser.parse_args()


def train(
    data: str | None, epochs: int, batch_size: int, lr: float, checkpoint: str | None
) -> float:
    """Train on one rank. Return the accuracy over all ranks."""
    hvd.init()
    torch.manual_seed(42)
    images, labels, test_images, test_labels = load_mnist(Path(data)) if data else load_digits()
    sampler = DistributedSampler(images, seed=42)

    model = make_model(images.shape[-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=lr * hvd.size(), momentum=0.9)
    done = 0
    if checkpoint and hvd.rank() == 0 and os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["epochs"]
        log_to_driver(f"resuming after epoch {done}")
    done = hvd.broadcast_object(done, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    log = LoopLog()
    for epoch in range(done, epochs):
        log.epoch_begin(epoch)
        model.train()
        sampler.set_epoch(epoch)
        for step, rows in enumerate(torch.tensor(list(sampler)).split(batch_size)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            log.batch_end(step)
        log.epoch_end(epoch, loss=loss, accuracy=test(model, test_images, test_labels))
        if checkpoint and hvd.rank() == 0:
            state = {
                "epochs": epoch + 1,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            torch.save(state, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)  # atomically
    return test(model, test_images, test_labels)


def test(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the accuracy over all ranks; each rank evaluates a part of the rows."""
    model.eval()
    with torch.no_grad():
        correct = (
            model(images[hvd.rank() :: hvd.size()]).argmax(1) == labels[hvd.rank() :: hvd.size()]
        )
    return hvd.allreduce(correct.sum(), op=hvd.Sum, name="correct").item() / len(labels)


if __name__ == "__main__":
    arguments = vars(parse_arguments())
    master, num_proc = arguments.pop("master"), arguments.pop("num_proc")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("MNIST")
    spark = (builder.master(master) if master else builder).getOrCreate()
    # a module in this script's folder
    spark.sparkContext.addPyFile(str(Path(__file__).with_name("torch_digits.py")))
    results = run(train, kwargs=arguments, num_proc=num_proc)
    print(
        f"test accuracy {results[0]:.2%} on {len(results)} ranks, all equal:"
        f" {len(set(results)) == 1}"
    )
    spark.stop()
