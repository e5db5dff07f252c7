"""ResNet-50 on ImageNet, after "Accurate, large minibatch SGD: training ImageNet in 1 hour".

    farandole run -np 4 python examples/torch_imagenet_resnet50.py --train-dir DIR --val-dir DIR
    farandole run -np 2 python examples/torch_imagenet_resnet50.py --synthetic 64 \\
        --image-size 64 --epochs 1

The folders contain one folder of images per class (read with torchvision). ``--synthetic N``
generates N random images instead.
"""

import argparse
import os
from pathlib import Path

import torch
from resnet import resnet
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import farandole.torch as hvd
from farandole.data import DistributedSampler


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--train-dir", type=Path)
    add("--val-dir", type=Path)
    add("--synthetic", type=int, metavar="IMAGES")
    add(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="save to this file after every epoch, and resume from it",
    )
    add("--epochs", type=int, default=90)
    add("--batch-size", type=int, default=32, help="images per process and backward pass")
    add(
        "--batches-per-step",
        type=int,
        default=1,
        help="backward passes whose gradients are summed",
    )
    add("--base-lr", type=float, default=0.0125, help="learning rate for 32 images")
    add("--warmup-epochs", type=float, default=5)
    add("--image-size", type=int, default=224)
    add(
        "--blocks",
        type=int,
        nargs=4,
        default=(3, 4, 6, 3),
        help="smaller network: blocks per stage",
    )
    add("--width", type=int, default=64, help="smaller network: channels of the first stage")
    add("--classes", type=int, default=1000)
    add("--fp16-allreduce", action="store_true")
    add("--workers", type=int, default=0, help="processes per rank that load images")
    arguments = parser.parse_args()
    if not (arguments.synthetic or (arguments.train_dir and arguments.val_dir)):
        parser.error("give --train-dir and --val-dir, or --synthetic IMAGES")
    return arguments


def datasets(arguments: argparse.Namespace) -> tuple[Dataset, Dataset]:
    size = arguments.image_size
    if arguments.synthetic:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(arguments.synthetic, 3, size, size, generator=generator)
        made = TensorDataset(images, torch.arange(arguments.synthetic) % arguments.classes)
        return made, made
    from torchvision import datasets as folders
    from torchvision import transforms as t

    normal = [t.ToTensor(), t.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])]
    train = t.Compose([t.RandomResizedCrop(size), t.RandomHorizontalFlip(), *normal])
    val = t.Compose([t.Resize(size * 8 // 7), t.CenterCrop(size), *normal])
    return folders.ImageFolder(arguments.train_dir, train), folders.ImageFolder(
        arguments.val_dir, val
    )


def learning_rate(arguments: argparse.Namespace, epoch: float) -> float:
    """Return the rate: warm-up to ``size`` times the rate of one process, then divided by 10 after
    epochs 30, 60 and 80.
    """
    scale = arguments.batches_per_step * arguments.batch_size / 32
    if epoch < arguments.warmup_epochs:
        factor = 1 + (hvd.size() - 1) * epoch / arguments.warmup_epochs
    else:
        factor = hvd.size() * 0.1 ** sum(epoch >= end for end in (30, 60, 80))
    return arguments.base_lr * scale * factor


def train(model, optimizer, loader, arguments, epoch: int, device) -> float:
    model.train()
    mean = Mean("train.loss")
    for step, (images, labels) in enumerate(loader):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(arguments, epoch + step / len(loader))
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        (loss / arguments.batches_per_step).backward()
        if (step + 1) % arguments.batches_per_step == 0:
            optimizer.step()
            optimizer.zero_grad()
        mean.add(loss.item(), len(labels))
    return mean.over_ranks()


def validate(model, loader, device) -> tuple[float, float]:
    model.eval()
    loss, accuracy = Mean("val.loss"), Mean("val.accuracy")
    with torch.no_grad():
        for images, labels in loader:
            output, labels = model(images.to(device)), labels.to(device)
            loss.add(nn.functional.cross_entropy(output, labels).item(), len(labels))
            accuracy.add((output.argmax(1) == labels).float().mean().item(), len(labels))
    return loss.over_ranks(), accuracy.over_ranks()


class Mean:
    """The mean over the batches of all ranks."""

    def __init__(self, name: str) -> None:
        self.name, self.sums = name, torch.zeros(2, dtype=torch.float64)

    def add(self, value: float, weight: int) -> None:
        self.sums += torch.tensor([value * weight, weight], dtype=torch.float64)

    def over_ranks(self) -> float:
        total, weight = hvd.allreduce(self.sums, op=hvd.Sum, name=self.name).tolist()
        return total / weight if weight else float("nan")


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    torch.manual_seed(42)
    device = (
        torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    )

    train_set, val_set = datasets(arguments)
    train_sampler = DistributedSampler(train_set, drop_last=True)
    pin = device.type == "cuda"
    options = {
        "batch_size": arguments.batch_size,
        "num_workers": arguments.workers,
        "pin_memory": pin,
    }
    train_loader = DataLoader(train_set, sampler=train_sampler, drop_last=True, **options)
    val_loader = DataLoader(val_set, sampler=DistributedSampler(val_set, shuffle=False), **options)
    passes = arguments.batches_per_step
    if len(train_loader) < passes:
        raise SystemExit(
            f"{len(train_loader)} batches per rank and epoch are too few for --batches-per-step"
            f" {passes}"
        )

    model = resnet(arguments.blocks, arguments.width, arguments.classes).to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=arguments.base_lr, momentum=0.9, weight_decay=5e-5
    )
    first = 0
    if arguments.checkpoint and arguments.checkpoint.exists() and hvd.rank() == 0:
        saved = torch.load(arguments.checkpoint, map_location="cpu", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"]
    first = hvd.broadcast_object(first, root_rank=0, name="first epoch")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        backward_passes_per_step=passes,
        compression=hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none,
    )

    for epoch in range(first, arguments.epochs):
        train_sampler.set_epoch(epoch)
        loss = train(model, optimizer, train_loader, arguments, epoch, device)
        val_loss, accuracy = validate(model, val_loader, device)
        if hvd.rank() == 0:
            print(
                f"epoch {epoch + 1}: loss {loss:.4f}, val loss {val_loss:.4f}, accuracy"
                f" {accuracy:.2%}",
                flush=True,
            )
            save(arguments.checkpoint, model, optimizer, epoch + 1)
    hvd.shutdown()


def save(path: Path | None, model, optimizer, epoch: int) -> None:
    if path:
        partial = path.with_name(path.name + ".partial")
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
            partial,
        )
        os.replace(partial, path)


if __name__ == "__main__":
    main()
