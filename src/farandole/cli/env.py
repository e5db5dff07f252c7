"""``farandole env``: information for a bug report.

Nothing heavy is imported: versions come from the packages' metadata.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata

from farandole.base.host import content, cores, quota
from farandole.cli import machine
from farandole.cli.parsing import Parser, say

PACKAGES = (
    "farandole",
    "farandole-horovod",
    "horovod",
    "numpy",
    "cloudpickle",
    "psutil",
    "rich",
    "torch",
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "tf_keras",
    "jax",
    "jaxlib",
    "optax",
    "flax",
    "mxnet",
    "pyspark",
    "mpi4py",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "PyYAML",
)
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "mxnet", "pyspark")
VARIABLES = re.compile(
    "(FARANDOLE|HOROVOD|OMP|MKL|OPENBLAS|NCCL|CUDA|NVIDIA|TORCH|PYTORCH|TF|KERAS|JAX|XLA|MALLOC"
    "|GLIBC|OMPI|PMI|PMIX|SLURM|SPARK|GLOO|KMP)_.*"
    "|(VIRTUAL_ENV|CONDA_PREFIX|PYTHONPATH|PYTHONHOME|LD_PRELOAD|LD_LIBRARY_PATH|TMPDIR)"
)
SECRET = re.compile("SECRET|TOKEN|PASS|PWD|CREDENTIAL|AUTH|KEY|COOKIE", re.IGNORECASE)
USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
HIDDEN = "(hidden)"

Facts = dict[str, dict[str, str]]


def parser() -> Parser:
    made = Parser(
        prog="farandole env",
        example="farandole env > report.txt",
        description=(
            "Print facts about this machine and its installed packages, for a bug report. Values"
            " of variables that look like secrets are hidden."
        ),
    )
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(list(arguments))
    found = facts(os.environ)
    return say(
        json.dumps(found, indent=2)
        if options.json
        else table(found, shutil.get_terminal_size().columns)
    )


def facts(env: Mapping[str, str]) -> Facts:
    """Return sections of facts, each a name and a text. An unavailable fact gives the reason."""
    return {
        "versions": _versions(),
        "machine": _machine(),
        "GPUs": _gpus(env),
        "wires": {"shared memory": _tried(_share_memory), "tcp": _tried(_connect)},
        "limits": _limits(),
        "environment": variables(env),
    }


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables relevant to a job, without possible secrets."""
    found = {}
    for name in sorted(env):
        if VARIABLES.fullmatch(name):
            found[name] = HIDDEN if SECRET.search(name) else USERINFO.sub(f"{HIDDEN}@", env[name])
    return found


def table(found: Facts, columns: int) -> str:
    """Return the facts in two columns, wrapped to the terminal."""
    indent = (
        max(len(name) for section in ("versions", "machine", "limits") for name in found[section])
        + 4
    )
    lines: list[str] = []
    for title, section in found.items():
        lines += ["", title] if lines else [title]
        for name, text in section.items() or {"none": ""}.items():
            label = f"  {name}"
            head = label.ljust(indent) if len(label) < indent else f"{label} "
            wrapped = textwrap.wrap(
                text, max(20, columns - 1 - indent), break_on_hyphens=False
            ) or [""]
            if len(head) > indent and len(head) + len(wrapped[0]) >= columns:
                lines.append(head.rstrip())
                head = " " * indent
            lines += [
                f"{head}{wrapped[0]}".rstrip(),
                *(" " * indent + line for line in wrapped[1:]),
            ]
    return "\n".join(lines)


