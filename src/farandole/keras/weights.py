"""Broadcasting and comparing the weights of models and the state of optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from farandole.core.api.arrays import broadcast_arrays
from farandole.core.api.documented import documented
from farandole.core.api.objects import allgather_object
from farandole.core.api.ops import WORLD
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.keras.constants import make_functions, renew_in
from farandole.keras.layer_state import share
from farandole.keras.optimizer import gradients_of, innermost, optimizers_of, reducers_of
from farandole.keras.reducer import KerasReducer, counter, digest_of, name_of

if TYPE_CHECKING:
    from farandole.base.types import Array


@documented(
    "init",
    "set",
    "root",
    "ValueError, on all ranks: their variables differ; the message names the first difference.",
    variables="variables of Keras or its backend; the same list on all ranks.",
    example="hvd.broadcast_variables(model.weights, root_rank=0)",
)
def broadcast_variables(
    variables: Sequence[Any], root_rank: int = 0, process_set: ProcessSet = WORLD
) -> None:
    """Overwrite ``variables`` with ``root_rank``'s values, all as one unit."""
    variables = list(variables)
    arrays = [numpy_of(variable) for variable in variables]
    names = [
        name_of(variable) if hasattr(variable, "name") else "variable" for variable in variables
    ]
    results = broadcast_arrays(arrays, names, root_rank, process_set, variables, numpy_of)
    if context.rank() == root_rank:
        return
    for variable, value in zip(variables, results, strict=True):
        if hasattr(variable, "assign"):
            variable.assign(value)
        else:  # a torch parameter
            variable.data.copy_(keras.ops.convert_to_tensor(value, dtype=variable.dtype))


@documented(
    "init",
    "set",
    "root",
    "ValueError: the model is not built, or (on all ranks) the ranks' variables differ.",
    model="a built Keras model. Its optimizer is built if necessary.",
    local_variables="variables that each rank keeps, together with their slots.",
    example="model.compile(optimizer, 'mse')\nhvd.broadcast_model(model)",
)
def broadcast_model(
    model: Any,
    root_rank: int = 0,
    process_set: ProcessSet = WORLD,
    local_variables: Sequence[Any] = (),
) -> None:
    """Broadcast ``root_rank``'s weights and optimizer state to all ranks, except for local
    variables and their slots.
    """
    if not (model.built or has_weights(model)):
        raise ValueError(
            "the model has no weights yet. Build it by calling it on a batch, or with an Input"
            " layer"
        )
    broadcast_built(model, root_rank, process_set, local_variables)


def has_weights(model: Any) -> bool:
    """Return whether all layers of the model are built.

    With a custom ``train_step``, Keras may never call the model itself, so it may not count as
    built.
    """
    layers = model._flatten_layers(include_self=False)
    return bool(model.weights) and all(layer.built for layer in layers)


def broadcast_built(
    model: Any, root_rank: int, process_set: ProcessSet, local_variables: Sequence[Any]
) -> None:
    """Broadcast the existing weights of ``model``; see ``broadcast_model``."""
    optimizer = getattr(model, "optimizer", None)
    if lacks_variables(model):
        raise ValueError(
            f"the model has {len(model.trainable_variables)} trainable variables, but its"
            f" {type(optimizer).__name__} was built for none, as after loading an .h5 file with"
            " Keras. Load the file with hvd.load_model(path), which also reads the optimizer's"
            " state, or compile the model again"
        )
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    local_layers = [layer for _, reducer in reducers_of(model) for layer in reducer.local_layers]
    if share(model._flatten_layers(include_self=False), root_rank, process_set, local_layers):
        make_functions(model)
    build_on_all_ranks(
        model, [each for each in optimizers_of(model) if each is not optimizer], process_set
    )
    broadcast_states(model, shared_variables(model, local_variables), root_rank, process_set)


def build_on_all_ranks(model: Any, held: Sequence[Any], process_set: ProcessSet) -> None:
    """Build, on all ranks, the optimizers that ``model`` holds in addition to its own, if one rank
    has built them.

    Otherwise they are built in their first step; a rank that resumes from a checkpoint has already
    built them.
    """
    if not held:
        return
    places = {id(variable): place for place, variable in enumerate(model.variables)}
    mine = [[places.get(id(one)) for one in innermost(each)._trainable_variables] for each in held]
    for optimizer, *theirs in zip(
        held, *allgather_object(mine, process_set=process_set), strict=False
    ):
        of = next(filter(None, theirs), ())
        if not optimizer.built and of and None not in of:
            optimizer.build([model.variables[place] for place in of])


