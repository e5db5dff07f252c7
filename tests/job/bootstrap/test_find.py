"""The place of a process in its job, from the variables that clusters set."""

from __future__ import annotations

import pytest

from farandole.errors import SettingsError
from farandole.job import bootstrap
from farandole.job.bootstrap import mpi, slurm
from farandole.job.bootstrap.origin import origin
from farandole.job.bootstrap.store_host import placements
from farandole.job.config import Placement
from farandole.job.config.rank_variables import ORIGIN
from farandole.job.config.torchrun import torch_variables
from farandole.job.context import environment
from farandole.job.plugins import registry
from tests.kits.messages import mentioning

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_HOSTNAME": "b",
}
HYDRA = {
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
    "PMI_HOSTNAME": "b",
}
STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURMD_NODENAME": "b",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
}
KUBEFLOW = {name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}


@pytest.mark.parametrize("env", [OPEN_MPI, HYDRA], ids=["Open MPI", "Hydra"])
def test_a_rank_of_mpirun(env: dict[str, str]) -> None:
    found = bootstrap.find(env)
    assert found is not None
    assert found.bootstrap.name == "mpi"
    assert found.placement == Placement(rank=3, size=4, local_rank=1, local_size=2, hostname="b")


def test_a_task_of_a_step_of_slurm() -> None:
    found = bootstrap.find(STEP)
    assert found is not None
    assert found.bootstrap.name == "slurm"
    assert found.placement == Placement(
        rank=3,
        size=5,
        local_rank=1,
        local_size=2,
        cross_rank=1,
        cross_size=2,
        hostname="b",
        homogeneous=False,
    )


def test_a_process_of_torchrun() -> None:
    found = bootstrap.find(TORCHRUN)
    assert found is not None
    assert (found.bootstrap.name, found.placement.rank, found.placement.cross_size) == (
        "torchrun",
        3,
        2,
    )


def test_a_process_with_the_variables_of_torch_distributed() -> None:
    """Kubeflow's PyTorchJob, deepspeed, or by hand."""
    pytest.importorskip("torch")
    found = bootstrap.find(KUBEFLOW)
    assert found is not None
    assert (found.bootstrap.name, found.placement.rank, found.placement.size) == ("torch", 3, 4)
    assert (found.placement.local_rank, found.placement.local_size) == (0, 1)  # all ranks tell
    found = bootstrap.find({**KUBEFLOW, "LOCAL_RANK": "1"})
    assert found is not None
    assert found.placement.local_rank == 1


def test_mpirun_within_an_allocation_of_slurm_wins_over_it() -> None:
    """Its daemons are tasks of a step, and pass their variables on."""
    found = bootstrap.find({**STEP, **OPEN_MPI})
    assert found is not None
    assert (found.bootstrap.name, found.placement.rank) == ("mpi", 3)


ONE = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}


@pytest.mark.parametrize(
    "outer", [OPEN_MPI, STEP, {**STEP, **ONE, "SLURM_STEP_TASKS_PER_NODE": "1"}]
)
def test_torchrun_that_mpirun_or_srun_has_started_wins_over_it(outer: dict[str, str]) -> None:
    """Each of its ranks would otherwise take the place of torchrun's task, several for one place,
    or each for one alone.
    """
    found = bootstrap.find({**outer, **TORCHRUN, "WORLD_SIZE": "8"})
    assert found is not None
    assert (found.bootstrap.name, found.placement.rank, found.placement.size) == ("torchrun", 3, 8)


def test_torch_variables_may_belong_to_an_inner_launcher() -> None:
    pytest.importorskip("torch")
    alone = {**STEP, **ONE, "SLURM_STEP_TASKS_PER_NODE": "1"}
    cases = [
        (STEP, "5", "slurm"),
        (OPEN_MPI, "4", "mpi"),
        (STEP, "8", "torch"),
        (alone, "4", "torch"),
    ]
    for outer, size, name in cases:
        found = bootstrap.find({**outer, **KUBEFLOW, "WORLD_SIZE": size})
        assert found is not None
        assert (found.bootstrap.name, found.placement.rank, found.placement.size) == (
            name,
            3,
            int(size),
        )


