"""HorovodRunner and run on two executors: results, output, messages, Spark's UI, duration."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farandole
import farandole.spark
from farandole.errors import JobFailedError
from farandole.spark import HorovodRunner, LoopLog, log_to_driver
from tests.job.launch.tools import read_pids, wait_until
from tests.kits.messages import mentioning, mentions
from tests.spark import tools

LINES = 100_000
pytestmark = pytest.mark.usefixtures("cluster")


def torch_model(steps: int, lr: float) -> list[float]:
    """A user's program: one process with the batch, or several with parts of it."""
    import torch

    import farandole.torch as hvd

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(4, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr * 0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(0.1 * (hvd.rank() + 1))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    x = torch.arange(48, dtype=torch.float64).reshape(12, 4).sin()
    y = x.sum(dim=1, keepdim=True)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(
            model(x[hvd.rank() :: hvd.size()]), y[hvd.rank() :: hvd.size()]
        ).backward()
        optimizer.step()
    return [*model.weight.flatten().tolist(), model.bias.item()]


def keras_model(backend: str) -> tuple[list[Any], list[Any]]:
    """Return the weights after training on all ranks, and after training alone."""
    os.environ["KERAS_BACKEND"] = backend
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras

    import farandole.keras as hvd
    from farandole.spark import LogCallback

    def trained(rank: int, size: int, optimizer: Any, callbacks: list[Any]) -> list[Any]:
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)]
        )
        model.compile(optimizer, "mse")
        x = np.sin(np.arange(96, dtype="float32")).reshape(24, 4)[rank::size]
        y = x.sum(axis=1, keepdims=True)
        model.fit(
            x, y, batch_size=12 // size, epochs=2, shuffle=False, verbose=0, callbacks=callbacks
        )
        return [np.asarray(each) for each in model.get_weights()]

    hvd.init()
    assert keras.backend.backend() == backend
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), LogCallback(per_batch_log=True)]
    together = trained(
        hvd.rank(), hvd.size(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), callbacks
    )
    return together, trained(0, 1, keras.optimizers.SGD(0.1), [])


def summed() -> list[float]:
    import farandole.numpy as hvd

    hvd.init()
    return list(hvd.allreduce(np.full(2, hvd.rank() + 1.0), op=hvd.Sum))


class TestResults:
    def test_the_same_on_the_cluster_and_on_the_driver(self) -> None:
        driver, spark = (HorovodRunner(np=np).run(torch_model, steps=20, lr=1.0) for np in (-2, 2))
        assert spark == driver

    def test_keras(self, capsys: pytest.CaptureFixture[str]) -> None:
        """On JAX, which loads fastest; the notebook trains on PyTorch, tests of Keras on all
        backends.
        """
        together, alone = HorovodRunner(np=2).run(keras_model, backend="jax")
        said = capsys.readouterr().out.splitlines()
        for one, two in zip(together, alone, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-4)
        assert [re.sub(r"\d[\d.e+-]*", "N", line) for line in said] == [
            "Epoch N begins",
            *["Epoch N batch N, loss=N"] * 2,
            "Epoch N ended after N s, loss=N, N steps/s",
        ] * 2

    def test_in_rank_order_with_the_arguments_of_horovod(self) -> None:
        def work(a: int, *, b: int) -> tuple[int, ...]:
            names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
            return (a + b, *(int(os.environ[f"HOROVOD_{name}"]) for name in names))

        assert farandole.spark.run(work, (1,), {"b": 2}, num_proc=2) == [
            (3, 0, 2, 0, 2, 0, 1),
            (3, 1, 2, 1, 2, 0, 1),
        ]
        assert farandole.run(work, (1,), {"b": 2}, np=1, launcher="spark") == [
            (3, 0, 1, 0, 1, 0, 1)
        ]

    def test_the_default_is_sparks_parallelism(self) -> None:
        assert farandole.spark.run(lambda: int(os.environ["HOROVOD_RANK"])) == [0, 1]

    def test_all_slots(self) -> None:
        with pytest.warns(DeprecationWarning, match="np=0"):
            assert HorovodRunner(np=0).run(lambda: os.environ["HOROVOD_SIZE"]) == "2"

    def test_in_another_thread_and_with_a_timeline(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOROVOD_TIMELINE", str(tmp_path / "timeline.json"))
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(HorovodRunner(np=2).run(summed)))
        thread.start()
        thread.join(60)
        assert results == [[3.0, 3.0]]
        assert "ALLREDUCE" in (tmp_path / "timeline.json").read_text()


