"""The state of Keras layers outside of variables: vocabularies, bin edges, assets, constants. For
Keras 2 and Keras 3.

Ranks share it before they share the weights: rank 0's is used on all ranks, and layers that had
been adapted to other data are reported.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from farandole.base.digests import digest_of_text
from farandole.checks.held_state import HeldState, different_state, places_that_differ
from farandole.checks.reporting import report
from farandole.core.api.objects import allgather_object, broadcast_object
from farandole.job import context
from farandole.job.context import ProcessSet

_ADAPT = (
    "Adapt the layer to the whole data set on all ranks, or on rank {root} alone: the broadcast"
    " sends its state to the others"
)
_CONSTANT = "Make the layer with the same value on all ranks"


class Kind(NamedTuple):
    """A kind of state: its noun, how to read it, and how to replace it (None: it is constant).

    ``read`` returns a value that can be pickled, or None if a layer has no state of this kind.
    ``count`` returns the number of entries of a value.
    """

    what: str
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None] | None
    count: Callable[[Any], int]


class LayerState(NamedTuple):
    """The state of one layer on this rank. ``where``: the layer's name."""

    layer: Any
    where: str
    kind: Kind
    value: Any

    def held(self) -> HeldState:
        count = self.kind.count(self.value)
        owner = f"layer {self.where!r}"
        return HeldState(owner, self.kind.what, digest_of_text(repr(self.value)), count)


def states_of(layers: Iterable[Any]) -> list[LayerState]:
    """Return the state of each of ``layers`` that has any."""
    layers = list(layers)
    inside = {id(layer._lookup_layer): layer for layer in layers if hasattr(layer, "_lookup_layer")}
    found = []
    for layer in layers:
        for kind in KINDS if not hasattr(layer, "_lookup_layer") else ():
            value = kind.read(layer)
            if value is not None:
                found.append(LayerState(layer, _name_of(inside.get(id(layer), layer)), kind, value))
                break
    return found


def share(
    layers: Iterable[Any], root_rank: int, process_set: ProcessSet, local: Sequence[Any] = ()
) -> bool:
    """Broadcast ``root_rank``'s state of ``layers`` to all ranks, and report the layers that
    differed.

    ``local``: layers that stay local to each rank. Returns whether a layer of this rank changed.
    Collective. Raises ValueError on all ranks if a layer cannot take the root's state, and
    RanksDifferError with ``--check raise``.
    """
    kept = {id(layer) for layer in local}
    mine = [state for state in states_of(layers) if id(state.layer) not in kept]
    everybody = allgather_object([state.held() for state in mine], process_set=process_set)
    different = places_that_differ(everybody)
    if not different:
        return False
    ranks = process_set.ranks or range(len(everybody))
    root = list(ranks).index(root_rank)
    taken = [
        place
        for place in different
        if mine[place].kind.write is not None and everybody[root][place].entries
    ]
    changed = _take([mine[place] for place in taken], root_rank, process_set)
    constants = [place for place in different if mine[place].kind.write is None]
    named = _named([mine[place] for place in constants], process_set) if constants else []
    found = [
        different_state(states, root, ranks, _CONSTANT) for states in zip(*named, strict=True)
    ] + [
        different_state(
            [states[place] for states in everybody],
            root,
            ranks,
            _ADAPT.format(root=root_rank),
            taken=place in taken,
        )
        for place in different
        if place not in constants
    ]
    report(context.engine(process_set), [one for one in found if one is not None])
    return changed


def _named(states: Sequence[LayerState], process_set: ProcessSet) -> list[list[HeldState]]:
    """Return, for each rank, the first constant of each layer that differs, with its value."""
    everybody = allgather_object([state.value for state in states], process_set=process_set)
    found: list[list[HeldState]] = [[] for _ in everybody]
    for state, *values in zip(states, *everybody, strict=True):
        names = [name for name in state.value if len({repr(one.get(name)) for one in values}) > 1]
        for place, value in enumerate(values):
            shown = str(value.get(names[0])) if names else ""
            what = names[0] if names else state.kind.what
            digest = digest_of_text(shown or repr(value))
            found[place].append(HeldState(f"layer {state.where!r}", what, digest, value=shown))
    return found


def _take(states: Sequence[LayerState], root_rank: int, process_set: ProcessSet) -> bool:
    values = broadcast_object([state.value for state in states], root_rank, process_set=process_set)
    error = ""
    for state, value in zip(states, values, strict=True):
        if repr(value) == repr(state.value) or error:
            continue
        assert state.kind.write is not None
        try:
            state.kind.write(state.layer, value)
        except (
            Exception
        ) as failure:  # reported on all ranks, which would otherwise wait for this one
            error = f"layer {state.where!r} on rank {context.rank()}: {failure}"
    errors = [each for each in allgather_object(error, process_set=process_set) if each]
    if errors:
        raise ValueError(
            f"a layer cannot take the state of rank {root_rank}: {errors[0]}. Adapt it to the same"
            " data on all ranks, or give the layer max_tokens and pad_to_max_tokens=True"
        )
    return any(repr(value) != repr(one.value) for one, value in zip(states, values, strict=True))


# Layers that this process has adapted, in the program's order. Many prepare the data and belong to
# no model.


