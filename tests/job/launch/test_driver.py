"""Whole jobs of the command line, and all their endings."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from farandole.job.launch import driver_signals, reaper
from tests.job.launch import tools
from tests.job.launch.tools import Marked, read_pids, wait_until
from tests.kits.messages import mentions

pytestmark = pytest.mark.slow

PY = sys.executable
# Writes its pid, so that the test knows when it runs, and then works forever.
SLEEPER = """
import os, sys, time
path = os.path.join(sys.argv[1], f"rank{os.environ['HOROVOD_RANK']}.pid")
with open(path + "~", "w") as file: file.write(f"{os.getpid()}\\n")
os.rename(path + "~", path)
time.sleep(1000)
"""

WARNED = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [int(sys.argv[1])])
print("up", flush=True)
signal.sigwait([int(sys.argv[1])])
print("warned")
"""


@pytest.fixture
def sleeper(tmp_path: Path) -> Path:
    path = tmp_path / "sleeper.py"
    path.write_text(SLEEPER)
    return path


class TestGoodEnds:
    def test_ranks_get_their_placement_and_arguments(self, jobs: Marked) -> None:
        code = """
import os, sys
names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"]
print(*(os.environ["HOROVOD_" + name] for name in names), os.environ["HOROVOD_CONTROLLER"], *sys.argv[1:], sep=",")
assert all(os.environ["FARANDOLE_" + name] == os.environ["HOROVOD_" + name] for name in names)
assert os.environ["PYTHONUNBUFFERED"] == "1" and os.environ["HOROVOD_CPU_OPERATIONS"] == "gloo"
"""
        done = jobs.run("run", "-np", "3", "--", PY, "-c", code, "--flag", "-x", "--", "a b")
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [
            f"[{rank}]<stdout>:{rank},3,{rank},3,0,1,gloo,--flag,-x,--,a b" for rank in range(3)
        ]
        assert done.stderr == "", "no status line in a pipe"

    def test_one_rank(self, jobs: Marked, tmp_path: Path) -> None:
        done = jobs.run("run", "-np", "1", "--output-dir", str(tmp_path / "logs"), "echo", "hello")
        assert (done.returncode, done.stdout) == (0, "[0]<stdout>:hello\n")
        assert (tmp_path / "logs" / "rank.0" / "stdout").read_text() == "hello\n"

    def test_much_output_is_complete_and_in_order(self, jobs: Marked, tmp_path: Path) -> None:
        code = "import sys\nfor i in range(100000): sys.stdout.write(f'line {i}\\n')"
        done = jobs.run("run", "-np", "2", "--output-dir", str(tmp_path), PY, "-c", code)
        lines = done.stdout.splitlines()
        expected = [f"line {number}" for number in range(100_000)]
        for rank in range(2):
            prefix = f"[{rank}]<stdout>:"
            assert [line[len(prefix) :] for line in lines if line.startswith(prefix)] == expected
            assert (tmp_path / f"rank.{rank}" / "stdout").read_text().splitlines() == expected
        assert len(lines) == 200_000

    def test_a_rank_that_tells_nonsense_cannot_harm_the_driver(self, jobs: Marked) -> None:
        code = """
import os
from farandole.net.store import StoreClient
client = StoreClient(os.environ["FARANDOLE_STORE"], os.environ["FARANDOLE_SECRET"])
keys = ["outcome/99", "outcome/-1", "outcome/x", "outcome/", "outcome/0"]
for key in [*keys, "message/progress/0", "message/log/7", "message/"]:
    client.set(key, b'{"status": 1')
client.set("message/progress/0", b'{"rate": "fast", "epoch": Infinity}')
client.set("message/log/0", b"all is well")
"""
        done = jobs.run("run", "-np", "2", PY, "-c", code)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert mentions(done.stderr, "'outcome/99'", "store")
        assert "all is well" in done.stdout + done.stderr

    def test_the_secret_is_in_no_command_line(self, jobs: Marked) -> None:
        code = """
import os
secret = os.environ["FARANDOLE_SECRET"].encode()
assert len(secret) == 64
for name in os.listdir("/proc"):
    if name.isdigit():
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file: assert secret not in file.read()
        except OSError: pass
"""
        assert jobs.run("run", "-np", "2", PY, "-c", code).returncode == 0

    def test_background_processes_of_ranks_end_with_the_job(self, jobs: Marked) -> None:
        done = jobs.run("run", "-np", "2", "bash", "-c", "sleep 1000 & echo done")
        assert done.returncode == 0
        assert done.stdout.count("done") == 2

    def test_several_programs_of_a_script_one_after_the_other(
        self, jobs: Marked, tmp_path: Path
    ) -> None:
        """Each finds the others by its own keys, although its ranks were in the job before; so does
        a program that a program starts.
        """
        program = tmp_path / "program.py"
        program.write_text(
            "import subprocess, sys\nimport numpy as np\nimport farandole.numpy as hvd\nfor stay in"
            " range(2):\n    hvd.init()\n    print(sys.argv[1], hvd.allreduce(np.ones(3) +"
            " hvd.rank(), op=hvd.Sum)[0], flush=True)\n    if sys.argv[1] == 'outer':"
            " subprocess.run([sys.executable, __file__, 'inner'], check=True)\n    hvd.shutdown()\n"
        )
        script = f"{PY} {program} first && {PY} {program} outer && {PY} {program} last"
        for wire in ("auto", "tcp"):
            done = jobs.run("run", "-np", "2", "--transport", wire, "bash", "-c", script)
            assert done.returncode == 0, done.stderr
            said = [line for line in done.stdout.splitlines() if line.startswith("[1]")]
            turns = ["first"] * 2 + ["outer", "inner", "inner"] * 2 + ["last"] * 2
            assert said == [f"[1]<stdout>:{turn} 3.0" for turn in turns]

    def test_a_reader_that_went_away(self, jobs: Marked) -> None:
        process = jobs.start("run", "-np", "2", "yes")
        assert process.stdout is not None
        assert process.stdout.readline().endswith("y\n")
        process.stdout.close()
        assert process.wait(tools.LIMIT) == 128 + signal.SIGPIPE
        process.stdout = None
        assert jobs.finish(process).stderr == ""


