"""The behaviour of ``model.fit`` in a job of several ranks.

Keras has no hooks for this, so ``install`` wraps five methods of its classes, and the methods that
adapt layers (see ``adapted``). They behave as before if one process trains alone or gradients stay
on their rank. The five methods are:

- ``Model.fit``: gives each rank its part of the data if the optimizer has ``shard=True``, and puts
  two callbacks around the user's: the first pools metrics over all ranks for them, the last makes
  ranks stop together;
- ``Model.make_train_function``: turns off XLA, which cannot compile an exchange between TensorFlow
  processes;
- ``LossScaleOptimizer.apply`` and ``stateless_apply``: decide on the reduced gradients whether to
  skip a step;
- ``Model.compile``: accepts ``experimental_run_tf_function``, which Horovod programs pass and Keras
  3 no longer has.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from farandole.checks.catalogue import DIVIDED_TWICE
from farandole.checks.replicas import DATA_CODES, same_data
from farandole.checks.reporting import report, warn_once, warn_unless_off
from farandole.core.api.objects import allgather_object
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.keras import metrics
from farandole.keras.adapted import watch
from farandole.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
    process_set_of,
    together,
)
from farandole.keras.checks import CURES, local_batch_norm, uneven_shuffle, xla_skipped
from farandole.keras.common_callbacks import belongs_to_run
from farandole.keras.data import (
    digest_of_data,
    seeds_of,
    sharded_arguments,
    sharded_validation,
)
from farandole.keras.epoch_mistakes import epochs_divided, idle_early_stopping
from farandole.keras.epochs import (
    AfterUserCallbacks,
    BeforeUserCallbacks,
    NoExchangeWarning,
    SynchronizingCallback,
    Training,
)
from farandole.keras.files import path_of, written_once
from farandole.keras.global_batch import check_weighed, weigh, weighing
from farandole.keras.optimizer import (
    distributed_in,
    exchanged_outside,
    gradients_of,
    reduced_for_scaling,
    reducers_of,
)
from farandole.keras.pooling import root_of
from farandole.keras.recording import TrainingRecorder, recorders
from farandole.keras.reducer import KerasReducer, backend
from farandole.strategies.shares import block


def install() -> None:
    """Wrap Keras's methods, once per process."""
    if getattr(keras.Model.fit, "_farandole", False):
        return
    watch(keras.layers)
    scaling = keras.optimizers.LossScaleOptimizer
    # Keras checks which class overrides ``compile``
    trainer = next(base for base in keras.Model.__mro__ if "compile" in vars(base))
    for owner, name, wrapper in (
        (keras.Model, "fit", _fit),
        (keras.Model, "make_train_function", _make_train_function),
        (trainer, "compile", _compile),
        (scaling, "apply", _apply),
        (scaling, "stateless_apply", _stateless_apply),
    ):
        setattr(owner, name, _wrapped(getattr(owner, name), wrapper))


def _wrapped(original: Any, wrapper: Any) -> Any:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(self, original, *args, **kwargs)

    method._farandole = True  # type: ignore[attr-defined]
    return method