def _versions() -> dict[str, str]:
    found = {
        "Python": (
            f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})"
        )
    }
    for name in PACKAGES:
        try:
            found[name] = str(metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    found.setdefault("farandole", "not installed: running from a source tree")
    missing = [name for name in FRAMEWORKS if name not in found and f"{name}-cpu" not in found]
    return {**found, "not installed": ", ".join(missing) or "(all frameworks are)"}


def _machine() -> dict[str, str]:
    system = (
        platform.freedesktop_os_release().get("PRETTY_NAME", "")
        if _is_named()
        else platform.system()
    )
    limit = quota()
    share = f", {limit:g} by control group" if limit < 1 << 20 else ""
    memory = machine.memory()
    bound = machine.memory_limit()
    allowed = len(os.sched_getaffinity(0))
    capped = f", control group limit {_size(bound)}" if bound < memory.total else ""
    return {
        "system": system,
        "kernel": f"{platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()) or "unknown",
        "processor": _processor(),
        "cores": (
            f"{cores()} usable ({os.cpu_count()} in the machine, {allowed} by affinity{share})"
        ),
        "memory": f"{_size(memory.total)}, {_size(memory.free)} free{capped}",
    }


def _is_named() -> bool:
    return any(os.path.exists(path) for path in ("/etc/os-release", "/usr/lib/os-release"))


def _processor() -> str:
    for line in content("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpus(env: Mapping[str, str]) -> dict[str, str]:
    query = [
        "nvidia-smi",
        "--query-gpu=index,name,memory.total,driver_version",
        "--format=csv,noheader",
    ]
    if shutil.which(query[0]) is None:
        return {}
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"nvidia-smi": f"fails: {error}"}
    if done.returncode:
        return {"nvidia-smi": f"fails: {(done.stdout + done.stderr).strip()}"}
    rows = [line.partition(", ") for line in done.stdout.splitlines() if line.strip()]
    return {**{index: rest for index, _, rest in rows}, "visible": str(machine.visible_gpus(env))}


def _tried(attempt: Callable[[], str]) -> str:
    try:
        return f"works: {attempt()}"
    except (OSError, ImportError) as error:  # a broken installation is worth reporting too
        return f"does not work: {error}"


def _share_memory() -> str:
    """Share memory like the ranks of a host: anonymous memory, passed over an abstract socket."""
    name = b"\0farandole-env-" + os.urandom(16).hex().encode()
    with socket.socket(socket.AF_UNIX) as door, socket.socket(socket.AF_UNIX) as caller:
        door.bind(name)
        door.listen(1)
        caller.connect(name)
        taker, _ = door.accept()
        memory = os.memfd_create("farandole-env")
        given: list[int] = []
        try:
            os.ftruncate(memory, 1)
            socket.send_fds(caller, [b"x"], [memory])
            _, given, _, _ = socket.recv_fds(taker, 1, 1)
            if not given or os.fstat(given[0]).st_ino != os.fstat(memory).st_ino:
                raise OSError("a Unix socket does not pass file descriptors")
        finally:
            taker.close()
            for fd in (memory, *given):
                os.close(fd)
    return "memfd and abstract Unix sockets"


def _connect() -> str:
    import psutil

    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        socket.create_connection(door.getsockname(), 5.0),
    ):
        pass
    try:
        up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    except OSError:  # a /proc that shows only processes
        return "127.0.0.1"
    found = [
        f"{name} {address.address}"
        for name, addresses in psutil.net_if_addrs().items()
        if name in up
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    ]
    return ", ".join(found)


def _limits() -> dict[str, str]:
    names = {
        "open files": resource.RLIMIT_NOFILE,
        "processes": resource.RLIMIT_NPROC,
        "locked memory": resource.RLIMIT_MEMLOCK,
        "address space": resource.RLIMIT_AS,
    }
    found = {}
    for name, number in names.items():
        soft, hard = resource.getrlimit(number)
        in_bytes = name in ("locked memory", "address space")
        found[name] = f"{_limit(soft, in_bytes)} (hard: {_limit(hard, in_bytes)})"
    try:
        shm = shutil.disk_usage("/dev/shm")
        found["/dev/shm"] = (
            f"{_size(shm.total)}, {_size(shm.free)} free (not used: shared memory is anonymous)"
        )
    except OSError as error:
        found["/dev/shm"] = f"none ({error}); not used: shared memory is anonymous"
    return found


def _limit(value: int, in_bytes: bool) -> str:
    if value == resource.RLIM_INFINITY:
        return "unlimited"
    return _size(value) if in_bytes else str(value)


def _size(number: int) -> str:
    value = float(number)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"
