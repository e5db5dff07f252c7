"""The local launcher and its nanny, without a driver around them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from farandole.errors import SettingsError
from farandole.launch import nanny
from farandole.launch.launchers.local import Local, LocalWorker
from farandole.launch.plan import plan
from tests.launch.tools import Marked, read_pids, wait_until


def start(jobs: Marked, np: int, script: str, hosts: str | None = None) -> list[LocalWorker]:
    name, _, value = jobs.mark.partition("=")
    env = {"FARANDOLE_STORE": f"127.0.0.1:{os.getpid()}", name: value}
    return list(Local().start(plan(hosts, np), ["bash", "-c", script], env))


def end(workers: list[LocalWorker]) -> None:
    for worker in workers:
        worker.kill()
        for fd in (worker.stdout, worker.stderr):
            if fd is not None:
                os.close(fd)
    assert wait_until(lambda: not any(worker.alive() for worker in workers), 5.0)


def test_a_rank_knows_who_it_is(jobs: Marked) -> None:
    workers = start(
        jobs, 3, "echo $FARANDOLE_RANK $FARANDOLE_LOCAL_RANK; echo $FARANDOLE_STORE >&2", "localhost:1,127.0.0.1:2"
    )
    try:
        assert wait_until(lambda: all(worker.poll() == 0 for worker in workers))
        assert [os.read(w.stdout, 100) for w in workers if w.stdout] == [b"0 0\n", b"1 0\n", b"2 1\n"]
        assert all(b"127.0.0.1:" in os.read(w.stderr, 100) for w in workers if w.stderr)
    finally:
        end(workers)
    assert Local().where_am_i({"FARANDOLE_RANK": "2", "FARANDOLE_LOCAL_RANK": "1"}) == (2, 1)


def test_our_own_settings_do_not_leak_in(jobs: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "99")
    monkeypatch.setenv("FARANDOLE_SIZE", "7")
    workers = start(jobs, 1, "echo [$HOROVOD_CYCLE_TIME$FARANDOLE_SIZE]")
    try:
        assert wait_until(lambda: workers[0].poll() == 0)
        assert os.read(workers[0].stdout or 0, 100) == b"[]\n"
    finally:
        end(workers)


def test_codes_and_signals(jobs: Marked) -> None:
    workers = start(jobs, 2, "if [ $FARANDOLE_RANK = 1 ]; then kill -SEGV $$; else exit 5; fi")
    try:
        assert wait_until(lambda: [worker.poll() for worker in workers] == [5, -11])
    finally:
        end(workers)


def test_what_a_rank_leaves_running_is_still_alive_and_can_be_ended(jobs: Marked) -> None:
    (worker,) = workers = start(jobs, 1, "sleep 1000 & exit 0")
    try:
        assert wait_until(lambda: worker.poll() == 0)
        assert worker.alive()
        worker.terminate()
        assert wait_until(lambda: not worker.alive())
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


def test_what_left_its_group_is_swept_up(jobs: Marked) -> None:
    workers = start(jobs, 1, "setsid sleep 1000 & sleep 1000")
    try:
        assert wait_until(lambda: len(jobs.left()) >= 3)  # the shell, two sleeps, the nanny
    finally:
        end(workers)
    assert wait_until(lambda: not jobs.left(), 5.0)


def test_other_hosts_are_not_ours() -> None:
    with pytest.raises(SettingsError, match="starts processes on this machine only, and 'elsewhere' is not a name"):
        Local().start(plan("elsewhere:2", 2), ["true"], {})


def test_a_program_that_cannot_be_started_leaves_nothing(jobs: Marked) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SettingsError, match=r"2 ranks could not be started, only 0: .*nowhere"):
        Local().start(plan(None, 2), ["/nowhere/at/all"], {"FARANDOLE_STORE": "x"})
    assert len(os.listdir("/proc/self/fd")) == before
    assert not jobs.left()


def test_too_many_ranks_for_this_machine_leave_nothing(jobs: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("farandole.launch.launchers.local.Nanny.start", refuse)
    with pytest.raises(SettingsError, match=r"2 ranks could not be started, only 2: .*Resource temporarily"):
        start(jobs, 2, "sleep 1000")
    assert len(os.listdir("/proc/self/fd")) == before
    assert wait_until(lambda: not jobs.left(), 5.0)


class TestNanny:
    GROUP = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()}\\n'); time.sleep(1000)"

    def spawn(self, jobs: Marked, path: Path) -> subprocess.Popen[str]:
        process = jobs.python("-c", self.GROUP, str(path))
        assert wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
        return process

    def nanny(self, jobs: Marked) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", nanny.__file__, jobs.mark], stdin=subprocess.PIPE, start_new_session=True
        )

    def test_ends_the_groups_when_the_pipe_closes(self, jobs: Marked, tmp_path: Path) -> None:
        kept, ended = self.spawn(jobs, tmp_path / "kept"), self.spawn(jobs, tmp_path / "ended")
        watcher = self.nanny(jobs)
        assert watcher.stdin is not None
        try:
            watcher.communicate(f"+{kept.pid}\n+{ended.pid}\n-{kept.pid}\n".encode(), timeout=10)
            assert ended.wait(5) == -signal.SIGTERM
            assert kept.wait(5) == -signal.SIGKILL, "not of the group any more, but of the job"
        finally:
            for process in (kept, ended):
                process.kill()
                process.communicate()

    def test_goodbye_means_hands_off(self, jobs: Marked, tmp_path: Path) -> None:
        process = self.spawn(jobs, tmp_path / "pid")
        watcher = self.nanny(jobs)
        try:
            watcher.communicate(f"+{process.pid}\nbye\n".encode(), timeout=10)
            assert watcher.returncode == 0
            assert process.poll() is None
        finally:
            process.kill()
            process.communicate()

    def test_is_quick_about_stubborn_ones(self, jobs: Marked, tmp_path: Path) -> None:
        code = "import signal; signal.signal(15, signal.SIG_IGN); " + self.GROUP
        process = jobs.python("-c", code, str(tmp_path / "a.pid"))
        read_pids(tmp_path, 1)
        watcher = self.nanny(jobs)
        began = time.monotonic()
        try:
            watcher.communicate(f"+{process.pid}\n".encode(), timeout=10)
            assert process.wait(1) == -signal.SIGKILL
            assert time.monotonic() - began < 4.0
        finally:
            process.kill()
            process.communicate()
