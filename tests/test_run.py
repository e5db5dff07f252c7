"""``farandole.run`` and ``farandole.Runner``: functions, results, and values that cannot be sent."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import farandole
from farandole.errors import JobFailedError, SettingsError
from tests.job.launch.tools import LIMIT, Marked, marked, read_pids, wait_until
from tests.kits.messages import mentioning, mentions
from tests.kits.opened import opened

pytestmark = pytest.mark.slow


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Marked]:
    """Ranks of jobs that this process starts are marked too."""
    with marked() as found:
        name, _, value = found.mark.partition("=")
        monkeypatch.setenv(name, value)
        yield found
        assert wait_until(lambda: not found.left(), LIMIT), "ranks are left"


def whoami() -> tuple[int, int]:
    return int(os.environ["FARANDOLE_RANK"]), int(os.environ["HOROVOD_SIZE"])


@pytest.mark.usefixtures("jobs")
class TestResults:
    def test_come_in_rank_order(self) -> None:
        assert farandole.run(whoami, np=3) == [(0, 3), (1, 3), (2, 3)]

    def test_one_rank_is_the_default(self) -> None:
        assert farandole.run(whoami) == [(0, 1)]

    def test_arguments(self) -> None:
        def join(a: str, b: str, *, c: str) -> str:
            return a + b + c

        assert farandole.run(join, ("x", "y"), {"c": "z"}, np=2) == ["xyz", "xyz"]

    def test_a_lambda_with_its_closure(self) -> None:
        factor = 6
        assert farandole.run(lambda x: x * factor, (7,)) == [42]

    def test_a_large_argument_and_result(self) -> None:
        data = random.Random(0).randbytes(1 << 20) * 48
        (result,) = farandole.run(lambda x: x + b"!", (data,))
        assert result == data + b"!"

    def test_classes_of_main_are_the_same_classes_when_they_return(self) -> None:
        script = """
import farandole
class Box:
    def __init__(self, value): self.value = value
def make(value):
    import pickle
    return pickle.loads(pickle.dumps(Box(value)))  # by name, as torch.save does
boxes = farandole.run(make, (5,), np=2)
assert [type(box) is Box and box.value for box in boxes] == [5, 5]
print("ran once")
"""
        done = subprocess.run(
            [sys.executable, "-"],
            input=script,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("ran once\n", "")

    def test_a_process_that_multiprocessing_has_spawned(self, tmp_path: Path) -> None:
        """Its functions belong to a module that only it has, under a different name."""
        script = tmp_path / "search.py"
        script.write_text("""
import farandole, multiprocessing, pickle
class Box:
    def __init__(self, value): self.value = value
