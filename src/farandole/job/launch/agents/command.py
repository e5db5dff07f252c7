"""Agents started by one command of the cluster: mpirun or srun."""

from __future__ import annotations

import contextlib
import json
import os
import socketserver
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farandole.errors import SettingsError
from farandole.net import interfaces

# The variable that holds the agents' instructions: the driver's addresses and the boot program.
FACTS = "FARANDOLE_AGENT"
FIRST = (
    f"import json,os,sys;t=json.loads(os.environ.pop('{FACTS}'));exec(t['boot']);sys.exit(begin(t))"
)
SEND = 30.0  # seconds without progress before an agent's download is aborted
LINES = 20  # lines of the command's last output that are shown when it fails
TIDY = 3.0  # seconds between SIGTERM and SIGKILL


class Packages(socketserver.ThreadingTCPServer):
    """Sends the driver's own packages to any client.

    The packages are not secret, and agents know their digests.
    """

    daemon_threads = True

    def __init__(self, host: str) -> None:
        super().__init__((host, 0), _Send, bind_and_activate=False)
        self.socket.close()
        self.socket = interfaces.listening(host, backlog=512)


class _Send(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        from farandole.job.launch.agents.bundle import archive

        self.request.settimeout(SEND)
        with contextlib.suppress(OSError):
            self.request.sendall(archive())


class Command:
    """An ``AgentCluster`` based on a command.

    - ``launcher``: The launcher whose ``placement`` identifies each started program.
    - ``argv``: The command, without the program to start on each place.
    - ``where``: The places, described for the user.
    - ``chosen``: The network interfaces, as set.
    """

    python, private = "", False

    def __init__(self, launcher: str, argv: Sequence[str], where: str, chosen: str = "") -> None:
        self.noun = f"process of {argv[0]}"
        self._launcher = launcher
        self._argv = list(argv)
        self._where = where
        self._addresses = [
            each.address for each in interfaces.chosen(interfaces.interfaces(), chosen)
        ] or ["127.0.0.1"]
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._output: deque[str] = deque(maxlen=LINES)
        self._packages: Packages | None = None

    def describe(self) -> str:
        return self._where

    def address(self) -> tuple[str, str]:
        return (
            self._addresses[0] if len(self._addresses) == 1 else interfaces.EVERYWHERE
        ), self._addresses[0]

    def unreachable(self, host: str) -> str:
        return "--network-interfaces must name interfaces of this machine that the hosts can reach"

    def start(self, facts: Mapping[str, Any]) -> None:
        _, port = interfaces.split(str(facts["address"]))
        addresses = [interfaces.joined(address, port) for address in self._addresses]
        more = {
            "addresses": addresses,
            "launcher": self._launcher,
            "cwd": os.getcwd(),
            **self._offer(),
        }
        instructions = json.dumps({**facts, **more})
        command = [*self._argv, sys.executable, "-c", FIRST]
        try:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, FACTS: instructions},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise SettingsError(f"{self._argv[0]} cannot be started: {error}") from error
        self._reader = threading.Thread(
            target=self._read, name=f"farandole-{self._launcher}", daemon=True
        )
        self._reader.start()

    def _offer(self) -> dict[str, Any]:
        """Return the boot program and the address of the packages, with which an agent loads the
        driver's Farandole.
        """
        from farandole.job.launch.agents import boot
        from farandole.job.launch.agents.bundle import digests

        self._packages = Packages(self.address()[0])
        threading.Thread(
            target=self._packages.serve_forever, name="farandole-packages", daemon=True
        ).start()
        port = self._packages.socket.getsockname()[1]
        return {
            "boot": Path(boot.__file__).read_text("utf-8"),
            "wanted": digests(),
            "packages": [interfaces.joined(address, port) for address in self._addresses],
        }

    def _read(self) -> None:
        assert self._process is not None
        for line in self._process.stdout or ():
            self._output.append(line.rstrip())

    def absent(self, agents: Sequence[int]) -> str:
        return self.gone(agents[0]) or ""

    def gone(self, agent: int) -> str | None:
        code = self._process.poll() if self._process is not None else None
        if code is None or self._reader is None:
            return None
        self._reader.join(TIDY)
        output = "\n".join(line for line in self._output if line)
        how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
        return f"{self._argv[0]} ended {how}" + (f"; it wrote:\n{output}" if output else "")

    def late(self, agents: Sequence[int], status: str) -> str:
        output = "\n".join(self._output)
        return f"only {status} within the start timeout (raise it with --start-timeout)" + (
            f"; {self._argv[0]} wrote:\n{output}" if output else ""
        )

    def close(self, seconds: float) -> None:
        process, deadline = self._process, time.monotonic() + seconds
        if self._packages is not None:
            self._packages.shutdown()
            self._packages.server_close()
        if process is None:
            return
        for end in (None, process.terminate, process.kill):
            if end is not None:
                end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
                break
            deadline = time.monotonic() + TIDY
        if self._reader is not None:
            self._reader.join(TIDY)
        if process.stdout is not None:
            process.stdout.close()
