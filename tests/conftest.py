"""Fixtures of all tests: no test leaves anything behind, and processes of the pool end with the
session.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from farandole.base.log import logger
from tests import pool
from tests.kits import slurm
from tests.kits.patience import PATIENT
from tests.kits.started import sitecustomize

# Tests of a framework run where it is installed: `make test` runs them in the environments of
# tests/environments.
FOLDERS = {name: name for name in ("torch", "tensorflow", "keras", "jax", "mxnet")} | {
    "pyspark": "spark estimators inference",
    "pyarrow": "data/parquet data/test_docs.py",
    "lightning": "torch/libraries",
    "playwright": "dashboard/browser",
}
collect_ignore = [
    path
    for package, paths in FOLDERS.items()
    if not importlib.util.find_spec(package)
    for path in paths.split()
]

# its own limits are of times, and a busy machine exceeds them
if importlib.util.find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    # Every run tries the same examples, so what fails is due to a change.
    # --hypothesis-profile=default draws others.
    settings.register_profile(
        "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
    )
    settings.load_profile("patient")


os.environ.update(PATIENT)

# every started process imports its sitecustomize, as this one does above
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(Path(sitecustomize.__file__).parent), os.environ.get("PYTHONPATH")))
)


@pytest.fixture(scope="session", autouse=True)
def _end_the_pool() -> Iterator[None]:
    yield
    pool.end_all()


@pytest.fixture(scope="session", autouse=True)
def _signals_as_in_a_terminal() -> None:
    """Restore signals that a process started in the background ignores: its child processes would
    ignore them, too.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _log_as_in_a_new_process() -> None:
    """Reset the log, which a job of an earlier test may have set up: caplog would get a record
    twice, or never.
    """
    for handler in list(logger.handlers):
        if type(handler) is logging.StreamHandler:  # pytest's own are of kinds derived from it
            logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logging.getLogger("farandole").propagate = True


@pytest.fixture(scope="module")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Cluster]:
    """Yield a Slurm cluster of two nodes on this machine."""
    why = slurm.reason()
    if why:
        pytest.skip(why)
    with slurm.cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made
