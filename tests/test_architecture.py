"""The order of rooms, and that a light import stays light.

Every import counts, wherever it stands: inside a function it still makes one room know another, and
so does one under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "farandole"

# From top to bottom. A room imports only from rooms on lines below its own.
ROOMS = """
__init__
estimators
jobs doctor spark
cli worker compat
inference
keras
torch tensorflow jax mxnet numpy
elastic data
strategies
frontend
context launch
engine ps groups
observe surroundings
collectives transports report
kernels
store
log handshake liveness network
contracts
config
registry autoload threads interrupts
types errors lazy pickled
"""
# The driver's side and the rank's side of a job meet in `report` alone.
DRIVER_ONLY = {"launch": ("engine", "observe", "collectives", "transports", "kernels")}
LEVEL = {room: number for number, line in enumerate(ROOMS.split("\n")) for room in line.split()}

# Rooms that stand already; the others of ROOMS are to come.
BUILT = [
    "estimators",
    "spark",
    "cli",
    "worker",
    "compat",
    "autoload",
    "inference",
    "keras",
    "torch",
    "tensorflow",
    "jax",
    "mxnet",
    "numpy",
    "data",
    "strategies",
    "frontend",
    "context",
    "engine",
    "groups",
    "observe",
    "surroundings",
    "launch",
    "report",
    "collectives",
    "transports",
    "kernels",
    "store",
    "config",
    "registry",
    "log",
    "handshake",
    "liveness",
    "network",
    "contracts",
    "threads",
    "interrupts",
    "types",
    "errors",
    "lazy",
    "pickled",
]

# A heavy package, and the names of the files (or folders) that may import it.
HEAVY = {
    "torch": "torch torchrun lightning",
    "tensorflow": "tensorflow tf_keras",
    "keras": "keras",
    "tf_keras": "tf_keras keras",
    "jax": "jax",
    "mxnet": "mxnet",
    "pyspark": "spark",
    "ray": "ray",
    "mpi4py": "mpi",
    "mlflow": "mlflow",
    "lightning": "lightning",
    "sklearn": "",
    "matplotlib": "figures",
    "pandas": "",
    "scipy": "",
    "IPython": "",
    "torchvision": "",
    "transformers": "",
    "pyarrow": "parquet",
    "fsspec": "store",
    "onnxruntime": "onnx",
}


class Import(NamedTuple):
    line: int
    module: str


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    """``engine/fusion.py`` as ``engine.fusion``, ``engine/__init__.py`` as ``engine``; the package
    as ``__init__``.
    """
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def room(module: str) -> str:
    """The room of ``engine.fusion``. ``python -m farandole`` is the command. The arithmetic that
    all wires share is one of its own, inside collectives/.
    """
    if module == "__main__":
        return "cli"
    return "kernels" if module == "collectives.kernels" else module.split(".")[0]


def is_module(module: str) -> bool:
    path = PACKAGE.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports(source: str) -> Iterator[Import]:
    """Full names of what is imported: ``from a import b`` gives ``a.b``. ``import_module("a.b")``
    counts.
    """
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
            and ast.unparse(node.func).endswith("import_module")
            and node.args
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
    """What breaks the order of rooms in one file."""
    mine = room(module)
    return [
        f"line {line}: {mine} imports {target}, which is not below it"
        for line, target in own_targets(source)
        if room(target) != mine
        and (LEVEL[room(target)] <= LEVEL[mine] or room(target) in DRIVER_ONLY.get(mine, ()))
    ]


def heavy(module: str, source: str) -> list[str]:
    """Heavy packages that one file imports without being named for them."""
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


@pytest.mark.parametrize("path", files(), ids=lambda path: dotted(path))
def test_no_file_outgrows_500_lines(path: Path) -> None:
    assert lines(path) <= 500


# What a user of a framework or a cluster has to read stays short: folders or files, and the lines
# of each.
LIMITS = {
    "estimators/trainers": 200,
    "launch/launchers/ssh.py": 200,
    "launch/launchers/slurm.py": 150,
    "launch/launchers/mpi.py": 150,
}
TOGETHER = {"launch/launchers/spark": 400}


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
    assert {room(dotted(path)) for path in files()} - LEVEL.keys() == set()


@pytest.mark.parametrize("name", BUILT)
def test_a_room_is_found_by_its_name(name: str) -> None:
    assert is_module("collectives.kernels" if name == "kernels" else name)


def test_the_architecture_page_names_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert [name for name in LEVEL if name != "__init__" and name not in page] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("store", "from farandole.launch import plan"),
        ("transports.tcp", "import farandole.collectives.over"),
        ("launch.driver", "def later():\n    from farandole.engine.fusion import plan"),
        ("engine.engine", "import importlib\nimportlib.import_module('farandole.context')"),
        ("errors", "from farandole.types import DType"),
        ("frontend.ops", "from farandole import run"),
        ("types", "if TYPE_CHECKING:\n    from farandole.contracts import Link"),
    ],
)
def test_the_order_check_sees_what_is_wrong(module: str, source: str) -> None:
    assert len(misplaced(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("cli", "from farandole import __version__"),
        ("transports.shm.transport", "from farandole.collectives import kernels"),
        ("engine.engine", "from farandole.engine.cache import SignatureCache"),
        ("context", "from farandole.engine import Engine\nfrom farandole.store import StoreClient"),
    ],
)
def test_the_order_check_lets_pass_what_is_right(module: str, source: str) -> None:
    assert misplaced(module, source) == []


def test_the_heavy_check_sees_what_is_wrong() -> None:
    assert heavy("frontend.ops", "def f():\n    import torch.distributed") != []
    assert heavy("torch", "from torch import nn") == []
    assert heavy("torch.optimizer", "from torch import nn") == []
    assert heavy("launch.driver", "from matplotlib import pyplot") != []


def fresh(code: str) -> str:
    """What ``code`` prints in a new interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module", ["farandole", "farandole.cli", "farandole.launch.driver", "farandole.worker"]
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
    "farandole.surroundings",
    "farandole.launch.agents.allocation",
    "farandole.observe.timeline",
    "farandole.observe.replicas",
    "farandole.observe.order",
    "farandole.observe.autotune",
    "farandole.observe.stall.report",
    "farandole.observe.stall.stacks",
    "farandole.transports.tcp",
}


def test_a_plain_job_loads_nothing_that_it_does_not_use() -> None:
    rank = (
        "import sys, numpy; before = {*sys.modules}; import farandole.numpy as hvd; hvd.init();"
        "hvd.allreduce(numpy.ones(3)); print('RANK', *{*sys.modules} - before)"
    )
    job = ["run", "-np", "2", "--show-ranks", "0", sys.executable, "-c", rank]
    seen = fresh(
        "import sys; before = {*sys.modules}; from farandole.cli import main;"
        f" main({job!r});print('DRIVER', *{{*sys.modules}} - before); import farandole.worker;"
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
