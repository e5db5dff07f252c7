"""What codecs share: several tensors as one flat array, what was not sent, and the bytes that
were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

import numpy as np

from farandole.base.contracts import Part, Transport
from farandole.base.types import Buffer, DType, ReduceOp
from farandole.core.kernels import narrow_into, quiet, widen
from farandole.errors import SettingsError

if TYPE_CHECKING:
    from farandole.base.types import Array

# under these names: what counts with the next gradient, in its units
KEPT = ("residual", "owed", "momentum")


class FlatCodec:
    """Sees the parts of an allreduce as one array, and keeps what was not sent for the next time
    (error feedback).

    ``residual/<key>`` in the state is what this rank has not sent of one tensor, in units of the
    tensor.
    """

    name: ClassVar[str]
    feedback: ClassVar[bool] = True

    def __init__(self, argument: str = "") -> None:
        self.spec = f"{self.name}:{argument}" if argument else self.name
        self.sent = self.saved = 0
        self._state: dict[str, Array] = {}
        self._before: dict[str, list[tuple[str, int, Array]]] = {}  # see ``remember_for_retract``

    @property
    def keeps(self) -> bool:
        """Do results of a tensor depend on what was added up of it before?"""
        return self.feedback

    def add_up(self, values: Array, parts: Sequence[Part], transport: Transport) -> Array:
        """The sum of all ranks' ``values`` (flat; float64 for tensors of float64, else float32),
        nearly.

        With ``feedback``, leaves in ``values`` what this rank has not sent of them.
        """
        raise NotImplementedError

    def allreduce(self, parts: Sequence[Part], scale: float, transport: Transport) -> None:
        """See ``contracts.Codec``."""
        before = self.sent
        self._before = {
            key: old for key, old in self._before.items() if all(part.key != key for part in parts)
        }
        with quiet():
            values = self._values(parts)
            total = self.add_up(values, parts, transport)
            if self.feedback:
                self._keep(values, parts)
            write(total, parts, scale)
        whole = sum(part.buffer.data.nbytes for part in parts)
        self.saved += ring_bytes(whole, transport) - (self.sent - before)

    def retract(self, keys: Sequence[str]) -> None:
        """See ``contracts.Retractable``."""
        for key in keys:
            for name, begin, old in self._before.pop(key, ()):
                array = self._state[name].copy()
                array[begin : begin + len(old)] = old
                self._state[name] = array

    def rescale(self, keys: Sequence[str], factor: float) -> None:
        """See ``contracts.Rescaling``."""
        for name in [f"{kind}/{key}" for kind in KEPT for key in keys]:
            if name in self._state:
                with quiet():
                    self._state[name] = self._state[name] * self._state[name].dtype.type(factor)
                cleared(self._state[name])

    def release(self, key: str) -> Array | None:
        """See ``codecs.Releasable``."""
        self._before.pop(key, None)
        found, owed, at = (
            self._state.pop(f"{name}/{key}", None) for name in ("residual", "owed", "at")
        )
        if found is not None and owed is not None and at is not None:
            found = found.copy()
            found[at[0] : at[0] + len(owed)] += owed
        return found if found is not None and found.any() else None

    def state_dict(self) -> dict[str, Array]:
        """See ``contracts.Codec``."""
        return {name: array.copy() for name, array in self._state.items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """See ``contracts.Codec``."""
        self._state = {name: np.array(array) for name, array in state.items()}

    # For subclasses.

    def kept(self, name: str, key: str, length: int, dtype: Any) -> Array:
        """What stands in the state as ``name/key``; zeros if it is not there, or of another length
        or type.
        """
        found = self._state.get(f"{name}/{key}") if key else None
        if found is None or found.shape != (length,) or found.dtype != dtype:
            return np.zeros(length, dtype)
        return found

    def keep(self, name: str, key: str, array: Array) -> None:
        """Remember ``array``; nothing is remembered by a rank that has joined."""
        if key:
            self._state[f"{name}/{key}"] = array

    def remember_for_retract(self, part: Part, name: str, begin: int, old: Array) -> None:
        """``old`` stood in the state of this ``name``, from ``begin`` on, as far as it is of
        ``part``, which was not given.
        """
        if part.key:
            self._before.setdefault(part.key, []).append((name, begin, old))

    def sum_of(self, array: Array, dtype: DType, transport: Transport) -> Array:
        """The sum of all ranks' ``array`` (of ``dtype.storage``), in its place."""
        transport.allreduce([Buffer(array, array, dtype)], ReduceOp.SUM)
        self.sent += ring_bytes(array.nbytes, transport)
        return array

    def _values(self, parts: Sequence[Part]) -> Array:
        dtype = parts[0].buffer.dtype
        kind = wide(dtype)
        values = np.empty(sum(len(part.buffer.data) for part in parts), kind)
        for part, place in pieces(values, parts):
            data = part.buffer.data
            if dtype.is_half:
                data = widen(data, dtype)
            old = self._state.get(f"residual/{part.key}") if self.feedback and part.key else None
            if old is not None and old.shape == place.shape and old.dtype == kind:
                np.add(data, old, out=place)
            else:
                place[:] = data
        return values

    def _keep(self, values: Array, parts: Sequence[Part]) -> None:
        """Each residual is a view of ``values``."""
        cleared(values)
        for part, place in pieces(values, parts):
            if not part.given:
                old = self.kept("residual", part.key, len(place), place.dtype)
                self.remember_for_retract(part, f"residual/{part.key}", 0, old)
            self.keep("residual", part.key, place)


