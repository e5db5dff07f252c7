"""The order of rooms, and light imports. Every import counts: an import inside a function, or under
TYPE_CHECKING, also makes one room depend on another.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "farandole"

# From top to bottom. A room imports only from rooms on lines below its own. What users import is at
# the top of the package; the other rooms are in four wings (core, job, net, base).
ROOMS = """
__init__
dashboard
estimators jobs
spark
cli job.worker compat
inference
keras
torch tensorflow jax mxnet numpy
data
strategies
checks
core.api
job.context job.launch
core.gossip
core.engine core.ps core.groups
core.observe job.bootstrap job.tracking
core.collectives core.transports job.report
core.kernels job.spark
net.store
net.handshake net.liveness net.interfaces
job.runs job.elastic
job.config
job.plugins
base
errors
"""
WINGS = ("core", "job", "net")  # base is one room
# The driver's side and the rank's side of a job meet in `job.report` alone.
DRIVER_ONLY = {
    "job.launch": (
        "core.engine",
        "core.observe",
        "core.collectives",
        "core.transports",
        "core.kernels",
    )
}
LEVEL = {room: number for number, line in enumerate(ROOMS.split("\n")) for room in line.split()}
OPEN = {"__init__", *WINGS}  # files that belong to no room, and import nothing

# A heavy package, and the names of the files (or folders) that may import it.
HEAVY = {
    "torch": "torch torchrun lightning",
    "tensorflow": "tensorflow tf_keras",
    "keras": "keras",
    "tf_keras": "tf_keras keras",
    "jax": "jax",
    "mxnet": "mxnet",
    "pyspark": "spark",
    "mpi4py": "mpi",
    "mlflow": "mlflow",
    "lightning": "lightning",
    "sklearn": "",
    "matplotlib": "figures",
    "pandas": "",
    "scipy": "",
    "IPython": "widget",
    "torchvision": "",
    "transformers": "",
    "pyarrow": "parquet",
    "fsspec": "store",
    "onnxruntime": "onnx",
    "starlette": "server",
    "uvicorn": "server",
    "anywidget": "widget",
}


class Import(NamedTuple):
    line: int
    module: str


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    """``core/engine/fusion.py`` as ``core.engine.fusion``, ``core/engine/__init__.py`` as ``engine``;
    the package as ``__init__``.
    """
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def room(module: str) -> str:
    """Return the room of a module: ``core.engine`` for ``core.engine.fusion``, ``data`` for
    ``data.order``. ``python -m farandole`` is the command.
    """
    if module == "__main__":
        return "cli"
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] in WINGS else 1])


def is_module(module: str) -> bool:
    path = PACKAGE.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports(source: str) -> Iterator[Import]:
    """Full names of what is imported: ``from a import b`` gives ``a.b``. ``import_module("a.b")``
    counts.
    """
    return iter(_imports(source))


@cache  # several tests look at each file
def _imports(source: str) -> tuple[Import, ...]:
    return tuple(_found_imports(source))


def _found_imports(source: str) -> Iterator[Import]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, (
                f"line {node.lineno}: imports are absolute, so that the room can be read"
            )
            yield from (Import(node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and node.args
            and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module"
        ):
            target = node.args[0]
            if isinstance(target, ast.Constant):
                yield Import(node.lineno, str(target.value))


def own_targets(source: str) -> Iterator[Import]:
    """The modules of this package that a source imports, without the ``farandole.``."""
    for line, module in imports(source):
        if module in ("farandole", "farandole.__version__") or module.split(".")[0] != "farandole":
            continue
        inside = module.removeprefix("farandole.")
        while inside and not is_module(inside):  # the last parts are names inside a module
            inside = inside.rpartition(".")[0]
        yield Import(line, inside or "__init__")


def misplaced(module: str, source: str) -> list[str]:
    """Return the imports of one file that break the order of rooms."""
    mine = room(module)
    return [
        f"line {line}: {mine} imports {target}, which is not below it"
        for line, target in own_targets(source)
        if room(target) != mine
        and (LEVEL[room(target)] <= LEVEL[mine] or room(target) in DRIVER_ONLY.get(mine, ()))
    ]


def heavy(module: str, source: str) -> list[str]:
    """Return the heavy packages that a file not named for them imports."""
    return [
        f"line {line}: {target} may be imported only in a file named {HEAVY[top]!r}"
        for line, target in imports(source)
        for top in [target.split(".")[0]]
        if top in HEAVY and not {*HEAVY[top].split()} & {*module.split(".")}
    ]


@pytest.mark.parametrize("path", files(), ids=lambda path: dotted(path))
def test_a_room_imports_only_from_rooms_below_it(path: Path) -> None:
    assert misplaced(dotted(path), path.read_text()) == []


@pytest.mark.parametrize("path", files(), ids=lambda path: dotted(path))
def test_heavy_packages_live_in_the_file_named_for_them(path: Path) -> None:
    assert heavy(dotted(path), path.read_text()) == []


# What a user of a framework or a cluster has to read stays short: folders or files, and the lines
# of each.
LIMITS = {
    "estimators/trainers": 240,
    "job/launch/launchers/ssh.py": 240,
    "job/launch/launchers/slurm.py": 180,
    "job/launch/launchers/mpi.py": 180,
}
TOGETHER = {"job/launch/launchers/spark": 500}


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


@pytest.mark.parametrize("name", LIMITS)
def test_trainers_and_launchers_stay_short(name: str) -> None:
    path = PACKAGE / name
    found = {
        dotted(each): lines(each) for each in ([path] if path.is_file() else path.rglob("*.py"))
    }
    assert found
    assert {each: count for each, count in found.items() if count > LIMITS[name]} == {}


@pytest.mark.parametrize("name", TOGETHER)
def test_the_files_of_a_launcher_stay_short_together(name: str) -> None:
    found = [lines(path) for path in (PACKAGE / name).rglob("*.py")]
    assert 0 < sum(found) <= TOGETHER[name]


def test_every_file_belongs_to_a_room() -> None:
    assert {room(dotted(path)) for path in files()} - LEVEL.keys() - OPEN == set()


@pytest.mark.parametrize("name", LEVEL)
def test_a_room_is_found_by_its_name(name: str) -> None:
    assert is_module(name)


def test_the_architecture_page_names_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert [name for name in LEVEL if name != "__init__" and name not in page] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("net.store", "from farandole.job.launch import plan"),
        ("core.transports.tcp", "import farandole.core.collectives.over"),
        ("job.launch.driver", "def later():\n    from farandole.core.engine.fusion import plan"),
        (
            "core.engine.engine",
            "import importlib\nimportlib.import_module('farandole.job.context')",
        ),
        ("errors", "from farandole.base.types import DType"),
        ("core.api.ops", "from farandole import run"),
        ("base.types", "if TYPE_CHECKING:\n    from farandole.net.store import StoreClient"),
    ],
)
def test_the_check_of_rooms_reports_invalid_imports(module: str, source: str) -> None:
    assert len(misplaced(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("cli", "from farandole import __version__"),
        ("core.transports.shm.transport", "from farandole.core import kernels"),
        ("core.engine.engine", "from farandole.core.engine.cache import SignatureCache"),
        (
            "job.context",
            "from farandole.core.engine import Engine\nfrom farandole.net.store import StoreClient",
        ),
    ],
)
def test_the_check_of_rooms_accepts_valid_imports(module: str, source: str) -> None:
    assert misplaced(module, source) == []


def test_the_check_of_heavy_packages_reports_imports() -> None:
    assert heavy("core.api.ops", "def f():\n    import torch.distributed") != []
    assert heavy("torch", "from torch import nn") == []
    assert heavy("torch.optimizer", "from torch import nn") == []
    assert heavy("job.launch.driver", "from matplotlib import pyplot") != []


def fresh(code: str) -> str:
    """Return the output of ``code`` in a new interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module", ["farandole", "farandole.cli", "farandole.job.launch.driver", "farandole.job.worker"]
)
def test_starting_loads_no_heavy_package_and_no_numpy(module: str) -> None:
    unwanted = sorted({*HEAVY, "numpy"})
    loaded = fresh(
        f"import sys, {module}; print([name for name in {unwanted} if name in sys.modules])"
    )
    assert loaded == "[]"


