"""How well each strategy and codec learns, what it sends and how long that takes: digits of scikit-learn, or MNIST.

    farandole run -np 4 python benchmarks/learning.py
    farandole run -np 4 python benchmarks/learning.py --data ../shared/data/mnist local_sgd:8 diloco:16+int8

Rank 0 prints the tables of docs/strategies.md: the mean over seeds of the accuracy on digits held back, beside
that of an all-reduce in the same setting. Arguments are strategies, codecs, or both as ``strategy+codec``.
"""

from __future__ import annotations

import argparse
import gzip
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import farandole.torch as hvd
from farandole import context
from farandole.contracts import Codec, Observer, Part, Transport
from farandole.strategies.codecs import codec
from farandole.strategies.specs import known
from farandole.types import Buffer, DType, Kind

BATCH, SEEDS = 32, (0, 1, 2)
CODECS = ("fp16", "bf16", "int8", "onebit", "sign", "topk:0.05", "randomk:0.1", "threshold:0.01", "powersgd:2")
MODES = (
    "adasum", "local_sgd:8", "local_sgd:epoch", "bmuf:8", "diloco:8", "easgd:4", "gossip", "gossip:ring", "ps",
    "ps_async", "ssp:3", "local_sgd:8+int8", "diloco:8+int8",
)  # fmt: skip


class Setting(NamedTuple):
    """Of the optimizer: SGD, or Adam where ``momentum`` is None. ``epochs``: of the small digits."""

    rate: float
    momentum: float | None
    epochs: int

    def __str__(self) -> str:
        kind = "Adam" if self.momentum is None else f"momentum {self.momentum:g}"
        return f"rate {self.rate:g}, {kind}, {self.epochs} epochs"

    def optimizer(self, parameters: Any) -> Any:
        if self.momentum is None:
            return torch.optim.Adam(parameters, lr=self.rate)
        return torch.optim.SGD(parameters, lr=self.rate, momentum=self.momentum)


USUAL, PLAIN, ADAM = Setting(0.1, 0.9, 25), Setting(0.2, 0.0, 60), Setting(0.003, None, 25)
# What four ranks add up, one after the other or because their gradients have little in common, is four times as much.
QUARTER, THIRD, SIGNS = Setting(0.025, 0.9, 25), Setting(0.03, 0.9, 25), Setting(0.001, 0.0, 60)
# Numbers that wait for many steps and then come at once do not go with momentum; nor does outer momentum go well with
# an inner one.
SETTINGS = {
    "onebit": PLAIN, "randomk": PLAIN, "sign": SIGNS, "bmuf": PLAIN, "diloco": ADAM, "adasum": THIRD,
    "ps_async": QUARTER, "ssp": QUARTER,
}  # fmt: skip
BESIDE = {QUARTER: USUAL, THIRD: USUAL, SIGNS: USUAL}  # the setting of the all-reduce that they are compared with


class Data(NamedTuple):
    """To train on and to test with."""

    x: Any
    y: Any
    held: Any
    labels: Any


class Result(NamedTuple):
    accuracy: float  # percent
    mebibytes: float  # that rank 0 sent
    seconds: float


class Sent(Observer):
    """Counts the bytes of the all-reduces of this rank's engine as they would be sent, by a ring."""

    def __init__(self) -> None:
        self.nbytes = 0.0

    def started(self, kind: Kind, names: Sequence[str], nbytes: int) -> None:
        share = 2 * (hvd.size() - 1) / hvd.size() if kind is Kind.ALLREDUCE else 1.0
        self.nbytes += share * nbytes