class TestARankFails:
    def test_a_traceback_is_printed_first_and_once(self, jobs: Marked) -> None:
        code = """
import os, time
if os.environ["HOROVOD_RANK"] == "1": raise ValueError("boom")
time.sleep(1000)
"""
        done = jobs.run("run", "-np", "3", PY, "-c", code)
        assert done.returncode == 1
        assert done.stderr.count("Traceback") == done.stderr.count("ValueError: boom") == 1
        assert mentions(done.stderr, "Rank 1", "code 1")

    def test_a_traceback_before_init_is_printed_once(self, jobs: Marked, tmp_path: Path) -> None:
        """Even if the rank ends slowly. A child of a rank is no rank: the program judges its
        failure.
        """
        code = """
import atexit, os, subprocess, sys, time
import farandole.numpy as hvd
if len(sys.argv) > 1: raise KeyError("child")
assert subprocess.run([sys.executable, __file__, "child"], stderr=subprocess.DEVNULL).returncode == 1
atexit.register(time.sleep, 1000)
print(hvd.size() if os.environ["HOROVOD_RANK"] == "1" else time.sleep(1000))
"""
        (tmp_path / "early.py").write_text(code)
        done = jobs.run("run", "-np", "2", PY, str(tmp_path / "early.py"))
        assert done.returncode == 1
        assert done.stderr.startswith(
            "farandole: Rank 1 on localhost failed: NotInitializedError: "
        )
        assert done.stderr.count("Traceback") == 1
        assert "child" not in done.stderr

    def test_a_rank_that_dies_of_a_broken_pipe_is_reported(self, jobs: Marked) -> None:
        """The signal must not be taken for the end of the driver's own reader."""
        done = jobs.run("run", "-np", "2", "bash", "-c", "kill -PIPE $$")
        assert done.returncode == 128 + signal.SIGPIPE
        assert mentions(done.stderr, "signal 13", "SIGPIPE")

    def test_its_own_code(self, jobs: Marked) -> None:
        done = jobs.run("run", "-np", "2", PY, "-c", "import sys; sys.exit(7)")
        assert done.returncode == 7
        assert "exited with code 7" in done.stderr

    def test_a_signal(self, jobs: Marked) -> None:
        code = "if [ $HOROVOD_RANK = 1 ]; then echo last words >&2; kill -SEGV $$; fi; sleep 1000"
        done = jobs.run("run", "-np", "2", "bash", "-c", code)
        assert done.returncode == 128 + signal.SIGSEGV
        assert mentions(done.stderr, "Rank 1", "signal 11", "SIGSEGV")
        assert "stderr:\nlast words" in done.stderr

    def test_kill_9(self, jobs: Marked, sleeper: Path, tmp_path: Path) -> None:
        process = jobs.start("run", "-np", "3", PY, str(sleeper), str(tmp_path))
        pids = read_pids(tmp_path, 3)
        os.kill(pids["rank2"], signal.SIGKILL)
        began = time.monotonic()
        done = jobs.finish(process)
        assert time.monotonic() - began < tools.LIMIT
        assert done.returncode == 137
        assert mentions(done.stderr, "Rank 2", "signal 9", "SIGKILL")

    def test_ranks_that_ignore_sigterm_are_killed(self, jobs: Marked, tmp_path: Path) -> None:
        code = f"""
if [ $HOROVOD_RANK = 1 ]; then while [ ! -e {tmp_path}/up ]; do sleep 0.01; done; exit 3; fi
trap '' TERM; touch {tmp_path}/up; while true; do sleep 0.1; done"""
        began = time.monotonic()
        done = jobs.run("run", "-np", "2", "bash", "-c", code)
        assert done.returncode == 3
        assert time.monotonic() - began < tools.LIMIT + 1

    def test_a_script_with_a_syntax_error(self, jobs: Marked, tmp_path: Path) -> None:
        script = tmp_path / "bad.py"
        script.write_text("def f(:\n")
        done = jobs.run("run", "-np", "2", PY, str(script))
        assert done.returncode == 1
        assert done.stderr.count("SyntaxError") == 1
        assert mentions(done.stderr, "same way")

    @pytest.mark.parametrize(
        ("command", "code", "text"),
        [
            ("no-such-program", 127, "the command 'no-such-program' was not found (exited"),
            ("no-such.py", 127, "interpreter: python no-such.py"),
            ("/etc/passwd", 126, "the command '/etc/passwd' cannot be executed"),
            ("", 126, "the command '' cannot be executed"),
        ],
    )
    def test_a_command_that_cannot_run(
        self, jobs: Marked, command: str, code: int, text: str
    ) -> None:
        """farandole run first checks that the command exists; other callers (horovodrun here) learn
        it from the rank.
        """
        done = jobs.finish(
            jobs.python("-m", "farandole.compat.horovodrun", "-np", "2", command, "argument")
        )
        assert done.returncode == code
        assert done.stderr.count(text) == 1
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) <= 5, "two of ours, and three in Horovod's words"

    @pytest.mark.parametrize(
        ("script", "code", "text"),
        [
            (
                "#!/no/such/python -u\n",
                127,
                "interpreter is missing: '/no/such/python -u' (exited",
            ),
            (
                "#!/bin/sh\r\necho\r\n",
                127,
                r"'/bin/sh\r': the file has Windows",
            ),
            ("echo\n", 126, "a line like #!/bin/sh (exited"),
        ],
    )
    def test_a_script_that_cannot_run(
        self, jobs: Marked, tmp_path: Path, script: str, code: int, text: str
    ) -> None:
        path = tmp_path / "train.sh"
        path.write_text(script)
        path.chmod(0o755)
        done = jobs.run("run", "-np", "2", str(path))
        assert done.returncode == code
        assert done.stderr.count(text) == 1

    def test_with_verbose_every_traceback_is_shown(self, jobs: Marked) -> None:
        done = jobs.run("run", "-np", "2", "--verbose", PY, "-c", "raise ValueError('boom')")
        assert done.stderr.count("ValueError: boom") == 3
        assert "farandole: 2 ranks on localhost:2, launcher local" in done.stderr


