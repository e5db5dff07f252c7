"""torch.distributed on Farandole's transports, compared with Gloo: the same processes have a group
of each backend, and alternate.

``cases`` runs in the driver; each rank is ``python -m benchmarks.c10d``, and rank 0 writes its
measurements.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.crew import BenchmarkError
from benchmarks.samples import ALONE, DDP, GLOO, OURS, TOGETHER, Case, interleave

SIZES = {"4 KiB": 4 << 10, "256 KiB": 256 << 10, "4 MiB": 4 << 20, "64 MiB": 64 << 20}
LONGEST = 600  # seconds
REPETITIONS = 15
WORK = 64 << 20  # maximum bytes moved by the operations of one sample
MOST = 50  # operations of one sample
OPTIONS = {"": {}, ", gradient_as_bucket_view": {"gradient_as_bucket_view": True}}  # of DDP


def cases(size: int, quick: bool) -> Iterator[Case]:
    root = str(Path(__file__).parent.parent)
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        env["PYTHONPATH"] = os.pathsep.join([root, f"{root}/src", env.get("PYTHONPATH", "")])
        ranks = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.c10d",
                    str(rank),
                    str(size),
                    folder,
                    str(int(quick)),
                ],
                env=env,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        try:
            out, errors = ranks[0].communicate(timeout=LONGEST)
            for other in ranks[1:]:
                other.communicate(timeout=LONGEST)
        finally:
            for each in ranks:
                each.kill()
                each.wait()
    if ranks[0].returncode:
        raise BenchmarkError(
            f"rank 0 ended with exit code {ranks[0].returncode}; it wrote:\n{errors}"
        )
    for line in out.splitlines():
        yield Case(**json.loads(line))


def measure(rank: int, size: int, folder: str, quick: bool) -> None:
    """Measure on one rank."""
    import torch
    from torch import distributed as dist

    import farandole.torch.distributed  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size
    )
    groups = {OURS: dist.new_group(backend="farandole"), GLOO: dist.group.WORLD}
    before = lambda: dist.barrier(group=groups[OURS])  # noqa: E731
    repetitions = 1 if quick else REPETITIONS
    for title, nbytes in list(SIZES.items())[: 2 if quick else None]:
        for what, turns in operations(groups, rank, size, nbytes).items():
            often = max(1, min(MOST, WORK // nbytes // 4)) if not quick else 1
            samples = interleave(turns, repetitions=repetitions, per_sample=often, before=before)
            emit(rank, Case("c10d", f"{what}, {title}", samples, often, nbytes))
    for model, options in () if quick else itertools.product(("mlp", "conv_net"), OPTIONS):
        turns = steps(model, groups, rank, OPTIONS[options])
        samples = interleave(turns, repetitions=repetitions, per_sample=4, before=before)
        emit(rank, Case("step", f"DDP, {model}{options}", samples, 4))
    for what, turns in () if quick else split_models(groups, rank, size).items():
        samples = interleave(turns, repetitions=repetitions, per_sample=4, before=before)
        emit(rank, Case("c10d", what, samples, 4))
    before()
    dist.destroy_process_group()


def operations(
    groups: Mapping[str, Any], rank: int, size: int, nbytes: int
) -> dict[str, dict[str, Callable[[], object]]]:
    """Return the calls of each contender by name. ``nbytes``: the size of the larger tensor."""
    import torch
    from torch import distributed as dist

    whole = torch.ones(nbytes // 4)
    part = torch.ones(nbytes // 4 // size)
    parts = torch.empty(len(part) * size)

    def send_and_receive(group: Any) -> None:
        """Return an operation from rank 0 to rank 1 and back."""
        for src, dst in ((0, 1), (1, 0)):
            if rank == src:
                dist.send(whole, dst, group=group)
            elif rank == dst:
                dist.recv(whole, src, group=group)

    calls: dict[str, Callable[[Any], object]] = {
        "all_reduce": lambda group: dist.all_reduce(whole, dist.ReduceOp.MAX, group=group),
        "broadcast": lambda group: dist.broadcast(whole, 0, group=group),
        "all_gather_into_tensor": lambda group: group._allgather_base(parts, part).wait(),
        "reduce_scatter_tensor": lambda group: group._reduce_scatter_base(part, parts).wait(),
        "send and receive": send_and_receive,
    }
    return {
        what: {name: (lambda call=call, group=group: call(group)) for name, group in groups.items()}
        for what, call in calls.items()
    }


def steps(
    model: str, groups: Mapping[str, Any], rank: int, options: Mapping[str, Any]
) -> dict[str, Callable[[], object]]:
    """Return a training step of each contender. ``options``: keyword arguments of DDP."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks.steps.torch import MODELS

    make, shape = MODELS[model]
    torch.manual_seed(0)
    net, images = make(), torch.randn(shape)
    labels = torch.randint(10, shape[:1])

    def trainer(found: Any) -> Callable[[], object]:
        optimizer = torch.optim.SGD(found.parameters(), lr=1e-3, momentum=0.9)

        def step() -> None:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(found(images), labels).backward()
            optimizer.step()

        return step

    wrapped = {
        name: trainer(DistributedDataParallel(copy.deepcopy(net), process_group=group, **options))
        for name, group in groups.items()
    }
    alone = trainer(copy.deepcopy(net))
    return {
        ALONE: alone if rank == 0 else lambda: time.sleep(0),
        TOGETHER: trainer(copy.deepcopy(net)),
        OURS: wrapped[OURS],
        DDP: wrapped[GLOO],
    }


def split_models(
    groups: Mapping[str, Any], rank: int, size: int
) -> dict[str, dict[str, Callable[[], object]]]:
    """Return the training steps of models split over the ranks: by name, a step of each
    contender.
    """
    makers = {f"pipeline of {size} stages, 4 micro-batches": _pipeline, "FSDP2, mlp": _fsdp}
    return {
        what: {name: make(group, rank, size) for name, group in groups.items()}
        for what, make in makers.items()
    }


def _pipeline(group: Any, rank: int, size: int) -> Callable[[], object]:
    import torch
    from torch import nn
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(rank)
    rows = torch.randn(64, 1024)
    layers = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    run = Schedule1F1B(
        PipelineStage(layers, rank, size, torch.device("cpu"), group=group), 4, nn.MSELoss()
    )
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3)
    given, last = [rows] if rank == 0 else [], rank == size - 1

    def step() -> None:
        optimizer.zero_grad()
        run.step(*given, target=rows if last else None, losses=[] if last else None)
        optimizer.step()

    return step


def _fsdp(group: Any, rank: int, size: int) -> Callable[[], object]:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    from benchmarks.steps.torch import MODELS

    make, shape = MODELS["mlp"]
    torch.manual_seed(0)
    net, images, labels = make(), torch.randn(shape), torch.randint(10, shape[:1])
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()

    return step


def emit(rank: int, case: Case) -> None:
    if rank == 0:
        print(json.dumps(vars(case)), flush=True)


def main(arguments: Sequence[str]) -> None:
    rank, size, folder, quick = arguments
    measure(int(rank), int(size), folder, quick == "1")


if __name__ == "__main__":
    main(sys.argv[1:])
