"""The program of the timeline's picture: digits on two ranks. Rank 1 has larger batches, so rank 0
waits for it in every step.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

import farandole.torch as hvd

STEPS = 120


def main() -> None:
    hvd.init()
    torch.manual_seed(7)
    images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    generator = torch.Generator().manual_seed(hvd.rank())
    batch = 128 if hvd.rank() == 0 else 256
    for _ in range(STEPS):
        rows = torch.randint(len(images), (batch,), generator=generator)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        hvd.allreduce(loss.detach(), name="loss")


if __name__ == "__main__":
    main()
