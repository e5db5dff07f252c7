"""Checks of a single request, before it is posted to the other ranks. The texts are Horovod's."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from farandole.base.types import DType, Kind, ReduceOp, Refusal, Request
from farandole.errors import (
    DUPLICATE_NAME,
    HorovodInternalError,
    JoinedError,
    MismatchError,
    RequestError,
    counted,
)

if TYPE_CHECKING:
    from farandole.core.engine.handle import Entry


def check(request: Request, size: int) -> None:
    """Raise RequestError if no rank could run this request."""
    kind = request.kind
    if kind is Kind.ALLREDUCE:
        _check_op(request)
        if request.codec:
            _check_codec(request)
    elif kind is Kind.REDUCESCATTER:
        if request.op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
            raise RequestError("Reducescatter currently only supports AVERAGE and SUM.")
        _check_op(request)
        _check_rows(request)
    elif kind is Kind.BROADCAST:
        if not 0 <= request.root < size:
            raise RequestError(
                f"broadcast received invalid root rank {request.root} for provided process set of "
                f"{counted(size, 'rank')}"
            )
    elif kind is Kind.ALLGATHER:
        _check_rows(request)
    elif kind is Kind.ALLTOALL:
        _check_rows(request)
        _check_splits(request, size)


def refused(refusal: Refusal, text: str) -> HorovodInternalError:
    """Return the error for collectives that the ranks have refused to run."""
    return JoinedError(text) if refusal is Refusal.JOINED else MismatchError(text)


def _check_op(request: Request) -> None:
    if request.op is ReduceOp.ADASUM and not request.dtype.is_float:
        raise RequestError(
            f"{request.name}: Adasum is defined for floating point only, not for"
            f" {request.dtype.value}; use Sum or Average."
        )
    if request.dtype is not DType.BOOL:
        return
    if request.op is ReduceOp.AVERAGE or (request.prescale, request.postscale) != (1.0, 1.0):
        raise RequestError(
            f"{request.name}: averages and multiples of bool are not defined; use Min (all true) or"
            " Max (any true)."
        )


def _check_codec(request: Request) -> None:
    if (
        not request.dtype.is_float
        or request.op not in (ReduceOp.SUM, ReduceOp.AVERAGE)
        or request.device != "CPU"
    ):
        raise RequestError(
            f"{request.name}: the codec {request.codec!r} compresses sums and averages of"
            f" floating point tensors in host memory, not {request.op.name} of"
            f" {request.dtype.value} on a {request.device}. Leave out the codec."
        )


def _check_rows(request: Request) -> None:
    if not request.shape:
        raise RequestError(no_rows(request.kind, request.name))


def no_rows(kind: Kind, name: str) -> str:
    """Return the error text for a scalar where rows are needed."""
    label = "the tensor" if ".noname" in name else name
    return (
        f"Process-set rank zero tried to {kind.name} a rank-zero tensor. ({label} has shape (), a"
        " single number without rows: add a dimension with reshape(1), or reduce it with"
        " allreduce.)"
    )


def _check_splits(request: Request, size: int) -> None:
    rows, splits = request.shape[0], request.splits
    if not splits:
        if rows % size:
            raise RequestError(
                "splits not provided, but first dimension of tensor is not an even multiple of the"
                f" number of workers. ({rows} rows, {size} workers)"
            )
        return
    if len(splits) != size:
        raise RequestError(
            f"Number of entries in splits does not equal number of workers. ({len(splits)} entries,"
            f" {size} workers)"
        )
    if min(splits) < 0:
        raise RequestError(f"splits must not be negative: {list(splits)}")
    if sum(splits) > rows:
        raise RequestError(
            "Sum of splits entries is greater than the first dimension of tensor. (sum"
            f" {sum(splits)}, {rows} rows)"
        )
    if sum(splits) < rows:
        raise RequestError(
            "Sum of splits entries is smaller than the first dimension of tensor:"
            f" {rows - sum(splits)} rows would be lost. (sum {sum(splits)}, {rows} rows)"
        )


def unused(entries: Sequence[Entry], names: Container[str]) -> set[str]:
    """Return the names of the entries without a serial number.

    Raises RequestError for a name that is in ``names`` or occurs twice.
    """
    found: set[str] = set()
    for entry in entries:
        name = entry.request.name
        if not entry.serial:
            if name in names or name in found:
                raise RequestError(f"{DUPLICATE_NAME} (name: {name!r})")
            found.add(name)
    return found
