"""A standalone cluster of Spark on this machine: its daemons, whose connections are authenticated."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyspark

from tests.job.launch.tools import wait_until
from tests.kits.messages import mentions

HOME = Path(pyspark.__file__).parent
SECRET = "between the machines of this cluster"


class Cluster:
    """The daemons, in the environment of machines without this checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "FARANDOLE_SP"))
        }
        options = f"-Dspark.authenticate=true -Dspark.authenticate.secret='{SECRET}'"
        self.env = {
            **kept,
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": options,
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, kind: str, *arguments: str) -> None:
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(command, env=self.env, stdout=log, stderr=log, cwd=self.folder)
            )

    def start_master(self) -> None:
        """Start the master and wait until it accepts workers."""
        self.start(
            "master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
        )
        assert wait_until(lambda: mentions(self.log("master"), "elected leader"), 90), self.log(
            "master"
        )

    def start_workers(self, properties: Sequence[str]) -> None:
        """Start a worker with a core for each text of properties, and wait for all of them."""
        names = [f"worker{index}" for index in range(len(properties))]
        for index, (name, text) in enumerate(zip(names, properties, strict=True)):
            file = self.folder / f"{name}.conf"
            file.write_text(text)
            words = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
            work = str(self.folder / f"work{index}")
            words += ["--work-dir", work, "--properties-file", str(file)]
            self.start(name, "worker.Worker", self.url, *words)
        for name in names:
            assert wait_until(partial(self.registered, name), 90), self.log(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def registered(self, name: str) -> bool:
        return "Successfully registered" in self.log(name)

    @property
    def url(self) -> str:
        found = re.search(r"Starting Spark master at (spark://\S+)", self.log("master"))
        assert found, self.log("master")
        return found[1]

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
