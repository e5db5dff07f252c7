"""The contenders in one process: Farandole, torch's Gloo, DeepSpeed's shared memory if installed,
and MPI by mpi4py if mpirun started the job.

All are connected at the same time, so that they can take turns.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import farandole.torch as hvd
from benchmarks.crew import implementation
from benchmarks.samples import DEEPSPEED, GLOO, MPI, OURS


class Ours:
    name = OURS

    def allreduce(self, tensor: torch.Tensor) -> None:
        hvd.allreduce_(tensor, op=hvd.Sum, name=f"bench.{tensor.numel()}")

    def many(self, tensors: list[torch.Tensor]) -> None:
        handles = [
            hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"bench.{i}")
            for i, tensor in enumerate(tensors)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    def close(self) -> None:
        hvd.shutdown()


class Gloo:
    name = GLOO

    def __init__(self, rank: int, size: int, rendezvous: str) -> None:
        dist.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size
        )

    def allreduce(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)

    def many(self, tensors: list[torch.Tensor]) -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    def close(self) -> None:
        dist.destroy_process_group()


class Mpi:
    def __init__(self) -> None:
        from mpi4py import MPI as mpi

        self.mpi: Any = mpi
        self.name = implementation(mpi.Get_library_version()) or MPI

    def allreduce(self, tensor: torch.Tensor) -> None:
        self.mpi.COMM_WORLD.Allreduce(self.mpi.IN_PLACE, tensor.numpy(), op=self.mpi.SUM)

    def many(self, tensors: list[torch.Tensor]) -> None:
        start = self.mpi.COMM_WORLD.Iallreduce
        self.mpi.Request.Waitall(
            [start(self.mpi.IN_PLACE, tensor.numpy(), op=self.mpi.SUM) for tensor in tensors]
        )

    def settle(self) -> None:
        """Synchronize over MPI, which moves data only inside its calls: otherwise the last rank of
        a turn may wait forever for data from a rank that is no longer inside MPI.
        """
        self.mpi.COMM_WORLD.Barrier()

    def close(self) -> None:
        self.mpi.Finalize()


def deepspeed_installed() -> bool:
    return importlib.util.find_spec("deepspeed") is not None


class DeepSpeed:
    """DeepSpeed's all-reduce in shared memory, which g++ builds on first use. For one host only."""

    name = DEEPSPEED

    def __init__(self, rank: int, size: int, rendezvous: str) -> None:
        # DeepSpeed names its segments by these.
        os.environ.update(
            MASTER_ADDR=Path(rendezvous).parent.name, MASTER_PORT="0", LOCAL_SIZE=f"{size}"
        )
        from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

        if rank:  # one rank builds the extension, the others load it
            dist.barrier()
        extension = ShareMemCommBuilder().load(verbose=False)
        if not rank:
            dist.barrier()
        extension.initialize(size, rank)
        dist.barrier()  # all ranks have mapped the segments, and DeepSpeed never removes them
        for segment in Path("/dev/shm").glob(f"deepspeed_*_{os.environ['MASTER_ADDR']}_0_{rank}"):
            segment.unlink()
        self._allreduce = torch.ops.deepspeed.inference_all_reduce_

    def allreduce(self, tensor: torch.Tensor) -> None:
        self._allreduce(tensor)

    def many(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            self._allreduce(tensor)

    def close(self) -> None:
        """Release nothing: DeepSpeed's memory ends with the process."""
