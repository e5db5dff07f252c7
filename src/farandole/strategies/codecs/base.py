"""The base of codecs: several tensors as one flat array, residuals, and counts of the bytes
sent.
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

# Prefixes of state that is added to the next gradient, in its units.
KEPT = ("residual", "owed", "momentum", "velocity", "applied")


class FlatCodec:
    """A codec that treats the parts of an allreduce as one array, with error feedback.

    ``residual/<key>`` in the state is this rank's residual of one tensor, in the tensor's units.
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
        """True if results for a tensor depend on its earlier reductions."""
        return self.feedback

    def add_up(self, values: Array, parts: Sequence[Part], transport: Transport) -> Array:
        """Return the approximate sum of all ranks' ``values``.

        ``values``: flat; float64 for float64 tensors, else float32. With ``feedback``, the residual
        of this rank is left in ``values``.
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
            self.deliver(total, parts, scale)
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
        for name in ("velocity", "applied", "ramp"):
            self._state.pop(f"{name}/{key}", None)
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

    def deliver(self, total: Array, parts: Sequence[Part], scale: float) -> None:
        """Write the sum of all ranks' values times ``scale`` to the outputs of ``parts``."""
        write(total, parts, scale)

    def kept(self, name: str, key: str, length: int, dtype: Any) -> Array:
        """Return ``name/key`` of the state; zeros if it is missing or has a different length or
        dtype.
        """
        found = self._state.get(f"{name}/{key}") if key else None
        if found is None or found.shape != (length,) or found.dtype != dtype:
            return np.zeros(length, dtype)
        return found

    def keep(self, name: str, key: str, array: Array) -> None:
        """Store ``array`` in the state, except on a joined rank, whose keys are empty."""
        if key:
            self._state[f"{name}/{key}"] = array

    def remember_for_retract(self, part: Part, name: str, begin: int, old: Array) -> None:
        """Remember the previous state of a ``part`` that was not given, for ``retract``. ``old``:
        the contents of ``name`` from ``begin`` on.
        """
        if part.key:
            self._before.setdefault(part.key, []).append((name, begin, old))

    def sum_of(self, array: Array, dtype: DType, transport: Transport) -> Array:
        """Sum ``array`` (of ``dtype.storage``) over all ranks, in place."""
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
        """Keep the residuals, as views of ``values``."""
        cleared(values)
        for part, place in pieces(values, parts):
            if not part.given:
                old = self.kept("residual", part.key, len(place), place.dtype)
                self.remember_for_retract(part, f"residual/{part.key}", 0, old)
            self.keep("residual", part.key, place)


def pieces(flat: Array, parts: Sequence[Part]) -> list[tuple[Part, Array]]:
    """Return each part with its slice of ``flat``."""
    found, begin = [], 0
    for part in parts:
        end = begin + len(part.buffer.data)
        found.append((part, flat[begin:end]))
        begin = end
    return found


def wide(dtype: DType) -> np.dtype[Any]:
    """Return the dtype in which values of ``dtype`` are summed."""
    return np.dtype(np.float64 if dtype is DType.FLOAT64 else np.float32)


def unit_key(parts: Sequence[Part]) -> str:
    """Return a key for state that belongs to all parts together; empty on a joined rank."""
    keys = "\n".join(part.key for part in parts)
    return (
        parts[0].key
        if len(parts) == 1 or not parts[0].key
        else f"{parts[0].key}+{crc32(keys.encode()):08x}"
    )


def cleared(values: Array) -> None:
    """Set values that are not finite to 0. All ranks have already received them; as residuals they
    would spoil all later steps.
    """
    if not np.isfinite(values.sum()):
        values[~np.isfinite(values)] = 0


def ring_bytes(nbytes: int, transport: Transport) -> int:
    """Return the bytes that each rank sends in an allreduce of ``nbytes``, by the algorithm that
    sends the fewest.
    """
    return 2 * nbytes * (transport.size - 1) // transport.size


def narrowed(values: Array, dtype: DType) -> Array:
    """Return ``values`` in ``dtype.storage``, as sent for a tensor of ``dtype``."""
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
    """Return the argument of a codec as a number above ``low`` and up to ``high``. Raises
    SettingsError.
    """
    try:
        value = kind(argument)
    except ValueError:
        value = math.nan
    if low < value <= high and value != math.inf:
        return value
    most = "" if high == math.inf else f" and at most {high:g}"
    raise SettingsError(
        f"codec={f'{name}:{argument}'!r} is invalid: the argument must be {what}, more than"
        f" {low:g}{most}"
    )


def write(total: Array, parts: Sequence[Part], scale: float) -> None:
    """Write ``total`` times ``scale`` to the outputs of ``parts``."""
    dtype = parts[0].buffer.dtype
    for part, place in pieces(total, parts):
        if dtype.is_half:
            narrow_into(part.buffer.out, place * place.dtype.type(scale), dtype)
        else:
            np.multiply(place, place.dtype.type(scale), out=part.buffer.out)
