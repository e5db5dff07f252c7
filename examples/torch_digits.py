"""Train a small convolutional network on handwritten digits, in one process or in many.

    python examples/torch_digits.py                        # one process
    farandole run -np 2 python examples/torch_digits.py    # the same script on two

Without ``--data`` it uses scikit-learn's 1,797 digits (8x8). With ``--data DIR`` it uses MNIST from
the IDX files in DIR, gzipped or not.
"""

import argparse
import gzip
import math
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import farandole
import farandole.torch as hvd

WARMUP_EPOCHS = 3


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder with the IDX files of MNIST"
    )
    parser.add_argument("--epochs", type=int, help="default: 30 for the small digits, 6 for MNIST")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="rows per process and step (default: 32)"
    )
    parser.add_argument(
        "--lr", type=float, default=0.04, help="learning rate of one process (default: 0.04)"
    )
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="save to this file after every epoch, and resume from it",
    )
    arguments = parser.parse_args()
    for name in ("epochs", "batch_size", "lr"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')}={value} must be greater than 0")
    if arguments.epochs is None:
        arguments.epochs = 6 if arguments.data else 30
    return arguments


# Data: float images (rows, 1, side, side) in 0..1 and their labels, for training and for testing.


def load_digits() -> list[torch.Tensor]:
    from sklearn.datasets import load_digits as bundled

    images, labels = bundled(return_X_y=True)
    # the same split for any --seed
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order].reshape(-1, 1, 8, 8) / 16.0, labels[order]
    return as_tensors(images[:1437], labels[:1437], images[1437:], labels[1437:])


def load_mnist(folder: Path) -> list[torch.Tensor]:
    images = read_idx(folder, "t10k-images-idx3-ubyte")[:, None] / 255.0
    labels = read_idx(folder, "t10k-labels-idx1-ubyte")
    # only the test part exists: split it
    if find_idx(folder, "train-images-idx3-ubyte") is None:
        return as_tensors(images[:9000], labels[:9000], images[9000:], labels[9000:])
    train_images = read_idx(folder, "train-images-idx3-ubyte")[:, None] / 255.0
    return as_tensors(train_images, read_idx(folder, "train-labels-idx1-ubyte"), images, labels)