def _fit(self: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
    if (context.keeps_commits() or context.shares()) and not context.object_names().is_within:
        # imported here because most jobs have a fixed size
        from farandole.keras.elastic_fit.keras_3 import continues

        if continues(self):
            return _elastic_fit(inspect.signature(original).bind(self, *args, **kwargs), original)
    alone = not together(self)
    if alone and not belongs_to_run():
        return original(self, *args, **kwargs)
    bound = inspect.signature(original).bind(self, *args, **kwargs)
    callbacks = bound.arguments.get("callbacks")
    users = flat(callbacks)
    if alone:
        around(bound, callbacks, [], recorders(bound.arguments, users))
        return original(*bound.args, **bound.kwargs)
    epochs = _epochs_of(bound.arguments)
    _report_idle_stopping(users, epochs)
    gradients = next((reducer for _, reducer in reducers_of(self)), None)
    if gradients is None and not any(isinstance(callback, _OURS) for callback in users):
        around(bound, callbacks, [], [*_recorders(bound, users), NoExchangeWarning()])
        return original(*bound.args, **bound.kwargs)
    given = digest_of_data((bound.arguments.get("x"), bound.arguments.get("y")))
    if gradients is not None and gradients.shard:
        sharded_arguments(bound.arguments, process_set_of(self))

    def call(first: list[Any], last: list[Any]) -> Any:
        around(bound, callbacks, first, last)
        return original(*bound.args, **bound.kwargs)

    return _exchanging(bound, users, gradients, given, call)


def _elastic_fit(bound: inspect.BoundArguments, original: Any) -> Any:
    from farandole.keras.elastic_fit.keras_3 import elastic_fit

    arguments, users = bound.arguments, flat(bound.arguments.get("callbacks"))
    model = arguments["self"]
    gradients = reducers_of(model)[0][1]
    given = digest_of_data((arguments.get("x"), arguments.get("y")))
    fit = elastic_fit(original, arguments, users, gradients.shard)
    validation = arguments.get("validation_data")

    def attempt() -> None:
        place = block(context.rank(), context.size(), context.shares() or context.size())
        weigh(model, place)
        if not together(model):
            fit.train(place, last=_recorders(bound, users))
            return
        if gradients.shard:
            arguments["validation_data"] = validation
            sharded_validation(arguments, process_set_of(model))
        _exchanging(bound, users, gradients, given, functools.partial(fit.train, place))

    with weighing(model):
        return fit.run(attempt)


def _exchanging(
    bound: inspect.BoundArguments,
    users: list[Any],
    gradients: KerasReducer | None,
    given: int | None,
    call: Callable[[list[Any], list[Any]], Any],
) -> Any:
    """Return ``call(first, last)``, with the callbacks to put around ``users`` in a job of several
    ranks.

    ``given``: the digest of the data that the program passes.
    """
    self: Any = bound.arguments["self"]
    process_set = process_set_of(self)
    _report_synchronized(self, process_set)
    sharded = gradients is not None and gradients.shard
    paths = _agree(
        bound.arguments,
        users,
        process_set,
        sharded,
        given,
        None if gradients is None else gradients.reported,
    )
    own_broadcast = next(
        (callback for callback in users if isinstance(callback, BroadcastGlobalVariablesCallback)),
        None,
    )
    broadcast = own_broadcast or BroadcastGlobalVariablesCallback(root_of(process_set))
    with written_once(users, paths, process_set.rank()) as silent:
        training = Training(process_set, silent, broadcast)
        first = [BeforeUserCallbacks(training), *([] if own_broadcast else [broadcast])]
        last: list[Any] = [AfterUserCallbacks(training)]
        last += _recorders(bound, users)
        if gradients is None:
            last.append(NoExchangeWarning())
        metrics.pooled_by_fit.add(id(self))
        try:
            # including exceptions that a signal handler raised within a step of JAX
            with backend().plain_errors():
                return call(first, last)
        finally:
            metrics.pooled_by_fit.discard(id(self))
            training.restore(self)


def _report_idle_stopping(users: list[Any], epochs: int) -> None:
    idle = idle_early_stopping(users, epochs) if context.rank() == 0 else None
    if idle is not None:
        warn_unless_off(idle)


def _recorders(bound: inspect.BoundArguments, users: list[Any]) -> list[Any]:
    return recorders(bound.arguments, users) if belongs_to_run() else []


_OURS = (BroadcastGlobalVariablesCallback, MetricAverageCallback)


def flat(callbacks: Any) -> list[Any]:
    """Return the callbacks passed to ``fit`` as a list."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return list(keras.tree.flatten(callbacks)) if callbacks else []


def around(
    bound: Any,
    callbacks: Any,
    first: list[Any],
    last: list[Any],
    replaced: type | tuple[type, ...] = (SynchronizingCallback, TrainingRecorder),
) -> None:
    """Put callbacks before and after the user's, replacing those that an earlier ``fit`` added to
    the user's list.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        kept = [callback for callback in callbacks.callbacks if not isinstance(callback, replaced)]
        callbacks.callbacks[:] = [*first, *kept, *last]
        for callback in (*first, *last):
            # old versions of Keras require the arguments
            callback.set_params(getattr(callbacks, "params", {}))
            callback.set_model(bound.arguments["self"])
    else:
        bound.arguments["callbacks"] = [*first, *flat(callbacks), *last]


class _Plan(NamedTuple):
    """The facts that ranks exchange when ``fit`` begins: some must be equal on all ranks, others
    are for later use.
    """

    epochs: int
    initial_epoch: int
    data: int | None
    paths: list[str | None]
    seeds: list[tuple[int, int]]  # of datasets to divide among ranks


_DIVIDED_TWICE = DIVIDED_TWICE.finding(
    "the ranks passed different arrays, but with shard=True fit divides arrays that all ranks"
    " pass. If the arrays were already divided (by hvd.shard, for example), remove shard=True:"
    " each rank trains on a part of its part. If each rank shuffled or split them with its own"
    " seed, use one seed: some rows come twice and others never. If each rank only augments the"
    " same rows randomly, ignore this warning",
)


def _agree(
    arguments: dict[str, Any],
    users: list[Any],
    process_set: ProcessSet,
    sharded: bool,
    data: int | None,
    reported: set[str] | None,
) -> list[list[str | None]]:
    """Return, for each rank, the paths that its callbacks write to. Raises ValueError on all ranks
    if their numbers of epochs differ.

    ``data``: a digest of the data that the program passes.
    """
    paths = [path_of(callback) for callback in users]
    seeds = seeds_of(arguments.get("x")) if sharded else []
    mine = _Plan(
        int(arguments.get("epochs", 1)), int(arguments.get("initial_epoch", 0)), data, paths, seeds
    )
    everybody: list[_Plan] = allgather_object(mine, process_set=process_set)
    for name in ("epochs", "initial_epoch"):
        values = [getattr(plan, name) for plan in everybody]
        if len(set(values)) > 1:
            raise ValueError(
                f"model.fit: {name} must be the same on all ranks, but is {values}, in rank order"
            )
    if process_set.rank() == 0 and any(plan.seeds != mine.seeds for plan in everybody):
        warn_once(uneven_shuffle())
    digests = {plan.data for plan in everybody}
    if len(digests) == 1 and data is not None and not sharded and process_set.rank() == 0:
        divided = epochs_divided(len(everybody), mine.epochs - mine.initial_epoch)
        if divided is not None:
            warn_unless_off(divided)
    if (
        (len(digests) > 1) is sharded
        and None not in digests
        and reported is not None
        and not DATA_CODES & reported
    ):
        found = (
            _DIVIDED_TWICE
            if sharded
            else same_data(len(everybody), "passed the same arrays", CURES)
        )
        reported.add(found.code)
        report(context.engine(process_set), [found])
    return [plan.paths for plan in everybody]


def _epochs_of(arguments: dict[str, Any]) -> int:
    return int(arguments.get("epochs", 1)) - int(arguments.get("initial_epoch", 0))


def _report_synchronized(model: Any, process_set: ProcessSet) -> None:
    """Report Keras's own BatchNormalization layers: they never synchronize between processes, even
    with ``synchronized=True``.
    """
    found = [
        layer
        for layer in model._flatten_layers()
        # Farandole's own layer synchronizes, and has a process set
        if getattr(layer, "synchronized", False) and not hasattr(layer, "_process_set")
    ]
    if found and process_set.rank() == 0:
        warn_once(local_batch_norm(f"{type(found[0]).__name__} {found[0].name!r}"))


# XLA, loss scaling, and an obsolete argument.


def _compile(self: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs.pop(
        "experimental_run_tf_function", None
    )  # it made Keras call optimizers in Horovod's way, as Keras now always does
    return original(self, *args, **kwargs)


def _make_train_function(self: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
    check_weighed(self)
    if keras.backend.backend() != "tensorflow" or not self.jit_compile or not reducers_of(self):
        return original(self, *args, **kwargs)
    if not together(self) and not context.is_elastic():  # other ranks may join
        return original(self, *args, **kwargs)
    if context.rank() == 0:
        warn_once(xla_skipped())
    self.jit_compile = False
    try:
        return original(self, *args, **kwargs)
    finally:
        self.jit_compile = True


def _apply(self: Any, original: Any, grads: Any, trainable_variables: Any = None) -> Any:
    if gradients_of(self) is None:
        return original(self, grads, trainable_variables)
    if not self.built:
        self.build(list(trainable_variables))
        self.built = True
    grads = reduced_for_scaling(self, list(grads), trainable_variables)
    with exchanged_outside(self):
        return original(self, grads, trainable_variables)


def _stateless_apply(
    self: Any, original: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any
) -> Any:
    if gradients_of(self) is None:
        return original(self, optimizer_variables, grads, trainable_variables)
    variables = distributed_in(self)._trainable_variables
    values = [
        *zip(variables, trainable_variables, strict=True),
        *zip(self.variables, optimizer_variables, strict=True),
    ]
    with keras.StatelessScope(state_mapping=values):
        grads = reduced_for_scaling(self, list(grads), variables)  # ranks also compare the weights
    with exchanged_outside(self):
        return original(self, optimizer_variables, grads, trainable_variables)
