"""Jobs of the real command line, marked so that all their leftovers are found."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from farandole.job.launch import reaper
from tests.kits.patience import PATIENT

LIMIT = 40.0  # seconds after which nothing of a job may be left


def wait_until(true: Callable[[], object], seconds: float = 60.0) -> bool:
    """Poll until the condition is true; return False at the timeout."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@dataclass
class Marked:
    """Processes started through this object, and all their children, carry a mark in their
    environment.
    """

    mark: str = field(default_factory=lambda: f"FARANDOLE_TEST={uuid.uuid4().hex}")

    @property
    def env(self) -> dict[str, str]:
        name, _, value = self.mark.partition("=")
        clean = {
            key: text
            for key, text in os.environ.items()
            if not key.startswith(("FARANDOLE_", "HOROVOD_"))
        }
        return {**clean, **PATIENT, name: value, "OMP_NUM_THREADS": "1"}

    def left(self) -> list[int]:
        return list(reaper.marked(self.mark))

    def start(self, *arguments: str, **options: object) -> subprocess.Popen[str]:
        """Start ``farandole ARGUMENTS`` in the background."""
        return self.python("-m", "farandole.cli", *arguments, **options)

    def python(self, *arguments: str, **options: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=self.env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_default_interrupt,
            **options,  # type: ignore[call-overload]
        )

    def run(
        self, *arguments: str, seconds: float = 100.0, **options: object
    ) -> subprocess.CompletedProcess[str]:
        """Run ``farandole ARGUMENTS`` to its end; fails if processes are left."""
        return self.finish(self.start(*arguments, **options), seconds)

    def finish(
        self, process: subprocess.Popen[str], seconds: float = 100.0
    ) -> subprocess.CompletedProcess[str]:
        out, err = process.communicate(timeout=seconds)
        assert wait_until(lambda: not self.left(), LIMIT), (
            f"left behind: {self.left()}\n{out}\n{err}"
        )
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def end(self) -> None:
        for pid in self.left():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _default_interrupt() -> None:
    """Restore SIGINT, which a test run in the background ignores, as its children would."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def marked() -> Iterator[Marked]:
    jobs = Marked()
    try:
        yield jobs
    finally:
        jobs.end()


def read_pids(folder: Path, count: int, seconds: float = 60.0) -> dict[str, int]:
    """Return the ids of the processes that wrote ``NAME.pid`` into ``folder``, once there are
    ``count``.
    """

    def found() -> dict[str, int]:
        texts = {path.stem: path.read_text() for path in folder.glob("*.pid")}
        return {name: int(text) for name, text in texts.items() if text.endswith("\n")}

    assert wait_until(lambda: len(found()) >= count, seconds), f"only {found()} wrote their pid"
    return found()
