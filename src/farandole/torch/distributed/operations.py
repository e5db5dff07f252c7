"""The collectives of torch.distributed: checked arguments, converted to calls of the group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from farandole.base.types import Buffer, DType
from farandole.core.groups.group import CollectiveGroup
from farandole.torch.distributed.sparse import allreduce_sparse, check_sparse
from farandole.torch.distributed.tensors import (
    Memory,
    byte_memory,
    dtype_code,
    elements,
    reduction,
    tensors_text,
)

if TYPE_CHECKING:
    from farandole.base.types import Array


class Kind(IntEnum):
    """The kind of a collective. Ranks compare its number."""

    ALLREDUCE = 1
    REDUCE = 2
    BROADCAST = 3
    ALLGATHER = 4
    GATHER = 5
    SCATTER = 6
    REDUCE_SCATTER = 7
    ALLTOALL = 8
    BARRIER = 9


class Operation(NamedTuple):
    """A checked collective. ``work``: runs it, in its turn. ``results``: its output tensors.
    ``taken``: the memory of its results.
    """

    name: str
    work: Callable[[], None]
    results: Sequence[Any]
    taken: Sequence[Memory] = ()

    def last(self) -> Callable[[], None] | None:
        """Return a function that copies results to tensors with gaps; None if there are none."""
        copies = [memory for memory in self.taken if memory.home is not None]
        return partial(_write_back, copies) if copies else None


def allreduce(group: CollectiveGroup, tensors: Sequence[Any], op: Any) -> Operation:
    """Reduce all tensors, of one dtype, in place."""
    first = _first(tensors, "all_reduce")
    if first.layout is not torch.strided:
        check_sparse(tensors, op)
        return Operation("all_reduce", lambda: allreduce_sparse(group, tensors), tensors)
    asked = reduction(op, group.size, first.dtype)
    inputs = [elements(tensor, asked.factor) for tensor in tensors]
    outputs = inputs if asked.factor is None else [elements(tensor) for tensor in tensors]
    pairs = zip(inputs, outputs, strict=True)
    buffers = [Buffer(given.array, taken.array, dtype) for (given, dtype), (taken, _) in pairs]
    wants = (Kind.ALLREDUCE, op.op.value, dtype_code(first.dtype), *_shapes(tensors))

    def work() -> None:
        _refresh(memory for memory, _ in inputs)
        group.collectives.allreduce(
            buffers,
            asked.op,
            asked.scale,
            wants,
            lambda: _described("all_reduce", asked.name, tensors),
        )

    return Operation("all_reduce", work, tensors, [memory for memory, _ in outputs])


def reduce(group: CollectiveGroup, tensors: Sequence[Any], op: Any, root: int) -> Operation:
    first = _first(tensors, "reduce")
    _check_root("reduce", group, root)
    asked = reduction(op, group.size, first.dtype)
    given, dtype = elements(first, asked.factor)
    taken = elements(first)[0] if group.rank == root else Memory(np.empty_like(given.array))
    wants = (Kind.REDUCE, op.op.value, dtype_code(first.dtype), root, *_shapes(tensors))

    def work() -> None:
        buffers = [Buffer(given.array, taken.array, dtype)]
        what = f"reduce to {root}"
        given.refresh()
        group.collectives.allreduce(
            buffers,
            asked.op,
            asked.scale,
            wants,
            lambda: _described(what, asked.name, tensors),
            root,
        )

    return Operation("reduce", work, tensors, [taken])


def broadcast(group: CollectiveGroup, tensors: Sequence[Any], root: int) -> Operation:
    first = _first(tensors, "broadcast")
    _check_root("broadcast", group, root)
    memories = [byte_memory(tensor) for tensor in tensors]
    wants = (Kind.BROADCAST, root, dtype_code(first.dtype), *(tensor.numel() for tensor in tensors))

    def work() -> None:
        arrays = [memory.array for memory in memories]
        if group.rank == root:
            _refresh(memories)
        group.collectives.broadcast(
            arrays, root, wants, lambda: _described(f"broadcast from {root}", "", tensors)
        )

    return Operation("broadcast", work, tensors, () if group.rank == root else memories)


def allgather(
    group: CollectiveGroup, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any]
) -> Operation:
    """Gather, for each input, a list with every rank's tensor."""
    _first(inputs, "all_gather")
    for given, taken in zip(inputs, outputs, strict=True):
        if len(taken) != group.size or taken[group.rank].numel() != given.numel():
            raise ValueError(
                f"all_gather: {group.size} output tensors with {given.numel()} elements each are"
                f" needed (the size of this rank's input), not {tensors_text(taken)}"
            )
        _check_dtypes("all_gather", [given, *taken])
    memories = [[byte_memory(tensor) for tensor in taken] for taken in outputs]
    return _allgather(group, inputs, memories, [tensor for taken in outputs for tensor in taken])