class TestTheDriverEnds:
    # A shell with a child: what a rank starts has to go too.
    def start(self, jobs: Marked, sleeper: Path, folder: Path) -> subprocess.Popen[str]:
        process = jobs.start(
            "run", "-np", "2", "bash", "-c", f"{PY} {sleeper} {folder}; sleep 1000"
        )
        read_pids(folder, 2)
        return process

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_by_a_signal(
        self, jobs: Marked, sleeper: Path, tmp_path: Path, number: signal.Signals
    ) -> None:
        process = self.start(jobs, sleeper, tmp_path)
        process.send_signal(number)
        began = time.monotonic()
        done = jobs.finish(process)
        assert time.monotonic() - began < tools.LIMIT
        assert done.returncode == 128 + number
        assert done.stderr == f"farandole: the job was ended by {number.name}\n"

    @pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
    def test_signals_before_a_warning_reach_only_the_ranks(
        self, jobs: Marked, number: signal.Signals
    ) -> None:
        process = jobs.start("run", "-np", "2", PY, "-c", WARNED, str(int(number)))
        assert process.stdout is not None
        assert {process.stdout.readline() for _ in range(2)} == {
            f"[{rank}]<stdout>:up\n" for rank in range(2)
        }
        process.send_signal(number)
        done = jobs.finish(process)
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:warned" for rank in range(2)]

    def test_by_kill_9(self, jobs: Marked, sleeper: Path, tmp_path: Path) -> None:
        process = self.start(jobs, sleeper, tmp_path)
        process.kill()
        began = time.monotonic()
        jobs.finish(process)
        assert time.monotonic() - began < tools.LIMIT

    def test_by_kill_9_with_ranks_that_ignore_sigterm(self, jobs: Marked, tmp_path: Path) -> None:
        code = (
            f"trap '' TERM; (setsid sleep 1000 &); touch {tmp_path}/$HOROVOD_RANK; while true; do"
            " sleep 0.1; done"
        )
        process = jobs.start("run", "-np", "2", "bash", "-c", code)
        assert wait_until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
        process.kill()
        jobs.finish(process)

    def test_the_reaper_is_killed_and_then_the_driver(
        self, jobs: Marked, sleeper: Path, tmp_path: Path
    ) -> None:
        """Without a reaper the ranks themselves still die with their parent."""
        process = jobs.start("run", "-np", "2", PY, str(sleeper), str(tmp_path))
        pids = set(read_pids(tmp_path, 2).values())
        (parent,) = {reaper.processes()[pid][0] for pid in pids}
        os.kill(parent, signal.SIGKILL)
        process.kill()
        jobs.finish(process)

    def test_a_second_interrupt_does_not_wait(self, jobs: Marked, tmp_path: Path) -> None:
        code = (
            f"trap 'touch {tmp_path}/ended' TERM; touch {tmp_path}/begun; while true; do sleep 0.1;"
            " done"
        )
        process = jobs.start("run", "-np", "1", "--grace-seconds", "1000", "bash", "-c", code)
        assert wait_until((tmp_path / "begun").exists)
        process.send_signal(signal.SIGINT)
        assert wait_until((tmp_path / "ended").exists)
        time.sleep(driver_signals.TWICE)  # since the driver has handled the first one
        process.send_signal(signal.SIGINT)
        assert jobs.finish(process).returncode == 130


