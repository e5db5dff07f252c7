"""Runs every test, two environments at a time: ``python -m tests.environments [NAME ...]``.

``main`` is this interpreter, for all that needs no other environment. ``NAME.txt`` beside this file pins what another
one holds; its line ``# tests:`` says what is run there. An environment is built once per content of its pins, beside
others of its kind in FARANDOLE_ENVIRONMENTS (by default a folder in the user's cache), so that clones share it.
Farandole itself is taken from this checkout.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# What every environment has: Farandole's own dependencies, and what tests are run with.
COMMON = ("cloudpickle>=2.2", "psutil>=5.9", "rich>=13", "pytest>=8", "pytest-timeout>=2.3")
DEFAULT_HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "farandole" / "environments"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore"}


MAIN = "main"
# Tests wait for processes more than they compute: two environments at once take little longer than one.
AT_ONCE = 2


def names() -> list[str]:
    """In the order in which they begin, the longest first: the largest one is built while ``main`` is tested."""
    largest, *others = sorted(HERE.glob("*.txt"), key=lambda path: (-len(pins(path)), path.stem))
    return [largest.stem, MAIN, *(path.stem for path in others)]


def pins(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if not line.startswith("#")]


def paths(name: str) -> list[str]:
    """What is run in an environment: those of its paths that are there. Of ``main`` all that can be imported."""
    if name == MAIN:
        return []
    found = re.search(r"^# tests: (.+)$", (HERE / f"{name}.txt").read_text(), re.M)
    assert found, f"{name}.txt has no line '# tests: ...'"
    return [path for path in found[1].split() if (ROOT / path.partition("::")[0]).exists()]


def python_of(name: str) -> Path:
    """The interpreter of an environment, which is built now if it is not there."""
    if name == MAIN:
        return Path(sys.executable)
    home = Path(os.environ.get("FARANDOLE_ENVIRONMENTS") or DEFAULT_HOME)
    content = (pins(HERE / f"{name}.txt"), COMMON, sys.version_info[:2])
    key = hashlib.sha256(repr(content).encode()).hexdigest()[:12]
    folder = home / f"{name}-{key}"
    done, python = folder / ".complete", folder / "bin" / "python"
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            for old in home.glob(f"{name}-*"):
                shutil.rmtree(old, ignore_errors=True)
            say(name, "Building the environment (once; a large download) ...")
            begin = time.monotonic()
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
            subprocess.run([*pip, "-r", HERE / f"{name}.txt", *COMMON], check=True)
            done.touch()
            say(name, f"... built in {time.monotonic() - begin:.0f} s")
    return python


def run(name: str) -> tuple[int, list[str]]:
    """Run the tests of an environment: pytest's exit code, and its closing lines: what was skipped, and the count."""
    source = os.pathsep.join([str(ROOT / "src"), str(ROOT / "compat" / "src")])
    own = {} if name == MAIN else {**QUIET, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    command = [str(python_of(name)), "-m", "pytest", "-p", "no:cacheprovider", *paths(name)]
    say(name, f"pytest {' '.join(paths(name))}")
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **own}, text=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    lines = []
    for line in process.stdout or ():
        lines.append(line.rstrip())
        say(name, lines[-1])
    code = process.wait()
    closing = [line for line in lines if line.startswith(("SKIPPED", "FAILED", "ERROR"))]
    counts = [line for line in lines if re.search(r"\d+ (passed|failed|skipped|error)", line)][-1:]
    return code, closing + (counts or ["no tests ran"])


def say(name: str, line: str) -> None:
    """A line of one environment among those of others."""
    print(f"{name:<10} {line}", flush=True)


def main(wanted: Sequence[str]) -> int:
    unknown = set(wanted) - set(names())
    if unknown:
        print(f"no such environment: {', '.join(sorted(unknown))}; there are {', '.join(names())}", file=sys.stderr)
        return 2
    chosen = wanted or names()
    with ThreadPoolExecutor(AT_ONCE) as lanes:
        results = dict(zip(chosen, lanes.map(run, chosen), strict=True))
    for name, (code, closing) in results.items():
        print(f"\n{name}: {'passed' if code == 0 else f'FAILED (pytest exited with {code})'}")
        print("\n".join(f"  {line}" for line in closing))
    return int(any(code for code, _ in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
