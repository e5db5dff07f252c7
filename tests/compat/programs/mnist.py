# ruff: noqa -- written as users of Horovod write
"""A training program as users of Horovod write them."""

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F
import torch.optim as optim
from torch import nn
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--use-adasum", action="store_true")
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, kernel_size=3)
        self.conv2_drop = nn.Dropout2d(0.1)
        self.fc1 = nn.Linear(36, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv1(x)), 2))
        return F.log_softmax(self.fc1(x.view(-1, 36)), dim=1)


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def main(args):
    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    images = torch.randn(10, 1, 8, 8).repeat(16, 1, 1, 1)
    images += 0.1 * torch.randn(images.shape)
    dataset = torch.utils.data.TensorDataset(images, torch.arange(160) % 10)
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = torch.utils.data.DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

    model = Net()
    lr_scaler = hvd.size() if not args.use_adasum else 1
    if torch.cuda.is_available() and args.use_adasum and hvd.nccl_built():
        lr_scaler = hvd.local_size()
    optimizer = optim.SGD(model.parameters(), lr=0.1 * lr_scaler, momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )

    for epoch in range(1, args.epochs + 1):
        model.train()
        sampler.set_epoch(epoch)
        for batch_idx, (data, target) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
            if batch_idx % 5 == 0 and hvd.rank() == 0:
                print(
                    f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(sampler)}]\tLoss:"
                    f" {loss.item():.6f}"
                )
        model.eval()
        with torch.no_grad():
            right = (model(images).argmax(1) == dataset.tensors[1]).float().mean().item()
        accuracy = metric_average(right, "avg_accuracy")
        if hvd.rank() == 0:
            print(f"Test set: Accuracy: {100 * accuracy:.2f}%")
    weights = hvd.allgather(model.fc1.weight.sum().reshape(1))
    if hvd.rank() == 0:
        print("spread", (weights - weights[0]).abs().max().item())


if __name__ == "__main__":
    main(parser.parse_args())
