"""Buckets: gradients that are sent together.

``ContiguousBucket``: the gradients are views of one block of memory that the transport reduces in
place. ``GroupedBucket``: each gradient stays in its framework's memory (or is compressed), and all
are submitted as a group; gradients on GPUs always use it. Both contain a flag per gradient, so that
every rank knows the parameters that no rank used. Such parameters keep their gradient, as on one
rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from farandole.base.contracts import Codec, Retractable
from farandole.base.types import Buffer, DType, Kind, Request
from farandole.core.engine import Engine, Entry, Handle
from farandole.strategies.buffer_pool import ALIGNMENT
from farandole.strategies.options import GradientOptions

if TYPE_CHECKING:
    from farandole.base.types import Array

_ONE = {DType.FLOAT16: np.float16(1), DType.BFLOAT16: np.uint16(0x3F80)}
_INFINITE = np.uint16(0x7F80)  # exponent bits of bfloat16, all set only in NaN and infinities


def _finite(seen: Array) -> Array:
    """Return whether each bfloat16 value, stored as uint16, is finite."""
    return (seen & _INFINITE) != _INFINITE if seen.dtype == np.uint16 else np.isfinite(seen)


class Gradient(Protocol):
    """The gradient of one parameter, as its framework represents it."""

    dtype: DType
    count: int

    @property
    def device(self) -> str:
        """``"CPU"`` or ``"GPU"``: the gradient's device when it is sent. A gradient that is first
        copied to the host counts as CPU.
        """

    @property
    def identity(self) -> tuple[Any, ...]:
        """The properties that must be the same on all ranks: name, shape, layout, dtype (and
        whether it is on a GPU).
        """

    def trainable(self) -> bool:
        """Return whether the parameter may get a gradient."""

    def current(self, *, frozen: bool = False) -> Any:
        """Return the present gradient. None if there is none, or if the parameter is frozen (unless
        ``frozen``).
        """

    def digest(self, gradient: Any) -> int:
        """Return a digest of ``gradient`` to compare between ranks; 0 if it is all zeros, not
        finite, or sparse.
        """

    def place(self, array: Array) -> None:
        """Make ``array`` the place from which the gradient is sent."""

    def store(self, gradient: Any) -> None:
        """Copy ``gradient`` to its place. Where possible, the place becomes the parameter's
        gradient.
        """

    def load(self) -> None:
        """Set the parameter's gradient to the contents of its place."""

    def pack(self, gradient: Any) -> Buffer:
        """Return the buffer to send for a ``gradient`` (None: zeros) without a place."""

    def unpack(self) -> None:
        """Set the parameter's gradient to the result for ``pack``."""

    def holds(self, gradient: Any) -> bool:
        """Return whether ``gradient`` is the object that was stored or packed last."""

    def leave(self) -> None:
        """Move the gradient out of its place, which will be reused."""

    def is_sparse(self, gradient: Any) -> bool:
        """Return whether ``gradient`` is sparse."""

    def reduce_sparse(self, name: str, options: GradientOptions) -> None:
        """Reduce a sparse gradient: all ranks receive the rows of all ranks. A missing gradient has
        no rows. Collective.
        """

    def take(self) -> Any:
        """Remove the parameter's gradient and return it."""

    def add(self, gradient: Any) -> None:
        """Add a gradient returned by ``take`` to the parameter's present one, if any."""

    def add_flat(self, array: Array) -> None:
        """Add ``array``, the elements of the whole parameter in order, to its gradient."""

    def copy(self) -> Any:
        """Return a copy of the parameter's gradient."""

    def amplify(self, factor: float, old: Any) -> None:
        """Multiply the difference of the gradient from ``old`` (None: zeros) by ``factor``."""


