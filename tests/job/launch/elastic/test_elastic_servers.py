"""Elastic jobs with parameter servers: ranks, servers and replicas are killed, and ranks join."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState
from farandole.errors import JobFailedError
from farandole.job import context
from farandole.job.elastic.options import ElasticOptions
from farandole.job.report import keys
from farandole.strategies.options import gradient_options
from farandole.strategies.weights import StatefulExchange
from tests.job.launch.elastic.training import run_job
from tests.kits.messages import mentioning

pytestmark = pytest.mark.slow

STEPS, RATE, MOMENTUM = 40, 0.2, 0.5
OPTIMUM = np.arange(4.0)
THREE = ElasticOptions(np=3, min_np=1, max_np=3)


class Fault(NamedTuple):
    """A SIGKILL at a step: of a ``process``, or (-1) of the processes of the only parameter server
    at these ``places`` in its chain.
    """

    step: int
    process: int = -1
    places: tuple[int, ...] = (0,)


class Done(NamedTuple):
    """The result of a rank. ``lost_steps``: exchanges that only fetched the centre."""

    size: int
    weights: Any
    lost_steps: int
    sizes: list[int]


def _chain(length: int) -> list[int]:
    """Wait until the server has so many processes, and return their pids in its chain."""
    store = context.store()
    assert store is not None
    while True:
        chain = [json.loads(each)["pid"] for each in json.loads(store.get(keys.chain(0), 60.0))]
        alive = [pid for pid in chain if Path(f"/proc/{pid}").exists()]
        if len(alive) == length:
            return alive
        time.sleep(0.02)


def _make(fault: Fault, folder: Path, rank: int) -> None:
    """Make the fault once, after the server has all its replicas."""
    mark = folder / f"fault.{fault.step}.{fault.process}"
    if fault.process == int(os.environ["FARANDOLE_MEMBER"]) and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.process < 0 and rank == 0 and not mark.exists():
        mark.touch()
        pids = _chain(2)
        for place in fault.places:
            os.kill(pids[place], signal.SIGKILL)


def train(spec: str, folder: str, faults: list[Fault], grow_at: int = STEPS) -> Done:
    """Walk to the optimum of a quadratic function. At the step ``grow_at``, wait for three ranks."""
    hvd.init()
    options = gradient_options(strategy=spec)
    strategy: Any = options.strategy
    exchange = StatefulExchange("test", options, strategy)
    state, sizes = ObjectState(step=0, weights=np.zeros(4)), list[int]()

    @elastic.run
    def steps(state: Any) -> None:
        exchange.restart()
        while state.step < STEPS:
            if state.step == grow_at and hvd.size() < 3:
                time.sleep(0.02)
                state.commit()
                continue
            for fault in faults:
                if fault.step == state.step:
                    _make(fault, Path(folder), hvd.rank())
            sizes.append(hvd.size())
            share = 1 if strategy.sync else hvd.size()
            exchange.begin([state.weights], lambda array: array, stepping=True)
            state.weights -= RATE / share * (state.weights - OPTIMUM)
            exchange([state.weights], state.step + 1)
            state.step += 1
            state.commit()
        exchange.average([state.weights])

    steps(state)
    return Done(hvd.size(), state.weights, strategy.staleness.dropped, sizes)


def expected(steps: int) -> Any:
    """Return the weights of a job without faults, with momentum on the server."""
    weights, velocity = np.zeros(4), np.zeros(4)
    for _ in range(steps):
        velocity = MOMENTUM * velocity - RATE * (weights - OPTIMUM)
        weights = weights + velocity
    return weights


def test_synchronous_training_is_exact_after_any_loss(tmp_path: Path) -> None:
    """The optimizer's state on the server survives the loss of a rank, of the primary, of the
    replica and a rank in sequence, and a join.
    """
    faults = [
        Fault(4, process=1),
        Fault(8),
        Fault(16, places=(1,)),
        Fault(17, process=2),
        Fault(24),
    ]
    spec = f"ps:1,optimizer=momentum,momentum={MOMENTUM}"
    results, said = run_job(train, (spec, str(tmp_path), faults, 30), THREE, {"localhost": 3})
    assert [done.size for done in results] == [3, 3, 3]
    for done in results:
        np.testing.assert_allclose(done.weights, expected(STEPS), rtol=1e-9, atol=1e-12)
        assert done.lost_steps == 0
    assert len(results[0].sizes) - STEPS <= 2  # the interrupted steps, by the losses of two ranks
    assert {1, 3} <= set(results[0].sizes) or {2, 3} <= set(results[0].sizes)
    assert "parameter server 0 (process 0)" in said


@pytest.mark.parametrize("spec", ["ssp:2", "ps_async:1"])
def test_asynchronous_training_continues_from_the_centre(spec: str, tmp_path: Path) -> None:
    faults = [Fault(4, process=1), Fault(8), Fault(16), Fault(17, process=2)]
    results, _ = run_job(train, (spec, str(tmp_path), faults, 24), THREE, {"localhost": 3})
    assert [done.size for done in results] == [3, 3, 3]
    for done in results:
        np.testing.assert_allclose(done.weights, OPTIMUM, rtol=0.01)
        np.testing.assert_array_equal(done.weights, results[0].weights)
    # one exchange after each change of ranks
    assert 2 <= results[0].lost_steps <= 4


@pytest.mark.parametrize("spec", [f"ps:1,optimizer=momentum,momentum={MOMENTUM}", "ssp:2"])
def test_a_server_without_any_replica_left_begins_again(spec: str, tmp_path: Path) -> None:
    faults = [Fault(8, places=(0, 1))]
    results, said = run_job(train, (spec, str(tmp_path), faults), THREE, {"localhost": 3})
    assert [done.size for done in results] == [3, 3, 3]
    for done in results:
        np.testing.assert_allclose(done.weights, OPTIMUM, rtol=0.05)
    assert "parameter server 0" in said


def race(folder: str) -> int:
    """Train on ranks of different speeds; return the steps of rank 1 at the end of this rank's."""
    hvd.init()
    options = gradient_options(strategy="ps_async")
    exchange = StatefulExchange("test", options, options.strategy)  # type: ignore[arg-type]
    state = ObjectState(step=0, weights=np.zeros(4))

    @elastic.run
    def steps(state: Any) -> None:
        while state.step < STEPS:
            exchange.begin([state.weights], lambda array: array, stepping=True)
            exchange([state.weights], state.step + 1)
            state.step += 1
            if hvd.rank() == 1:
                Path(folder, str(state.step)).touch()
                time.sleep(0.05)
            state.commit()

    steps(state)
    return len(list(Path(folder).iterdir()))


def test_commits_of_asynchronous_ranks_do_not_wait(tmp_path: Path) -> None:
    options = ElasticOptions(np=2, min_np=2, max_np=2)
    results, _ = run_job(race, (str(tmp_path),), options, {"localhost": 2})
    assert results[0] < STEPS - 5
    assert results[1] == STEPS


def test_a_server_that_cannot_start_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif os.environ.get('FARANDOLE_SERVER_PLACE') == '1': os._exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(JobFailedError, match=mentioning("parameter server 0", "3")):
        run_job(train, ("ps", str(tmp_path), []), THREE, {"localhost": 3})
