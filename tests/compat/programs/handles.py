# ruff: noqa -- written as users of Horovod write
"""Pending handles in a different order on each rank, errors on all ranks, and a new start after
each shutdown.
"""

import os
import random

import horovod.torch as hvd
import torch

for round in range(3):
    hvd.init()
    order = list(range(100))
    random.Random(hvd.rank()).shuffle(order)
    handles = {
        i: hvd.allreduce_async(torch.full((i + 1,), float(i)), name=f"t{i}", op=hvd.Sum)
        for i in order
    }
    random.Random(7 + hvd.rank()).shuffle(order)
    for i in order:
        assert hvd.synchronize(handles[i]).tolist() == [float(i * hvd.size())] * (i + 1)
    try:
        hvd.allreduce(torch.ones(hvd.rank() + 1), name="shapes")
        raise SystemExit("shapes that differ were reduced")
    except hvd.HorovodInternalError as error:
        assert "Mismatched ALLREDUCE tensor shapes" in str(error), error
    assert hvd.allreduce(torch.ones(1), average=False).item() == hvd.size()
    assert hvd.mpi_ops.gloo_built() and not hvd.mpi_enabled()
    hvd.shutdown()
try:
    hvd.rank()
except ValueError as error:
    assert str(error) == "Horovod has not been initialized; use hvd.init()."
print("handled", os.environ["HOROVOD_RANK"])