def pieces(flat: Array, parts: Sequence[Part]) -> list[tuple[Part, Array]]:
    """Each part with its place in ``flat``."""
    found, begin = [], 0
    for part in parts:
        end = begin + len(part.buffer.data)
        found.append((part, flat[begin:end]))
        begin = end
    return found


def wide(dtype: DType) -> np.dtype[Any]:
    """The type in which numbers of ``dtype`` are added up."""
    return np.dtype(np.float64 if dtype is DType.FLOAT64 else np.float32)


def unit_key(parts: Sequence[Part]) -> str:
    """A key for what is kept of all parts together; empty on a rank that has joined."""
    keys = "\n".join(part.key for part in parts)
    return (
        parts[0].key
        if len(parts) == 1 or not parts[0].key
        else f"{parts[0].key}+{crc32(keys.encode()):08x}"
    )


def cleared(values: Array) -> None:
    """What is not finite was told to all; kept, it would spoil every step to come."""
    if not np.isfinite(values.sum()):
        values[~np.isfinite(values)] = 0


def ring_bytes(nbytes: int, transport: Transport) -> int:
    """What each rank sends when so many bytes are added up over all, by the algorithm that sends
    least.
    """
    return 2 * nbytes * (transport.size - 1) // transport.size


def narrowed(values: Array, dtype: DType) -> Array:
    """``values`` as they travel when a tensor of ``dtype`` is sent: of ``dtype.storage``."""
    if not dtype.is_half:
        return values
    narrow = np.empty(len(values), dtype.storage)
    narrow_into(narrow, values, dtype)
    return narrow


def widened(values: Array, dtype: DType) -> Array:
    return widen(values, dtype) if dtype.is_half else values


def number(
    name: str,
    argument: str | float,
    kind: Callable[[str | float], float],
    what: str,
    low: float,
    high: float = math.inf,
) -> Any:
    """The argument of a codec, above ``low`` and up to ``high``. Raises SettingsError."""
    try:
        value = kind(argument)
    except ValueError:
        value = math.nan
    if low < value <= high and value != math.inf:
        return value
    most = "" if high == math.inf else f" and at most {high:g}"
    raise SettingsError(
        f"codec={f'{name}:{argument}'!r}: the argument is {what}, more than {low:g}{most}"
    )


def write(total: Array, parts: Sequence[Part], scale: float) -> None:
    """The results of ``parts``: ``total`` times ``scale``."""
    dtype = parts[0].buffer.dtype
    for part, place in pieces(total, parts):
        if dtype.is_half:
            narrow_into(part.buffer.out, place * place.dtype.type(scale), dtype)
        else:
            np.multiply(place, place.dtype.type(scale), out=part.buffer.out)