# Two processes in sessions of their own that hold the rank's pipes. The second has no parent, and
# no variables by which it could be known. The argument makes them findable.
DAEMONS = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(1000)", sys.argv[1]]
subprocess.Popen(sleep, start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, sleep, {})
    os._exit(0)
os.wait()
print("up", flush=True)
"""


@pytest.mark.parametrize(
    ("then", "code"), [("pass", 0), ("sys.exit(3)", 3), ("time.sleep(1000)", 130)]
)
def test_processes_outside_their_session_end_with_the_job(
    jobs: Marked, then: str, code: int
) -> None:
    process = jobs.start("run", "-np", "2", PY, "-c", DAEMONS + then, jobs.mark)
    assert process.stdout is not None
    assert {process.stdout.readline() for _ in range(2)} == {
        f"[{rank}]<stdout>:up\n" for rank in range(2)
    }
    if code == 130:
        process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert jobs.finish(process).returncode == code
    assert time.monotonic() - began < tools.LIMIT
    assert not [pid for pid in reaper.processes() if jobs.mark in command_of(pid)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_closed_standard_streams(jobs: Marked, tmp_path: Path) -> None:
    """Pipes and sockets of the job do not get their numbers."""
    command = (
        f"{PY} -m farandole.cli run -np 2 --output-dir {tmp_path} bash -c 'echo one; echo two >&2'"
        " >&- 2>&- <&-"
    )
    done = subprocess.run(["bash", "-c", command], env=jobs.env, timeout=200, check=False)
    assert done.returncode == 0
    for rank in range(2):
        assert (tmp_path / f"rank.{rank}" / "stdout").read_text() == "one\n"
        assert (tmp_path / f"rank.{rank}" / "stderr").read_text() == "two\n"


def test_too_few_open_files(jobs: Marked) -> None:
    command = f"ulimit -n 8; exec {PY} -m farandole.cli run -np 2 true"
    done = subprocess.run(
        ["bash", "-c", command],
        env=jobs.env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 2
    assert mentions(done.stderr, "8", "RLIMIT_NOFILE", "2", "open files")
    assert len(done.stderr.splitlines()) == 1
    assert "`ulimit -n 1024`" in done.stderr


def test_a_job_whose_processes_could_not_be_found_does_not_start(jobs: Marked) -> None:
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces cannot be made here")
    done = subprocess.run(
        [*alone, PY, "-m", "farandole.cli", "run", "-np", "2", "true"],
        env=jobs.env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 2
    assert mentions(done.stderr, "/proc", "number")


def test_only_some_ranks_are_shown(jobs: Marked) -> None:
    code = "if [ $HOROVOD_RANK = 2 ]; then echo last words >&2; exit 3; fi; echo hello"
    done = jobs.run("run", "-np", "3", "--show-ranks", "0-1", "bash", "-c", code)
    assert "[2]<" not in done.stdout + done.stderr
    assert "stderr:\nlast words" in done.stderr


def test_a_full_disk_under_the_output_directory(jobs: Marked, tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank.{rank}").mkdir()
        (tmp_path / f"rank.{rank}" / "stdout").symlink_to("/dev/full")
    done = jobs.run(
        "run", "-np", "2", "--output-dir", str(tmp_path), "bash", "-c", "echo one; echo two"
    )
    assert done.returncode == 0
    assert done.stdout.count("<stdout>:") == 4
    assert done.stderr.count("No space left on device") == 1


def test_a_stranger_at_the_store(jobs: Marked, tmp_path: Path) -> None:
    code = """
