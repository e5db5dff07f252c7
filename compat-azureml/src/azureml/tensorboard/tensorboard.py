"""``Tensorboard``: the event files of runs, shown by TensorBoard."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from azureml._farandole.texts import say
from azureml.exceptions import UserErrorException

_PATIENCE = 60.0  # seconds until TensorBoard accepts connections
_PLACES = {"outputs": "", "tensorboard": "-mirror"}  # folders of a run, and endings of links


class Tensorboard:
    """A folder with links to the event files of runs, and the process that shows it."""

    def __init__(
        self,
        runs: Any,
        local_root: str | None = None,
        port: int = 6006,
        use_display_name: bool = False,
    ) -> None:
        """Prepare TensorBoard for runs.

        Arguments:
            runs: A run or a list of runs. Active runs are followed. An empty list shows the
                existing files in ``local_root``.
            local_root: The folder of the links; by default a new temporary folder.
            port: The port of TensorBoard on this host.
            use_display_name: Name the links by the display names of the runs instead of their ids.
        """
        self._runs = list(runs) if isinstance(runs, Sequence) else [runs]
        self._root = local_root or tempfile.mkdtemp(prefix="tensorboard-")
        self._port = port
        self._by_name = use_display_name
        self._links: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, start_browser: bool = False) -> str | None:
        """Start TensorBoard and return its address; None if it is not installed.

        ``start_browser``: open the address in a browser. Raises UserErrorException if TensorBoard
        does not start.
        """
        self._link()
        if importlib.util.find_spec("tensorboard") is None:
            say(
                f"TensorBoard is not installed; the event files are below {self._root}: pip install"
                " tensorboard, then call start() again"
            )
            return None
        address = f"http://127.0.0.1:{self._port}/"
        if self._process is None:
            self._process = self._started()
        if start_browser:
            import webbrowser

            webbrowser.open(address)
        say(address)
        return address

    def stop(self) -> None:
        """End TensorBoard and remove the links."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None
        for link in self._links:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link)
        self._links = []

    def _link(self) -> None:
        """Link the folders of event files of the runs, even if they do not exist yet."""
        os.makedirs(self._root, exist_ok=True)
        for run in self._runs:
            name = run.display_name if self._by_name and run.display_name else run.id
            for place, suffix in _PLACES.items():
                link = os.path.join(self._root, f"{name.replace(os.sep, '_')}{suffix}")
                with contextlib.suppress(FileExistsError):
                    os.symlink(run._folder.file(place), link)
                    self._links.append(link)

    def _started(self) -> subprocess.Popen[bytes]:
        """Start TensorBoard and return its process, once it accepts connections.

        Raises UserErrorException if its port is in use, if it ends, or if it does not answer within
        a minute.
        """
        if self._answers():
            raise UserErrorException(
                f"port {self._port} is in use by another server; choose another port, such as"
                f" Tensorboard(run, port={self._port + 1})"
            )
        words = ["--logdir", self._root, "--host", "127.0.0.1", "--port", str(self._port)]
        with tempfile.TemporaryFile() as errors:  # a pipe would fill, because it is not read
            process = subprocess.Popen(
                [sys.executable, "-m", "tensorboard.main", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
            deadline = time.monotonic() + _PATIENCE
            while time.monotonic() < deadline:
                if process.poll() is not None:
                    errors.seek(0)
                    text = errors.read().decode(errors="replace").strip()
                    raise UserErrorException(
                        f"TensorBoard ended with code {process.returncode}: {text[-500:]}; choose a"
                        f" port other than {self._port}, or look at its installation"
                    )
                if self._answers():
                    return process
                time.sleep(0.2)
        process.kill()
        process.wait()
        raise UserErrorException(
            f"TensorBoard did not answer on port {self._port} within {_PATIENCE:.0f} seconds"
        )

    def _answers(self) -> bool:
        """Return whether a server accepts connections on the port."""
        try:
            socket.create_connection(("127.0.0.1", self._port), 1.0).close()
        except OSError:
            return False
        return True