def allgather_coalesced(
    group: CollectiveGroup, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any]
) -> Operation:
    """Gather tensors. ``outputs``: for each rank, a tensor for each of ``inputs``."""
    if [len(taken) for taken in outputs] != [len(inputs)] * group.size:
        raise ValueError(
            f"all_gather_coalesced: {group.size} lists of {len(inputs)} tensors are needed; they"
            f" are {len(outputs)}, of {[len(taken) for taken in outputs]}"
        )
    return allgather(group, [list(of_input) for of_input in zip(*outputs, strict=True)], inputs)


def allgather_into(
    group: CollectiveGroup, outputs: Sequence[Any], inputs: Sequence[Any]
) -> Operation:
    """Gather, for each input, one tensor with every rank's elements, concatenated."""
    _first(inputs, "all_gather_into_tensor")
    wholes = []
    for given, taken in zip(inputs, outputs, strict=True):
        if taken.numel() != group.size * given.numel():
            raise ValueError(
                f"all_gather_into_tensor: the output must have {group.size} times as many elements"
                f" as the input, but it has {taken.numel()} and the input {given.numel()}"
            )
        _check_dtypes("all_gather_into_tensor", [given, taken])
        whole = byte_memory(taken)
        parts = _cut(whole.array, [given.numel() * given.element_size()] * group.size)
        wholes.append((whole, [Memory(part) for part in parts]))
    operation = _allgather(group, inputs, [parts for _, parts in wholes], outputs)
    return operation._replace(taken=[whole for whole, _ in wholes])


def _gathered(inputs: Sequence[Any], wants: Sequence[int]) -> str:
    """Describe an all_gather for a message: its tensors, and the bytes of each rank."""
    return f"{_described('all_gather', '', inputs)} into {list(wants[2:])} bytes"


def _allgather(
    group: CollectiveGroup, inputs: Sequence[Any], memories: Any, results: Sequence[Any]
) -> Operation:
    sends = [byte_memory(tensor) for tensor in inputs]

    def work() -> None:
        _refresh(sends)
        for tensor, send, receives in zip(inputs, sends, memories, strict=True):
            arrays = [memory.array for memory in receives]
            wants = (Kind.ALLGATHER, dtype_code(tensor.dtype), *map(len, arrays))
            group.collectives.allgather(
                send.array,
                arrays,
                wants,
                partial(_gathered, inputs, wants),
            )

    taken = [memory for receives in memories for memory in receives]
    return Operation("all_gather", work, results, taken)


def gather(
    group: CollectiveGroup, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], root: int
) -> Operation:
    first = _first(inputs, "gather")
    _check_root("gather", group, root)
    taken = outputs[0] if group.rank == root else ()
    _check_list("gather", group, taken, root)
    memories, nothing = [byte_memory(tensor) for tensor in taken], np.empty(0, np.uint8)
    given = byte_memory(first)
    sends = [given.array if rank == root else nothing for rank in range(group.size)]
    receives = [memory.array for memory in memories] or [nothing] * group.size
    wants = (Kind.GATHER, root, dtype_code(first.dtype))

    def work() -> None:
        given.refresh()
        group.collectives.exchange(
            sends, receives, wants, lambda: _described_move(f"gather to {root}", inputs, taken)
        )

    return Operation("gather", work, list(taken), memories)


def scatter(
    group: CollectiveGroup, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], root: int
) -> Operation:
    first = _first(outputs, "scatter")
    _check_root("scatter", group, root)
    given = inputs[0] if group.rank == root else ()
    _check_list("scatter", group, given, root)
    memory, nothing = byte_memory(first), np.empty(0, np.uint8)
    parts = [byte_memory(tensor) for tensor in given]
    sends = [part.array for part in parts] or [nothing] * group.size
    receives = [memory.array if rank == root else nothing for rank in range(group.size)]
    wants = (Kind.SCATTER, root, dtype_code(first.dtype))

    def work() -> None:
        _refresh(parts)
        group.collectives.exchange(
            sends, receives, wants, lambda: _described_move(f"scatter from {root}", given, outputs)
        )

    return Operation("scatter", work, outputs, [memory])


