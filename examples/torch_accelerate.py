"""Hugging Face's Accelerate on Farandole's transports: one line before the Accelerator.

farandole run -np 2 python examples/torch_accelerate.py
torchrun --standalone --nproc-per-node 2 examples/torch_accelerate.py
"""

import argparse

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import farandole.torch.distributed  # noqa: F401  # not needed where Farandole is installed with pip


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))


def data() -> TensorDataset:
    rows = torch.randn(64, 6, generator=torch.Generator().manual_seed(2))
    return TensorDataset(rows, rows.sum(1, keepdim=True).sin())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=8, help="rows per process")
    arguments = parser.parse_args()

    # otherwise Accelerate creates a Gloo group on CPUs
    dist.init_process_group("farandole")
    accelerator = Accelerator(cpu=True)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(data(), arguments.batch_size)
    )
    for epoch in range(arguments.epochs):
        losses = []
        for rows, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(rows), targets)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
        mean = accelerator.gather(torch.stack(losses)).mean()
        accelerator.print(f"epoch {epoch + 1}: loss {mean:.5f}")
    weights = accelerator.unwrap_model(model).state_dict()
    accelerator.print(
        f"{accelerator.num_processes} processes on {dist.get_backend()}: "
        f"weights {sum(float(each.sum()) for each in weights.values()):.5f}"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