def states_outside(layers: Iterable[Any]) -> list[HeldState]:
    """Return the states of adapted layers, including Normalization."""
    found = []
    for layer in layers:
        layer = getattr(layer, "_lookup_layer", layer)
        states = states_of([layer])
        found.append(states[0].held() if states else None)
        if states == [] or states[0].kind.write is None:  # Normalization keeps variables
            found[-1] = _statistics(layer)
    return [state for state in found if state is not None]


def _statistics(layer: Any) -> HeldState | None:
    if getattr(layer, "adapt_mean", None) is None:
        return None
    values = [np.asarray(value).tolist() for value in (layer.adapt_mean, layer.adapt_variance)]
    owner = f"layer {_name_of(layer)!r}"
    return HeldState(owner, "mean and variance", digest_of_text(repr(values)))


def _name_of(layer: Any) -> str:
    """Return the layer's name, without the number that makes names unique within a process."""
    return re.sub(r"_\d+$", "", str(layer.name))


# The kinds of state.


def _read_vocabulary(layer: Any) -> Any:
    if not (hasattr(layer, "get_vocabulary") and hasattr(layer, "set_vocabulary")):
        return None
    words = layer.get_vocabulary(include_special_tokens=False)
    plain = [str(word) if isinstance(word, str) else int(word) for word in words]
    weights = getattr(layer, "idf_weights_const", None)
    if weights is None or not plain:
        return plain, None
    begin = len(layer.get_vocabulary()) - len(plain)  # special tokens come first
    return plain, np.asarray(weights)[begin : begin + len(plain)].tolist()


def _write_vocabulary(layer: Any, value: Any) -> None:
    words, weights = value
    layer.set_vocabulary(words, *([] if weights is None else [weights]))
    if getattr(layer, "input_vocabulary", None) is not None:  # a saved model has this one
        layer.input_vocabulary = words


def _read_edges(layer: Any) -> Any:
    if not hasattr(layer, "bin_boundaries"):
        return None
    summary = getattr(layer, "summary", None)
    return (
        [float(edge) for edge in _edges_of(layer)],
        # Keras 2 keeps the counts in a variable, whose shape depends on the data
        None if not hasattr(summary, "assign") else np.asarray(summary).tolist(),
    )


def _edges_of(layer: Any) -> Any:
    edges = layer.bin_boundaries
    return [] if edges is None else np.asarray(edges)


def _write_edges(layer: Any, value: Any) -> None:
    edges, summary = value
    layer.bin_boundaries = edges
    if hasattr(layer, "input_bin_boundaries") and layer.input_bin_boundaries is not None:
        layer.input_bin_boundaries = edges
    if summary is not None and hasattr(layer.summary, "assign"):
        layer.summary.assign(summary)


def _read_assets(layer: Any) -> Any:
    """Return the files and the values, other than variables, that a custom layer saves."""
    if not _overridden(layer, "save_assets") and not _overridden(layer, "save_own_variables"):
        return None
    files, values = {}, {}
    if _overridden(layer, "save_assets"):
        with tempfile.TemporaryDirectory() as folder:
            layer.save_assets(folder)
            paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
            files = {os.path.relpath(path, folder): path.read_bytes() for path in paths}
    if _overridden(layer, "save_own_variables"):
        store: dict[str, Any] = {}
        layer.save_own_variables(store)
        variables = [np.asarray(each) for each in layer.get_weights()]
        values = {
            name: np.asarray(value).tolist()
            for name, value in store.items()
            if not any(np.array_equal(np.asarray(value), each) for each in variables)
        }
    return (files, values) if files or values else None


def _write_assets(layer: Any, value: Any) -> None:
    files, values = value
    if files:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            layer.load_assets(folder)
    if values:
        store: dict[str, Any] = {}
        layer.save_own_variables(store)
        layer.load_own_variables(store | {name: np.asarray(each) for name, each in values.items()})


def _overridden(layer: Any, name: str) -> bool:
    """Return whether a class outside of Keras defines the method."""
    owner = next((base for base in type(layer).__mro__ if name in vars(base)), None)
    return owner is not None and owner.__module__.partition(".")[0] not in ("keras", "tf_keras")


def _read_constants(layer: Any) -> Any:
    """Return the numbers in a layer's configuration, by name; None without any."""
    if hasattr(layer, "layers"):  # a model: its layers follow
        return None
    try:
        config = layer.get_config()
    except Exception:  # a custom layer need not have one
        return None
    return dict(_numbers(config)) or None


def _numbers(value: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    # random numbers and layer numbers may differ between ranks
    if re.search(r"(seed|name|initializer|trainable|layers)$", name):
        return
    if isinstance(value, Mapping):
        for key, each in sorted(value.items(), key=lambda pair: str(pair[0])):
            yield from _numbers(each, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from _numbers(each, f"{name}[{number}]")
    elif isinstance(value, (bool, int, float, np.number, np.bool_)):
        yield name, float(value)
    elif isinstance(value, np.ndarray):
        yield name, value.tolist()


KINDS = (
    Kind("vocabulary", _read_vocabulary, _write_vocabulary, lambda value: len(value[0])),
    Kind("list of bin edges", _read_edges, _write_edges, lambda value: len(value[0])),
    Kind("saved state", _read_assets, _write_assets, lambda value: -1),
    Kind("configuration", _read_constants, None, lambda value: -1),
)
