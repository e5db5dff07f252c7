"""Collectives that first check that all ranks make the same call, and raise MismatchError on all
ranks otherwise.

Each call has a hash of all properties that must be the same on all ranks. Ranks that share memory
publish it together with the elements of a small call, so the check and the call cost one wait.
Other ranks exchange it in a small message.

A rank that cannot make the call, because its own arguments are invalid, takes part with ``refuse``:
the call fails on all ranks, and their next calls match again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, cast

import numpy as np

from farandole.base.contracts import PeerMemory, Transport
from farandole.base.types import Buffer, DType, ReduceOp
from farandole.core.kernels import halves, quiet, reducer, scaled_halves
from farandole.errors import MismatchError, RefusedError

if TYPE_CHECKING:
    from farandole.base.types import Array

_TEXT = 1024  # bytes for a rank's description of its call
_MASK = (1 << 64) - 1
_REFUSED = -1  # replaces the kind of a call; kinds are positive
_REFUSES = "refuses it: "  # begins the description of a refused call
Describe = Callable[[], str]


class CheckedCollectives:
    """The collectives of one group, over a dedicated transport.

    ``wants``: numbers that must be the same on all ranks, including the kind of the call;
    ``describe`` returns them as text. Arrays of bytes are uint8 and flat. ``name_of`` returns the
    name of a rank for messages.
    """

    def __init__(self, transport: Transport, name: str, name_of: Callable[[int], str]) -> None:
        self.rank = transport.rank
        self.size = transport.size
        self._transport = transport
        self._name = name
        self._name_of = name_of
        self._peer_memory: PeerMemory | None = None
        self._publish_limit = 0
        if isinstance(transport, PeerMemory):
            self._peer_memory = cast(PeerMemory, transport)
            self._publish_limit = self._peer_memory.publish_limit
        # Two ranks read each other's complete tensors as fast as halves of them. With more ranks,
        # each reads at most the same amount: above this size each rank reduces a part, at the cost
        # of further waits, which are long if ranks share cores.
        self._reduced = min(self._publish_limit, 2 * self._publish_limit // self.size)
        self.calls = 0  # compared calls, including the current one

    def allreduce(
        self,
        buffers: Sequence[Buffer],
        op: ReduceOp,
        scale: float,
        wants: tuple[int, ...],
        describe: Describe,
        root: int = -1,
    ) -> None:
        """Reduce the buffers, all of one dtype. ``root``: the only rank whose result is used; -1:
        all results are.
        """
        # reduce the halves of int64 separately: the average may fit where the sum overflows
        if scale != 1.0 and buffers[0].dtype is DType.INT64:
            pairs = [halves(data) for data, _, _ in buffers]
            apart = [high for high, _ in pairs] + [low for _, low in pairs]
            self.allreduce(
                [Buffer(part, part, DType.INT64) for part in apart], op, 1.0, wants, describe, root
            )
            for buffer, high, low in zip(buffers, apart, apart[len(buffers) :], strict=False):
                buffer.out[:] = scaled_halves(high, low, scale)
            return
        nbytes = sum([buffer.data.nbytes for buffer in buffers])
        small = nbytes <= (self._reduced if root < 0 else self._publish_limit)
        places = self._agree(wants, describe, [buffer.data for buffer in buffers] if small else ())
        if not nbytes:
            return
        if places is None or not small:
            self._transport.allreduce(buffers, op, scale)
            return
        if root not in (-1, self.rank):
            return
        reduce, begin = reducer(op, buffers[0].dtype, scale), 0
        with quiet():
            for data, out, _ in buffers:
                end = begin + data.nbytes
                reduce(out, [place[begin:end].view(data.dtype) for place in places])
                begin = end

    def reducescatter(
        self,
        parts: Sequence[Array],
        out: Array,
        dtype: DType,
        op: ReduceOp,
        scale: float,
        wants: tuple[int, ...],
        describe: Describe,
    ) -> None:
        """Reduce and scatter. ``parts``: this rank's input for each rank; ``out``: this rank's
        reduced part.
        """
        if scale != 1.0 and dtype is DType.INT64:  # halves, as in allreduce
            sums = [np.empty_like(out), np.empty_like(out)]
            for some, into in zip(zip(*map(halves, parts), strict=True), sums, strict=True):
                self.reducescatter(some, into, dtype, op, 1.0, wants, describe)
            out[:] = scaled_halves(sums[0], sums[1], scale)
            return
        counts = [len(part) for part in parts]
        nbytes = sum(counts) * out.itemsize
        small = nbytes <= self._publish_limit
        places = self._agree(wants, describe, parts if small else ())
        if not nbytes:
            return
        if places is None or not small:
            whole = _joined(parts)
            into = (
                out
                if _may_be_in_place(out, whole, sum(counts[: self.rank]))
                else np.empty_like(out)
            )
            self._transport.reducescatter(Buffer(whole, into, dtype), counts, op, scale)
            if into is not out:
                out[:] = into
            return
        begin = sum(counts[: self.rank]) * out.itemsize
        if len(out):
            with quiet():
                given = [place[begin : begin + out.nbytes].view(out.dtype) for place in places]
                reducer(op, dtype, scale)(out, given)

    def broadcast(
        self, arrays: Sequence[Array], root: int, wants: tuple[int, ...], describe: Describe
    ) -> None:
        """Copy ``root``'s bytes to every rank."""
        nbytes = sum([len(array) for array in arrays])
        small = nbytes <= self._publish_limit
        places = self._agree(wants, describe, arrays if small and self.rank == root else ())
        if places is None or not small:
            for array in arrays:
                self._transport.broadcast(array, root)
        elif self.rank != root:
            begin = 0
            for array in arrays:
                array[:] = places[root][begin : begin + len(array)]
                begin += len(array)

    def allgather(
        self, send: Array, receives: Sequence[Array], wants: tuple[int, ...], describe: Describe
    ) -> None:
        """Gather every rank's bytes into ``receives``, one array per rank; the arrays need not be
        adjacent.
        """
        counts = [len(receive) for receive in receives]
        small = max(counts) <= self._publish_limit
        places = self._agree(wants, describe, [send] if small else ())
        if places is not None and small:
            for receive, place, count in zip(receives, places, counts, strict=True):
                receive[:] = place[:count]
            return
        whole = _contiguous(receives)
        into = np.empty(sum(counts), np.uint8) if whole is None else whole
        given = send if _may_be_in_place(send, into, sum(counts[: self.rank])) else send.copy()
        self._transport.allgather(given, into, counts)
        if whole is None:
            _copy_parts(into, receives)

    def exchange(
        self,
        sends: Sequence[Array],
        receives: Sequence[Array],
        wants: tuple[int, ...],
        describe: Describe,
    ) -> None:
        """Send ``sends[i]`` to rank i and receive ``receives[i]`` from rank i."""
        send_counts, receive_counts = (
            [len(part) for part in sends],
            [len(part) for part in receives],
        )
        plan = np.array([*send_counts, *receive_counts], np.int64)
        small = plan.nbytes + sum(send_counts) <= self._publish_limit
        places = self._agree(
            wants,
            describe,
            [plan, *sends] if small else [plan] if plan.nbytes <= self._publish_limit else (),
        )
        table = self._plans(plan, places)
        if not np.array_equal(table[:, 0, :], table[:, 1, :].T):
            self._raise_mismatch(describe)
        largest = plan.nbytes + int(table[:, 0, :].sum(axis=1).max())
        if places is not None and largest <= self._publish_limit:
            for peer, receive in enumerate(receives):
                begin = plan.nbytes + int(table[peer, 0, : self.rank].sum())
                receive[:] = places[peer][begin : begin + len(receive)]
            return
        if any(np.may_share_memory(send, receive) for send in sends for receive in receives):
            sends = [send.copy() for send in sends]
        if self._peer_memory is not None:
            self._peer_memory.exchange(sends, receives, int(table.max()))
            return
        whole = _contiguous(receives)
        into = np.empty(sum(receive_counts), np.uint8) if whole is None else whole
        self._transport.alltoall(_joined(sends), send_counts, into, receive_counts)
        if whole is None:
            _copy_parts(into, receives)

    def barrier(self, wants: tuple[int, ...], describe: Describe) -> None:
        """Wait until all ranks have called this."""
        self._agree(wants, describe)

    def refuse(self, why: str) -> None:
        """Take part in a call that this rank refuses. ``why``: the text of the error.

        Returns if all ranks refuse the call; otherwise all ranks raise RefusedError with the text.
        """
        self._agree((_REFUSED,), lambda: f"{_REFUSES}{why}")

    def _plans(self, plan: Array, places: Sequence[Array] | None) -> Array:
        """Return all ranks' byte counts, shape (rank, 2, peer): sent to and received from each
        peer.
        """
        if places is not None and plan.nbytes <= self._publish_limit:
            found = np.stack([place[: plan.nbytes].view(np.int64) for place in places])
        else:
            found = np.empty((self.size, len(plan)), np.int64)
            into = found.reshape(-1).view(np.uint8)
            self._transport.allgather(plan.view(np.uint8), into, [plan.nbytes] * self.size)
        return found.reshape(self.size, 2, self.size)

    def _agree(
        self, wants: tuple[int, ...], describe: Describe, pieces: Sequence[Array] = ()
    ) -> Sequence[Array] | None:
        """Check that all ranks make the same call.

        Return the published memory of every rank, or None if ranks do not share memory. Raises
        MismatchError on all ranks if the calls differ.
        """
        self.calls += 1
        word = hash((self.calls, *wants)) & _MASK
        if self._peer_memory is not None:
            words, places = self._peer_memory.publish(word, pieces)
            for other in words:
                if other != word:
                    self._raise_mismatch(describe)
            return places
        mine, all_words = np.array([word], np.uint64), np.empty(self.size, np.uint64)
        self._transport.allgather(mine.view(np.uint8), all_words.view(np.uint8), [8] * self.size)
        if (all_words != mine[0]).any():
            self._raise_mismatch(describe)
        return None

    def _raise_mismatch(self, describe: Describe) -> None:
        """Raise MismatchError with every rank's call, or RefusedError if a rank refuses the call.
        Collective: all ranks have detected the difference.
        """
        texts = self._gathered_texts(describe())
        lines = "\n".join(
            f"  {self._name_of(rank)}: call {self.calls}: {text}" for rank, text in enumerate(texts)
        )
        refusing = [self._name_of(rank) for rank, text in enumerate(texts) if _refuses(text)]
        if refusing:
            raise RefusedError(
                f"{' and '.join(refusing)} of {self._name} cannot make this call, so it has failed"
                f" on all ranks:\n{lines}"
            )
        raise MismatchError(
            f"the ranks of {self._name} made different calls:\n{lines}\nAll ranks of a group must"
            " make the same calls in the same order, with the same operations, dtypes and shapes."
        )

    def _gathered_texts(self, mine: str) -> list[str]:
        """Return every rank's text, cut to ``_TEXT`` bytes."""
        given = np.zeros(_TEXT, np.uint8)
        text = mine.encode()[:_TEXT]
        given[: len(text)] = np.frombuffer(text, np.uint8)
        if self._peer_memory is not None:
            texts = [bytes(place[:_TEXT]) for place in self._peer_memory.publish(0, [given])[1]]
        else:
            found = np.empty((self.size, _TEXT), np.uint8)
            self._transport.allgather(given, found.reshape(-1), [_TEXT] * self.size)
            texts = [bytes(row) for row in found]
        return [text.rstrip(bytes(1)).decode(errors="replace") for text in texts]