def double(box): return Box(2 * box.value)
def make(value): return pickle.loads(pickle.dumps(double(Box(value))))
def job(value):
    boxes = farandole.run(make, (value,), np=2)
    return [type(box) is Box and box.value for box in boxes]
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(job, (4,)), [box.value for box in pool.apply(farandole.run, (make, (5,)))])
""")
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, timeout=200, check=False
        )
        assert (done.stdout, done.stderr) == ("[8, 8] [10]\n", "")

    def test_a_script_without_a_main_guard_runs_once(self, tmp_path: Path) -> None:
        (tmp_path / "neighbour.py").write_text("def double(x): return 2 * x\n")
        script = tmp_path / "sub" / "script.py"
        script.parent.mkdir()
        script.write_text(
            f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport farandole,"
            " neighbour\nprint('script')\nprint(farandole.run(lambda: neighbour.double(4),"
            " np=2))\n"
        )
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, timeout=200, check=False
        )
        assert (done.stdout, done.stderr) == ("script\n[8, 8]\n", "")

    def test_a_file_of_ours_in_the_way(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "socket.py").write_text("raise RuntimeError('not the socket you want')\n")
        monkeypatch.chdir(tmp_path)
        if sys.version_info >= (3, 11):
            assert farandole.run(lambda: 1) == [1]

    def test_extra_environment_and_settings(self) -> None:
        names = ["MINE", "HOROVOD_CYCLE_TIME", "FARANDOLE_CACHE_CAPACITY", "HOROVOD_LOG_LEVEL"]
        (seen,) = farandole.run(
            lambda: [os.environ.get(name) for name in names],
            env={"MINE": "x", "HOROVOD_CYCLE_TIME": "2.5", "HOROVOD_LOG_LEVEL": "info"},
            cache_capacity=7,
            log_level="error",
        )
        assert seen == ["x", "2.5", "7", "error"]

    def test_a_default_overrides_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOROVOD_CACHE_CAPACITY", "5")
        read = lambda: os.environ.get("HOROVOD_CACHE_CAPACITY")  # noqa: E731
        assert farandole.run(read) == ["5"]
        assert farandole.run(read, cache_capacity=1024) == ["1024"]
        assert farandole.run(read, cache_capacity=1024, env={"HOROVOD_CACHE_CAPACITY": "6"}) == [
            "1024"
        ]

    def test_settings_come_from_the_environment_and_places_do_not(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
        monkeypatch.setenv(
            "HOROVOD_SIZE", "7"
        )  # the variable of a job that this process might belong to

        def read() -> list[str | None]:
            return [os.environ.get(f"HOROVOD_{each}") for each in ("DYNAMIC_PROCESS_SETS", "SIZE")]

        assert farandole.run(read) == [["1", "1"]]

    def test_output_of_ranks_goes_to_the_callers_streams(self) -> None:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            farandole.run(lambda: (print("hello"), print("oh", file=sys.stderr)), np=2)
        assert sorted(out.getvalue().splitlines()) == ["[0]<stdout>:hello", "[1]<stdout>:hello"]
        assert sorted(err.getvalue().splitlines()) == ["[0]<stderr>:oh", "[1]<stderr>:oh"]

    def test_inside_a_running_event_loop(self) -> None:
        async def main() -> list[Any]:
            return farandole.run(lambda: asyncio.run(asyncio.sleep(0, 5)), np=2)

        assert asyncio.run(main()) == [5, 5]

    def test_in_another_thread(self) -> None:
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.extend(farandole.run(whoami, np=2)))
        thread.start()
        thread.join(60)
        assert results == [(0, 2), (1, 2)]

    def test_a_function_that_exits(self) -> None:
        assert farandole.run(lambda: sys.exit(0), np=2) == [None, None]

    def test_a_thread_that_does_not_end_is_named(self, capfd: pytest.CaptureFixture[str]) -> None:
        def leave(soon: bool) -> int:
            """A thread that ends just before this rank reports it, or just after."""
            from farandole.job.report import leftover_threads

            over = threading.Event()
            report = leftover_threads._report
            heartbeat = threading.Thread(target=over.wait, args=(60,), name="heartbeat")
            leftover_threads.time = types.SimpleNamespace(  # type: ignore[assignment]
                sleep=lambda seconds: soon and (over.set(), heartbeat.join())
            )
            leftover_threads._report = lambda: (report(), over.set())  # type: ignore[assignment, return-value]
            heartbeat.start()
            return 5

        assert farandole.run(leave, (True,)) == [5]
        assert capfd.readouterr().err == ""
        assert farandole.run(leave, (False,)) == [5]
        assert mentions(capfd.readouterr().err, "heartbeat")

    def test_a_job_inside_a_job(self) -> None:
        def outer() -> list[Any]:
            import farandole

            return farandole.run(lambda: os.environ["HOROVOD_SIZE"], np=2)

        assert farandole.run(outer, np=1) == [["2", "2"]]

    def test_nothing_stays_open(self) -> None:
        farandole.run(whoami, np=2)
        before, threads = opened(), set(threading.enumerate())
        handlers = [
            signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        ]
        farandole.run(whoami, np=2)
        with pytest.raises(JobFailedError), contextlib.redirect_stderr(io.StringIO()):
            farandole.run(lambda: 1 / 0, np=2)
        assert opened() <= before
        assert set(threading.enumerate()) <= threads
        assert [
            signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        ] == handlers


class TestRunner:
    @pytest.mark.usefixtures("jobs")
    def test_gives_the_value_of_rank_0(self) -> None:
        assert farandole.Runner(np=2).run(lambda scale: (whoami(), scale), scale=3) == ((0, 2), 3)

    def test_np_is_checked_immediately(self) -> None:
        with pytest.raises(SettingsError, match=mentioning("np=-1")):
            farandole.Runner(np=-1)


@pytest.mark.usefixtures("jobs")
class TestFailures:
    def test_an_exception(self, capfd: pytest.CaptureFixture[str]) -> None:
        def fail() -> None:
            if whoami()[0] == 1:
                raise ValueError("boom")
            time.sleep(1000)

        with pytest.raises(JobFailedError, match=mentioning("Rank 1", "ValueError")) as caught:
            farandole.run(fail, np=2)
        error = caught.value
        assert (error.rank, error.host, error.exit_code) == (1, "localhost", 1)
        assert error.remote_traceback.endswith("ValueError: boom\n")
        assert "worker.py" not in error.remote_traceback, "only the user's frames"
        assert "ValueError" not in capfd.readouterr().err, "the exception tells it already"

    @pytest.mark.parametrize(
        ("fail", "code", "text"),
        [
            (lambda: sys.exit(4), 4, "code 4"),
            (lambda: os._exit(5), 5, "code 5"),
            (lambda: os._exit(0), 1, ("code 0", "function")),
            (lambda: os.kill(os.getpid(), 9), 137, "out-of-memory"),
            (lambda: os.abort(), 134, "SIGABRT"),
        ],
        ids=["sys.exit", "os._exit", "os._exit(0)", "kill", "abort"],
    )
    def test_other_ends(self, fail: Any, code: int, text: str | tuple[str, ...]) -> None:
        with pytest.raises(JobFailedError, match=mentioning(text)) as caught:
            farandole.run(fail, np=2)
        assert caught.value.exit_code == code

    def test_a_function_that_cannot_be_pickled(self) -> None:
        lock = threading.Lock()
        with pytest.raises(SettingsError) as caught:
            farandole.run(lambda: lock.acquire(), np=2)
        text = str(caught.value)
        assert "<lambda>" in text
        assert mentions(text, "'lock'", "_thread.lock")
        assert mentions(text, "function")
        assert caught.value.__suppress_context__
        with pytest.raises(
            SettingsError,
            match=mentioning("'lock.acquire'", "pickled"),
        ):
            farandole.run(lock.acquire, np=2)
        assert len(caught.traceback) == 2, "the test's frame and one of ours"

    def test_an_argument_that_cannot_be_pickled(self) -> None:
        class Model:
            def __init__(self) -> None:
                self.layers = [1, {"lock": threading.Lock()}]

        with pytest.raises(
            SettingsError,
            match=mentioning("0", "[1]", "'lock'", "_thread.lock"),
        ):
            farandole.run(print, (Model(),))

    def test_a_result_that_cannot_be_pickled(self) -> None:
        with pytest.raises(JobFailedError, match=mentioning("'x'", "[0]")) as caught:
            farandole.run(lambda: {"x": [(i for i in range(3))]}, np=2)
        assert str(caught.value).startswith("Rank ")

    def test_a_result_that_cannot_be_read_here(self) -> None:
        def make() -> Any:
            class Odd:
                def __reduce__(self) -> Any:
                    return (int, ("no number",))

            return Odd()

        with pytest.raises(JobFailedError, match=mentioning("rank 0", "ValueError")):
            farandole.run(make)

    def test_a_module_that_the_ranks_do_not_have(self, tmp_path: Path) -> None:
        (tmp_path / "passing.py").write_text("def f(): pass\n")
        sys.path.insert(0, str(tmp_path))
        try:
            import passing  # type: ignore[import-not-found]

            (tmp_path / "passing.py").unlink()
            with pytest.raises(JobFailedError, match=mentioning("'passing'", "module")):
                farandole.run(passing.f)
        finally:
            sys.path.remove(str(tmp_path))
            sys.modules.pop("passing", None)

    def test_a_rank_that_never_comes(self) -> None:
        def work() -> None:
            from farandole.job import context

            if whoami()[0] == 1:
                time.sleep(1000)
            context.init()

        with pytest.raises(JobFailedError, match=mentioning("Rank 1", "init()", "2 s")) as caught:
            farandole.run(work, np=2, start_timeout=2.0)
        assert caught.value.rank == 1

    def test_a_kill_while_others_wait(self, tmp_path: Path) -> None:
        def work() -> None:
            rank = whoami()[0]
            with open(tmp_path / f"{rank}.tmp", "w") as file:
                file.write(f"{os.getpid()}\n")
            os.rename(tmp_path / f"{rank}.tmp", tmp_path / f"{rank}.pid")
            time.sleep(1000)

        killer = threading.Thread(
            target=lambda: os.kill(read_pids(tmp_path, 2)["1"], signal.SIGKILL)
        )
        killer.start()
        with pytest.raises(JobFailedError) as caught:
            farandole.run(work, np=2)
        killer.join()
        assert caught.value.rank == 1

    def test_ctrl_c_is_a_keyboard_interrupt(self) -> None:
        def interrupt() -> None:
            os.kill(parent, signal.SIGINT)
            time.sleep(1000)

        parent = os.getpid()
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt) as caught:
                farandole.run(interrupt)
            # a notebook would show a second traceback for it
            assert caught.value.__context__ is None
        finally:
            signal.signal(signal.SIGINT, before)


class TestWrongCalls:
    @pytest.mark.parametrize("np", [0, -2, "2", 1.5, True])
    def test_np(self, np: Any) -> None:
        with pytest.raises(SettingsError, match=mentioning(f"np={np!r}")):
            farandole.run(whoami, np=np)

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (lambda: farandole.run(5), "function"),
            (
                lambda: farandole.run(whoami, "ab"),
                ("tuple", "arguments"),
            ),
            (
                lambda: farandole.run(whoami, 2),
                ("args=(x,)", "np=2"),
            ),
            (lambda: farandole.run(whoami, (), [1]), "dict"),
            (lambda: farandole.run(whoami, env={"X": 1}), ("'X'", "1", "text")),
            (lambda: farandole.run(whoami, env={"X=Y": "1"}), "variable"),
            (
                lambda: farandole.run(whoami, cycle_tme=1.0),
                ("'cycle_tme'", "setting"),
            ),
            (
                lambda: farandole.run(whoami, cycle_time="1"),
                ("cycle_time='1'", "type"),
            ),
            (lambda: farandole.run(whoami, cache_capacity=-1), ">= 0"),
            (
                lambda: farandole.run(whoami, rank=1),
                ("'rank'", "setting"),
            ),
            (
                lambda: farandole.run(whoami, env={"HOROVOD_CYCLE_TIME": "x"}),
                "HOROVOD_CYCLE_TIME='x'",
            ),
            (
                lambda: farandole.run(whoami, launcher="locl"),
                ("'locl'", "launcher"),
            ),
            (lambda: farandole.run(whoami, hosts="a"), "Invalid host input"),
            (lambda: farandole.run(whoami, hosts="a:1", np=2), "processes"),
            (
                lambda: farandole.run(whoami, hosts="elsewhere:1", launcher="local"),
                "this machine",
            ),
        ],
    )
    def test_other_invalid_calls_are_refused(self, call: Any, text: str | tuple[str, ...]) -> None:
        with pytest.raises(SettingsError, match=mentioning(text)):
            call()


def allreduce_for_ever(victim: int, how: str) -> None:
    """Exchange on all ranks; ``victim`` ends in the middle, at a random moment."""
    import numpy as np

    from farandole.base.types import Buffer, DType, Kind, Request
    from farandole.core.engine.engine import Entry
    from farandole.job import context

    context.init()
    delay = random.SystemRandom().uniform(0.0, 0.1)
    if context.rank() == victim and how == "kill":
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    ends = time.monotonic() + delay
    while True:
        if context.rank() == victim and how != "kill" and time.monotonic() > ends:
            if how == "return":
                return
            raise ValueError("boom")
        data = np.ones(1000, np.float32)
        request = Request("x", Kind.ALLREDUCE, DType.FLOAT32, data.shape)
        context.engine().run([Entry(request, Buffer(data, data, DType.FLOAT32))])


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize("seed", range(10))
def test_the_rank_that_failed_is_blamed_and_no_victim(
    seed: int, capfd: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(seed)
    victim, how = rng.randrange(3), rng.choice(["kill", "raise"])
    with pytest.raises(JobFailedError) as caught:
        farandole.run(allreduce_for_ever, (victim, how), np=3)
    assert caught.value.rank == victim
    assert ("boom" in caught.value.remote_traceback) == (how == "raise")
    assert "PeerLostError" not in capfd.readouterr().err, "victims do not fill the screen"


def catches_all(victim: int) -> None:
    """Catch every error, print it, and exit with code 1, as command line libraries do (Hydra)."""
    import traceback

    try:
        allreduce_for_ever(victim, "raise")
    except Exception:
        traceback.print_exc()
        sys.exit(1)


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_catches_a_victims_error_is_not_blamed(victim: int) -> None:
    with pytest.raises(JobFailedError, match=mentioning("ValueError: boom", "lost")) as caught:
        farandole.run(catches_all, (victim,), np=2)
    assert caught.value.rank == victim


def makes_another_error() -> None:
    """Raise a new error for the caught one; only the text shows its origin."""
    import numpy as np

    import farandole.numpy as hvd

    hvd.init()
    if hvd.rank() == 1:
        sys.exit(3)
    failed = False
    try:
        hvd.allreduce(np.ones(3), name="x")
    except Exception:
        failed = True
    if failed:
        raise RuntimeError("training failed")


@pytest.mark.usefixtures("jobs")
def test_a_rank_that_wraps_a_caught_error_is_not_blamed() -> None:
    with pytest.raises(JobFailedError, match=mentioning("Rank 1", "code 3")) as caught:
        farandole.run(makes_another_error, np=2)
    assert (caught.value.rank, caught.value.exit_code) == (1, 3)


@pytest.mark.usefixtures("jobs")
def test_a_rank_that_finishes_early_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        JobFailedError, match=mentioning("Rank 1", "code 0", "ranks 0, 2")
    ) as caught:
        farandole.run(allreduce_for_ever, (1, "return"), np=3)
    assert caught.value.exit_code == 1
    assert "ShutDownError" in caught.value.remote_traceback
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("jobs")
def test_a_job_below_torchrun_ignores_its_agents_store() -> None:
    """With this variable, torch.distributed's rank 0 creates no store, and all ranks wait for one."""
    agent = {
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "RANK": "1",
        "WORLD_SIZE": "2",
    }
    found = farandole.run(lambda: [os.environ.get(name) for name in agent], np=1, env=agent)
    assert found == [["none", None, "0", "1"]]


def test_a_rank_ends_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    program = tmp_path / "train.py"
    program.write_text(
        "import torch, farandole.torch as hvd; hvd.init(); hvd.allreduce(torch.ones(3));"
        " print('done')"
    )
    command = [
        "-m",
        "farandole",
        "run",
        "-np",
        "2",
        "--show-ranks",
        "0",
        sys.executable,
        "-X",
        "dev",
        str(program),
    ]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0]<stdout>:done\n", "")
