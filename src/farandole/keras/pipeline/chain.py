"""A model as a chain of layers, each with one input and one output tensor, and its stages."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import keras

from farandole.core.api.objects import allgather_object
from farandole.job import context
from farandole.keras.pipeline import cuts


class Place(NamedTuple):
    """One layer and the ``shape`` of its input, without the rows."""

    layer: Any
    shape: tuple[int | None, ...]
    dtype: str
    cost: float


class Cut(NamedTuple):
    """A chain in stages. ``begins``: the number of the first layer of each stage."""

    places: Sequence[Place]
    begins: Sequence[int]

    @property
    def counts(self) -> list[int]:
        """Return the number of layers in each stage."""
        return [end - begin for begin, end in pairwise([*self.begins, len(self.places)])]


class Plan(NamedTuple):
    """The parts from which a rank creates its Pipeline. ``layers``: a model of copies of its
    stage's layers.
    """

    cut: Cut
    micro_batches: int
    layers: Any
    recipe: Recipe


def plan_of(model: Any, stages: int, micro_batches: int, names: Sequence[str] | None) -> Plan:
    """Return the same plan on all ranks. Raises ValueError on all ranks if one of them cannot make
    the plan, or if ranks differ.
    """
    made: Plan | Exception
    try:
        made = _planned(model, stages, micro_batches, names)
    except Exception as error:  # also from layers: other ranks await this result
        made = error
    everybody = allgather_object(_facts(made) if isinstance(made, Plan) else str(made))
    if isinstance(made, Exception):
        raise made
    for rank, theirs in enumerate(everybody):
        if isinstance(theirs, str):
            raise ValueError(f"rank {rank} cannot create its Pipeline: {theirs}")
        if theirs != _facts(made):
            raise ValueError(
                f"Pipeline: all ranks must pass the same model and arguments, but rank {rank} has"
                f" {_difference(theirs, _facts(made))}"
            )
    return made


def _planned(model: Any, stages: int, micro_batches: int, names: Sequence[str] | None) -> Plan:
    backend = keras.backend.backend()
    if backend not in ("torch", "tensorflow"):
        raise ValueError(
            f"Pipeline supports Keras's backends torch and tensorflow, not {backend}. Set"
            " KERAS_BACKEND=torch or tensorflow, or keep the whole model on each rank with"
            " hvd.DistributedOptimizer(optimizer), which supports all backends"
        )
    stages, micro_batches, size = (
        operator.index(stages),
        operator.index(micro_batches),
        context.size(),
    )
    if stages < 1 or micro_batches < 1:
        raise ValueError(
            f"Pipeline: stages={stages} and micro_batches={micro_batches} must be at least 1"
        )
    if size % stages:
        raise ValueError(
            f"Pipeline: the number of ranks, {size}, must be a multiple of stages={stages}: ranks"
            " = stages x replicas"
        )
    places = chain_of(model)
    if stages > len(places):
        raise ValueError(
            f"Pipeline: stages={stages} is more than the {len(places)} layers of {model.name}. Use"
            " fewer stages"
        )
    if names is None:
        cut = Cut(places, cuts.balanced([place.cost for place in places], stages))
    else:
        cut = Cut(places, _begins(places, stages, names))
    recipe, stage = Recipe(model, places), context.rank() % stages
    return Plan(cut, micro_batches, recipe.stage(cut.begins[stage], cut.counts[stage]), recipe)


def _begins(places: Sequence[Place], stages: int, names: Sequence[str]) -> list[int]:
    known = [place.layer.name for place in places]
    if len(names) != stages - 1:
        raise ValueError(
            f"Pipeline: cuts={list(names)} makes {len(names) + 1} stages instead of"
            f" stages={stages}. Name the first layer of each stage but the first"
        )
    for name in names:
        if name not in known[1:]:
            raise ValueError(
                f"Pipeline: cuts has the unknown layer {name!r}; a stage can begin with"
                f" {', '.join(known)}"
            )
    begins = [0, *(known.index(name) for name in names)]
    if any(before >= after for before, after in pairwise(begins)):
        raise ValueError(
            f"Pipeline: cuts={list(names)} must be in the order of the layers: {', '.join(known)}"
        )
    return begins


def chain_of(model: Any) -> list[Place]:
    """Return the layers of ``model``, in order. Raises ValueError that names a layer outside of a
    chain.
    """
    kind = type(model).__name__
    if not (type(model) is keras.Sequential or kind == "Functional"):
        raise ValueError(
            f"Pipeline: {kind} is a custom class, which may call its layers in any order. Pass a"
            " keras.Sequential, or keras.Model(inputs, outputs) of consecutive layers"
        )
    if not model.built:
        raise ValueError(
            f"Pipeline: {model.name} has no weights yet. Begin it with keras.Input(shape), or call"
            " build(shape)"
        )
    for what, tensors in (("inputs", model.inputs), ("outputs", model.outputs)):
        if len(tensors) != 1:
            names = ", ".join(tensor.name for tensor in tensors)
            raise ValueError(
                f"Pipeline: {model.name} has {len(tensors)} {what} ({names}) instead of one"
            )
    places: list[Place] = []
    tensor = model.outputs[0]
    while not isinstance(tensor._keras_history.operation, keras.layers.InputLayer):
        history = tensor._keras_history
        before = _before(history.operation, history.operation._inbound_nodes[history.node_index])
        places.append(_place(history.operation, before, tensor))
        tensor = before
    if getattr(tensor, "sparse", False):
        raise ValueError(
            f"Pipeline: the input {tensor.name!r} is sparse, and cannot be divided into micro"
            " batches"
        )
    places.reverse()
    _check_own(places)
    return places


def _before(operation: Any, node: Any) -> Any:
    """Return the one input tensor of an operation."""
    what = f"{operation.name!r} ({type(operation).__name__})"
    cure = (
        "combine it and the layers connected to it into one layer: a nested model or a custom"
        " layer class"
    )
    if not isinstance(operation, keras.layers.Layer):
        raise ValueError(
            f"Pipeline: {what} is an operation, not a layer. Wrap it in a layer, for example"
            " keras.layers.Lambda"
        )
    # every call of a model passes its own ``training``
    given = node.arguments.kwargs.items()
    options = {name: value for name, value in given if value is not None and name != "training"}
    tensors = node.arguments.keras_tensors
    own = getattr(tensors[0], "_keras_mask", None)
    if own is not None and options.get("mask") is own:  # Keras passes the mask along
        del options["mask"]
        tensors = [tensor for tensor in tensors if tensor is not own]
    if len(tensors) != 1:
        raise ValueError(
            f"Pipeline: the layer {what} takes {len(tensors)} tensors instead of one. To fix this,"
            f" {cure}"
        )
    if len(node.outputs) != 1:
        raise ValueError(
            f"Pipeline: the layer {what} returns {len(node.outputs)} tensors instead of one. To"
            f" fix this, {cure}"
        )
    if options or len(node.arguments.args) != 1:
        raise ValueError(
            f"Pipeline: the layer {what} is called with arguments in addition to a tensor"
            f" ({', '.join(options)}). To fix this, {cure}"
        )
    if getattr(operation, "stateful", False):
        raise ValueError(
            f"Pipeline: the layer {what} is stateful, so that each micro batch would continue with"
            " the state of another one"
        )
    return tensors[0]


def _place(layer: Any, before: Any, after: Any) -> Place:
    numbers = sum(math.prod(variable.shape) for variable in layer.weights)
    uses = (
        1
        if isinstance(layer, keras.layers.Embedding)
        else max(_positions(layer, each) for each in (before, after))
    )
    return Place(layer, tuple(before.shape[1:]), str(before.dtype), float(numbers * uses))


def _positions(layer: Any, tensor: Any) -> int:
    """Return the number of positions of a row (pixels or words) at which a layer uses its weights;
    1 if unknown.
    """
    first = getattr(layer, "data_format", None) == "channels_first"
    return math.prod(size or 1 for size in (tensor.shape[2:] if first else tensor.shape[1:-1]))


def _check_own(places: Sequence[Place]) -> None:
    """Check that each layer occurs once and shares no weights."""
    owners: dict[int, int] = {}
    for number, place in enumerate(places):
        for part in (place.layer, *place.layer.weights):
            owner = owners.setdefault(id(part), number)
            if owner != number:
                names = f"{places[owner].layer.name!r} and {place.layer.name!r}"
                what = (
                    "the layer occurs twice"
                    if part is place.layer
                    else f"they share the weight {part.path!r}"
                )
                raise ValueError(
                    f"Pipeline: stages cannot share weights, but in layers {owner} and {number}"
                    f" ({names}) {what}. Combine these and all layers between them into one nested"
                    " model"
                )


class _Facts(NamedTuple):
    """The parts of a plan that must be equal on all ranks."""

    layers: list[str]
    begins: list[int]
    micro_batches: int


def _facts(plan: Plan) -> _Facts:
    layers = [
        f"{type(place.layer).__name__} with weights"
        f" {[tuple(each.shape) for each in place.layer.weights]}"
        for place in plan.cut.places
    ]
    return _Facts(layers, list(plan.cut.begins), plan.micro_batches)


def _difference(theirs: _Facts, ours: _Facts) -> str:
    """Describe how another rank's facts differ from this rank's."""
    for number, (their, our) in enumerate(zip(theirs.layers, ours.layers, strict=False)):
        if their != our:
            return f"{their} as layer {number}, and rank {context.rank()} has {our}"
    if len(theirs.layers) != len(ours.layers):
        return f"{len(theirs.layers)} layers, and rank {context.rank()} has {len(ours.layers)}"
    if theirs.micro_batches != ours.micro_batches:
        return (
            f"micro_batches={theirs.micro_batches}, and rank {context.rank()} has"
            f" {ours.micro_batches}"
        )
    return (
        f"stages that begin with the layers {theirs.begins}, and rank {context.rank()} has"
        f" {ours.begins}"
    )


# Custom layers.


class Recipe:
    """Makes layers like ``model``'s without holding them."""

    def __init__(self, model: Any, places: Sequence[Place]) -> None:
        """Raises ValueError for a layer without a configuration."""
        self._sequential = isinstance(model, keras.Sequential)
        self._name, self._inputs = model.name, model.inputs[0].name
        self._first = [(place.shape, place.dtype) for place in places]
        self._classes = {
            type(layer).__name__: type(layer) for layer in model._flatten_layers(include_self=False)
        }
        self._makers = [_maker(place.layer) for place in places]

    def stage(self, begin: int, count: int) -> Any:
        """Return a Sequential of ``count`` new layers, from number ``begin`` on. Raises ValueError
        for a layer that cannot be created.
        """
        shape, dtype = self._first[begin]
        return keras.Sequential(
            [keras.Input(shape, dtype=dtype), *self._layers(begin, begin + count)]
        )

    def model(self) -> tuple[Any, list[Any]]:
        """Return a whole model with new weights, and its layers."""
        shape, dtype = self._first[0]
        inputs, layers = (
            keras.Input(shape, dtype=dtype, name=self._inputs),
            self._layers(0, len(self._makers)),
        )
        if self._sequential:
            return keras.Sequential([inputs, *layers], name=self._name), layers
        outputs = inputs
        for layer in layers:
            outputs = layer(outputs)
        return keras.Model(inputs, outputs, name=self._name), layers

    def _layers(self, begin: int, end: int) -> list[Any]:
        with keras.saving.custom_object_scope(self._classes):
            return [make() for make in self._makers[begin:end]]


def _maker(layer: Any) -> Callable[[], Any]:
    """Return a function that creates layers like ``layer``."""
    kind, name = type(layer), f"{layer.name!r} ({type(layer).__name__})"

    def unless_it_fails(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (
            NotImplementedError,
            TypeError,
            ValueError,
        ) as error:  # a third-party layer may raise any of these
            raise ValueError(
                f"Pipeline: stages have copies of layers, but {name} cannot be copied: {error}"
            ) from error

    # get_config() is for files: it has only a part of the function
    if isinstance(layer, keras.layers.Lambda):
        options = keras.layers.Layer.get_config(layer) | {
            "function": layer.function,
            "output_shape": layer._output_shape,
            "mask": layer.mask,
            "arguments": layer.arguments,
        }
        return lambda: kind(**options)
    config = unless_it_fails(layer.get_config)
    return lambda: unless_it_fails(lambda: kind.from_config(copy.deepcopy(config)))