def _refuses(text: str) -> bool:
    return text.startswith(_REFUSES)


def _joined(parts: Sequence[Array]) -> Array:
    """Return the parts as one array, without a copy if they are adjacent in memory."""
    whole = _contiguous(parts)
    return np.concatenate(parts) if whole is None else whole


class _JoinedMemory:
    """The memory of several adjacent arrays as one numpy array interface. It keeps the arrays
    alive.
    """

    __slots__ = ("__array_interface__", "parts")

    def __init__(self, parts: Sequence[Array]) -> None:
        self.parts = parts
        first = parts[0].__array_interface__
        self.__array_interface__ = {**first, "shape": (sum(map(len, parts)),), "strides": None}


def _contiguous(parts: Sequence[Array]) -> Array | None:
    """Return the memory of flat parts as one array; None if the parts are not adjacent."""
    full = [part for part in parts if len(part)]
    if len(full) <= 1:
        return full[0] if full else parts[0]
    begins = [part.ctypes.data for part in full]
    ends = list(accumulate((part.nbytes for part in full), initial=begins[0]))
    return np.asarray(_JoinedMemory(full)) if begins == ends[:-1] else None


def _may_be_in_place(part: Array, whole: Array, place: int) -> bool:
    """Return whether a collective may move this rank's ``part`` to or from its ``place`` in
    ``whole`` without an intermediate copy.

    It may not if ``part`` overlaps other ranks' parts: results would overwrite elements that have
    not been read yet.
    """
    return part.ctypes.data == whole[place:].ctypes.data or not np.may_share_memory(part, whole)


def _copy_parts(whole: Array, receives: Sequence[Array]) -> None:
    begin = 0
    for receive in receives:
        receive[:] = whole[begin : begin + len(receive)]
        begin += len(receive)
