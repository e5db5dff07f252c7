"""The state of an elastic job with JAX."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from farandole.core.api.arrays import broadcast_arrays
from farandole.core.api.state import ObjectState
from farandole.jax.accumulation import AccumulationState
from farandole.jax.primitive import wait
from farandole.jax.trees import broadcast_object, is_array, is_key, like, on_host
from farandole.jax.weights import WeightState
from farandole.job import context

# Implementations of random keys by dtype. (Early versions of JAX could not name them.)
_KEYS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}


@dataclass(frozen=True)
class _Saved:
    """A saved leaf of a tree: its values, and their description. Only the description is sent to
    other ranks.
    """

    array: Any
    shape: tuple[int, ...]
    dtype: Any
    on_device: bool
    key: Any = None  # implementation of random keys
    place: Any = None


class JaxState(ObjectState):
    """Trees and plain values, as attributes: ``JaxState(params=params, opt_state=opt_state,
    epoch=0).params``.

    Values are saved on the host, so arrays may be donated to programs afterwards. ``sync()`` loads
    rank 0's values; ranks need not have arrays of equal shapes.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(bcast_object=broadcast_object, **kwargs)

    def restore(self) -> None:
        for name, value in self._saved.items():
            setattr(self, name, jax.tree_util.tree_map(_made, value))

    def sync(self) -> None:
        wait()
        values = self._values()
        parts = [leaf for leaf in jax.tree_util.tree_leaves(values) if isinstance(leaf, _Saved)]
        described = jax.tree_util.tree_map(_described, values)
        described = self._bcast_object(described)
        wanted = [leaf for leaf in jax.tree_util.tree_leaves(described) if isinstance(leaf, _Saved)]
        if context.rank() == 0:
            arrays = [leaf.array for leaf in parts]
        else:
            arrays = [np.zeros(leaf.shape, leaf.dtype) for leaf in wanted]
        sent = iter(broadcast_arrays(arrays, [""] * len(arrays)))
        if context.rank() == 0:  # see ObjectState.sync
            self._saved = values
            return
        received = jax.tree_util.tree_map(
            lambda leaf: replace(leaf, array=next(sent)) if isinstance(leaf, _Saved) else leaf,
            described,
        )
        own = {name: values[name] for name in self._merges}
        self._saved = {**_with_own_gradients(received, values), **own}
        self.restore()

    def replicas(self) -> Mapping[str, Any]:
        """Return the arrays of real numbers in the trees; none if ranks exchange weights
        periodically. Gradients that wait for the last of ``backward_passes_per_step`` are left out.
        """
        wait()
        found: dict[str, Any] = {}
        for name in (each for each in self._saved if each not in self._merges):
            tree = getattr(self, name)
            nodes = jax.tree_util.tree_leaves(tree, is_leaf=_is_own)
            if any(isinstance(node, WeightState) for node in nodes):
                return {}
            if not any(isinstance(node, AccumulationState) for node in nodes):
                found |= {f"{name}{place}": leaf for place, leaf in _leaves(tree) if _is_real(leaf)}
        return found

    def overwrite_replicas(self, values: Mapping[str, Any]) -> None:
        for name in self._saved:
            tree = getattr(self, name)
            leaves = [
                like(leaf, values[place].view(leaf.dtype).reshape(leaf.shape))
                if (place := f"{name}{key}") in values
                else leaf
                for key, leaf in _leaves(tree)
            ]
            structure = jax.tree_util.tree_structure(tree)
            setattr(self, name, jax.tree_util.tree_unflatten(structure, leaves))

    def to_bytes(self, saved: Any) -> bytes:
        # Devices belong to one process.
        return super().to_bytes(jax.tree_util.tree_map(_without_place, saved))

    def use_saved_values(self, saved: Any) -> None:
        for name in self._saved.keys() & saved.keys() - self._merges.keys():
            _check_shapes(name, self._saved[name], saved[name])
        structure = jax.tree_util.tree_structure
        if structure(saved) == structure(self._saved):
            saved = jax.tree_util.tree_map(_at_place, saved, self._saved)
        super().use_saved_values(saved)

    def _values(self) -> dict[str, Any]:
        return {name: jax.tree_util.tree_map(_taken, getattr(self, name)) for name in self._saved}


