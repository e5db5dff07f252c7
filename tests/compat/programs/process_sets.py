# ruff: noqa -- written as users of Horovod write
import horovod.torch as hvd
import torch
from horovod.common.process_sets import ProcessSet as Same

assert Same is hvd.ProcessSet
even, odd = hvd.ProcessSet(range(0, 2, 2)), hvd.ProcessSet([1])
hvd.init(process_sets=[even, odd])
ids = hvd.mpi_ops._basics._get_process_set_ids_and_ranks()
assert ids == {0: [0, 1], 1: [0], 2: [1]}, ids
mine = even if even.included() else odd
result = hvd.allreduce(torch.full((3,), float(hvd.rank())), op=hvd.Sum, process_set=mine)
assert result.tolist() == [float(hvd.rank())] * 3
assert (mine.size(), mine.rank()) == (1, 0)
try:
    hvd.allreduce(torch.ones(1), name="stranger", process_set=odd if mine is even else even)
except hvd.HorovodInternalError as error:
    assert "provided process set" in str(error)
else:
    raise AssertionError("a stranger was let in")
try:
    hvd.add_process_set([0, 1])
except ValueError as error:
    assert "HOROVOD_DYNAMIC_PROCESS_SETS=1" in str(error)
hvd.barrier()
hvd.shutdown()

hvd.init(process_sets="dynamic")
for _ in range(3):
    added = hvd.add_process_set([1])
    assert added.process_set_id == 1
    assert hvd.remove_process_set(added)
    assert added.process_set_id is None
assert not hvd.remove_process_set(hvd.global_process_set)
print("sets done", hvd.rank())
