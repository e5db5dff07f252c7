"""The local launcher and its reaper, without a driver."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from farandole.errors import SettingsError
from farandole.job.config import Placement
from farandole.job.launch import processes, reaper
from farandole.job.launch.contract import JobRequest
from farandole.job.launch.launchers.local import LocalLauncher
from farandole.job.launch.plan import plan
from farandole.job.launch.processes import LocalWorker, start_ranks
from tests.job.launch.tools import Marked, wait_until
from tests.kits.messages import mentioning
from tests.kits.opened import opened
from tests.kits.patience import PATIENT


def start(jobs: Marked, np: int, script: str, hosts: str | None = None) -> list[LocalWorker]:
    name, _, value = jobs.mark.partition("=")
    env = {"FARANDOLE_STORE": f"127.0.0.1:{os.getpid()}", name: value, **PATIENT}
    return list(
        LocalLauncher().allocate(JobRequest(np, hosts=hosts)).start(["bash", "-c", script], env)
    )


def end(workers: list[LocalWorker]) -> None:
    for worker in workers:
        worker.kill()
        for fd in (worker.stdout, worker.stderr):
            if fd is not None:
                os.close(fd)
    assert wait_until(lambda: not any(worker.alive() for worker in workers))


def test_a_rank_knows_its_placement(jobs: Marked) -> None:
    workers = start(
        jobs,
        3,
        "echo $FARANDOLE_RANK $FARANDOLE_LOCAL_RANK; echo $FARANDOLE_STORE >&2",
        "localhost:1,127.0.0.1:2",
    )
    try:
        assert wait_until(lambda: all(worker.poll() == 0 for worker in workers))
        assert [os.read(w.stdout, 100) for w in workers if w.stdout] == [
            b"0 0\n",
            b"1 0\n",
            b"2 1\n",
        ]
        assert all(b"127.0.0.1:" in os.read(w.stderr, 100) for w in workers if w.stderr)
    finally:
        end(workers)
    assert LocalLauncher().placement(
        {"FARANDOLE_RANK": "2", "FARANDOLE_LOCAL_RANK": "1"}
    ) == Placement(rank=2, local_rank=1)
    assert LocalLauncher().placement({"RANK": "2"}) is None


def test_our_own_settings_do_not_leak_in(jobs: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "99")
    monkeypatch.setenv("FARANDOLE_SIZE", "7")
    workers = start(jobs, 1, "echo [$HOROVOD_CYCLE_TIME$FARANDOLE_SIZE]")
    try:
        assert wait_until(lambda: workers[0].poll() == 0)
        assert os.read(workers[0].stdout or 0, 100) == b"[]\n"
    finally:
        end(workers)


@pytest.mark.parametrize(
    ("name", "stays"),
    [
        ("OMPI_COMM_WORLD_RANK", False),
        ("PMIX_RANK", False),
        ("PMI_FD", False),
        ("HYDI_CONTROL_FD", False),
        ("MPI_LOCALRANKID", False),
        ("SLURM_PROCID", False),
        ("SLURM_NTASKS", False),
        ("SLURM_STEP_ID", False),
        ("OMPI_MCA_btl", True),
        ("OMPI_ALLOW_RUN_AS_ROOT", True),
        ("SLURM_JOB_ID", True),
        ("SLURM_CPUS_ON_NODE", True),
    ],
)
def test_a_rank_is_no_process_of_an_outer_mpirun_or_step(
    name: str, stays: bool, jobs: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "7")
    workers = start(jobs, 1, f"echo [${name}]")
    try:
        assert wait_until(lambda: workers[0].poll() == 0)
        assert os.read(workers[0].stdout or 0, 100) == (b"[7]\n" if stays else b"[]\n")
    finally:
        end(workers)


def test_codes_and_signals(jobs: Marked) -> None:
    workers = start(jobs, 2, "if [ $FARANDOLE_RANK = 1 ]; then kill -SEGV $$; else exit 5; fi")
    try:
        assert wait_until(lambda: [worker.poll() for worker in workers] == [5, -11])
    finally:
        end(workers)


def test_a_process_left_by_a_rank_lives_and_can_be_ended(jobs: Marked) -> None:
    (worker,) = workers = start(jobs, 1, "sleep 1000 & exit 0")
    try:
        assert wait_until(lambda: worker.poll() == 0)
        assert worker.alive()
        worker.terminate()
        assert wait_until(lambda: not worker.alive())
    finally:
        end(workers)


def test_ranks_that_are_asked_to_end_are_asked_once(jobs: Marked) -> None:
    """A second SIGTERM would interrupt the handlers of the ranks."""
    workers = start(
        jobs,
        2,
        "trap 'echo asked' TERM; echo up; while [ ! -e /proc/self/none ]; do sleep 0.05; done",
    )
    try:
        assert wait_until(lambda: all(os.read(w.stdout or 0, 3) == b"up\n" for w in workers))
        for worker in (*workers, *workers):
            worker.terminate()
        seen = [os.read(worker.stdout or 0, 6) for worker in workers]
        workers[0].signal(signal.SIGUSR1)  # the reaper has done the earlier request
        assert wait_until(lambda: workers[0].poll() is not None)
        assert seen == [b"asked\n"] * 2
        os.set_blocking(workers[1].stdout or 0, False)
        with pytest.raises(BlockingIOError):
            os.read(workers[1].stdout or 0, 6)
        assert os.read(workers[0].stdout or 0, 6) == b""
    finally:
        end(workers)


def test_children_of_a_rank_get_sigterm_after_it_has_saved(jobs: Marked) -> None:
    """A data loader's worker that gets SIGTERM first would fail the rank that is about to save."""
    worker_of_rank = "trap 'echo worker; exit' TERM; echo up; while :; do sleep 0.05; done"
    save = "kill -0 $! && sleep 0.2 && kill -0 $! && echo saved; exit 0"
    (worker,) = workers = start(
        jobs, 1, f'bash -c "{worker_of_rank}" & trap "{save}" TERM; while :; do wait; done'
    )
    try:
        assert os.read(worker.stdout or 0, 10) == b"up\n"
        worker.terminate()
        assert wait_until(lambda: not worker.alive())
        assert worker.poll() == 0
        assert os.read(worker.stdout or 0, 100) == b"saved\nworker\n"
    finally:
        end(workers)