def digits(seed: int) -> Data:
    """Other ones are held back for each seed."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return split(x / 16, y, 1200, seed)


def mnist(folder: Path, seed: int) -> Data:
    """From the 10,000 images for tests alone: 8,000 of them to train on."""
    images, labels = (
        np.frombuffer(gzip.decompress((folder / f"t10k-{kind}-ubyte.gz").read_bytes()), np.uint8)
        for kind in ("images-idx3", "labels-idx1")
    )
    return split(images[16:].reshape(-1, 784) / 255, labels[8:].astype(np.int64), 8000, seed)


def split(x: Any, y: Any, count: int, seed: int) -> Data:
    order = np.random.default_rng(seed).permutation(len(x))
    images, labels = torch.from_numpy(x[order].astype(np.float32)), torch.from_numpy(y[order])
    return Data(images[:count], labels[:count], images[count:], labels[count:])


def net(inputs: int, seed: int) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128), torch.nn.ReLU(),
        torch.nn.Linear(128, 10),
    )  # fmt: skip


def parts(spec: str) -> tuple[str, str]:
    """Strategy and codec."""
    first, _, second = spec.partition("+")
    return (first, second) if first.partition(":")[0] in known() else ("allreduce", first)


def trained(spec: str, data: Data, seed: int, setting: Setting, epochs: int) -> Result:
    strategy, name = parts(spec)
    model, made = net(data.x.shape[1], seed), codec(name)
    optimizer = setting.optimizer(model.parameters())
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), strategy=strategy, codec=made or "")
    steps = len(data.x) // BATCH
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    generator = torch.Generator().manual_seed(seed)
    sent, observers = Sent(), context.engine().observers
    hvd.barrier()
    observers.add(sent)
    begin = time.perf_counter()
    for _ in range(epochs):
        order = torch.randperm(len(data.x), generator=generator)
        for step in range(steps):
            mine = order[step * BATCH : (step + 1) * BATCH][hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(data.x[mine]), data.y[mine]).backward()
            optimizer.step()
            schedule.step()
        if hasattr(optimizer, "end_of_epoch"):
            optimizer.end_of_epoch()
    seconds = time.perf_counter() - begin
    observers.remove(sent)
    if hasattr(optimizer, "average_weights"):
        optimizer.average_weights()
    with torch.no_grad():
        right = (model(data.held).argmax(1) == data.labels).float().mean().item()
    return Result(100 * right, (sent.nbytes - saved(made)) / 2**20, seconds)


def saved(made: Codec | None) -> int:
    return made.saved if made is not None else 0


class Still:
    """A rank of four whose messages take no time."""

    rank, size = 0, 4

    def allreduce(self, *_: Any) -> None: ...
    def broadcast(self, *_: Any) -> None: ...

    def allgather(self, send: Any, receive: Any, counts: Any) -> None:
        receive[: len(send)] = send
        receive[len(send) :] = 0

    def alltoall(self, send: Any, counts: Any, receive: Any, other: Any) -> None:
        receive[:] = np.tile(send[: counts[0]], self.size)


def milliseconds(spec: str) -> float:
    """The time of a core for each MiB of float32, without that of the messages."""
    values = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
    made, out, still, best = codec(spec), np.empty_like(values), Still(), float("inf")
    if made is None:
        return 0.0
    transport: Transport = still  # type: ignore[assignment]  # codecs ask no more of it
    for _ in range(7):
        begin = time.perf_counter()
        made.allreduce([Part("t", (1024, 1024), Buffer(values, out, DType.FLOAT32))], 0.25, transport)
        best = min(best, time.perf_counter() - begin)
    return best * 1000 / 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=["allreduce", *MODES, *CODECS], metavar="SPEC")
    parser.add_argument("--data", type=Path, metavar="DIR", help="MNIST's images for tests (default: small digits)")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    chosen = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    per_epoch = 0.2 if chosen.data else 1.0  # MNIST has more steps in each
    plain: dict[Setting, float] = {}

    def measured(spec: str, setting: Setting) -> Result:
        results = []
        for seed in range(chosen.seeds):
            data = mnist(chosen.data, seed) if chosen.data else digits(seed)
            results.append(trained(spec, data, seed, setting, max(1, round(setting.epochs * per_epoch))))
        return Result(*np.mean(results, axis=0))

    if hvd.rank() == 0:
        print("| strategy or codec | setting | accuracy | to all-reduce | MiB sent | seconds | ms per MiB |")
        print("|---|---|---|---|---|---|---|")
    for spec in chosen.specs:
        name = parts(spec)[1] if parts(spec)[0] == "allreduce" else parts(spec)[0]
        setting = SETTINGS.get(name.partition(":")[0], USUAL)
        other = BESIDE.get(setting, setting)
        if other not in plain:
            plain[other] = measured("allreduce", other).accuracy
        found = measured(spec, setting)
        if hvd.rank() == 0:
            cost = f"{milliseconds(parts(spec)[1]):.1f}" if parts(spec)[1] else ""
            print(
                f"| `{spec}` | {setting} | {found.accuracy:.1f} | {found.accuracy - plain[other]:+.1f} "
                f"| {found.mebibytes:.1f} | {found.seconds:.1f} | {cost} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
