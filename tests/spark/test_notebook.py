"""In a notebook: the worked example from beginning to end, the live status, and an interrupted
cell.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
manager = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

from tests.job.launch.tools import read_pids, wait_until  # noqa: E402
from tests.spark import tools  # noqa: E402

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "horovod_runner.ipynb"


class Kernel:
    """A notebook's kernel; the messages of the last cell."""

    def __init__(self) -> None:
        # one JVM; docs/spark.md has a program on executors
        env = {**os.environ, "SPARK_MASTER": "local[2]"}
        self.manager, self.client = manager.start_new_kernel(kernel_name="python3", env=env)
        self.messages: list[Any] = []

    def run(self, source: str) -> str:
        """Run a cell and return its output; its error is in ``messages``."""
        self.messages = []
        self.client.execute_interactive(source, timeout=500, output_hook=self.messages.append)
        return "".join(each["content"]["text"] for each in self.of("stream"))

    def stdout(self) -> str:
        return "".join(
            each["content"]["text"]
            for each in self.of("stream")
            if each["content"]["name"] == "stdout"
        )

    def of(self, kind: str) -> list[Any]:
        return [each for each in self.messages if each["msg_type"] == kind]

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel()


@pytest.fixture(scope="module")
def fresh() -> Iterator[Kernel]:
    found = Kernel()
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def kernel(fresh: Kernel) -> Kernel:
    """A kernel with a session and the imports of the cells."""
    fresh.run(
        "import os, sys\nos.environ['PYSPARK_PYTHON'] = sys.executable\nimport time\nfrom pathlib"
        " import Path\nfrom pyspark.sql import SparkSession\nfrom sparkdl import"
        " HorovodRunner\nfrom sparkdl.horovod import log_to_driver\nfrom farandole.spark import"
        " LoopLog\nspark = SparkSession.builder.master('local[2]').config('spark.ui.enabled',"
        " 'false').getOrCreate()\nspark.sparkContext.setLogLevel('OFF')"
    )
    assert not fresh.of("error")
    return fresh


def test_the_example_runs_from_beginning_to_end(fresh: Kernel) -> None:
    """(The first test: it stops its session.)"""
    printed = {}
    for cell in nbformat.read(EXAMPLE, 4).cells:
        if cell.cell_type == "code":
            fresh.run(cell.source)
            assert not fresh.of("error"), fresh.of("error")[0]["content"]["traceback"]
            printed[cell.source.split("(")[0].split(" = ")[0]] = fresh.stdout()
    for name in ("two", "cluster"):
        lines = printed[name].splitlines()
        assert [line for line in lines if line == "Epoch 9 begins"] == ["Epoch 9 begins"]
        assert (
            sum(
                bool(re.fullmatch(r"Epoch \d ended after .* s, loss=.*, .* steps/s", line))
                for line in lines
            )
            == 10
        )
        assert sorted(line for line in lines if "% right" in line)[1].startswith("rank 1 of 2: 9")
    failure = printed["def wrong"]
    assert failure.startswith("Rank 1 on ")
    assert "failed: ValueError: lr=100 is too large" in failure
    assert 'raise ValueError(f"lr={lr} is too large")' in failure
    assert "py4j" not in failure.lower()
    for name in ("keras_driver", "keras_cluster"):
        ended = [line for line in printed[name].splitlines() if line.startswith("Epoch 5 ended")]
        assert len(ended) == 1
        assert "accuracy=0.9" in ended[0] or "accuracy=1" in ended[0]


def test_a_live_status_in_the_cell(kernel: Kernel) -> None:
    said = kernel.run(
        "class Answer:\n    def __init__(self, value): self.value = value\n"
        "def train():\n"
        "    log = LoopLog()\n    log.epoch_begin(7)\n"
        "    for step in range(45):\n        time.sleep(0.1)\n        log.batch_end(step)\n"
        "    log_to_driver('nearly there')\n    return Answer(5)\n"
        "result = HorovodRunner(np=2).run(train)\nprint(type(result) is Answer, result.value)"
    )
    assert "nearly there\n" in said
    assert said.endswith("True 5\n")
    [first] = kernel.of("display_data")
    updates = kernel.of("update_display_data")
    shown = [each["content"]["data"]["text/plain"] for each in (first, *updates)]
    assert any(
        re.fullmatch(
            r"2 of 2 ranks running on \S+:2, epoch 7, step \d+, [\d.]+ steps/s, 0:0\d:\d\d", each
        )
        for each in shown
    ), shown
    assert re.fullmatch(r"ended on \S+:2, epoch 7, step \d+, [\d.]+ steps/s, 0:0\d:\d\d", shown[-1])
    assert len({each["content"]["transient"]["display_id"] for each in (first, *updates)}) == 1


def test_a_notebook_shows_the_error_of_the_rank(kernel: Kernel) -> None:
    kernel.run("def train():\n    return undefined_name")
    kernel.run("HorovodRunner(np=2).run(train)")
    [error] = kernel.of("error")
    assert error["content"]["ename"] == "JobFailedError"
    text = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error["content"]["traceback"]))
    assert "failed: NameError: name 'undefined_name' is not defined" in text
    assert "    return undefined_name" in text
    assert "py4j" not in text.lower()
    assert "driver.py" not in text, "our own frames are not shown"


def test_an_interrupted_cell_ends_the_job_everywhere(kernel: Kernel, tmp_path: Path) -> None:
    def interrupt() -> None:
        pids.update(read_pids(tmp_path, 2, 100.0))
        kernel.manager.interrupt_kernel()

    pids: dict[str, int] = {}
    thread = threading.Thread(target=interrupt)
    thread.start()
    kernel.run(
        f"folder = Path({str(tmp_path)!r})\n"
        "def train():\n    name = os.environ['HOROVOD_RANK']\n"
        "    (folder / f'{name}.tmp').write_text(f'{os.getpid()}\\n')\n"
        "    (folder / f'{name}.tmp').rename(folder / f'{name}.pid')\n    time.sleep(1000)\n"
        "HorovodRunner(np=2).run(train)"
    )
    thread.join()
    assert [each["content"]["ename"] for each in kernel.of("error")] == ["KeyboardInterrupt"]
    assert wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.values()), tools.LIMIT
    )
    assert wait_until(lambda: not tools.left(), tools.LIMIT)
    assert kernel.run("print(HorovodRunner(np=2).run(lambda: 'usable'))").endswith("usable\n")
