"""The epochs of one ``fit`` over several memberships of an elastic job."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from farandole.core.api.elastic import run
from farandole.core.api.objects import allgather_object, broadcast_object
from farandole.job import context
from farandole.keras.elastic_fit.csv_files import begin_within, follow_path
from farandole.keras.elastic_fit.data import Part, Source
from farandole.keras.elastic_fit.progress import FitProgress, PassedError
from farandole.strategies.shares import Shares

_SHARE = 0.01  # fraction of the time spent on commits


class Kit(NamedTuple):
    """Classes and functions of one version of Keras.

    - ``callback``, ``callback_list``, ``history``, ``progress_bar``: Keras's classes.
    - ``wait``: ``wait(callback)`` returns when the model's last step is complete, and moves its
      values into the variables.
    - ``ignore_backup``: ``ignore_backup(model)`` lets Keras's ``fit`` begin at its
      ``initial_epoch``, regardless of a backup.
    """

    callback: type
    callback_list: type
    history: type
    progress_bar: type
    wait: Callable[[Any], None]
    ignore_backup: Callable[[Any], None]


class ElasticFit:
    """One call of ``fit`` on this rank.

    ``state``: its progress, a ``KerasState``. ``original``: Keras's ``fit``; ``arguments``: the
    program's, by name. ``users``: the program's callbacks.
    """

    def __init__(
        self,
        kit: Kit,
        state: Any,
        original: Callable[..., Any],
        arguments: Mapping[str, Any],
        users: Sequence[Any],
        source: Source,
    ) -> None:
        self.state, self.source = state, source
        self.users = [each for each in users if not isinstance(each, kit.history)]
        given = [each for each in users if isinstance(each, kit.history)]
        self.history: Any = given[0] if given else kit.history()
        self._kit, self._original = kit, original
        self._arguments, self.model = arguments, arguments["self"]
        self._hooks_of, self._commits_of = _hooks_class(kit.callback_list), _commits(kit.callback)
        self._begun = False

    def run(self, attempt: Callable[[], None]) -> Any:
        """Train in all memberships, and return the history.

        ``attempt``: trains with the current ranks; it calls ``train``.
        """

        @run
        def trained(state: Any) -> None:
            attempt()

        try:
            if context.keeps_commits():
                trained(self.state)
            else:
                attempt()
        except PassedError as passed:
            self.history.history = passed.history
            self.history.epoch = list(range(max(map(len, passed.history.values()), default=0)))
            self.history.set_model(self.model)
            self.model.history = self.history
            return self.history
        self.state.complete(dict(self.history.history))
        return self.history

    def train(self, place: Shares, first: Sequence[Any] = (), last: Sequence[Any] = ()) -> None:
        """Train from the state's position to the end, with the current ranks.

        ``place``: this rank's shares of each step. ``first``, ``last``: callbacks around the
        program's, for these ranks only.
        """
        state, arguments = self.state, self._arguments
        verbose = arguments.get("verbose", "auto")
        bar = [self._kit.progress_bar()] if verbose != 0 else []
        commits = self._commits_of(self, place)
        callbacks = [*first, *self.users, *last, self.history, *bar, commits]
        part: Part | None = self.source.part(state.epoch, state.done, state.batch, place)
        epochs = int(arguments.get("epochs", 1))
        params = {"verbose": verbose, "epochs": epochs, "steps": self._steps(part)}
        hooks = self._hooks_of(callbacks, model=self.model, **params)
        before = state.epoch, state.batch
        self._begin(callbacks)
        if (state.epoch, state.batch) != before:  # from a backup
            part = None
        with _not_finalized(self.model) as finalize:
            while not state.finished and state.epoch < epochs:
                part = part or self.source.part(state.epoch, state.done, state.batch, place)
                hooks.set_params({**params, "steps": self._steps(part)})
                commits.begin(hooks, part)
                until = epochs if part.whole else state.epoch + 1
                changed = {"epochs": until, "initial_epoch": state.epoch, "callbacks": hooks}
                self._original(**{**arguments, **part.arguments, **changed})
                part = None
                self._kit.ignore_backup(self.model)
            finalize()
        for callback in callbacks:
            callback.on_train_end(self._last_logs())

    def _steps(self, part: Part | None) -> int | None:
        return (
            None
            if part is None or part.steps is None
            else part.steps + (0 if part.whole else self.state.batch)
        )

    def _begin(self, callbacks: Sequence[Any]) -> None:
        """Call ``on_train_begin``, of the program's callbacks once per process."""
        kept = [] if not self._begun else [*self.users, self.history]
        is_within = (
            not self._begun and self.state.started
        )  # this process joins a training in progress
        for callback in callbacks:
            if any(callback is other for other in kept):
                continue
            if is_within:
                begin_within(callback, self.state.epoch)
            else:
                callback.on_train_begin()
        begun, self._begun = self._begun, True
        if begun:
            for callback in self.users:
                follow_path(callback)
        if begun or self.state.started:
            self._kit.ignore_backup(self.model)
            if not begun:  # this rank is new, and its callbacks join a training in progress
                self.state.restore()
            return
        self.state.started = True
        resumed = getattr(self.model, "_initial_epoch", None)
        if resumed:  # from a backup of Keras 3
            self.state.epoch = resumed
            self._kit.ignore_backup(self.model)
        self.state.save()

    def _last_logs(self) -> dict[str, Any]:
        return {name: values[-1] for name, values in self.history.history.items() if values}