# Each of these takes a millisecond or more of every job's start, and a plain job needs none of
# them.
UNUSED = {
    "dataclasses",
    "inspect",
    "logging",
    "hashlib",
    "hmac",
    "datetime",
    "traceback",
    "uuid",
    "platform",
    "tempfile",
    "random",
    "shutil",
    "html",
    "cloudpickle",
    "encodings.idna",
    "ssl",
    "asyncio",
    "numpy.ma",
    "farandole.job.bootstrap",
    "farandole.job.runs.folder",
    "farandole.job.tracking",
    "farandole.jobs",
    "farandole.job.launch.agents.allocation",
    "farandole.core.observe.timeline",
    "farandole.checks.finding",
    "farandole.checks.reporting",
    "farandole.checks.replicas",
    "farandole.checks.call_order",
    "farandole.core.observe.autotune",
    "farandole.core.observe.stall.report",
    "farandole.core.observe.stall.stacks",
    "farandole.core.transports.tcp",
}


def test_a_plain_job_loads_nothing_that_it_does_not_use() -> None:
    rank = (
        "import sys, numpy; before = {*sys.modules}; import farandole.numpy as hvd; hvd.init();"
        "hvd.allreduce(numpy.ones(3)); print('RANK', *{*sys.modules} - before)"
    )
    job = ["run", "-np", "2", "--show-ranks", "0", sys.executable, "-c", rank]
    seen = fresh(
        "import sys; before = {*sys.modules}; from farandole.cli import main;"
        f" main({job!r});print('DRIVER', *{{*sys.modules}} - before); import farandole.job.worker;"
        " print('WORKER', *{*sys.modules} - before)"
    )
    loaded = {line.split()[0].rpartition(":")[2]: {*line.split()} for line in seen.splitlines()}
    assert loaded.keys() == {"RANK", "DRIVER", "WORKER"}
    assert {
        process: sorted(modules & UNUSED) for process, modules in loaded.items() if modules & UNUSED
    } == {}


def test_the_import_loads_nothing_but_typing() -> None:
    code = (
        "import sys, typing, __future__; before = {*sys.modules}; import farandole;"
        " print(*{*sys.modules} - before)"
    )
    assert fresh(code) == "farandole"
