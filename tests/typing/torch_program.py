"""A user's program for farandole.torch. It is not run: tests/typing/test_typing.py has type
checkers read it.
"""

from collections.abc import Callable

import torch
from typing_extensions import assert_type

import farandole
import farandole.torch as hvd


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.layer(x))


def train(steps: int, rate: float = 0.1) -> dict[str, float]:
    hvd.init()
    assert_type(hvd.rank(), int)
    assert_type(hvd.size(), int)
    assert_type(hvd.local_rank(), int)
    assert_type(hvd.is_initialized(), bool)
    model = Net()
    model = hvd.convert_sync_batchnorm(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16,
        op=hvd.Average,
        groups=[list(model.layer.parameters())],
        process_set=hvd.global_process_set,
    )
    assert_type(optimizer, torch.optim.SGD)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    loss = model(torch.ones(3, 2)).sum()
    loss.backward()
    optimizer.step()
    assert_type(hvd.allreduce(loss, name="loss"), torch.Tensor)
    return {"loss": hvd.allreduce(loss).item()}


def collectives(tensor: torch.Tensor, some: hvd.ProcessSet) -> None:
    assert_type(hvd.allreduce_(tensor, op=hvd.Sum, process_set=some), torch.Tensor)
    assert_type(hvd.grouped_allreduce([tensor]), list[torch.Tensor])
    assert_type(hvd.allgather(tensor), torch.Tensor)
    assert_type(hvd.broadcast(tensor, root_rank=0), torch.Tensor)
    assert_type(hvd.alltoall(tensor), torch.Tensor)
    assert_type(hvd.alltoall(tensor, [1, 1]), tuple[torch.Tensor, torch.Tensor])
    assert_type(hvd.reducescatter(tensor), torch.Tensor)
    handle = hvd.allreduce_async_(tensor)
    assert_type(handle, int)
    assert_type(hvd.poll(handle), bool | None)
    hvd.synchronize(handle)
    assert_type(hvd.sparse_allreduce_async(tensor), Callable[[], torch.Tensor])
    assert_type(hvd.broadcast_object([1], root_rank=0), list[int])
    assert_type(hvd.allgather_object("a"), list[str])
    assert_type(hvd.join(), int)
    hvd.barrier()
    hvd.print("done", ranks=[0])
    hvd.save({"weights": tensor}, "last.pt")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tensor), batch_size=2)
    assert_type(loader, torch.utils.data.DataLoader[tuple[torch.Tensor, ...]])
    assert_type(hvd.distribute(loader), torch.utils.data.DataLoader[tuple[torch.Tensor, ...]])
    assert_type(hvd.seed_everything(1), torch.Generator)
    try:
        hvd.mpi_ops.allreduce(tensor)
    except hvd.HorovodInternalError:
        hvd.shutdown()


assert_type(farandole.run(train, (3,), np=2), list[dict[str, float]])
assert_type(farandole.Runner(np=2).run(train, steps=3), dict[str, float])
