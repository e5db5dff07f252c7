"""Handwritten digits with torch's Dataset, sampler and DataLoader, distributed by five lines.

    # the folder with MNIST's IDX files
    farandole run -np 2 python examples/torch_mnist.py --data DIR
    python examples/torch_mnist.py --num-proc 2                      # starts its own processes

Without ``--data`` it uses scikit-learn's digits.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_digits import load_digits, load_mnist, make_model

import farandole
import farandole.torch as hvd
from farandole.data import DistributedSampler


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="rows per process and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one process")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send half the bytes")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument(
        "--num-proc", type=int, metavar="N", help="run on N processes, without farandole run"
    )
    return parser.parse_args()


def train(arguments: argparse.Namespace) -> float:
    hvd.init()  # 1
    torch.manual_seed(arguments.seed)
    images, labels, test_images, test_labels = (
        load_mnist(arguments.data) if arguments.data else load_digits()
    )

    dataset = TensorDataset(images, labels)
    sampler = DistributedSampler(dataset, seed=arguments.seed)  # 2
    loader = DataLoader(dataset, batch_size=arguments.batch_size, sampler=sampler)

    model = make_model(images.shape[-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr * hvd.size(), momentum=0.9)  # 3
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 4
    optimizer = hvd.DistributedOptimizer(  # 5
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none,
    )

    for epoch in range(arguments.epochs):
        model.train()
        sampler.set_epoch(epoch)
        for batch, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), targets)
            loss.backward()
            optimizer.step()
        accuracy = test(model, test_images, test_labels)
        if hvd.rank() == 0:
            print(
                f"epoch {epoch + 1}: loss {loss.item():.4f}, test accuracy {accuracy:.2%}",
                flush=True,
            )
    hvd.shutdown()
    return accuracy


def test(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the accuracy over all ranks; each rank evaluates a part of the rows."""
    model.eval()
    with torch.no_grad():
        correct = (
            model(images[hvd.rank() :: hvd.size()]).argmax(1) == labels[hvd.rank() :: hvd.size()]
        )
    return hvd.allreduce(correct.sum(), op=hvd.Sum, name="correct").item() / len(labels)


if __name__ == "__main__":
    arguments = parse_arguments()
    if arguments.num_proc:
        farandole.run(train, args=(arguments,), np=arguments.num_proc)
    else:
        train(arguments)
