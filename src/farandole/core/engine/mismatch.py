"""Error texts for ranks that make different requests under one name. The texts are Horovod's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farandole.base.types import Kind, ReduceOp, Request
from farandole.core.engine.check import no_rows

_SHOWN = 8  # maximum number of listed ranks
_UNNAMED = (
    "(The calls have no name and were matched by number: ranks that make different calls, or in a"
    " different order, mix them up. Name them.)"
)


def mismatch(row: Sequence[Request | None], names: Sequence[int] = ()) -> str:
    """Return why the ranks' requests for one name cannot run together; empty if they can.

    The text is Horovod's, and names the ranks. ``row``: the requests by rank; None for a joined
    rank. ``names``: the numbers of the ranks in the message.
    """
    called = names or range(len(row))
    (one, first), *others = [
        (rank, request) for rank, request in zip(called, row, strict=True) if request is not None
    ]
    if all(request is first or request == first for _, request in others) and not _gathers(
        first.kind
    ):
        return ""
    texts = {rank: text for rank, other in others if (text := _difference(first, other))}
    if texts:
        text = next(iter(texts.values()))
        who = f"{_ranks_that_differ([*texts])} rank {one}"
        if ".noname" in first.name:
            return f"{text} {_UNNAMED} ({who})"
        return f"{text} (tensor: {first.name}; {who})"
    if _gathers(first.kind) and not first.shape:
        return no_rows(first.kind, first.name)
    return ""


def _ranks_that_differ(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN]))
    if len(ranks) > _SHOWN:
        shown += f" and {len(ranks) - _SHOWN} more"
    return f"rank {shown} differs from" if len(ranks) == 1 else f"ranks {shown} differ from"


def _gathers(kind: Kind) -> bool:
    return kind in (Kind.ALLGATHER, Kind.ALLTOALL, Kind.REDUCESCATTER)


def _difference(first: Request, other: Request) -> str:
    """Return the first difference of ``other``, in the order of Horovod's checks; empty if none."""
    return (
        _kind_difference(first, other)
        or _reduction_difference(first, other)
        or _root_difference(first, other)
        or _group_difference(first, other)
        or _shape_difference(first, other)
    )


def _kind_difference(first: Request, other: Request) -> str:
    kind = first.kind.name
    if first.dtype != other.dtype:
        return (
            f"Mismatched data types: One rank had type {first.dtype.value}, but another rank had"
            f" type {other.dtype.value}."
        )
    if first.kind != other.kind:
        return _operation_mismatch(kind, other.kind.name)
    if first.device != other.device:
        return (
            f"Mismatched {kind} CPU/GPU device selection: One rank specified device"
            f" {first.device}, but another rank specified device {other.device}."
        )
    return ""


def _operation_mismatch(one: str, two: str) -> str:
    return f"Mismatched operations: One rank did an {one}, but another rank did an {two}."


def _reduction_difference(first: Request, other: Request) -> str:
    if first.kind not in (Kind.ALLREDUCE, Kind.REDUCESCATTER):
        return ""
    if first.op != other.op:
        return (
            f"Mismatched reduction operation: One rank sent reduction op {ReduceOp(first.op).name},"
            f" but another rank sent reduction op {ReduceOp(other.op).name}."
        )
    if (first.prescale, first.postscale) != (other.prescale, other.postscale):
        return (
            "Mismatched prescale and/or postscale factors: One rank sent factors"
            f" ({first.prescale}, {first.postscale}), but another rank sent factors"
            f" ({other.prescale}, {other.postscale})."
        )
    return ""


def _root_difference(first: Request, other: Request) -> str:
    if first.root == other.root:
        return ""
    if first.kind is Kind.BROADCAST:
        return _root_mismatch("BROADCAST", first, other)
    if first.kind is Kind.ALLTOALL:  # a gather is an alltoall with a root
        if first.root == -1:
            return _operation_mismatch("ALLTOALL", "GATHER")
        if other.root == -1:
            return _operation_mismatch("GATHER", "ALLTOALL")
        return _root_mismatch("GATHER", first, other)
    return ""


def _root_mismatch(operation: str, first: Request, other: Request) -> str:
    return (
        f"Mismatched {operation} root ranks: One rank specified root rank {first.root}, "
        f"but another rank specified root rank {other.root}."
    )


def _group_difference(first: Request, other: Request) -> str:
    if (first.group, first.group_size) == (other.group, other.group_size):
        return ""
    return (
        f"Mismatched groups: One rank sent the tensor in a group of {first.group_size}, "
        f"but another rank sent it in a group of {other.group_size}."
    )


def _shape_difference(first: Request, other: Request) -> str:
    dense, other_dense = first.dense_shape, other.dense_shape
    if dense and other_dense and dense != other_dense:
        return (
            "Mismatched sparse tensor shapes: One rank sent rows of a tensor of shape"
            f" {list(dense)}, but another rank sent rows of a tensor of shape {list(other_dense)}."
        )
    kind = first.kind.name
    if first.kind in (Kind.ALLGATHER, Kind.ALLTOALL):
        if len(first.shape) != len(other.shape):
            return (
                f"Mismatched {kind} tensor shapes: One rank sent a tensor of rank"
                f" {len(first.shape)}, but another rank sent a tensor of rank {len(other.shape)}."
            )
        for axis, (mine, theirs) in enumerate(
            zip(first.shape[1:], other.shape[1:], strict=True), 1
        ):
            if mine != theirs:
                return (
                    f"Mismatched {kind} tensor shapes: One rank sent a tensor with dimension {axis}"
                    f" equal to {mine}, but another rank sent a tensor with dimension {axis} equal"
                    f" to {theirs}."
                )
    elif first.shape != other.shape:
        return (
            f"Mismatched {kind} tensor shapes: One rank sent a tensor of shape {list(first.shape)},"
            f" but another rank sent a tensor of shape {list(other.shape)}."
        )
    return ""


def kind_mismatch(given: str, verbs: Sequence[str]) -> str:
    """Return the error text for ranks that call different functions under one name, or as unnamed
    calls of the same number.
    """
    one, two = (verb.upper() for verb in verbs[:2])
    cure = (
        _UNNAMED
        if given.startswith("noname.")
        else f"(name: {given}; every rank must make the same call under a name)"
    )
    return f"{_operation_mismatch(one, two)} {cure}"


def group_mismatch(group: str, sizes: Mapping[int, int]) -> str:
    """Return the error text for a group whose number of members differs by rank."""
    ranks_of: dict[int, list[str]] = {}
    for rank, size in sorted(sizes.items()):
        ranks_of.setdefault(size, []).append(str(rank))
    counts = " and ".join(
        f"{size} tensor{'s' if size > 1 else ''} on rank{'s' if len(ranks) > 1 else ''}"
        f" {', '.join(ranks)}"
        for size, ranks in ranks_of.items()
    )
    return (
        f"Mismatched groups: {group} has {counts}. Every rank must pass the same number of"
        " tensors to a grouped collective."
    )


def codec_mismatch(row: Sequence[Request | None], names: Sequence[int]) -> str:
    """Return the error text for ranks that compress one tensor with different codecs.

    ``row``: the requests by rank; None for a joined rank.
    """
    ranks_of: dict[str, list[str]] = {}
    for rank, request in zip(names, row, strict=True):
        if request is not None:
            ranks_of.setdefault(request.codec, []).append(str(rank))
    choices = " and ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} {repr(codec) if codec else 'none'}"
        for codec, ranks in ranks_of.items()
    )
    name = next(request.name for request in row if request is not None)
    return f"Mismatched codecs: {choices}. Use the same codec on all ranks. (tensor: {name})"
