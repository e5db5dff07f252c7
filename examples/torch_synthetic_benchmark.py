"""Training speed of a network on random data, in images per second, in the output format of
Horovod's benchmark.

farandole run -np 2 python examples/torch_synthetic_benchmark.py --batch-size 8 --num-iters 3
"""

import argparse
import timeit

import torch
from resnet import resnet
from torch import nn

import farandole.torch as hvd


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--batch-size", type=int, default=32)
    add("--num-warmup-batches", type=int, default=10)
    add("--num-batches-per-iter", type=int, default=10)
    add("--num-iters", type=int, default=10)
    add("--image-size", type=int, default=224)
    add(
        "--blocks",
        type=int,
        nargs=4,
        default=(3, 4, 6, 3),
        help="smaller network than ResNet-50: blocks per stage",
    )
    add(
        "--width",
        type=int,
        default=64,
        help="smaller network than ResNet-50: channels of the first stage",
    )
    add("--fp16-allreduce", action="store_true")
    add("--no-cuda", action="store_true")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    cuda = torch.cuda.is_available() and not arguments.no_cuda
    device, kind = (
        (torch.device("cuda", hvd.local_rank()), "GPU") if cuda else (torch.device("cpu"), "CPU")
    )

    model = resnet(arguments.blocks, arguments.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none,
    )
    images = torch.randn(
        arguments.batch_size, 3, arguments.image_size, arguments.image_size, device=device
    )
    labels = torch.randint(1000, (arguments.batch_size,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if cuda:
            torch.cuda.synchronize()

    def say(text: str) -> None:
        if hvd.rank() == 0:
            print(text, flush=True)

    say(f"Model: resnet {tuple(arguments.blocks)} x {arguments.width}")
    say(f"Batch size: {arguments.batch_size}")
    say(f"Number of {kind}s: {hvd.size()}")
    say("Running warmup...")
    timeit.timeit(step, number=arguments.num_warmup_batches)
    say("Running benchmark...")
    rates = []
    for number in range(arguments.num_iters):
        seconds = timeit.timeit(step, number=arguments.num_batches_per_iter)
        rates.append(arguments.batch_size * arguments.num_batches_per_iter / seconds)
        say(f"Iter #{number}: {rates[-1]:.1f} img/sec per {kind}")
    found = torch.tensor(rates)
    mean, spread = found.mean().item(), 1.96 * found.std(correction=0).item()
    say(f"Img/sec per {kind}: {mean:.1f} +-{spread:.1f}")
    say(
        f"Total img/sec on {hvd.size()} {kind}(s): {hvd.size() * mean:.1f}"
        f" +-{hvd.size() * spread:.1f}"
    )
    hvd.shutdown()


if __name__ == "__main__":
    main()
