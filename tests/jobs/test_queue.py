"""The order in which waiting runs start, as a pure function."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farandole.job.runs.spec import Resources
from farandole.job.runs.states import RunState
from farandole.jobs.supervisor.queue import ActiveRun, Turn, WaitingRun, total, turns
from farandole.jobs.targets.contract import Capacity

HOST = Capacity(cores=4.0, memory=100, gpus=1, nodes=0)


def waiting(number: int, **options: object) -> WaitingRun:
    values: dict[str, object] = {
        "run_id": f"r{number}",
        "number": number,
        "target": "local",
        "resources": Resources(),
        "experiment": "e",
    }
    return WaitingRun(**{**values, **options})  # type: ignore[arg-type]


def started(*runs: WaitingRun, **options: object) -> list[str]:
    values: dict[str, object] = {
        "active": [],
        "capacities": {"local": HOST, "slurm": None},
        "limits": {},
        "states": {},
    }
    found = turns(runs, **{**values, **options})  # type: ignore[arg-type]
    return [turn.run_id for turn in found if not turn.cause]


def test_places_are_given_in_order_of_submission() -> None:
    assert started(*(waiting(number) for number in (3, 1, 2, 6, 5, 4))) == ["r1", "r2", "r3", "r4"]


def test_a_priority_comes_first() -> None:
    assert started(*(waiting(n, priority=n == 6) for n in range(1, 7)))[0] == "r6"


def test_a_large_run_is_not_overtaken() -> None:
    active = [ActiveRun("a", "local", Resources(ranks_per_node=2), "e")]
    large = waiting(1, resources=Resources(nodes=3))
    assert started(large, waiting(2), active=active) == []
    assert started(large, waiting(2, target="slurm"), active=active) == ["r2"]
    assert started(large, waiting(2)) == ["r1", "r2"]


def test_a_run_larger_than_the_host_runs_alone() -> None:
    huge = waiting(1, resources=Resources(nodes=9))
    assert started(huge, waiting(2)) == ["r1"]
    assert started(waiting(1), waiting(2, resources=Resources(nodes=9))) == ["r1"]


def test_memory_and_gpus_are_shared_out() -> None:
    assert started(*(waiting(n, resources=Resources(memory=60)) for n in (1, 2))) == ["r1"]
    assert started(*(waiting(n, resources=Resources(gpus=1)) for n in (1, 2))) == ["r1"]


def test_a_limit_of_an_experiment_lets_others_pass() -> None:
    runs = [waiting(1), waiting(2), waiting(3, experiment="other")]
    assert started(*runs, limits={"e": 1}) == ["r1", "r3"]


def test_a_run_waits_for_others() -> None:
    later = waiting(2, after=("r1",))
    assert started(later, waiting(3), states={"r1": RunState.RUNNING}) == ["r3"]
    assert started(later, states={"r1": RunState.COMPLETED}) == ["r2"]
    for state in (RunState.FAILED, RunState.CANCELED, None):
        (turn,) = turns([later], [], {"local": HOST}, {}, {"r1": state})
        assert turn == Turn("r2", turn.cause)
        assert "r1" in turn.cause


RUNS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(0, 1), st.integers(0, 2)),
    max_size=12,
)


@given(RUNS)
def test_no_places_are_given_twice(runs: list[tuple[int, int, int, int]]) -> None:
    queue = [
        waiting(
            number,
            resources=Resources(nodes=nodes, ranks_per_node=ranks, gpus=gpus),
            priority=priority,
        )
        for number, (nodes, ranks, gpus, priority) in enumerate(runs)
    ]
    found = started(*queue)
    chosen = [total(run.resources) for run in queue if run.run_id in found]
    assert len(chosen) <= 1 or sum(each.cores for each in chosen) <= HOST.cores
    assert len(chosen) <= 1 or sum(each.gpus for each in chosen) <= HOST.gpus
    assert bool(found) is bool(queue)
    order = sorted(queue, key=lambda run: (-run.priority, run.number))
    assert found == [run.run_id for run in order][: len(found)]
