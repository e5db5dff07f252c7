"""Ranks of one job that train by themselves and exchange nothing: what becomes of it, told by the
job's store.

A program that makes no collective calls must not be given any, so each rank leaves a digest of its
weights in the store, and rank 0 reads what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from farandole.checks.agreement import tell
from farandole.checks.missing_exchange import outcome
from farandole.checks.replicas import Finding
from farandole.errors import HorovodInternalError, RendezvousError
from farandole.job import context

MOMENT = 2.0  # seconds for other ranks to end their first epoch, too


def compared(digest: int, seconds: float = 0.0, of: str = "") -> list[int] | None:
    """Leave ``digest`` in the store. On rank 0: those of all ranks, if they are there within
    ``seconds``; else None.

    Once in a stay for what ``of`` names: a rank that trains several models would leave the next
    one's digest in place of the first's.
    """
    client, rank, size = context.store(), context.rank(), context.size()
    if client is None:
        return None
    scope, until = f"solo/{context.session_id()}{of}", monotonic() + seconds
    try:
        if rank:
            client.set(f"{scope}/{rank}", f"{digest}".encode())
            return None
        found = [digest]
        for other in range(1, size):
            left = until - monotonic()
            key = f"{scope}/{other}"
            value = client.get(key, left) if left > 0 else client.try_get(key)
            if value is None:
                return None
            found.append(int(value))
    # not there yet; or the job is ending, and no place for a note
    except (HorovodInternalError, RendezvousError):
        return None
    return found


def tell_beside(what: str, digests: Sequence[int], cure: str) -> None:
    """Say on rank 0 that ranks did ``what`` beside what a distributed optimizer exchanges, if that
    made them differ.
    """
    if len(set(digests)) > 1:
        text = (
            f"{what} and exchanged nothing, beside an optimizer that is distributed, so each rank"
            f" trains these apart: {cure}"
        )
        tell(context.engine(), [Finding("beside", text)])


def tell_unused(what: str, digests: Sequence[int], count: int) -> None:
    """Say on rank 0 that ranks did ``what`` with ``count`` gradients that they had reduced into
    other tensors, if that made them differ.
    """
    if len(set(digests)) > 1:
        text = (
            f"{what} and each trains its own model: hvd.allreduce was given {count}"
            f" gradient{'s' * (count > 1)} of it, and returned the mean as a new tensor; p.grad,"
            " with which the optimizer steps, stayed that of each rank. Write p.grad ="
            " hvd.allreduce(p.grad), or hvd.allreduce_(p.grad), which changes it in place. If"
            " ranks are meant to train apart: --check off"
        )
        tell(context.engine(), [Finding("unused", text)])


def tell_solo(what: str, digests: Sequence[int] | None, cure: str) -> None:
    """Say on rank 0 that ranks did ``what`` and exchanged nothing; once, so nothing of the kind is
    said at the end.
    """
    size = context.size()
    if context.rank() == 0:
        text = (
            f"{what} and exchanged nothing, so the {size} ranks of this job train"
            f" {outcome(size, digests)}: {cure}"
        )
        tell(context.engine(), [Finding("solo", text)])
    context.skip_exchange_check()
