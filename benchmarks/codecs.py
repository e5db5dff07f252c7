"""What codecs cost in accuracy, in bytes and in time: handwritten digits of scikit-learn, a small net of PyTorch.

    farandole run -np 4 python benchmarks/codecs.py

Rank 0 prints the table of docs/strategies.md: the mean over seeds of the accuracy on digits that were held back.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits

import farandole.torch as hvd
from farandole.contracts import Part, Transport
from farandole.strategies.codecs import codec
from farandole.types import Buffer, DType

BATCH, SEEDS = 32, (0, 1, 2)
SPECS = (
    "", "fp16", "bf16", "int8", "onebit", "sign", "topk:0.05", "randomk:0.1", "threshold:0.01", "powersgd:2",
)  # fmt: skip


class Setting(NamedTuple):
    """Of SGD."""

    rate: float
    momentum: float
    epochs: int


USUAL, PLAIN = Setting(0.1, 0.9, 25), Setting(0.2, 0.0, 60)
# Numbers that wait for many steps and then come at once do not go with momentum.
SETTINGS = {"onebit": PLAIN, "randomk": PLAIN, "sign": Setting(0.001, 0.0, 60)}


def data(seed: int) -> tuple[Any, Any, Any, Any]:
    """Digits to train on and to test with, other ones for each seed."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = torch.from_numpy(x[order].astype(np.float32) / 16), torch.from_numpy(y[order])
    return x[:1200], y[:1200], x[1200:], y[1200:]


def net(seed: int) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )


def trained(spec: str, seed: int, setting: Setting) -> tuple[float, float]:
    """The accuracy in percent, and the part of the bytes that was sent."""
    x, y, held, labels = data(seed)
    model, made = net(seed), codec(spec)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=setting.rate, momentum=setting.momentum)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), codec=made or "")
    steps = len(x) // BATCH
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, setting.epochs * steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(setting.epochs):
        order = torch.randperm(len(x), generator=generator)
        for step in range(steps):
            mine = order[step * BATCH : (step + 1) * BATCH][hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        right = (model(held).argmax(1) == labels).float().mean().item()
    return 100 * right, made.sent / (made.sent + made.saved) if made is not None else 1.0


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
    hvd.init()
    torch.set_num_threads(1)
    without = {setting: np.mean([trained("", seed, setting)[0] for seed in SEEDS]) for setting in (USUAL, PLAIN)}
    for spec in SPECS:
        setting = SETTINGS.get(spec.partition(":")[0], USUAL)
        accuracy, sent = np.mean([trained(spec, seed, setting) for seed in SEEDS], axis=0)
        plain = without.get(setting, without[USUAL])
        if hvd.rank() == 0:
            name, cost = f"`{spec}`" if spec else "none", milliseconds(spec)
            print(f"| {name} | {accuracy:.1f} | {accuracy - plain:+.1f} | {4 * sent:.2f} | {cost:.1f} |", flush=True)


if __name__ == "__main__":
    main()