import os, socket
host, _, port = os.environ["FARANDOLE_STORE"].partition(":")
for _ in range(3):
    with socket.create_connection((host, int(port))) as sock:
        try:
            sock.sendall(b"x" * 200)
            while sock.recv(100): pass
        except ConnectionError: pass
"""
    done = jobs.run("run", "-np", "2", PY, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("an unknown client at 127.0.0.1:") == 1


def test_a_status_line_on_a_terminal_only(jobs: Marked, tmp_path: Path) -> None:
    """The line appears after two seconds, with rank 0's steps. The ranks end after that."""
    import pty

    code = """
import os, sys, time
from farandole.job.report import training_progress
counter = training_progress.counter()
training_progress.epoch(1, 2, 10 ** 9)
while not os.path.exists(sys.argv[1]):
    counter.steps += 1
    time.sleep(0.01)
"""
    main, side = pty.openpty()
    command = [PY, "-m", "farandole.cli", "run", "-np", "2", PY, "-c", code, str(tmp_path / "seen")]
    steps = re.compile(rb"epoch 1/2, step \d+/1000000000, [\d.]+ steps/s, \d+(:\d\d)? \w+ left")
    env = {**jobs.env, "TERM": "xterm", "COLUMNS": "160"}
    with subprocess.Popen(
        command, env=env, stdin=side, stdout=side, stderr=side, start_new_session=True
    ) as process:
        os.close(side)
        shown = b""
        while True:
            try:
                piece = os.read(main, 4096)
            except OSError:  # the terminal's other side is closed
                break
            if not piece:
                break
            shown += piece
            if steps.search(shown):
                (tmp_path / "seen").touch()
        os.close(main)
        assert process.wait(60) == 0
    assert re.search(rb"2 of 2 ranks running.*, 0:0\d:\d\d", shown)
    assert steps.search(shown), shown
    assert shown.endswith(b"\r\x1b[2K"), "taken away in the end"