def test_one_that_ignores_being_asked(jobs: Marked) -> None:
    (worker,) = workers = start(jobs, 1, "trap '' TERM; echo up; while true; do sleep 0.1; done")
    try:
        assert os.read(worker.stdout or 0, 10) == b"up\n"
        worker.terminate()
        assert not wait_until(lambda: worker.poll() is not None, 0.3)
    finally:
        end(workers)
    assert worker.poll() == -9


# Processes that leave their rank's session, its parents, and its environment.
RUNAWAYS = (
    "(setsid sleep 1000 &) ; setsid env -i sleep 1000 & setsid bash -c \"trap '' TERM; echo up;"
    ' sleep 1000" & '
)


@pytest.mark.parametrize("then", ["sleep 1000", "exit 0"])
def test_processes_that_left_their_session_are_ended(jobs: Marked, then: str) -> None:
    workers = start(jobs, 2, f"{RUNAWAYS} {then}")
    try:
        assert all(os.read(worker.stdout or 0, 10) == b"up\n" for worker in workers)
        tree = children_of(workers[0])
        assert wait_until(lambda: len(tree()) >= 6)  # three sleeps of each rank
        for worker in workers:
            worker.terminate()
        assert not wait_until(lambda: not any(worker.alive() for worker in workers), 0.3), (
            "some do not listen"
        )
        left = tree()
    finally:
        end(workers)
    assert left
    assert not [pid for pid, seen in left.items() if reaper.processes().get(pid) == seen]
    assert wait_until(lambda: not jobs.left())


def children_of(worker: LocalWorker) -> Callable[[], dict[int, tuple[int, int]]]:
    """Return a function that lists all descendants of the worker's reaper."""
    root = worker._reaper._process.pid  # type: ignore[union-attr]

    def found() -> dict[int, tuple[int, int]]:
        known = reaper.processes()
        return {pid: known[pid] for pid in reaper.below(root, known)}

    return found


def test_one_rank_ends_and_the_others_continue(jobs: Marked) -> None:
    first, second = workers = start(jobs, 2, "sleep 1000 & echo up; wait")
    try:
        assert all(os.read(worker.stdout or 0, 10) == b"up\n" for worker in workers)
        first.kill()
        assert wait_until(lambda: first.poll() == -9)
        assert second.poll() is None
    finally:
        end(workers)


def test_a_rank_whose_reaper_and_guard_were_killed(jobs: Marked) -> None:
    """The rank dies with its parent (or is killed now); processes that it started are found by
    their environment.
    """
    (worker,) = workers = start(jobs, 1, "setsid sleep 1000 & echo up; sleep 1000")
    try:
        assert os.read(worker.stdout or 0, 10) == b"up\n"
        parent = reaper.processes()[worker.pid][0]
        for pid in (reaper.processes()[parent][0], parent):  # a guard that is killed ends nothing
            os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: worker.poll() == -signal.SIGTERM)
        assert worker.alive()
    finally:
        end(workers)