def broadcast_states(
    model: Any, variables: Sequence[Any], root_rank: int, process_set: ProcessSet
) -> None:
    """Overwrite ``variables`` with ``root_rank``'s values, except for state that belongs to this
    rank alone.

    Such state is kept if an optimizer has counted as many batches as the root's: accumulated
    gradients and, if ranks exchange weights, the momentum of local steps.
    """
    states = [(innermost(each), gradients_of(each)) for each in optimizers_of(model)]
    own = [
        (optimizer, _batches(optimizer), _own(optimizer, reducer)) for optimizer, reducer in states
    ]
    broadcast_variables(variables, root_rank, process_set)
    renew_in(model, keras.layers.Normalization, numpy_of)
    for optimizer, batches, kept in own:
        if kept and batches == _batches(optimizer):
            for variable, value in kept:
                variable.assign(value)


def _batches(optimizer: Any) -> int:
    return int(numpy_of(counter(optimizer)))


def _own(optimizer: Any, reducer: KerasReducer | None) -> list[tuple[Any, Array]]:
    """Return the variables of an optimizer that belong to this rank alone, with copies of their
    values.
    """
    found: Sequence[Any] = ()
    if reducer is not None and reducer.exchange is not None and _batches(optimizer):
        common = [id(counter(optimizer)), id(getattr(optimizer, "_learning_rate", None))]
        found = [variable for variable in optimizer.variables if id(variable) not in common]
    else:
        found = accumulated(optimizer)
    return [(variable, np.array(numpy_of(variable))) for variable in found]


def accumulated(optimizer: Any, local: Sequence[Any] = ()) -> list[Any]:
    """Return the gradients of an unfinished accumulation, except for ``local`` variables."""
    optimizer = innermost(optimizer)
    passes = getattr(optimizer, "gradient_accumulation_steps", None)
    if not passes or not _batches(optimizer) % passes:
        return []
    pairs = zip(optimizer._trainable_variables, optimizer._accumulated_gradients, strict=True)
    return [
        sums
        for variable, sums in pairs
        if sums is not None and not any(variable is other for other in local)
    ]


def lacks_variables(model: Any) -> bool:
    """Return whether the model's optimizer was built before the model had weights, as happens when
    Keras loads an ``.h5`` file.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not optimizer.built or not model.trainable_variables:
        return False
    return not innermost(optimizer)._trainable_variables  # Keras 3.3 lists none on the outside


@documented(
    "init",
    "set",
    "root",
    "ValueError: no model, or one that is not built.",
    model="a built Keras model.",
)
def broadcast_global_variables(
    root_rank: int, model: Any = None, process_set: ProcessSet = WORLD
) -> None:
    """Broadcast ``root_rank``'s weights and optimizer state of ``model`` to all ranks.

    Without ``model`` this raises ValueError. Horovod's function has no such argument, because
    TensorFlow 1 kept a list of all variables of a program.
    """
    if model is None:
        raise ValueError(
            "broadcast_global_variables needs a model. Pass the model,"
            " hvd.broadcast_global_variables(root_rank, model), or use"
            " hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank) in model.fit"
        )
    broadcast_model(model, root_rank, process_set)


def shared_variables(model: Any, local_variables: Sequence[Any] = ()) -> list[Any]:
    """Return the weights and optimizer variables that are equal on all ranks.

    The state of random generators differs between ranks, so that they do not drop the same units.
    """
    local = local_of(model, local_variables)
    weights = [
        variable for variable in model.weights if not any(variable is other for other in local)
    ]
    states = [variable for optimizer in optimizers_of(model) for variable in optimizer.variables]
    if not local:
        return weights + states
    prefixes = {
        _slots_of(variable): any(variable is other for other in local)
        for variable in model.trainable_variables
    }
    return weights + [
        variable for variable in states if not prefixes.get(_owner(variable.name, prefixes))
    ]


def _slots_of(variable: Any) -> str:
    """Return the prefix of the names of a variable's slots."""
    return f"{variable.path.replace('/', '_')}_"


def _owner(name: str, prefixes: Iterable[str]) -> str:
    """Return the prefix of a slot: the longest match, because ``w_2`` is not a slot of ``w``."""
    return max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default="")


def local_of(model: Any, local_variables: Sequence[Any] = ()) -> list[Any]:
    """Return the variables of ``model`` that stay local to each rank."""
    return [
        *local_variables,
        *(variable for _, reducer in reducers_of(model) for variable in reducer.local()),
    ]


def numpy_of(variable: Any) -> Array:
    """Return a variable's value. bfloat16 is kept if numpy knows the type."""
    value = getattr(variable, "value", variable)
    value = variable if callable(value) else value
    # for TensorFlow's variables; numpy cannot read variables of a tf.distribute strategy
    if hasattr(value, "read_value"):
        value = value.read_value()
    array: Array = np.asarray(keras.ops.convert_to_numpy(value))
    return array


def digests(variables: Sequence[Any]) -> list[int]:
    """Return a number for each variable that differs when values differ."""
    return [digest_of([numpy_of(variable)]) for variable in variables]
