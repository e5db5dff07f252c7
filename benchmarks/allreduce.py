"""Allreduce of single tensors of several sizes, and of many small tensors. Runs on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

import farandole.torch as hvd
from benchmarks.crew import Plan
from benchmarks.samples import GLOO, GLOO_FLAT, OURS, PARTS, Case, interleave
from benchmarks.steps.torch import Team
from farandole.core.collectives.hierarchical import GATHER, NETWORK, SCATTER
from farandole.job import context

# (name, bytes, operations per sample): small operations are repeated until a sample is long enough
# to time.
SIZES = [
    ("4 KiB", 4 << 10, 50),
    ("64 KiB", 64 << 10, 50),
    ("1 MiB", 1 << 20, 20),
    ("16 MiB", 16 << 20, 4),
    ("64 MiB", 64 << 20, 2),
]
PARTS_OF = dict(zip((SCATTER, NETWORK, GATHER), PARTS, strict=True))
TENSORS, ELEMENTS, TIMES = 200, 10_000, 5
REPETITIONS = 31


def cases(team: Team, plan: Plan) -> Iterator[Case]:
    peers = team.peers
    repetitions = 3 if plan.quick else REPETITIONS
    for name, nbytes, per_sample in SIZES[:3] if plan.quick else SIZES:
        tensor = torch.empty(nbytes // 4)
        contenders = {peer.name: partial(peer.allreduce, tensor) for peer in peers}
        settle = settlers(peers)
        for contender, run in contenders.items():
            check(contender, run, settle, [tensor])
        per_sample = min(per_sample, 5) if plan.quick else per_sample
        samples = interleave(
            contenders,
            repetitions=repetitions,
            per_sample=per_sample,
            before=hvd.barrier,
            after=settle,
        )
        yield Case("allreduce", name, samples, per_sample, nbytes)
        parts = split(contenders[OURS], samples[OURS], 3 if plan.quick else 7)
        if parts:
            yield Case("parts", name, parts, 1, nbytes)
    yield many(peers, 5 if plan.quick else TENSORS, repetitions)


def split(run: Callable[[], Any], ours: list[float], repetitions: int) -> dict[str, list[float]]:
    """Return the seconds of each part of an allreduce on this rank; parts overlap. Empty without
    parts.
    """
    transport = context.engine().transport
    now = dict.fromkeys(PARTS, 0.0)

    def report(part: str, begin: float, end: float) -> None:
        now[PARTS_OF[part]] += end - begin

    found: dict[str, list[float]] = {part: [] for part in PARTS}
    transport.report_parts(report)
    for _ in range(repetitions):
        hvd.barrier()
        now.update(dict.fromkeys(PARTS, 0.0))
        run()
        for part in PARTS:
            found[part].append(now[part])
    transport.report_parts(None)
    return {OURS: ours, **found} if any(map(sum, found.values())) else {}


def many(peers: Sequence[Any], count: int, repetitions: int) -> Case:
    """Submit all, then wait for all. Gloo also reduces the same numbers as one flat tensor, packed
    as by DDP.
    """
    flat = torch.empty(count * ELEMENTS)
    tensors = list(torch.empty(count, ELEMENTS).unbind())
    contenders: dict[str, Callable[[], Any]] = {
        peer.name: partial(peer.many, tensors) for peer in peers
    }
    settle = settlers(peers)
    for contender, run in contenders.items():
        check(contender, run, settle, tensors)
    for peer in peers:
        if peer.name == GLOO:
            contenders[GLOO_FLAT] = partial(peer.allreduce, flat)
            check(GLOO_FLAT, contenders[GLOO_FLAT], settle, [flat])
    samples = interleave(
        contenders, repetitions=repetitions, per_sample=TIMES, before=hvd.barrier, after=settle
    )
    return Case("allreduce", f"{count} x {ELEMENTS:,} floats", samples, TIMES, count * ELEMENTS * 4)


def settlers(peers: Sequence[Any]) -> dict[str, Callable[[], None]]:
    return {peer.name: peer.settle for peer in peers if hasattr(peer, "settle")}


def check(
    contender: str,
    run: Callable[[], object],
    settle: Mapping[str, Callable[[], None]],
    tensors: list[torch.Tensor],
) -> None:
    """Verify the sums of a contender. Set the tensors to zero, which further sums do not change."""
    for tensor in tensors:
        tensor.fill_(hvd.rank() + 1.0)
    hvd.barrier()
    run()
    settle.get(contender, hvd.barrier)()
    expected = hvd.size() * (hvd.size() + 1) / 2
    if not all(bool((tensor == expected).all()) for tensor in tensors):
        raise SystemExit(f"{contender} computed a wrong sum")
    for tensor in tensors:
        tensor.zero_()
