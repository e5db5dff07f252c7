"""Backends that run the ranks of a training: Spark tasks, local processes, or the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farandole.job.launch.api import run as run_locally
from farandole.spark.run import run as run_on_spark


class Backend:
    """Runs a function on ranks. Subclasses implement both methods."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on every rank, with the environment variables ``env``, and
        return the results in rank order.
        """
        raise NotImplementedError

    def num_processes(self) -> int:
        """Return the number of ranks."""
        raise NotImplementedError


class LocalBackend(Backend):
    """A backend of ``num_proc`` processes on this machine. ``options``: as for
    ``farandole.run``.
    """

    def __init__(
        self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self._num_proc = num_proc or 1
        self._env = dict(env or {})
        self._options = options

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        return run_locally(
            fn, args, kwargs, np=self._num_proc, env={**self._env, **(env or {})}, **self._options
        )

    def num_processes(self) -> int:
        return self._num_proc


class SparkBackend(Backend):
    """A backend of ``num_proc`` Spark tasks that start together; default: Spark's default
    parallelism. ``options``: as for ``farandole.spark.run``.

    ``min_num_proc``, ``max_num_proc``: the bounds of an elastic training, in which lost tasks are
    replaced; None for a fixed number. The options then belong to
    ``farandole.spark.run_elastic``.
    """

    def __init__(
        self,
        num_proc: int | None = None,
        env: Mapping[str, str] | None = None,
        *,
        min_num_proc: int | None = None,
        max_num_proc: int | None = None,
        **options: Any,
    ) -> None:
        self._num_proc = num_proc
        self._bounds: dict[str, Any] = {"min_num_proc": min_num_proc, "max_num_proc": max_num_proc}
        self._env = dict(env or {})
        self._options = options

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        variables = {**self._env, **(env or {})}
        options = {**self._options, "num_proc": self.num_processes(), "env": variables}
        if any(self._bounds.values()):
            # Imported here because most trainings have a fixed number of ranks.
            from farandole.spark.elastic import run_elastic

            return run_elastic(fn, args, kwargs, **self._bounds, **options)
        return run_on_spark(fn, args, kwargs, **options)

    def num_processes(self) -> int:
        return self._num_proc or self.default_num_proc()

    def check(self) -> None:
        """Raise SettingsError if the cluster can never start that number of tasks together."""
        from farandole.job.launch.launchers.spark import SparkLauncher

        SparkLauncher().check(self.num_processes())

    @staticmethod
    def default_num_proc() -> int:
        from farandole.job.launch.launchers.spark import SparkLauncher

        return SparkLauncher().default_parallelism()