@pytest.mark.parametrize(
    "env",
    [
        {},
        {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        # a batch script is no step
        {name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"},
        {name: value for name, value in KUBEFLOW.items() if name != "MASTER_ADDR"},
        {**HYDRA, "PMI_RANK": "x"},
    ],
    ids=["none", "alone", "batch", "RANK", "garbage"],
)
def test_a_process_without_a_launcher_finds_no_job(env: dict[str, str]) -> None:
    assert bootstrap.find(env) is None


@pytest.mark.parametrize(
    ("before", "after", "is_placed"),
    [
        ({}, {}, True),
        ({}, HYDRA, False),
        (HYDRA, HYDRA, True),
        (HYDRA, {**HYDRA, "NESTED": "1"}, False),
        (HYDRA, {**HYDRA, "HIDDEN": "1"}, True),  # by a container
        (STEP, STEP, True),
        (STEP, {**STEP, "SLURM_STEP_ID": "1"}, False),
        (STEP, {**STEP, **OPEN_MPI}, False),
        ({}, TORCHRUN, False),
    ],
)
def test_a_program_started_within_a_rank_is_not_that_rank(
    before: dict[str, str], after: dict[str, str], is_placed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {**before}
    monkeypatch.setattr(
        mpi, "daemon", lambda: 0 if "HIDDEN" in env else 9 if "NESTED" in env else 7
    )
    who = {
        "FARANDOLE_RANK": "0",
        "HOROVOD_SIZE": "1",
        "FARANDOLE_STORE": "a:1",
        "FARANDOLE_SECRET": "s",
        "RANK": "5",
    }
    env.update({**who, ORIGIN: origin(before), "FARANDOLE_TRANSPORT": "tcp", **after})
    environment.forget_outer_job(env)
    assert environment.has_placement(env) == is_placed
    assert (env.get("RANK") == {**who, **after}["RANK"]) == (is_placed or "RANK" in after)
    assert ("FARANDOLE_SECRET" in env, env["FARANDOLE_TRANSPORT"]) == (is_placed, "tcp")


def test_a_launcher_knows_its_own_workers() -> None:
    for name in ("local", "spark"):
        launcher = registry.load("launcher", name)()
        assert launcher.placement({"FARANDOLE_RANK": "2"}) == Placement(rank=2)
        assert launcher.placement(OPEN_MPI) is None


class TestPlacements:
    """From the host's name and the local rank of each rank."""

    def test_uneven_hosts(self) -> None:
        a, b, c = placements([("a", 0), ("b", 0), ("b", 1)])
        assert (a.hostname, a.local_rank, a.local_size, a.cross_rank, a.cross_size) == (
            "a",
            0,
            1,
            0,
            2,
        )
        assert (b.hostname, b.local_rank, b.local_size, b.cross_rank, b.cross_size) == (
            "b",
            0,
            2,
            1,
            2,
        )
        assert (c.hostname, c.local_rank, c.local_size, c.cross_rank, c.cross_size) == (
            "b",
            1,
            2,
            0,
            1,
        )
        assert [each.rank for each in (a, b, c)] == [0, 1, 2]
        assert {each.size for each in (a, b, c)} == {3}
        assert not any(each.homogeneous for each in (a, b, c))

    def test_round_robin_ranks(self) -> None:
        found = placements([("a", 0), ("b", 0), ("a", 1), ("b", 1)])
        assert [(each.hostname, each.local_rank, each.cross_rank) for each in found] == [
            ("a", 0, 0),
            ("b", 0, 1),
            ("a", 1, 0),
            ("b", 1, 1),
        ]
        assert all(each.homogeneous and each.local_size == 2 for each in found)

    def test_two_nodes_of_one_name(self) -> None:
        found = placements([("box", 0), ("box", 1), ("box", 0), ("box", 1)])
        assert [
            (each.local_rank, each.local_size, each.cross_rank, each.cross_size) for each in found
        ] == [
            (0, 2, 0, 2),
            (1, 2, 0, 2),
            (0, 2, 1, 2),
            (1, 2, 1, 2),
        ]


def test_variables_for_torch_distributed() -> None:
    placement = Placement(rank=3, size=4, local_rank=1, local_size=2, cross_rank=1, cross_size=2)
    assert torch_variables(placement, "a", 5) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "5",
    }


class TestSlurmsLists:
    @pytest.mark.parametrize(
        ("text", "hosts"),
        [
            ("a", ["a"]),
            ("gpu[01-03,7],login", ["gpu01", "gpu02", "gpu03", "gpu7", "login"]),
            ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
            ("n[099-101]-ib", ["n099-ib", "n100-ib", "n101-ib"]),
        ],
    )
    def test_of_hosts(self, text: str, hosts: list[str]) -> None:
        assert slurm.expand_hosts(text) == hosts

    def test_of_tasks(self) -> None:
        assert slurm.tasks_per_node("2(x3),1") == [2, 2, 2, 1]
        with pytest.raises(SettingsError, match=mentioning("'two'")):
            slurm.tasks_per_node("two")