def find_idx(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read_idx(folder: Path, name: str) -> np.ndarray:
    """Read an IDX file of bytes: 0, 0, 8 (uint8), the number of dimensions, their sizes as
    big-endian uint32, then the values.
    """
    path = find_idx(folder, name)
    if path is None:
        raise SystemExit(
            f"{folder} holds neither {name} nor {name}.gz; --data needs the IDX files of MNIST"
        )
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    header = 4 + 4 * content[3] if len(content) >= 4 and content[:3] == b"\0\0\x08" else 0
    shape = np.frombuffer(content[4:header], dtype=">u4").astype(int)
    if not header or len(content) != header + shape.prod():
        raise SystemExit(f"{path} is not a complete IDX file of bytes; download it again")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def as_tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    kinds = (torch.float32, torch.int64) * 2
    return [torch.tensor(array).to(kind) for array, kind in zip(arrays, kinds, strict=True)]


# The model, and one epoch of training.


def make_model(side: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (side // 4) ** 2, 128),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(128, 10),
    )


def my_share(rows: int, seed: int, epoch: int) -> torch.Tensor:
    """Return this rank's rows of one epoch. All ranks shuffle in the same order, then take every
    size-th row.

    Every rank must take the same number of steps; otherwise some would wait for gradients forever.
    If the rows do not divide evenly, the first few rows of the epoch are therefore used twice.
    """
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(1000 * seed + epoch))
    missing = -rows % hvd.size()
    return torch.cat([order, order[:missing]])[hvd.rank() :: hvd.size()]


def learning_rate(base: float, epoch: float, epochs: int) -> float:
    """Return the rate of an epoch: ``size`` times the base rate, because the batch is ``size``
    times as large, after a warm-up of a few epochs.

    The rate then follows a cosine down to zero.
    """
    warm_up = min(1.0, epoch / WARMUP_EPOCHS)
    return base * (1 + warm_up * (hvd.size() - 1)) * (1 + math.cos(math.pi * epoch / epochs)) / 2


def train(model, optimizer, images, labels, arguments, epoch) -> float:
    """Train one epoch on this rank's rows. Return the mean loss over all ranks."""
    model.train()
    share = my_share(len(labels), arguments.seed, epoch)
    batches = share.split(arguments.batch_size)
    total = 0.0
    for step, rows in enumerate(batches):
        rate = learning_rate(arguments.lr, epoch + step / len(batches), arguments.epochs)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        total += loss.item() * len(rows)
        values = {"train/loss": loss.item(), "learning_rate": rate}
        farandole.log_metrics(values, step=epoch * len(batches) + step)
    return mean_over_ranks("train", len(share), total)[0]


def test(model, images, labels) -> tuple[float, float]:
    """Return mean loss and accuracy over the whole test set; each rank computes a part."""
    model.eval()
    loss = correct = 0.0
    # parts may differ by one row: no collective in the loop
    mine = torch.arange(hvd.rank(), len(labels), hvd.size())
    with torch.no_grad():
        for rows in mine.split(1000):
            output = model(images[rows])
            loss += nn.functional.cross_entropy(output, labels[rows], reduction="sum").item()
            correct += (output.argmax(1) == labels[rows]).sum().item()
    mean_loss, accuracy = mean_over_ranks("test", len(mine), loss, correct)
    return mean_loss, accuracy


def mean_over_ranks(name: str, count: int, *sums: float) -> list[float]:
    """Return exact means: all ranks' sums divided by all ranks' counts."""
    total = hvd.allreduce(
        torch.tensor([count, *sums], dtype=torch.float64), op=hvd.Sum, name=f"metrics.{name}"
    )
    return (total[1:] / total[0]).tolist()


# Checkpoints: only rank 0 accesses the file, and broadcasts its content.


def resume(path: Path | None, model, optimizer) -> int:
    """Broadcast rank 0's checkpoint to all ranks. Return the first epoch to train."""
    epoch = 0
    if path and path.exists() and hvd.rank() == 0:
        try:
            saved = torch.load(path, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            epoch = saved["epoch"]
        except Exception as error:
            reason = type(error).__name__
            raise SystemExit(
                f"{path} is not a checkpoint of this model ({reason}); delete it to start over"
            ) from None
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return hvd.broadcast_object(epoch, root_rank=0, name="epoch")


def save(path: Path | None, model, optimizer, epoch: int) -> None:
    if path and hvd.rank() == 0:
        # written atomically
        partial = path.with_name(path.name + ".partial")
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
            partial,
        )
        os.replace(partial, path)


def main() -> None:
    arguments = parse_arguments()
    data = load_mnist(arguments.data) if arguments.data else load_digits()
    train_images, train_labels, test_images, test_labels = data

    hvd.init()
    if hvd.size() > 1:  # ranks share the cores; by default torch uses all of them in every rank
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // hvd.local_size()))
    torch.manual_seed(arguments.seed)
    model = make_model(train_images.shape[-1])
    optimizer = torch.optim.SGD(
        model.parameters(), lr=arguments.lr, momentum=0.9, weight_decay=1e-4
    )
    first = resume(arguments.checkpoint, model, optimizer)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    torch.manual_seed(arguments.seed + hvd.rank())  # from here on, dropout differs between ranks

    is_root = hvd.rank() == 0
    if is_root:
        print(
            f"{len(train_labels)} training and {len(test_labels)} test digits, {hvd.size()}"
            " process(es)",
            flush=True,
        )
        if first:
            print(f"resuming after epoch {first} from {arguments.checkpoint}", flush=True)
    start = time.perf_counter()
    for epoch in range(first, arguments.epochs):
        loss = train(model, optimizer, train_images, train_labels, arguments, epoch)
        test_loss, accuracy = test(model, test_images, test_labels)
        save(arguments.checkpoint, model, optimizer, epoch + 1)
        if is_root:
            farandole.log_metrics({"test/loss": test_loss, "test/accuracy": accuracy}, step=epoch)
            print(
                f"epoch {epoch + 1:2}/{arguments.epochs}  loss {loss:.4f}  test loss"
                f" {test_loss:.4f}  test accuracy {accuracy:7.2%} "
                f" {time.perf_counter() - start:5.1f} s",
                flush=True,
            )
    _, accuracy = test(model, test_images, test_labels)
    if is_root:
        seconds = time.perf_counter() - start
        print(
            f"test accuracy {accuracy:.2%} in {seconds:.1f} s of training on {hvd.size()}"
            " process(es)",
            flush=True,
        )
    hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
