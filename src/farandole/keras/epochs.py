"""The two callbacks that ``fit`` puts around the user's, and the exchanges at the end of an
epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from farandole.base.digests import combined
from farandole.checks.no_exchange import NoExchange
from farandole.checks.reporting import warn_once, warn_unless_off
from farandole.core.api.objects import allgather_object, broadcast_object
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.job.report import training_progress
from farandole.keras import metrics
from farandole.keras.callbacks import BroadcastGlobalVariablesCallback
from farandole.keras.checks import uneven_steps
from farandole.keras.epoch_mistakes import epochs_divided
from farandole.keras.files import Unsaved
from farandole.keras.optimizer import optimizers_of, reducers_of
from farandole.keras.pooling import any_rank, root_of, wait_for_all
from farandole.keras.reducer import counter
from farandole.keras.values import allreduce
from farandole.keras.weights import (
    accumulated,
    broadcast_states,
    digests,
    local_of,
    numpy_of,
    shared_variables,
)


class Training:
    """The state shared by the two callbacks of one ``fit``."""

    def __init__(
        self,
        process_set: ProcessSet,
        silent: Sequence[Any],
        broadcast: BroadcastGlobalVariablesCallback,
    ) -> None:
        """``silent``: user callbacks whose files another rank writes; ``broadcast``: the callback
        that gives all ranks the same initial weights.
        """
        self.process_set, self._broadcast = process_set, broadcast
        self._saving = [
            each for each in silent if isinstance(each, keras.callbacks.ModelCheckpoint)
        ]
        self.steps = 0  # this rank's steps before the epoch
        self._seen: list[int] | None = None  # digests of the weights at the end of the last epoch

    def local(self, model: Any) -> list[Any]:
        """Return the variables of ``model`` that the callback or the optimizer keeps local to each
        rank.
        """
        return local_of(model, self._broadcast.local_variables)

    def epoch_ended(self, model: Any) -> None:
        """Record the weights at the end of an epoch, before the user's callbacks run."""
        if any(reducer.exchange is not None for _, reducer in reducers_of(model)):
            self._seen = digests(model.trainable_weights)

    def ended(self, model: Any) -> None:
        """Set the same weights on all ranks at the end, if ranks exchange weights.

        After the last epoch, callbacks may have replaced the weights by the best ones or by moving
        averages. The strategy must not treat these as training steps from a shared centre.
        """
        exchanging = [pair for pair in reducers_of(model) if pair[1].exchange is not None]
        if exchanging:
            others = self._seen is not None and self._seen != digests(model.trainable_weights)
            replaced = any_rank(others, self.process_set)
            for optimizer, reducer in exchanging:
                reducer.average_weights(optimizer, replaced=replaced)

    def silence(self, model: Any) -> None:
        """Let this rank's checkpoint callbacks decide as on the writing rank, without writing."""
        for callback in self._saving:
            callback.set_model(Unsaved(model))

    def restore(self, model: Any) -> None:
        """Undo ``silence``."""
        for callback in self._saving:
            callback.set_model(model)


class SynchronizingCallback(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, training: Training) -> None:
        super().__init__()
        self.training = training


class BeforeUserCallbacks(SynchronizingCallback):
    """Wait for all ranks before the user's callbacks run, and pool metrics and statistics.

    Weights and statistics are pooled before validation, so that the validated model is the saved
    one.
    """

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.watch = metrics.Watch()
        # whether ranks have merged their weights after this epoch's training
        self._one_model = False

    def on_train_begin(self, logs: Any = None) -> None:
        self.training.silence(self.model)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.training.steps, self._one_model = _steps(self.model), False
        passes = getattr(self.model.optimizer, "gradient_accumulation_steps", None) or 1
        exchanges = (self.params.get("steps") or 0) // passes
        training_progress.epoch(epoch + 1, self.params.get("epochs") or 0, exchanges)

    def on_test_begin(self, logs: Any = None) -> None:
        self.watch.test_begins(self.model)
        self._become_one_model()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        model, logs = self.model, {} if logs is None else logs
        tallies = self.watch.tallies(model, logs)
        self._become_one_model()
        process_set = self.training.process_set
        wait_for_all(process_set)  # a custom test_step may exchange, too
        self.watch.pool(
            model, allgather_object(tallies, process_set=process_set), logs, process_set
        )
        self.training.epoch_ended(model)

    def _become_one_model(self) -> None:
        """Merge weights and statistics once all ranks have trained this epoch.

        This happens before validation, because one rank may validate while another does not.
        """
        if self._one_model:
            return
        self._one_model = True
        model, process_set = self.model, self.training.process_set
        # Read them before joining: reading waits for JAX's exchanges, and a joined rank must not
        # start any.
        steps = _steps(model)
        statistics = _statistics(model, self.training.local(model))
        report = steps - self.training.steps, digests(statistics)
        wait_for_all(process_set)
        everybody = allgather_object(report, process_set=process_set)
        _exchange_weights(model, uneven=len({report[0] for report in everybody}) > 1)
        _even_out(
            model, [report[0] for report in everybody], process_set, self.training.local(model)
        )
        _average(statistics, [report[1] for report in everybody], process_set)
        _share_accumulated(model, process_set)