@contextmanager
def _not_finalized(model: Any) -> Iterator[Callable[[], None]]:
    """Keep Keras from replacing the weights by their averages before the last epoch has ended.

    Yields a function that does so then.
    """
    optimizer, name = model.optimizer, "finalize_variable_values"
    if not hasattr(optimizer, name):
        yield lambda: None
        return
    vars(optimizer)[name] = lambda *args, **kwargs: None

    def finalize() -> None:
        del vars(optimizer)[name]
        getattr(optimizer, name)(model.trainable_weights)

    try:
        yield finalize
    finally:
        vars(optimizer).pop(name, None)


def _hooks_class(base: type) -> Any:
    """Return a subclass of Keras's list of callbacks that begins and ends with the whole training,
    not with each call of Keras's ``fit``, and counts batches from the beginning of the epoch.
    """

    class ElasticCallbackList(base):  # type: ignore[misc]
        offset = 0  # steps of this epoch before the call of ``fit``

        def on_train_begin(self, logs: Any = None) -> None:
            """Wait for the beginning of the training."""

        def on_train_end(self, logs: Any = None) -> None:
            """Wait for the end of the training."""

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_begin(batch + self.offset, logs)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch + self.offset, logs)

    return ElasticCallbackList


def _commits(base: type) -> Any:
    """Return the class of the last callback, which updates and commits the state."""

    class ElasticCommits(_Commits, base):  # type: ignore[misc]
        pass

    return ElasticCommits


class _Commits:
    """Commits at the end of each epoch, and within an epoch as often as possible if commits are to
    take at most 1 % of the time: after each step, if they are fast enough.
    """

    def __init__(self, fit: ElasticFit, place: Shares) -> None:
        super().__init__()
        self._fit, self._place = fit, place
        self._hooks: Any = None
        self._limit = 0  # the number of batches before which all ranks can commit
        self._start = (0, 0)  # ``batch`` and ``done`` at the beginning of the data's part
        self._every = 1
        self._next = 1
        self._resumed = 0.0  # the time at the last commit's end, in seconds
        self._last = 0  # the batch of the last commit
        self._count = 0  # batches of this part of the epoch

    def begin(self, hooks: Any, part: Part) -> None:
        """Begin a part of the data. Ranks that divide their data themselves may have different
        numbers of batches. Collective.
        """
        state: FitProgress = self._fit.state
        self._hooks, hooks.offset = hooks, state.batch
        steps: list[int | None] = allgather_object(part.steps)
        # at least one batch remains after a commit, because Keras cannot train on no batches
        self._limit = min(0 if each is None else each for each in steps)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        state = self._fit.state
        self._start, self._last = (state.batch, state.done), 0
        self._next, self._count, self._resumed = self._every, 0, time.perf_counter()
        if state.batch:
            state.restore_metrics()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._count = batches = batch + 1 - self._start[0]
        if not self._next <= batches < self._limit:
            return
        self._fit._kit.wait(self)
        ready = time.perf_counter()
        state, source = self._fit.state, self._fit.source
        state.batch = batch + 1
        state.done = source.after(self._start[1], batches, self._place)
        state.commit()
        source.forget(state.done)
        spent = time.perf_counter() - ready
        step = (ready - self._resumed) / (batches - self._last)
        self._every = broadcast_object(_interval(spent, step))
        self._next, self._last = batches + self._every, batches
        self._resumed = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        fit = self._fit
        state = fit.state
        fit._kit.wait(self)
        state.epoch, state.batch, self._hooks.offset = epoch + 1, 0, 0
        done = fit.source.after(self._start[1], self._count, self._place)
        state.done = fit.source.next_epoch(done)
        ends = epoch + 1 >= int(fit._arguments.get("epochs", 1))
        state.finished = ends or bool(fit.model.stop_training)
        state.commit()
        fit.source.forget(state.done)


def _interval(spent: float, step: float) -> int:
    """Return the number of steps between two commits.

    ``spent``: seconds of a commit. ``step``: seconds of a step.
    """
    return max(1, math.ceil(spent / max(_SHARE * step, 1e-9)))