def _check_shapes(name: str, mine: Any, loaded: Any) -> None:
    """Raise ValueError if an array of the tree ``mine`` has another shape in ``loaded``, or if one
    of two dictionaries has an array that the other lacks.

    Single arrays and lists may grow, and the state of a strategy may depend on the ranks.
    """

    def shapes(tree: Any) -> dict[str, Any]:
        pairs = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_own)[0]
        saved = [(path, leaf) for path, leaf in pairs if isinstance(leaf, _Saved)]
        return {jax.tree_util.keystr(path): leaf.shape for path, leaf in saved if path}

    there, here = shapes(loaded), shapes(mine)
    if isinstance(mine, Mapping) and (different := there.keys() ^ here.keys()):
        place = min(different)
        where = "the commit, and not in the state" if place in there else "the state only"
        raise ValueError(f"{name}{place} is in {where}")
    for place in here.keys() & there.keys():
        if there[place] != here[place]:
            raise ValueError(
                f"{name}{place} is {there[place]} in the commit, and {here[place]} in the state"
            )


def _is_own(node: Any) -> bool:
    """Return whether a node of a tree is a state in which ranks may differ."""
    return isinstance(node, (AccumulationState, WeightState))


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    pairs = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in pairs]


def _is_real(leaf: Any) -> bool:
    return is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact) and leaf.size > 0


def _taken(leaf: Any) -> Any:
    if not is_array(leaf):
        return copy.deepcopy(leaf)
    array = np.array(on_host(leaf))
    if not isinstance(leaf, jax.Array):
        return _Saved(array, array.shape, array.dtype, False)
    return _Saved(
        array,
        array.shape,
        array.dtype,
        True,
        _KEYS[str(leaf.dtype)] if is_key(leaf) else None,
        leaf.sharding,
    )


def _with_own_gradients(theirs: Any, mine: Any) -> Any:
    """Return ``theirs``, with this rank's own gradients that wait for the last of
    ``backward_passes_per_step``.
    """

    def waiting(node: Any) -> bool:
        return isinstance(node, AccumulationState)

    def merged(their: Any, my: Any) -> Any:
        if (
            not waiting(their)
            or _shapes(their) != _shapes(my)
            or not np.array_equal(their.count.array, my.count.array)
        ):
            return their
        return their._replace(
            gradients=my.gradients, inner=_with_own_gradients(their.inner, my.inner)
        )

    structure = jax.tree_util.tree_structure
    # a rank that has just begun
    if structure(theirs, is_leaf=waiting) != structure(mine, is_leaf=waiting):
        return theirs
    return jax.tree_util.tree_map(merged, theirs, mine, is_leaf=waiting)


def _shapes(tree: Any) -> Any:
    leaves, structure = jax.tree_util.tree_flatten(tree)
    return structure, [getattr(leaf, "shape", None) for leaf in leaves]


def _described(leaf: Any) -> Any:
    return replace(leaf, array=None, place=None) if isinstance(leaf, _Saved) else leaf


def _without_place(leaf: Any) -> Any:
    return replace(leaf, place=None) if isinstance(leaf, _Saved) else leaf


def _at_place(leaf: Any, mine: Any) -> Any:
    """Return a loaded leaf for the devices of this process's leaf."""
    both = isinstance(leaf, _Saved) and isinstance(mine, _Saved)
    return replace(leaf, place=mine.place) if both else leaf


def _made(leaf: Any) -> Any:
    if not isinstance(leaf, _Saved):
        return copy.deepcopy(leaf) if not isinstance(leaf, jax.Array) else leaf
    if not leaf.on_device:
        return leaf.array.copy()
    array = jnp.array(leaf.array)
    if leaf.key is not None:
        return jax.random.wrap_key_data(array, impl=leaf.key)
    return array if leaf.place is None else jax.device_put(array, leaf.place)