class AfterUserCallbacks(SynchronizingCallback):
    """Start and stop all ranks together with the same weights, after the user's callbacks."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._stepped = False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # the broadcast of the initial weights may have changed the number of steps
        if not self._stepped:
            self._stepped = True
            self.training.steps = _steps(self.model)

    def on_train_begin(self, logs: Any = None) -> None:
        mine = getattr(self._model, "_initial_epoch", None)
        theirs = broadcast_object(
            mine, root_of(self.training.process_set), process_set=self.training.process_set
        )
        if theirs != mine:  # only rank 0 resumes from a checkpoint
            self._model._initial_epoch = theirs

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        model, process_set = self.model, self.training.process_set
        model.stop_training = any_rank(bool(model.stop_training), process_set)
        _compare(model, self.training)

    def on_train_end(self, logs: Any = None) -> None:
        self.training.ended(self.model)


class NoExchangeWarning(keras.callbacks.Callback):  # type: ignore[misc]
    """Warn when ranks train with a plain optimizer and exchange no gradients."""

    def __init__(self) -> None:
        super().__init__()
        self._watch = NoExchange(
            lambda model: combined(digests(model.trainable_weights)),
            lambda model: model.count_params() if model.built else 0,
        )

    def on_train_begin(self, logs: Any = None) -> None:
        self._watch.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._watch.step_ended(lambda: self.model)  # Keras on JAX moves weights into the model
        self._report_divided_epochs()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._watch.epoch_ended(lambda: self.model)
        self._report_divided_epochs()

    def _report_divided_epochs(self) -> None:
        """Report epochs divided by ``size()``, once the ranks are known to read the same data."""
        models, self._watch.models = self._watch.models, None
        if models == 1:
            divided = epochs_divided(context.size(), int(self.params.get("epochs") or 0))
            if divided is not None:
                warn_unless_off(divided)

    def on_train_end(self, logs: Any = None) -> None:
        self._watch.end()


# Exchanges at the end of an epoch.


def _steps(model: Any) -> int:
    counters = [counter(getattr(each, "inner_optimizer", each)) for each in optimizers_of(model)]
    return sum(int(numpy_of(each)) for each in counters)


def _statistics(model: Any, local: Sequence[Any]) -> list[Any]:
    """Return the variables that each rank updates from its own samples, such as the moving averages
    of batch normalization.
    """
    return [
        variable
        for variable in model.non_trainable_weights
        if "float" in str(variable.dtype) and not any(variable is other for other in local)
    ]


def _average(
    variables: list[Any], digests: Sequence[Sequence[int]], process_set: ProcessSet
) -> None:
    """Average over ranks the variables whose digests differ."""
    different = [
        variable
        for variable, *theirs in zip(variables, *digests, strict=False)
        if len(set(theirs)) > 1
    ]
    if not different:
        return
    values = allgather_object(
        [numpy_of(variable) for variable in different], process_set=process_set
    )
    for variable, *theirs in zip(different, *values, strict=True):
        variable.assign(
            np.mean(np.asarray(theirs, dtype=np.float64), axis=0).astype(theirs[0].dtype)
        )


def _share_accumulated(model: Any, process_set: ProcessSet) -> None:
    """Average the gradients that an unfinished accumulation holds.

    The next step is the same as without this average, and a file written before it contains the
    gradients of all ranks.
    """
    for optimizer, reducer in reducers_of(model):
        if reducer.exchange is None:
            for variable in accumulated(optimizer, reducer.local()):
                variable.assign(allreduce(variable.value, process_set=process_set))


def _exchange_weights(model: Any, *, uneven: bool) -> None:
    """Exchange weights if the strategy does so at the end of an epoch, or if some ranks took more
    steps than others.
    """
    for optimizer, reducer in reducers_of(model):
        reducer.end_of_epoch(optimizer)
        if uneven:
            reducer.average_weights(optimizer)


def _even_out(model: Any, steps: list[int], process_set: ProcessSet, local: Sequence[Any]) -> None:
    """Broadcast the weights of the rank with the most steps, if the numbers differ."""
    if len(set(steps)) > 1:
        most = steps.index(max(steps))
        if process_set.rank() == 0:
            warn_once(uneven_steps(steps))
        ranks = process_set.ranks or range(len(steps))
        broadcast_states(model, shared_variables(model, local), ranks[most], process_set)


def _compare(model: Any, training: Training) -> None:
    """Report ranks that hold different weights."""
    local = training.local(model)
    variables = [
        variable
        for variable in model.trainable_weights
        if not any(variable is other for other in local)
    ]
    for optimizer, reducer in reducers_of(model)[:1]:
        reducer.compare(optimizer, variables)
