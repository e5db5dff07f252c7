"""PyTorch's own tests of torch.distributed, which its wheel brings, on Farandole's wires under the
name of Gloo.

``python -m tests.torch.distributed.suite [names]`` runs them on 2 ranks and prints the outcome of
each; on other numbers of ranks: ``SUITE_RANKS=8`` in front, with Gloo itself: ``SUITE_BACKEND=gloo``.
PyTorch starts new processes for each test, which takes seconds; here the same ones run all of them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import random
import signal
import sys
import tempfile
import time
import types
import unittest
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from multiprocessing import Pipe
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).parent
EXCEPTIONS = HERE / "suite_exceptions.txt"
PASSED = "passed"
VARIABLES = {
    "BACKEND": "gloo",
    "INIT_METHOD": "env://",
    "TEMP_DIR": tempfile.gettempdir(),
}
NAME = "torch.testing._internal.distributed.distributed_test"
_modules: dict[int, Any] = {}  # by the number of ranks
ONLY_MPI = "Only MPI supports"  # begins the reason of a skip that other backends need not heed
SECONDS = 60.0  # until a rank that waits for the other one in a test gives up


def exceptions() -> dict[str, str]:
    """Return the tests that do not pass, with the reasons."""
    lines = [
        line for line in EXCEPTIONS.read_text().splitlines() if line and not line.startswith("#")
    ]
    return {
        name.strip(): reason.strip() for name, _, reason in (line.partition(":") for line in lines)
    }


def names(ranks: int = 2) -> list[str]:
    """Return all tests except those that need a GPU or a library for one, by their names."""
    others = ("nccl", "cuda", "gpu", "mpi", "ucc", "stream")
    module = _module(ranks)
    return [
        name
        for name in unittest.TestLoader().getTestCaseNames(module.DistributedTest._DistTestBase)
        if not any(word in name.lower() for word in others)
    ]


def outcomes(
    rank: int, folder: str, wanted: Sequence[str], backend: str = "farandole", ranks: int = 2
) -> dict[str, str]:
    """Return the result of each test on this rank: passed, skipped, or the error. Collective."""
    module = _module(ranks)
    try:
        with _named_gloo(backend == "farandole"):
            return {name: _outcome(module, rank, Path(folder) / name, name) for name in wanted}
    finally:
        for name in (*VARIABLES, "WORLD_SIZE"):
            os.environ.pop(name, None)


def _outcome(module: Any, rank: int, folder: Path, name: str) -> str:
    import torch
    from torch import distributed as dist

    for part in ("barrier", "test_dir", "init_dir"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    os.environ["TEMP_DIR"], module.Barrier.barrier_id = str(folder), 0
    torch.manual_seed(0)
    random.seed(0)
    module.INIT_METHOD = f"file://{folder}/again"  # for restarted tests
    # else they look for the events that Gloo gives PyTorch's profiler
    module.PROFILING_SUPPORTED_BACKENDS = []
    ranks = int(os.environ["WORLD_SIZE"])
    test = _suite(module, ranks)(name)
    test.rank, test.file_name = rank, str(folder / "store")
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder}/store",
                world_size=ranks,
                rank=rank,
                timeout=timedelta(seconds=SECONDS),
            )
            dist.set_debug_level(dist.DebugLevel.OFF)
            test._barrier()
            getattr(test, name)()
            test._barrier()
        return PASSED
    except unittest.SkipTest as error:
        return f"skipped: {error}"
    except SystemExit as error:  # so PyTorch's processes say that they skip
        reasons = {skip.exit_code: skip.message for skip in module.TEST_SKIPS.values()}
        return f"skipped: {reasons.get(int(error.code or 0), error.code)}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        if dist.is_initialized():
            with contextlib.suppress(Exception):
                dist.destroy_process_group()


def _suite(module: Any, ranks: int) -> Any:
    class Suite(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[misc]
        """Runs tests without starting processes: this process is one of the ranks."""

        world_size = ranks

        def _barrier(self, wait_for: int = ranks, timeout: float = 10.0) -> None:
            # by files: a busy machine may take its time
            module.Barrier.sync(wait_for, max(timeout, SECONDS))

    return Suite


@contextlib.contextmanager
def _named_gloo(ours: bool) -> Iterator[None]:
    """Create Farandole's backend where torch.distributed is asked for Gloo."""
    from torch import distributed as dist
    from torch.distributed import distributed_c10d

    from farandole.torch.distributed import FarandoleProcessGroup

    class NamedGloo(FarandoleProcessGroup):
        def __init__(
            self, store: Any, rank: int, size: int, timeout: timedelta = timedelta(minutes=30)
        ) -> None:
            super().__init__(store, rank, size, timeout.total_seconds())
            self.gloo_options = types.SimpleNamespace()

        @property
        def options(self) -> Any:
            return self.gloo_options

        def name(self) -> str:
            return "gloo"

        _get_backend_name = name

    before = dist.ProcessGroupGloo
    if ours:
        distributed_c10d.ProcessGroupGloo = dist.ProcessGroupGloo = NamedGloo
    try:
        yield
    finally:
        distributed_c10d.ProcessGroupGloo = dist.ProcessGroupGloo = before


def _module(ranks: int) -> Any:
    """Import PyTorch's module, which reads the environment at import and in tests."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        # PyTorch's tests derive from its class alone
        sys.modules["expecttest"] = types.ModuleType("expecttest")
        sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]
    os.environ.update(VARIABLES, WORLD_SIZE=str(ranks))
    from torch.testing._internal import common_utils

    skip_if = common_utils.skip_but_pass_in_sandcastle_if

    def open_to_all(condition: bool, reason: str) -> Any:
        return skip_if(condition and not reason.startswith(ONLY_MPI), reason)

    if ranks not in _modules:
        sys.modules.pop(NAME, None)
        with mock.patch.object(common_utils, skip_if.__name__, open_to_all):
            _modules[ranks] = importlib.import_module(NAME)
    return _modules[ranks]


def forked(ranks: int, fn: Callable[[int], Any], deadline: float = 200.0) -> list[Any]:
    """Return the results of ``fn(rank)`` on forks of this process, because importing PyTorch's
    tests in new processes takes long.
    """
    children: dict[int, Any] = {}
    for rank in range(ranks):
        answers, answer = Pipe(duplex=False)
        child = os.fork()
        if child == 0:
            try:
                answer.send(fn(rank))
            finally:
                os._exit(0)
        answer.close()
        children[child] = answers
    end = time.monotonic() + deadline
    try:
        return [
            answers.recv() if answers.poll(max(0.0, end - time.monotonic())) else None
            for answers in children.values()
        ]
    finally:
        for child, answers in children.items():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            answers.close()


def main(arguments: Sequence[str]) -> int:
    from tests import pool

    backend, begin = os.environ.get("SUITE_BACKEND", "farandole"), time.monotonic()
    ranks = int(os.environ.get("SUITE_RANKS", "2"))
    wanted, failed = list(arguments) or names(ranks), 0
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            try:
                every = pool.spread(
                    ranks,
                    lambda rank, name=name: outcomes(rank, folder, [name], backend, ranks),
                    deadline=200.0,
                )
                found = [each[name] for each in every]
            except Exception as error:
                found = [f"{type(error).__name__}: {error}"]
            worst = next((text for text in found if text != PASSED), PASSED)
            failed += worst != PASSED and not worst.startswith("skipped")
            print(f"{time.monotonic() - begin:6.1f} s  {name}: {worst[:300]}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