class Bucket:
    """Some gradients of a step. ``fresh``: slots not yet reduced in a bucket whose other slots
    are.
    """

    def __init__(self, name: str, gradients: Sequence[Gradient], options: GradientOptions) -> None:
        self.name = name
        self.gradients = gradients
        self.options = options
        self.fresh: set[int] = set()
        self._missing: list[int] = []
        self._handle: Handle | None = None

    def open(self) -> None:
        """Begin a round."""
        self._missing = []
        self.fresh = set()
        self._handle = None

    def put(self, slot: int, gradient: Any) -> None:
        """Fill a slot with ``gradient``, or with zeros if it is None."""
        if gradient is None:
            self._missing.append(slot)
        self._take(slot, gradient)

    def first_nonfinite(self) -> int | None:
        """Return the slot of a gradient of this rank whose first element is NaN or infinite, or
        None. Contiguous buckets check in every step, others in their first.
        """
        return None

    def launch(
        self, engine: Engine, again: GradientOptions | None = None, *, soon: bool = False
    ) -> None:
        """Send the bucket. ``again``: the reduction of a further round, in which most of the bucket
        is already reduced. ``soon``: ``finish`` follows immediately.
        """
        self._handle = engine.submit(self._entries(again), soon=soon)

    def finish(self) -> list[int]:
        """Wait until the gradients are final. Return the slots without a gradient on any rank."""
        if self._handle is None:
            return []
        handle = self._handle
        self._handle = None
        handle.wait()
        return self._give(self._missing)

    def _take(self, slot: int, gradient: Any) -> None:
        raise NotImplementedError

    def _entries(self, again: GradientOptions | None) -> Sequence[Entry]:
        raise NotImplementedError

    def _give(self, missing: Sequence[int]) -> list[int]:
        raise NotImplementedError


class ContiguousBucket(Bucket):
    def __init__(
        self, name: str, gradients: Sequence[Gradient], options: GradientOptions, memory: Array
    ) -> None:
        """``memory``: uint8, at least ``nbytes(gradients)`` long."""
        super().__init__(name, gradients, options)
        dtype = gradients[0].dtype
        flat = memory.view(dtype.storage)
        flat.fill(0)
        begins = _begins(gradients)
        self._places = []
        for gradient, begin in zip(gradients, begins, strict=False):
            place = flat[begin : begin + gradient.count]
            gradient.place(place)
            self._places.append(place)
        self._flags = flat[begins[-1] : begins[-1] + len(gradients)]
        self._flat = flat
        self._heads = [slot for slot, place in enumerate(self._places) if len(place)]
        self._starts = np.array(begins)[self._heads]
        self._one = _ONE.get(dtype, 1)
        self._buffer = Buffer(flat, flat, dtype)
        self._first = self._entries_with(options)

    @staticmethod
    def nbytes(gradients: Sequence[Gradient]) -> int:
        """Return the bytes needed for the gradients and their flags."""
        return (_begins(gradients)[-1] + len(gradients)) * gradients[0].dtype.itemsize

    def open(self) -> None:
        super().open()
        self._flags.fill(self._one)

    def first_nonfinite(self) -> int | None:
        finite = _finite(self._flat[self._starts])
        return None if finite.all() else self._heads[finite.argmin()]

    def _take(self, slot: int, gradient: Any) -> None:
        if gradient is None:
            self._places[slot].fill(0)
            self._flags[slot] = 0
        else:
            self.gradients[slot].store(gradient)

    def _entries(self, again: GradientOptions | None) -> Sequence[Entry]:
        return self._entries_with(again) if again else self._first

    def _entries_with(self, options: GradientOptions) -> Sequence[Entry]:
        buffer = self._buffer
        request = _reduction(self.name, buffer.dtype, buffer.data.shape, options)
        return (Entry(request, buffer),)

    def _give(self, missing: Sequence[int]) -> list[int]:
        if not missing:
            for gradient in self.gradients:
                gradient.load()
            return []
        empty = [slot for slot in missing if not self._flags[slot]]
        for slot, gradient in enumerate(self.gradients):
            if slot not in empty:
                gradient.load()
        return empty