class TestEnvironment:
    def test_the_drivers_variables_stay_with_the_driver(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MINE", "driver")
        monkeypatch.setenv("KERAS_BACKEND", "jax")
        monkeypatch.setenv("HOROVOD_CYCLE_TIME", "7.5")

        def read() -> list[str | None]:
            return [
                os.environ.get(name)
                for name in ("MINE", "ASKED", "KERAS_BACKEND", "HOROVOD_CYCLE_TIME")
            ]

        assert farandole.spark.run(read, num_proc=1, env={"ASKED": "yes"}) == [
            [None, "yes", "jax", "7.5"]
        ]
        assert HorovodRunner(np=1).run(read) == [None, None, "jax", "7.5"]

    def test_no_secret_where_spark_shows_it(self, cluster: Any) -> None:
        secret = farandole.spark.run(lambda: os.environ["FARANDOLE_SECRET"], num_proc=1)[0]
        assert len(secret) == 64
        context = cluster.sparkContext
        assert secret not in str(context.getConf().getAll()) + str(dict(context._conf.getAll()))
        shown = context.parallelize(range(2), 2).map(lambda _: str(dict(os.environ))).collect()
        assert not any(secret in each for each in shown)

    def test_another_python(self, tmp_path: Path) -> None:
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nMINE=other exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        assert farandole.spark.run(
            lambda: os.environ["MINE"], num_proc=1, executable=str(python)
        ) == ["other"]
        with pytest.raises(farandole.errors.JobFailedError, match=mentioning("/no/python")):
            farandole.spark.run(print, num_proc=1, executable="/no/python")


def printed(run: Callable[[], Any]) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        run()
    return out.getvalue(), err.getvalue()


class TestOutput:
    def test_many_lines_arrive_in_order_without_delaying_the_ranks(self, tmp_path: Path) -> None:
        def chatter(folder: str) -> None:
            rank = os.environ["HOROVOD_RANK"]
            for number in range(LINES):
                print(f"{rank} says {number}: {'x' * 40}")
            sys.stdout.flush()
            (Path(folder) / rank).touch()

        class Slow(io.StringIO):
            """A stream that reads nothing before both ranks have printed everything."""

            unhindered: bool | None = None

            def write(self, text: str) -> int:
                if self.unhindered is None:
                    self.unhindered = wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 60.0)
                return super().write(text)

        out = Slow()
        with redirect_stdout(out):
            HorovodRunner(np=2, driver_log_verbosity="all").run(chatter, folder=str(tmp_path))
        assert out.unhindered
        lines = out.getvalue().splitlines()
        for rank in (0, 1):
            mine = [line for line in lines if line.startswith(f"[{rank}]<stdout>:")]
            assert mine == [
                f"[{rank}]<stdout>:{rank} says {number}: {'x' * 40}" for number in range(LINES)
            ]
        assert len(lines) == 2 * LINES

    def test_it_appears_while_the_ranks_run(self, tmp_path: Path) -> None:
        def wait(folder: str) -> None:
            print("before", flush=True)
            log_to_driver("message")
            (Path(folder) / f"{os.environ['HOROVOD_RANK']}.pid").write_text(f"{os.getpid()}\n")
            while not (Path(folder) / "go").exists():
                time.sleep(0.01)

        class Sink(io.StringIO):
            pass

        out = Sink()
        seen: list[bool] = []

        def watch() -> None:
            read_pids(tmp_path, 2, 100.0)
            seen.append(
                wait_until(
                    lambda: out.getvalue().count("before") == out.getvalue().count("message") == 2
                )
            )
            (tmp_path / "go").touch()

        thread = threading.Thread(target=watch)
        thread.start()
        with redirect_stdout(out):
            HorovodRunner(np=2, driver_log_verbosity="all").run(wait, folder=str(tmp_path))
        thread.join()
        assert seen == [True]

    def test_all_of_it_is_in_the_first_tasks_log_otherwise(self) -> None:
        def train() -> None:
            rank = os.environ["HOROVOD_RANK"]
            print(f"unique-{token}-{rank}")
            log_to_driver(f"message of {rank}")
            log_to_driver("y" * 5000)
            LoopLog().epoch_begin(3)

        token = os.urandom(8).hex()
        out, err = printed(lambda: HorovodRunner(np=2).run(train))
        assert sorted(out.splitlines()) == sorted(
            ["message of 0", "message of 1", "y" * 4000, "y" * 4000, "Epoch 3 begins"]
        )
        assert token not in out + err

        def logs() -> list[str]:
            files = [path.read_text(errors="replace") for path in tools.WORK.glob("app-*/*/stderr")]
            return [text for text in files if token in text]

        assert wait_until(lambda: len(logs()) == 1), (
            "the output of both ranks is in one executor's log"
        )
        assert wait_until(
            lambda: all(f"[{rank}]<stdout>:unique-{token}-{rank}" in logs()[0] for rank in (0, 1))
        )

    def test_custom_streams(self) -> None:
        out, err = io.StringIO(), io.StringIO()

        def shout() -> None:
            print("out")
            print("err", file=sys.stderr)

        _, said = printed(
            lambda: farandole.spark.run(
                shout,
                num_proc=1,
                stdout=out,
                stderr=err,
                verbose=0,
                prefix_output_with_timestamp=True,
            )
        )
        assert re.fullmatch(r"\w{3} \w{3} .* \d{4}\[0\]<stdout>:out\n", out.getvalue())
        assert re.fullmatch(r"\w{3} \w{3} .* \d{4}\[0\]<stderr>:err\n", err.getvalue())
        assert said == ""

    def test_a_heavy_function_is_remarked_on(self, caplog: pytest.LogCaptureFixture) -> None:
        images = np.zeros(12_000_000, dtype="uint8")
        HorovodRunner(np=1).run(lambda: images.sum())
        [said] = caplog.messages
        assert mentions(said, "12.0", "MB", "'images'")