def test_a_signal_goes_to_the_rank_alone(jobs: Marked) -> None:
    child = "bash -c 'trap \"echo wrong\" USR1; while true; do sleep 0.1; done' & "
    first, second = workers = start(
        jobs, 2, f"{child} trap 'echo warned; exit 3' USR1; echo up; while true; do wait; done"
    )
    try:
        assert all(os.read(worker.stdout or 0, 10) == b"up\n" for worker in workers)
        first.signal(signal.SIGUSR1)
        assert wait_until(lambda: first.poll() == 3)
        assert os.read(first.stdout or 0, 100) == b"warned\n"
        assert second.poll() is None
        first.signal(signal.SIGUSR1)  # it has gone
    finally:
        end(workers)


@pytest.mark.parametrize("ignores", ["", "trap '' TERM;"])
def test_hidden_processes_end_when_the_reaper_is_killed(jobs: Marked, ignores: str) -> None:
    (worker,) = workers = start(
        jobs, 1, f"setsid env -i bash -c '{ignores} echo up; sleep 1000' & sleep 1000"
    )
    try:
        assert os.read(worker.stdout or 0, 10) == b"up\n"
        tree = children_of(worker)()
        os.kill(reaper.processes()[worker.pid][0], signal.SIGKILL)
        assert wait_until(lambda: worker.poll() == -signal.SIGTERM)
        assert wait_until(lambda: not worker.alive())
        assert not [pid for pid, seen in tree.items() if reaper.processes().get(pid) == seen]
    finally:
        end(workers)


def test_other_hosts_are_not_local() -> None:
    with pytest.raises(SettingsError, match=mentioning("'elsewhere'", "localhost")):
        LocalLauncher().allocate(JobRequest(2, hosts="elsewhere:2"))


def test_a_program_that_cannot_be_started_leaves_nothing(jobs: Marked) -> None:
    before = opened()
    with pytest.raises(SettingsError, match=mentioning("2", "0", "nowhere")):
        LocalLauncher().allocate(JobRequest(2)).start(["/nowhere/at/all"], {"FARANDOLE_STORE": "x"})
    assert opened() <= before
    assert not jobs.left()


def test_a_variable_without_a_name_is_left_out(jobs: Marked) -> None:
    """Python reads "=text" of an environment, and starts no process with it."""
    workers = start_ranks(plan(None, 2), ["true"], dict([jobs.mark.split("=")]) | {"": "text"})
    wait_until(lambda: [worker.poll() for worker in workers] == [0, 0])
    end(workers)


def test_too_many_ranks_for_this_machine_leave_nothing(jobs: Marked) -> None:
    """The kernel refuses the second rank, as with ``ulimit -u``; here because its command line is
    too long.
    """
    before = opened()
    slots = plan(None, 2)
    monster = slots[1]._replace(local_rank="x" * (1 << 18))  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=mentioning("2", "1", "Argument list")):
        start_ranks([slots[0], monster], ["sleep", "1000"], dict([jobs.mark.split("=")]))
    assert opened() <= before
    assert wait_until(lambda: not jobs.left())


def test_a_reaper_that_cannot_fork_reports_it(
    jobs: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = "def full(): raise BlockingIOError(11, 'no more')"
    start = (
        f"import os, sys; sys.path.append(sys.argv[1]); import reaper\n{full}\nos.fork ="
        " full\nreaper.main()"
    )
    monkeypatch.setattr(processes, "REAPER", start)
    text = ("2", "0", "pids.max")
    with pytest.raises(SettingsError, match=mentioning(text)):
        start_ranks(plan(None, 2), ["sleep", "1000"], dict([jobs.mark.split("=")]))


class TestReaper:
    def start(self, jobs: Marked, script: str) -> subprocess.Popen[str]:
        """A process that starts a rank and says so."""
        code = f"""
import os, sys, time
from farandole.job.launch.launchers.local import LocalLauncher
from farandole.job.launch.contract import JobRequest
(worker,) = LocalLauncher().allocate(JobRequest(1)).start(["bash", "-c", {script!r}], {PATIENT})
print(os.read(worker.stdout, 10), flush=True)
time.sleep(1000)
"""
        process = jobs.python("-c", code)
        assert process.stdout is not None
        assert process.stdout.readline() == "b'up\\n'\n"
        return process

    def test_ends_all_when_the_driver_is_killed(self, jobs: Marked) -> None:
        process = self.start(
            jobs, "(setsid sleep 1000 &) ; trap '' TERM; echo up; while sleep 0.1; do :; done"
        )
        process.kill()
        jobs.finish(process)

    def test_only_known_processes_are_signalled(self, jobs: Marked) -> None:
        process = jobs.python("-c", "import time; time.sleep(1000)")
        seen = reaper.processes()[process.pid]
        # its number was another one's before
        reaper.send(process.pid, (seen[0], seen[1] - 1), signal.SIGKILL)
        reaper.send(process.pid, seen, signal.SIGTERM)
        assert jobs.finish(process).returncode == -signal.SIGTERM