class GroupedBucket(Bucket):
    def __init__(
        self,
        name: str,
        gradients: Sequence[Gradient],
        options: GradientOptions,
        codec: Codec | None = None,
    ) -> None:
        """``codec``: the codec named in ``options``. It keeps its state per gradient, by name."""
        super().__init__(name, gradients, options)
        self._codec = codec if gradients[0].dtype.is_float else None
        self._buffers: list[Buffer | None] = [None] * len(gradients)
        self._flags = np.ones(len(gradients), dtype=np.float32)
        self._members = len(gradients) + 1
        self._again = False  # whether the bucket was launched in a further round
        self._checked = False  # whether gradients were checked for NaN and infinities

    def open(self) -> None:
        super().open()
        self._flags.fill(1)

    def _take(self, slot: int, gradient: Any) -> None:
        self._buffers[slot] = self.gradients[slot].pack(gradient)
        if gradient is None:
            self._flags[slot] = 0

    def first_nonfinite(self) -> int | None:
        if self._checked:
            return None
        self._checked = True
        for slot, buffer in enumerate(self._buffers):
            first = buffer.data[:1] if buffer is not None and buffer.device == "CPU" else None
            if first is not None and not _finite(first).all():
                return slot
        return None

    def _entries(self, again: GradientOptions | None) -> Sequence[Entry]:
        self._again = again is not None
        reduced = again or self.options
        buffers = [buffer for buffer in self._buffers if buffer is not None]
        buffers.append(Buffer(self._flags, self._flags, DType.FLOAT32))
        entries = []
        for slot, buffer in enumerate(buffers):
            first = self._first_time(slot)
            options = self.options if first else reduced
            request = Request(
                f"{self.name}_{slot + 1}of{self._members}",
                Kind.ALLREDUCE,
                buffer.dtype,
                buffer.data.shape,
                op=options.op,
                prescale=options.prescale,
                postscale=options.postscale,
                group=self.name,
                group_size=self._members,
                device=buffer.device,
            )
            entry = Entry(request, buffer)
            if self._codec is not None and first and slot < len(self.gradients):
                entry = self._coded(entry, slot, self._codec)
            entries.append(entry)
        return entries

    def _first_time(self, slot: int) -> bool:
        """Return whether a slot has not been reduced yet. A reduced gradient is the same on all
        ranks, and is not compressed.
        """
        return not self._again or slot in self.fresh

    def _coded(self, entry: Entry, slot: int, codec: Codec) -> Entry:
        name, shape = self.gradients[slot].identity[:2]
        request = entry.request._replace(shape=shape, codec=codec.spec)
        return entry._replace(
            request=request, codec=codec, key=name, given=slot not in self._missing
        )

    def _give(self, missing: Sequence[int]) -> list[int]:
        empty = [slot for slot in missing if not self._flags[slot]]
        sent = [slot for slot in empty if self._first_time(slot)]
        if sent and isinstance(self._codec, Retractable):
            self._codec.retract([self.gradients[slot].identity[0] for slot in sent])
        for slot, gradient in enumerate(self.gradients):
            if slot not in empty:
                gradient.unpack()
        self._buffers = [None] * len(self.gradients)
        return empty


def _begins(gradients: Sequence[Gradient]) -> list[int]:
    """Return the offset of each gradient in a flat array, and the end of the last one.

    Offsets are multiples of ``ALIGNMENT``: processors copy a large array 15 to 40 % more slowly if
    source and destination are aligned differently.
    """
    unit = ALIGNMENT // gradients[0].dtype.itemsize
    return [0, *accumulate(-(-gradient.count // unit) * unit for gradient in gradients)]


def _reduction(
    name: str, dtype: DType, shape: tuple[int, ...], options: GradientOptions
) -> Request:
    return Request(
        name,
        Kind.ALLREDUCE,
        dtype,
        shape,
        op=options.op,
        prescale=options.prescale,
        postscale=options.postscale,
    )


def groups_of(
    order: Sequence[int], groups: int | Sequence[Sequence[int]]
) -> Sequence[Sequence[int]]:
    """Return ``groups``, or ``order`` divided into that number of parts."""
    if not isinstance(groups, int):
        return groups
    ends = [len(order) * number // groups for number in range(groups + 1)]
    return [order[begin:end] for begin, end in pairwise(ends)]


def partition(
    order: Sequence[int],
    gradients: Sequence[Gradient],
    limit: int,
    groups: int | Sequence[Sequence[int]],
) -> list[list[int]]:
    """Distribute ``order`` over buckets of about ``limit`` bytes, each of one dtype on one device.

    Members of one of the ``groups`` (lists, or their number) stay together regardless of their
    size. Buckets are sorted by their last member, whose arrival completes them.
    """
    bucket_of = {
        index: number for number, group in enumerate(groups_of(order, groups)) for index in group
    }
    closed: list[list[int]] = []
    open_ones: dict[Any, list[int]] = {}
    for index in order:
        dtype = gradients[index].dtype
        key = (dtype, gradients[index].device, bucket_of.get(index))
        bucket = open_ones.setdefault(key, [])
        bucket.append(index)
        if (
            index not in bucket_of
            and sum(gradients[member].count for member in bucket) * dtype.itemsize >= limit
        ):
            closed.append(open_ones.pop(key))
    position = {index: place for place, index in enumerate(order)}
    return sorted([*closed, *open_ones.values()], key=lambda bucket: position[bucket[-1]])