def reduce_scatter(
    group: CollectiveGroup, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], op: Any
) -> Operation:
    """Reduce and scatter, for each output, a list with a part for every rank."""
    _first(outputs, "reduce_scatter")
    jobs = []
    for taken, given in zip(outputs, inputs, strict=True):
        if len(given) != group.size or given[group.rank].numel() != taken.numel():
            raise ValueError(
                f"reduce_scatter: {group.size} input tensors with {taken.numel()} elements each"
                f" are needed (the size of this rank's output), not {tensors_text(given)}"
            )
        _check_dtypes("reduce_scatter", [taken, *given])
        factor = reduction(op, group.size, taken.dtype).factor
        memories = [elements(tensor, factor)[0] for tensor in given]
        jobs.append(_Part(taken, memories, [memory.array for memory in memories]))
    return _reduce_scatter(group, jobs, op)


def reduce_scatter_from(
    group: CollectiveGroup, outputs: Sequence[Any], inputs: Sequence[Any], op: Any
) -> Operation:
    """Reduce and scatter, for each output, one tensor with the concatenated parts for all ranks."""
    _first(outputs, "reduce_scatter_tensor")
    jobs = []
    for taken, given in zip(outputs, inputs, strict=True):
        if given.numel() != group.size * taken.numel():
            raise ValueError(
                f"reduce_scatter_tensor: the input must have {group.size} times as many elements"
                f" as the output, but it has {given.numel()} and the output {taken.numel()}"
            )
        _check_dtypes("reduce_scatter_tensor", [taken, given])
        whole = elements(given, reduction(op, group.size, taken.dtype).factor)[0]
        jobs.append(
            _Part(taken, [whole], _cut(whole.array, [len(whole.array) // group.size] * group.size))
        )
    return _reduce_scatter(group, jobs, op)


class _Part(NamedTuple):
    """``taken``: the tensor for this rank's part. ``parts``: the parts for all ranks, slices of
    ``inputs``.
    """

    taken: Any
    inputs: Sequence[Memory]
    parts: Sequence[Array]


def _reduce_scatter(group: CollectiveGroup, jobs: Sequence[_Part], op: Any) -> Operation:
    targets: list[tuple[Memory, DType]] = [elements(job.taken) for job in jobs]
    results = [job.taken for job in jobs]

    def work() -> None:
        _refresh(memory for job in jobs for memory in job.inputs)
        for (taken, _, parts), (memory, dtype) in zip(jobs, targets, strict=True):
            asked = reduction(op, group.size, taken.dtype)
            wants = (Kind.REDUCE_SCATTER, op.op.value, dtype_code(taken.dtype), *map(len, parts))
            group.collectives.reducescatter(
                parts,
                memory.array,
                dtype,
                asked.op,
                asked.scale,
                wants,
                lambda: (
                    f"{_described('reduce_scatter', asked.name, results)}"  # noqa: B023
                    f" out of {list(wants[3:])} elements"  # noqa: B023
                ),
            )

    return Operation("reduce_scatter", work, results, [memory for memory, _ in targets])


def alltoall_base(
    group: CollectiveGroup,
    output: Any,
    input: Any,
    output_splits: Sequence[int],
    input_splits: Sequence[int],
) -> Operation:
    """Send the rows of one tensor to all ranks, and receive theirs in another. Splits: the rows for
    and from each rank; empty: equal.
    """
    _check_dtypes("all_to_all_single", [input, output])
    given, taken = byte_memory(input), byte_memory(output)
    sends = _cut(given.array, _bytes_of_splits(group, input, input_splits, "input"))
    receives = _cut(taken.array, _bytes_of_splits(group, output, output_splits, "output"))
    wants = (Kind.ALLTOALL, dtype_code(input.dtype))

    def describe() -> str:
        cut = (
            f", rows to each rank {list(input_splits) or 'equal'}, from each rank"
            f" {list(output_splits) or 'equal'}"
        )
        return f"{_described('all_to_all_single', '', [input])} into {tensors_text([output])}{cut}"

    def work() -> None:
        given.refresh()
        group.collectives.exchange(sends, receives, wants, describe)

    return Operation("all_to_all_single", work, [output], [taken])


def alltoall(group: CollectiveGroup, outputs: Sequence[Any], inputs: Sequence[Any]) -> Operation:
    first = _first(inputs, "all_to_all")
    if len(inputs) != group.size or len(outputs) != group.size:
        raise ValueError(
            f"all_to_all: {group.size} input and {group.size} output tensors are needed, one per"
            f" rank, not {len(inputs)} and {len(outputs)}"
        )
    _check_dtypes("all_to_all", [*inputs, *outputs])
    memories = [byte_memory(tensor) for tensor in outputs]
    given = [byte_memory(tensor) for tensor in inputs]
    sends, receives = [memory.array for memory in given], [memory.array for memory in memories]
    wants = (Kind.ALLTOALL, dtype_code(first.dtype))

    def work() -> None:
        _refresh(given)
        group.collectives.exchange(
            sends, receives, wants, lambda: _described_move("all_to_all", inputs, outputs)
        )

    return Operation("all_to_all", work, outputs, memories)


def barrier(group: CollectiveGroup) -> Operation:
    def work() -> None:
        group.collectives.barrier((Kind.BARRIER,), lambda: "barrier")

    return Operation("barrier", work, [torch.empty(0)])


def _described(what: str, op: str, tensors: Sequence[Any]) -> str:
    return f"{what} {op} of {tensors_text(tensors)}" if op else f"{what} of {tensors_text(tensors)}"


def _described_move(what: str, given: Sequence[Any], taken: Sequence[Any]) -> str:
    return f"{what} of {tensors_text(given)} into {tensors_text(taken)}"


def _first(tensors: Sequence[Any], what: str) -> Any:
    if not tensors:
        raise ValueError(f"{what}: the list of tensors is empty. Pass a list with a tensor")
    _check_dtypes(what, tensors)
    return tensors[0]


def _check_dtypes(what: str, tensors: Sequence[Any]) -> None:
    first = tensors[0]
    for tensor in tensors:
        if tensor.dtype != first.dtype or not tensor.is_cpu:
            raise ValueError(
                f"{what}: Invalid usage of tensors with different dtypes or devices: {first.dtype}"
                f" on {first.device} and {tensor.dtype} on {tensor.device}"
            )


def _check_root(what: str, group: CollectiveGroup, root: int) -> None:
    """Raise ValueError for an invalid root before any rank waits: no rank would send or receive,
    and the group could not continue.
    """
    if not 0 <= root < group.size:
        raise ValueError(
            f"{what}: the root {root} is not a member of {group.name}. Use a rank from 0 to"
            f" {group.size - 1}"
        )


def _check_list(what: str, group: CollectiveGroup, tensors: Sequence[Any], root: int) -> None:
    if group.rank == root and len(tensors) != group.size:
        raise ValueError(
            f"{what}: rank {root} needs a list of {group.size} tensors, one per rank, not"
            f" {len(tensors)}"
        )


def _shapes(tensors: Sequence[Any]) -> list[int]:
    found: list[int] = []
    for tensor in tensors:
        found += tensor.shape
        found.append(-1)
    return found


def _cut(array: Array, counts: Sequence[int]) -> list[Array]:
    marks = list(accumulate(counts, initial=0))
    return [array[start:end] for start, end in pairwise(marks)]


def _bytes_of_splits(
    group: CollectiveGroup, tensor: Any, splits: Sequence[int], which: str
) -> list[int]:
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % group.size:
            raise ValueError(
                f"all_to_all_single: the first dimension of the {which} ({rows}) does not divide"
                f" equally among {group.size} ranks. Pass {which}_split_sizes"
            )
        splits = [rows // group.size] * group.size
    if len(splits) != group.size or sum(splits) != rows or min(splits) < 0:
        raise ValueError(
            f"all_to_all_single: {which}_split_sizes {list(splits)} must be {group.size}"
            f" non-negative numbers whose sum is the first dimension, {rows}"
        )
    row = tensor.numel() // rows * tensor.element_size() if rows else 0
    return [count * row for count in splits]


def _refresh(memories: Any) -> None:
    for memory in memories:
        memory.refresh()


def _write_back(memories: Any) -> None:
    for memory in memories:
        memory.write_back()