class TestSpark:
    def test_horovodrunner_prints_its_plan_before_the_start(self) -> None:
        def train() -> None: ...

        _, err = printed(lambda: HorovodRunner(np=2).run(train))
        assert (
            err == "farandole: 2 Spark tasks for HorovodRunner: train; "
            "local-cluster[2,1,1024] has 2 task slots on 2 executors\n"
        )

    def test_a_person_recognises_the_job_in_sparks_ui(self, cluster: Any, tmp_path: Path) -> None:
        def train(folder: str) -> None:
            (Path(folder) / f"{os.environ['HOROVOD_RANK']}.pid").write_text(f"{os.getpid()}\n")
            while not (Path(folder) / "go").exists():
                time.sleep(0.01)

        seen: list[tuple[str, str]] = []

        def look() -> None:
            read_pids(tmp_path, 2, 100.0)
            try:
                tracker = cluster.sparkContext.statusTracker()
                (job,) = tracker.getActiveJobsIds()
                data = cluster.sparkContext._jsc.sc().statusStore().job(job)
                seen.append((data.description().get(), data.jobGroup().get()))
            finally:
                (tmp_path / "go").touch()

        thread = threading.Thread(target=look)
        thread.start()
        HorovodRunner(np=2).run(train, folder=str(tmp_path))
        thread.join()
        [(description, group)] = seen
        assert description == "HorovodRunner: train on 2 ranks (Farandole)"
        assert group.startswith("farandole-")

    def test_cancelling_the_callers_job_group_ends_the_job(
        self, cluster: Any, tmp_path: Path
    ) -> None:
        def train(folder: str) -> None:
            (Path(folder) / f"{os.environ['HOROVOD_RANK']}.pid").write_text(f"{os.getpid()}\n")
            threading.Event().wait()

        context = cluster.sparkContext
        context.setJobGroup("mine", "my own")
        cancel = threading.Thread(
            target=lambda: (read_pids(tmp_path, 2, 100.0), context.cancelJobGroup("mine"))
        )
        try:
            cancel.start()
            with tools.Clean(cluster), pytest.raises(JobFailedError, match="cancelled"):
                HorovodRunner(np=2).run(train, folder=str(tmp_path))
            assert context.getLocalProperty("spark.jobGroup.id") == "mine"
            assert context.getLocalProperty("spark.job.description") == "my own"
        finally:
            cancel.join()
            for name in ("spark.jobGroup.id", "spark.job.description"):
                context.setLocalProperty(name, None)

    def test_a_second_job_finds_all_as_the_first_did(self, cluster: Any) -> None:
        """Spark's Python processes are used again, and a job leaves nothing in them."""

        def look(tasks: Any) -> Any:
            list(tasks)
            yield (
                os.getpid(),
                len(os.listdir("/proc/self/fd")),
                sorted(each.name for each in threading.enumerate()),
            )

        def found() -> list[Any]:
            return sorted(
                cluster.sparkContext.parallelize(range(2), 2)
                .barrier()
                .mapPartitions(look)
                .collect()
            )

        HorovodRunner(np=2).run(int)
        before = found()
        for _ in range(3):
            with tools.Clean(cluster):
                HorovodRunner(np=2).run(int)
        assert found() == before
